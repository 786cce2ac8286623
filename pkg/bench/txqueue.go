// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"time"

	"github.com/xveth/xveth/pkg/bulk"
	"github.com/xveth/xveth/pkg/ptrring"
)

const (
	txBudget = 64
	// txRing is that of a veth for each of two producers.
	txRing = 512
	// txPolls is how many polls of a producer fill its half of a ring of sendRing.
	txPolls, sendRing = 8, 2 * 8 * txBudget
)

// txScenario compares a queue that is flushed 16 frames at a time with a lock for each
// frame. One producer, and in the paths "whole/..." two, do all that happens to a frame:
// allocated, looked at, sent into the peer's ring, taken out and freed. In bulk2 and lock2 there
// are two producers and nothing else: who empties the ring would be a third processor.
func txScenario() (*scenario, error) {
	s := &scenario{
		params: map[string]any{"ring": txRing, "send_ring": sendRing, "budget": txBudget, "batch": bulk.TxBatch},
		ratios: []ratio{
			{"bulk/lock", "bulk", "lock"},
			{"bulk2/lock2", "bulk2", "lock2"},
			{"whole/bulk2/lock2", "whole/bulk2", "whole/lock2"},
		},
	}
	for _, inBulk := range []bool{true, false} {
		name := "lock"
		if inBulk {
			name = "bulk"
		}
		single, err := newSenders(1, inBulk)
		if err != nil {
			return nil, err
		}
		double, err := newSenders(2, inBulk)
		if err != nil {
			return nil, err
		}
		only, err := newFillers(inBulk)
		if err != nil {
			return nil, err
		}
		s.paths = append(s.paths,
			path{name: name, step: single.each[0].step, check: single.check},
			path{name: name + "2", rough: true, pair: only.run, check: only.check},
			path{name: "whole/" + name + "2", pair: double.run, check: double.check})
	}
	return s, nil
}

// senders are some that share a ring and a pool.
type senders struct {
	ring *ptrring.Ring[bulk.Frame]
	pool *bulk.Pool
	each []*sender
}

func newSenders(n int, inBulk bool) (*senders, error) {
	ring, err := newTxRing(txRing)
	if err != nil {
		return nil, err
	}
	pool, err := newPool()
	if err != nil {
		return nil, err
	}
	s := &senders{ring: ring, pool: pool}
	for range n {
		s.each = append(s.each, newSender(ring, pool, inBulk))
	}
	return s, nil
}

func newTxRing(size int) (*ptrring.Ring[bulk.Frame], error) {
	ring, err := ptrring.New[bulk.Frame](size, ptrring.Options{})
	if err != nil {
		return nil, fmt.Errorf("make ring: %w", err)
	}
	return ring, nil
}

func (s *senders) run(d time.Duration) (turn, error) {
	return inParallel(len(s.each), d, func(i int, stop func() bool) int {
		n := 0
		for more := true; more; more = !stop() {
			for range stepsPerLook {
				n += s.each[i].step()
			}
		}
		return n
	})
}

// check fails if a frame is missing. What one sender left in the ring another would have taken.
func (s *senders) check() error {
	return complete(s.pool, s.ring.Len(), s.each...)
}

// complete fails if frames of a pool are neither in it, nor in a sender's cache, nor in the
// ring, or found the ring full.
func complete(p *bulk.Pool, inRing int, each ...*sender) error {
	missing := p.Stats().Out - inRing
	for _, s := range each {
		missing -= s.cache.Len()
		if s.dropped != 0 {
			return fmt.Errorf("%d frames found the ring full", s.dropped)
		}
	}
	if missing != 0 {
		return fmt.Errorf("%d frames are missing", missing)
	}
	return nil
}

// sender is a poll loop whose frames all get the verdict Tx. The poll loop of the peer runs
// behind it on the same goroutine.
type sender struct {
	ring    *ptrring.Ring[bulk.Frame]
	cache   *bulk.Cache
	queue   *bulk.TxQueue // nil: a lock for each frame
	frames  [txBudget]*bulk.Frame
	seen    uint64
	dropped int
}

func newSender(ring *ptrring.Ring[bulk.Frame], pool *bulk.Pool, inBulk bool) *sender {
	s := &sender{ring: ring, cache: pool.NewCache(txBudget)}
	if inBulk {
		s.queue = bulk.NewTxQueue(bulk.ToRing(ring))
	}
	return s
}

func (s *sender) step() int {
	s.send()
	n := s.ring.ConsumeBatch(s.frames[:])
	for _, f := range s.frames[:n] {
		s.seen += uint64(f.Data()[13])
	}
	s.cache.FreeBulk(s.frames[:n])
	return n
}

// send is one poll: it returns how many frames it sent.
func (s *sender) send() int {
	n := s.cache.AllocBulk(s.frames[:])
	for _, f := range s.frames[:n] {
		// The error cannot be: the buffer is longer.
		_ = f.SetData(headroom, 64)
		s.seen += uint64(f.Data()[12])
		if s.queue == nil {
			if !s.ring.Produce(f) {
				s.dropped++
				s.cache.Free(f)
			}
			continue
		}
		if left, _ := s.queue.Add(f); left != nil {
			s.dropped += len(left)
			s.cache.FreeBulk(left)
		}
	}
	if s.queue != nil {
		if left, _ := s.queue.Flush(); left != nil {
			s.dropped += len(left)
			s.cache.FreeBulk(left)
		}
	}
	return n
}
