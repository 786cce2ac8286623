// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"

	"github.com/xveth/xveth/pkg/bulk"
	"github.com/xveth/xveth/pkg/ptrring"
)

const (
	txBudget = 64
	// txRing is that of a veth for each of the producers.
	txRing = 512
)

// txScenario compares a queue that is flushed 16 frames at a time with a lock for each
// frame, in the whole way of a frame: allocated, looked at, sent into the peer's ring,
// taken out and freed. Two producers share one ring: the case that the review asked about.
func txScenario() (*scenario, error) {
	s := &scenario{
		params: map[string]any{"ring": txRing, "budget": txBudget, "batch": bulk.TxBatch},
		ratios: []ratio{{"bulk/lock", "bulk", "lock"}, {"bulk2/lock2", "bulk2", "lock2"}},
	}
	for _, inBulk := range []bool{true, false} {
		name := "lock"
		if inBulk {
			name = "bulk"
		}
		single, _, err := newSenders(1, inBulk)
		if err != nil {
			return nil, err
		}
		double, check, err := newSenders(2, inBulk)
		if err != nil {
			return nil, err
		}
		s.paths = append(s.paths,
			path{name: name, step: single[0].step, check: single[0].check},
			path{name: name + "2", check: check, pair: func(stop func() bool) (work, error) {
				return together(len(double), func(i int) int {
					n := 0
					for more := true; more; more = !stop() {
						for range stepsPerLook {
							n += double[i].step()
						}
					}
					return n
				}), nil
			}})
	}
	return s, nil
}

// sender is a poll loop whose frames all get the verdict Tx, and the poll loop of the peer,
// which runs after it on the same goroutine.
type sender struct {
	ring    *ptrring.Ring[bulk.Frame]
	cache   *bulk.Cache
	queue   *bulk.TxQueue // nil: a lock for each frame
	frames  [txBudget]*bulk.Frame
	pool    *bulk.Pool
	seen    uint64
	dropped int
}

func newSenders(n int, inBulk bool) ([]*sender, func() error, error) {
	ring, err := ptrring.New[bulk.Frame](txRing, ptrring.Options{})
	if err != nil {
		return nil, nil, fmt.Errorf("make ring: %w", err)
	}
	pool, err := newPool()
	if err != nil {
		return nil, nil, err
	}
	senders := make([]*sender, n)
	for i := range senders {
		senders[i] = &sender{ring: ring, pool: pool, cache: pool.NewCache(txBudget)}
		if inBulk {
			senders[i].queue = bulk.NewTxQueue(bulk.ToRing(ring))
		}
	}
	check := func() error {
		// What one sender left in the ring another would have taken.
		left := ring.Len()
		out := pool.Stats().Out - left
		for _, s := range senders {
			out -= s.cache.Len()
		}
		if out != 0 {
			return fmt.Errorf("%d frames are missing", out)
		}
		return nil
	}
	return senders, check, nil
}

func (s *sender) step() int {
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
	n = s.ring.ConsumeBatch(s.frames[:])
	for _, f := range s.frames[:n] {
		s.seen += uint64(f.Data()[13])
	}
	s.cache.FreeBulk(s.frames[:n])
	return n
}

func (s *sender) check() error {
	if s.dropped != 0 {
		return fmt.Errorf("%d frames found the ring full", s.dropped)
	}
	return nil
}
