// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/xveth/xveth/pkg/afxdp"
	"github.com/xveth/xveth/pkg/bulk"
	"github.com/xveth/xveth/test/rig"
)

const (
	// wireFrame is the shortest frame of Ethernet, without its checksum.
	wireFrame = 60
	wireBatch = afxdp.DefaultBatch
	// etherType is one for experiments: no stack knows it.
	etherType = 0x88b5
	// xdpFrames is enough for the rings of a socket, and for what is held.
	xdpFrames = 8192
)

// afxdpScenario compares two ways to send frames over a veth and receive them: AF_XDP sockets
// in copy mode, and packet sockets with a system call for each batch. Each has a wire of its
// own, because the XDP program takes what a packet socket would see.
func afxdpScenario() (*scenario, error) {
	from, to, err := newHosts()
	if err != nil {
		return nil, err
	}
	s := &scenario{
		params: map[string]any{"frame_size": wireFrame, "batch": wireBatch, "mode": "copy"},
		ratios: []ratio{{"afxdp/packet", "afxdp", "packet"}},
		end:    func() error { from.Close(); to.Close(); return nil },
	}
	for _, p := range []struct {
		name string
		open func(w *wire) (crossing, error)
	}{{"afxdp", openXDP}, {"packet", openPacket}} {
		w, err := newWire(from, to, p.name)
		if err != nil {
			return nil, errors.Join(err, s.end())
		}
		c, err := p.open(w)
		if err != nil {
			return nil, errors.Join(err, s.end())
		}
		s.paths = append(s.paths, crossingPath(p.name, c))
		end := s.end
		s.end = func() error { return errors.Join(c.close(), end()) }
	}
	return s, nil
}

// wirePacket is a frame that nobody answers.
func wirePacket() []byte {
	b := make([]byte, wireFrame)
	copy(b, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2})
	binary.BigEndian.PutUint16(b[12:], etherType)
	return b
}

// xdpCrossing is a Generator at one end and a Sink at the other.
type xdpCrossing struct {
	w        *wire
	near     *afxdp.Socket
	far      *afxdp.Socket
	program  *afxdp.Program
	gen      *afxdp.Generator
	sink     *afxdp.Sink
	closeAll []func() error
}

func openXDP(w *wire) (crossing, error) {
	x := &xdpCrossing{w: w}
	if err := x.open(); err != nil {
		return nil, errors.Join(err, x.close())
	}
	return x, nil
}

func (x *xdpCrossing) open() (err error) {
	if x.near, err = x.socket(x.w.from, afxdp.Config{Interface: x.w.near, TxOnly: true}); err != nil {
		return err
	}
	if x.far, err = x.socket(x.w.to, afxdp.Config{Interface: x.w.far, RxOnly: true}); err != nil {
		return err
	}
	err = x.w.to.Do(func() (err error) {
		x.program, err = afxdp.Attach(x.w.far, afxdp.ProgramConfig{})
		return err
	})
	if err != nil {
		return err
	}
	x.closeAll = append(x.closeAll, x.program.Close)
	if err := x.program.Serve(x.far); err != nil {
		return err
	}
	x.gen, err = afxdp.NewGenerator(x.near, afxdp.GeneratorConfig{Packet: wirePacket(), Batch: wireBatch})
	if err != nil {
		return err
	}
	x.sink, err = afxdp.NewSink(x.far, afxdp.SinkConfig{Batch: wireBatch})
	return err
}

// socket opens one on a host, with a pool of its own.
func (x *xdpCrossing) socket(h *rig.Host, c afxdp.Config) (s *afxdp.Socket, err error) {
	pool, err := bulk.NewPool(bulk.Config{Frames: xdpFrames, FrameSize: frameSize, Mapped: true})
	if err != nil {
		return nil, fmt.Errorf("make pool: %w", err)
	}
	x.closeAll = append(x.closeAll, pool.Close)
	umem, err := afxdp.NewUMEM(pool, afxdp.Mode{Copy: afxdp.Copy})
	if err != nil {
		return nil, err
	}
	err = h.Do(func() (err error) {
		s, err = umem.Open(c)
		return err
	})
	if err == nil {
		x.closeAll = append(x.closeAll, s.Close)
	}
	return s, err
}

func (x *xdpCrossing) send(ctx context.Context) (uint64, error) { return x.gen.Run(ctx, 0) }

func (x *xdpCrossing) receive(ctx context.Context) error { return x.sink.Run(ctx) }

func (x *xdpCrossing) received() uint64 {
	n, _ := x.sink.Counts()
	return n
}

func (x *xdpCrossing) lost() (uint64, error) {
	s, err := x.far.Stats()
	if err != nil {
		return 0, err
	}
	_, n, err := x.w.counts()
	return s.Lost() + n, err
}

func (x *xdpCrossing) close() error {
	var errs []error
	for i := len(x.closeAll) - 1; i >= 0; i-- {
		errs = append(errs, x.closeAll[i]())
	}
	return errors.Join(errs...)
}
