// SPDX-License-Identifier: Apache-2.0

package afxdp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/xveth/xveth/pkg/bulk"
)

const (
	// DefaultBatch is how many packets a Generator or Sink handles at once.
	DefaultBatch = 64
	// MaxBatch is the largest such number.
	MaxBatch = 1024
)

// GeneratorConfig describes what a Generator sends.
type GeneratorConfig struct {
	// Packet is a whole frame from its Ethernet header on, without checksum (FCS). One that
	// is larger than a buffer of the pool is sent in fragments.
	Packet []byte
	// Vary, if set, changes the copy that becomes packet n of a run, counted from 0; b
	// is its first buffer.
	Vary func(b []byte, n uint64)
	// Batch is how many packets are made and sent at once; 0 is DefaultBatch.
	Batch int
	// Rate is how many packets to send in a second; 0 is as many as possible.
	Rate uint64
}

// Generator sends copies of a packet. One goroutine uses it.
type Generator struct {
	GeneratorConfig
	s       *Socket
	parts   [][]byte // of the packet, a buffer each
	buffers []*bulk.Frame
	heads   []*bulk.Frame
}

// NewGenerator makes a Generator that sends on a socket.
func NewGenerator(s *Socket, c GeneratorConfig) (*Generator, error) {
	if c.Batch == 0 {
		c.Batch = DefaultBatch
	}
	pool := s.umem.pool
	room := pool.FrameSize() - pool.Headroom()
	g := &Generator{GeneratorConfig: c, s: s}
	for rest := c.Packet; len(rest) > 0; {
		n := min(room, len(rest))
		g.parts = append(g.parts, rest[:n])
		rest = rest[n:]
	}
	n := len(g.parts)
	switch {
	case n == 0:
		return nil, fmt.Errorf("make generator: %w: no packet", ErrConfig)
	case c.Batch < 1 || c.Batch > MaxBatch:
		return nil, fmt.Errorf("make generator: %w: batch of %d: take 1 to %d", ErrConfig, c.Batch, MaxBatch)
	case n > 1 && !s.umem.mode.MultiBuffer:
		return nil, fmt.Errorf("make generator: %w: a packet of %d bytes needs MultiBuffer", ErrConfig, len(c.Packet))
	case n > bulk.MaxFrags+1 || n > int(s.tx.size):
		return nil, fmt.Errorf("make generator: %w: a packet of %d bytes in buffers of %d",
			ErrTooLarge, len(c.Packet), room)
	case s.tx.off:
		return nil, fmt.Errorf("make generator: %s: %w", s.name, ErrDirection)
	}
	g.heads = make([]*bulk.Frame, c.Batch)
	g.buffers = make([]*bulk.Frame, c.Batch*n)
	return g, nil
}

// Run sends count packets, or until the context ends if count is 0, waits until they have been
// sent, and returns how many the kernel took. It returns the context's error only if
// that ended it too early.
func (g *Generator) Run(ctx context.Context, count uint64) (uint64, error) {
	var sent uint64
	var err error
	start := time.Now()
	for (count == 0 || sent < count) && err == nil {
		if err = ctx.Err(); err != nil {
			break
		}
		want := uint64(g.Batch)
		if count > 0 {
			want = min(want, count-sent)
		}
		if want = min(want, g.allowed(start, sent)); want == 0 {
			time.Sleep(shortWait / 2)
			continue
		}
		frames := g.build(int(want), sent)
		if len(frames) == 0 {
			// All frames are in flight, or somebody else has them.
			if _, err = g.s.Reap(); err == nil {
				err = g.s.waitTx(ctx)
			}
			continue
		}
		var n int
		n, err = g.s.SendAll(ctx, frames)
		sent += uint64(n)
		bulk.FreeBulk(frames[n:])
	}
	if count == 0 && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil
	}
	return sent, errors.Join(err, g.drain(err))
}

// allowed is how many packets may be sent now.
func (g *Generator) allowed(start time.Time, sent uint64) uint64 {
	if g.Rate == 0 {
		return MaxBatch
	}
	// In floating point, because nanoseconds times a rate overflow within an hour.
	due := uint64(time.Since(start).Seconds() * float64(g.Rate))
	return max(due, sent) - sent
}

// drain waits for what was sent, also when the context of the run has ended.
func (g *Generator) drain(err error) error {
	if errors.Is(err, ErrClosed) || errors.Is(err, ErrDown) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return g.s.Drain(ctx)
}

// build makes up to n packets, as far as the pool has frames.
func (g *Generator) build(n int, first uint64) []*bulk.Frame {
	parts := len(g.parts)
	got := g.s.umem.pool.TryAllocBulk(g.buffers[:n*parts])
	n = got / parts
	bulk.FreeBulk(g.buffers[n*parts : got])
	for i := range n {
		buffers := g.buffers[i*parts : (i+1)*parts]
		for j, f := range buffers {
			// It fits: the parts were cut to what a fresh frame holds.
			_ = f.CopyFrom(g.parts[j])
			if j > 0 {
				_ = buffers[j-1].Append(f)
			}
		}
		if g.Vary != nil {
			g.Vary(buffers[0].Data(), first+uint64(i))
		}
		g.heads[i] = buffers[0]
	}
	return g.heads[:n]
}
