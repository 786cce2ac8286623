// SPDX-License-Identifier: Apache-2.0

// Package pipeline is the frame pipelines that the benchmarks measure, each on one
// goroutine. It is not measuring itself: pkg/bench does that.
//
// The package is also compiled against the variants of pkg/bulk (no fragments, a registry
// of pools), from this same source.
package pipeline

import (
	"encoding/binary"
	"fmt"

	"github.com/xveth/xveth/pkg/bulk"
	"github.com/xveth/xveth/pkg/ptrring"
)

const (
	frameSize = 2048
	headroom  = 256
	dataSize  = 64
	// budget is NAPI's.
	budget = 64
	// ringSize is that of a veth.
	ringSize = 256
	// poolFrames is more than can be in flight in one step.
	poolFrames = 1024
	// otherPools stand for the receive queues of a network card that have pools of their
	// own: a registry of one pool would not be one.
	otherPools = 15

	etherTypeOffset = 12
	addressOffset   = 30
	etherIPv4       = 0x0800
)

// Line is one pipeline: a driver that receives frames into a pool's buffers, a ring, and
// the poll loop at the other end.
type Line struct {
	pool   *bulk.Pool
	pools  []*bulk.Pool // pool among others
	rx     *bulk.Cache
	ring   *ptrring.Ring[bulk.Frame]
	tx     *bulk.TxQueue
	poller *bulk.Poller
	batch  [budget]*bulk.Frame
	seen   uint32
}

func newLine() (*Line, error) {
	l := &Line{}
	for i := range otherPools + 1 {
		frames := 1
		if i == otherPools/2 {
			frames = poolFrames
		}
		p, err := bulk.NewPool(bulk.Config{Frames: frames, FrameSize: frameSize, Headroom: headroom})
		if err != nil {
			return nil, fmt.Errorf("make pool: %w", err)
		}
		l.pools = append(l.pools, p)
	}
	l.pool = l.pools[otherPools/2]
	l.rx = l.pool.NewCache(budget)
	var err error
	if l.ring, err = ptrring.New[bulk.Frame](ringSize, ptrring.Options{}); err != nil {
		return nil, fmt.Errorf("make ring: %w", err)
	}
	l.tx = bulk.NewTxQueue(bulk.ToRing(l.ring))
	for i := range poolFrames {
		b := l.pool.FrameAt(uint64(i * frameSize)).Buffer()[headroom:]
		binary.BigEndian.PutUint16(b[etherTypeOffset:], etherIPv4)
		binary.BigEndian.PutUint32(b[addressOffset:], uint32(i))
	}
	return l, nil
}

// NewDrop makes a line whose end drops every frame.
func NewDrop() (*Line, error) {
	l, err := newLine()
	if err != nil {
		return nil, err
	}
	packets, err := bulk.NewPacketPool(budget)
	if err != nil {
		return nil, fmt.Errorf("make packets: %w", err)
	}
	l.poller, err = bulk.NewPoller(bulk.PollConfig{
		Ring: l.ring, Verdict: func(f *bulk.Frame) bulk.Verdict { return l.look(f, bulk.Drop) },
		Packets: packets, Deliver: bulk.FreePackets,
	})
	return l, err
}

// NewPass makes a line whose end passes every frame, in batches, with packets allocated in
// bulk or one by one.
func NewPass(batch int, inBulk bool) (*Line, error) {
	l, err := newLine()
	if err != nil {
		return nil, err
	}
	packets, err := bulk.NewPacketPool(poolFrames)
	if err != nil {
		return nil, fmt.Errorf("make packets: %w", err)
	}
	var from bulk.Allocator = packets
	if !inBulk {
		from = oneByOne{packets}
	}
	l.poller, err = bulk.NewPoller(bulk.PollConfig{
		Ring: l.ring, Verdict: func(f *bulk.Frame) bulk.Verdict { return l.look(f, bulk.Pass) },
		Packets: from, Deliver: bulk.FreePackets, Batch: batch,
	})
	return l, err
}

// oneByOne allocates as the kernel did before the patch.
type oneByOne struct{ pool *bulk.PacketPool }

// AllocBulk takes the lock for each packet.
func (o oneByOne) AllocBulk(dst []*bulk.Packet) int {
	for i := range dst {
		k := o.pool.Alloc()
		if k == nil {
			return i
		}
		dst[i] = k
	}
	return len(dst)
}

// look is the program: it reads the frame's headers.
func (l *Line) look(f *bulk.Frame, v bulk.Verdict) bulk.Verdict {
	b := f.Data()
	if len(b) < dataSize || binary.BigEndian.Uint16(b[etherTypeOffset:]) != etherIPv4 {
		return bulk.Aborted
	}
	l.seen += binary.BigEndian.Uint32(b[addressOffset:])
	return v
}

// receive gets frames as a driver does: buffers from the queue's own stock.
func (l *Line) receive() []*bulk.Frame {
	frames := l.batch[:l.rx.AllocBulk(l.batch[:])]
	for _, f := range frames {
		// The error cannot be: the buffers are longer.
		_ = f.SetData(headroom, dataSize)
	}
	return frames
}

// Step takes frames through the whole line: received, looked at, redirected into the
// ring, polled, and dropped or delivered. It returns how many.
func (l *Line) Step() int {
	for _, f := range l.receive() {
		v := l.look(f, bulk.Redirect(0))
		if v != bulk.Redirect(0) {
			f.Free()
			continue
		}
		if left, _ := l.tx.Add(f); left != nil {
			bulk.FreeBulk(left)
		}
	}
	if left, _ := l.tx.Flush(); left != nil {
		bulk.FreeBulk(left)
	}
	return l.poller.Poll(budget)
}

// Check fails if frames were lost on the way.
func (l *Line) Check() error {
	s := l.pool.Stats()
	if s.Free+l.rx.Len() != s.Total {
		return fmt.Errorf("%d frames of %d are missing", s.Total-s.Free-l.rx.Len(), s.Total)
	}
	p := l.poller.Stats()
	if lost := p.Aborted + p.AllocDrops + p.TxDrops; lost != 0 || s.Short != 0 {
		return fmt.Errorf("%d frames were lost, %d could not be had", lost, s.Short)
	}
	return nil
}
