// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/xveth/xveth/pkg/ptrring"
)

const (
	ringSize = 256 // entries of a veth's ring
	maxBatch = 64
	// lookEvery is how many items a producer makes between two looks at the clock.
	lookEvery = 4096
)

// item is what is moved: a pointer to it.
type item uint64

// newItems makes pointers to move around.
func newItems() []*item {
	items, ptrs := make([]item, maxBatch), make([]*item, maxBatch)
	for i := range items {
		ptrs[i] = &items[i]
	}
	return ptrs
}

var batchSizes = []int{1, 4, 8, 16, 32, 64}

// ringSetting is one way to use a ring.
type ringSetting struct {
	prefix  string
	opts    ptrring.Options
	ring    func(batch int, opts ptrring.Options) (path, error)
	channel func() path
}

var ringSettings = []ringSetting{
	// One processor fills and empties the ring, as with a veth that frames are redirected
	// to: the data are warm, and the figure is the cost of the operations themselves.
	{"", ptrring.Options{SingleProducer: true, SingleConsumer: true}, coreRing, moveCore},
	{"locked/", ptrring.Options{}, coreRing, moveCore},
	// Two goroutines: what the processors pay for moving cache lines comes on top.
	{"pair/", ptrring.Options{SingleProducer: true, SingleConsumer: true}, pairRing, movePair},
}

// ringScenario compares a ring with itself one at a time and with a channel. The settings
// without "locked" have one producer and one consumer, and say so to the ring.
func ringScenario() (*scenario, error) {
	s := &scenario{params: map[string]any{"ring": ringSize}}
	for _, set := range ringSettings {
		single, err := set.ring(0, set.opts)
		if err != nil {
			return nil, err
		}
		s.paths = append(s.paths, named(set.prefix+"single", single))
		for _, n := range batchSizes {
			p, err := set.ring(n, set.opts)
			if err != nil {
				return nil, err
			}
			name := fmt.Sprintf("%sbatch%d", set.prefix, n)
			s.paths = append(s.paths, named(name, p))
			s.ratios = append(s.ratios, ratio{name + "/single", name, set.prefix + "single"})
		}
		s.paths = append(s.paths, named(set.prefix+"channel", set.channel()))
		s.ratios = append(s.ratios,
			ratio{set.prefix + "batch16/channel", set.prefix + "batch16", set.prefix + "channel"},
			ratio{set.prefix + "batch16/batch8", set.prefix + "batch16", set.prefix + "batch8"})
	}
	return s, nil
}

func named(name string, p path) path {
	p.name = name
	return p
}

// pairRing moves items from a goroutine to another. A batch of 0 means Produce and
// Consume. Who finds the ring full or empty lets the other run.
func pairRing(batch int, opts ptrring.Options) (path, error) {
	r, err := ptrring.New[item](ringSize, opts)
	if err != nil {
		return path{}, fmt.Errorf("make ring: %w", err)
	}
	produce := func(src []*item) int { return r.ProduceBatch(src[:batch]) }
	consume := func(dst []*item) int { return r.ConsumeBatch(dst[:batch]) }
	if batch == 0 {
		produce = func(src []*item) int { return one(r.Produce(src[0])) }
		consume = func([]*item) int { return one(r.Consume() != nil) }
	}
	return path{pair: func(d time.Duration) (turn, error) {
		var over atomic.Bool
		return inParallel(2, d, func(i int, stop func() bool) int {
			if i == 0 {
				src := newItems()
				for more := true; more; more = !stop() {
					for n := 0; n < lookEvery; {
						k := produce(src)
						if n += k; k == 0 {
							runtime.Gosched()
						}
					}
				}
				over.Store(true)
				return 0
			}
			dst := make([]*item, maxBatch)
			for n := 0; ; {
				// Read before consuming: nothing comes in after it is true.
				last := over.Load()
				k := consume(dst)
				if n += k; k == 0 {
					if last {
						return n
					}
					runtime.Gosched()
				}
			}
		})
	}}, nil
}

func one(ok bool) int {
	if ok {
		return 1
	}
	return 0
}

// movePair is pairRing for a channel, which needs no help in waiting.
func movePair() path {
	return path{pair: func(d time.Duration) (turn, error) {
		ch := make(chan *item, ringSize)
		return inParallel(2, d, func(i int, stop func() bool) int {
			if i == 0 {
				src := newItems()
				for more := true; more; more = !stop() {
					for range lookEvery {
						ch <- src[0]
					}
				}
				close(ch)
				return 0
			}
			n := 0
			for range ch {
				n++
			}
			return n
		})
	}}
}

// coreRing moves items in and out on one goroutine.
func coreRing(batch int, opts ptrring.Options) (path, error) {
	r, err := ptrring.New[item](ringSize, opts)
	if err != nil {
		return path{}, fmt.Errorf("make ring: %w", err)
	}
	src, dst := newItems(), make([]*item, maxBatch)
	if batch == 0 {
		return path{step: func() int {
			for _, p := range src {
				r.Produce(p)
			}
			for i := range dst {
				dst[i] = r.Consume()
			}
			return maxBatch
		}}, nil
	}
	return path{step: func() int {
		for i := 0; i < maxBatch; i += batch {
			r.ProduceBatch(src[i : i+batch])
		}
		for i := 0; i < maxBatch; i += batch {
			r.ConsumeBatch(dst[i : i+batch])
		}
		return maxBatch
	}}, nil
}

// moveCore is coreRing for a channel.
func moveCore() path {
	ch := make(chan *item, ringSize)
	src, dst := newItems(), make([]*item, maxBatch)
	return path{step: func() int {
		for _, p := range src {
			ch <- p
		}
		for i := range dst {
			dst[i] = <-ch
		}
		return maxBatch
	}}
}
