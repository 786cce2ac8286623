// SPDX-License-Identifier: Apache-2.0

package afxdp

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/xveth/xveth/pkg/bulk"
)

// SinkConfig describes a Sink.
type SinkConfig struct {
	// Inspect, if set, looks at each frame before it is freed. It must not keep it.
	Inspect func(f *bulk.Frame)
	// Batch is how many frames are received at once; 0 is DefaultBatch.
	Batch int
}

// Sink receives, counts and frees.
type Sink struct {
	s       *Socket
	inspect func(*bulk.Frame)
	batch   []*bulk.Frame
	frames  atomic.Uint64
	bytes   atomic.Uint64
}

// NewSink makes a Sink for what arrives at a socket.
func NewSink(s *Socket, c SinkConfig) (*Sink, error) {
	if c.Batch == 0 {
		c.Batch = DefaultBatch
	}
	switch {
	case c.Batch < 1 || c.Batch > MaxBatch:
		return nil, fmt.Errorf("make sink: %w: batch of %d: take 1 to %d", ErrConfig, c.Batch, MaxBatch)
	case s.rx.off:
		return nil, fmt.Errorf("make sink: %s: %w", s.name, ErrDirection)
	}
	return &Sink{s: s, inspect: c.Inspect, batch: make([]*bulk.Frame, c.Batch)}, nil
}

// Run receives until the context ends, then what is there already, and returns nil; or until
// the socket is closed or its interface goes away, and returns that. One goroutine runs it.
func (k *Sink) Run(ctx context.Context) error {
	for {
		n, err := k.s.Poll(ctx, k.batch)
		if err == nil {
			k.take(n)
			// Poll does not look at the context while there is something to receive.
			err = ctx.Err()
		}
		if err == nil {
			continue
		}
		if !errors.Is(err, ctx.Err()) {
			return err
		}
		return k.rest()
	}
}

// rest receives what arrived before Run ended: at most one ring of it.
func (k *Sink) rest() error {
	for left := int(k.s.rx.size); left > 0; {
		n, err := k.s.Receive(k.batch)
		if err != nil || n == 0 {
			return err
		}
		k.take(n)
		left -= n
	}
	return nil
}

func (k *Sink) take(n int) {
	bytes := 0
	for _, f := range k.batch[:n] {
		bytes += f.TotalLen()
		if k.inspect != nil {
			k.inspect(f)
		}
	}
	bulk.FreeBulk(k.batch[:n])
	k.frames.Add(uint64(n))
	k.bytes.Add(uint64(bytes))
}

// Counts returns how many frames have been received so far, and bytes of data in them.
func (k *Sink) Counts() (frames, bytes uint64) { return k.frames.Load(), k.bytes.Load() }
