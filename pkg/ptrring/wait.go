// SPDX-License-Identifier: Apache-2.0

package ptrring

import (
	"context"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/cpu"
)

// waiting is what a ring needs so that its users can sleep.
type waiting struct {
	items event
	space event
	once  sync.Once
	done  chan struct{} // closed by Close
}

func newWaiting() *waiting {
	return &waiting{
		items: event{token: make(chan struct{}, 1)},
		space: event{token: make(chan struct{}, 1)},
		done:  make(chan struct{}),
	}
}

// event wakes sleepers. The token in the channel stays until one takes it, so it does
// not matter whether the sleeper already sleeps when it is sent.
type event struct {
	_       cpu.CacheLinePad
	waiters atomic.Int32
	token   chan struct{}
}

// notify comes after the change that a sleeper waits for was published.
func (e *event) notify() {
	if e.waiters.Load() == 0 {
		return
	}
	select {
	case e.token <- struct{}{}:
	default: // there already is one that nobody has taken
	}
}

// ConsumeWait takes up to len(dst) entries into dst and sleeps while there are none.
// When the ring is closed and empty it returns ErrClosed; when ctx is done, its error.
func (r *Ring[T]) ConsumeWait(ctx context.Context, dst []*T) (int, error) {
	if r.wait == nil {
		return 0, ErrNoWait
	}
	if n := r.ConsumeBatch(dst); n > 0 || len(dst) == 0 {
		return n, nil
	}
	e := &r.wait.items
	e.waiters.Add(1)
	defer e.waiters.Add(-1)
	for {
		// In this order: what came in before Close is consumed before ErrClosed.
		closed := r.closed.Load()
		if n := r.ConsumeBatch(dst); n > 0 {
			if e.waiters.Load() > 1 && !r.Empty() {
				e.notify()
			}
			return n, nil
		}
		if closed {
			return 0, ErrClosed
		}
		select {
		case <-e.token:
		case <-r.wait.done:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// ProduceWait adds all of src in order and sleeps while the ring is full. It returns
// how many it added, fewer than all only with ErrClosed or the error of ctx. The batch
// is not one step: it goes in as room comes up. An entry that is nil ends src.
func (r *Ring[T]) ProduceWait(ctx context.Context, src []*T) (int, error) {
	if r.wait == nil {
		return 0, ErrNoWait
	}
	for i, p := range src {
		if p == nil {
			src = src[:i]
			break
		}
	}
	n := r.ProduceBatch(src)
	if n == len(src) {
		return n, nil
	}
	e := &r.wait.space
	e.waiters.Add(1)
	defer e.waiters.Add(-1)
	for {
		n += r.ProduceBatch(src[n:])
		if n == len(src) {
			if e.waiters.Load() > 1 && !r.Full() {
				e.notify()
			}
			return n, nil
		}
		if r.closed.Load() {
			return n, ErrClosed
		}
		select {
		case <-e.token:
		case <-r.wait.done:
		case <-ctx.Done():
			return n, ctx.Err()
		}
	}
}

// Close makes every Produce from now on fail and wakes all who wait. What is in the
// ring can still be consumed. With SingleProducer a Produce that is under way may
// still add its entries.
func (r *Ring[T]) Close() {
	r.lockProducers()
	r.closed.Store(true)
	r.unlockProducers()
	if r.wait != nil {
		r.wait.once.Do(func() { close(r.wait.done) })
	}
}
