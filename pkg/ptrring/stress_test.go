// SPDX-License-Identifier: Apache-2.0

package ptrring

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// ticket is an entry of the stress tests: who made it and when, and who has it.
type ticket struct {
	producer, seq int
	held          atomic.Int32
}

// checker sees to it that each ticket comes out once, and tickets of a producer in order
// as long as nothing is put back.
type checker struct {
	mu      sync.Mutex
	seen    map[*ticket]int
	ordered bool
	last    map[int]int
}

func newChecker(ordered bool) *checker {
	return &checker{seen: map[*ticket]int{}, ordered: ordered, last: map[int]int{}}
}

func (c *checker) add(t *testing.T, batch []*ticket) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range batch {
		if c.seen[k]++; c.seen[k] > 1 {
			t.Errorf("ticket %d of %d came out twice", k.seq, k.producer)
		}
		if c.ordered {
			if k.seq != c.last[k.producer]+1 {
				t.Errorf("producer %d: ticket %d after %d", k.producer, k.seq, c.last[k.producer])
			}
			c.last[k.producer] = k.seq
		}
	}
}

// produceAll puts n tickets in, in batches of 1 to max, and gives way when the ring is full.
func produceAll(r *Ring[ticket], producer, n, largest int) {
	rnd := rand.New(rand.NewPCG(1, uint64(producer)))
	for seq := 1; seq <= n; {
		batch := make([]*ticket, min(1+rnd.IntN(largest), n-seq+1))
		for i := range batch {
			batch[i] = &ticket{producer: producer, seq: seq + i}
		}
		for done := 0; done < len(batch); {
			k := r.ProduceBatch(batch[done:])
			if done += k; k == 0 {
				runtime.Gosched()
			}
		}
		seq += len(batch)
	}
}

// B168: batches of 1 to more than the ring holds, across its end, of four producers and four
// consumers, for ring sizes 2 to 4096: nothing is lost, doubled or out of order, and partial
// results are right.
// B166: never more entries than the ring holds, however full it is.
func TestB168B166Batches(t *testing.T) {
	t.Parallel()
	for _, size := range []int{2, 3, 16, 33, 64, 1000, 4096} {
		for _, consumers := range []int{1, 4} {
			t.Run(fmt.Sprintf("size=%d/consumers=%d", size, consumers), func(t *testing.T) {
				t.Parallel()
				runBatches(t, size, consumers)
			})
		}
	}
}

func runBatches(t *testing.T, size, consumers int) {
	const producers = 4
	perProducer := long(4000, 400_000)
	r, err := New[ticket](size, Options{SingleConsumer: consumers == 1})
	if err != nil {
		t.Fatal(err)
	}
	check := newChecker(consumers == 1)
	var left atomic.Int64
	left.Store(int64(producers * perProducer))
	var wg sync.WaitGroup
	for p := range producers {
		// Uneven: some produce one at a time, some more than the ring holds.
		wg.Go(func() { produceAll(r, p, perProducer, []int{1, 8, size + 1, 2*size + 1}[p]) })
	}
	for c := range consumers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(2, uint64(c)))
			dst := make([]*ticket, size+1)
			for left.Load() > 0 {
				// Never above the capacity: what is used is counted from outside.
				if consumers == 1 && r.Len() > size {
					t.Errorf("%d entries in a ring of %d", r.Len(), size)
				}
				n := r.ConsumeBatch(dst[:1+rnd.IntN(size+1)])
				if n == 0 {
					runtime.Gosched()
					continue
				}
				check.add(t, dst[:n])
				left.Add(int64(-n))
			}
		})
	}
	wg.Wait()
	if len(check.seen) != producers*perProducer || !r.Empty() {
		t.Errorf("%d of %d tickets came out, %d are left", len(check.seen), producers*perProducer, r.Len())
	}
}

// Everything at once: uneven producers, consumers that put back, and a ring that changes its
// size. Each ticket comes out once or is handed to destroy.
func TestStressResizeUnconsume(t *testing.T) {
	t.Parallel()
	for _, opts := range []Options{{}, {Exact: true}, {Wait: true}} {
		t.Run(fmt.Sprintf("%+v", opts), func(t *testing.T) {
			t.Parallel()
			stress(t, opts)
		})
	}
}

func stress(t *testing.T, opts Options) {
	perProducer := long(10_000, 1_000_000)
	r, err := New[ticket](64, opts)
	if err != nil {
		t.Fatal(err)
	}
	check := newChecker(false)
	var out atomic.Int64
	take := func(batch ...*ticket) {
		check.add(t, batch)
		out.Add(int64(len(batch)))
	}
	destroy := func(k *ticket) { take(k) }
	var producers, others sync.WaitGroup
	total := 0
	for p, n := range []int{perProducer, perProducer / 10, perProducer / 100} {
		total += n
		producers.Go(func() { produceAll(r, p, n, []int{40, 3, 1}[p]) })
	}
	for c := range 2 {
		others.Go(func() {
			rnd := rand.New(rand.NewPCG(3, uint64(c)))
			dst := make([]*ticket, 24)
			for out.Load() < int64(total) {
				n := r.ConsumeBatch(dst[:1+rnd.IntN(24)])
				switch {
				case n == 0:
					runtime.Gosched()
				case rnd.IntN(4) == 0:
					keep := rnd.IntN(n)
					take(dst[:keep]...)
					r.Unconsume(dst[keep:n], destroy)
				default:
					take(dst[:n]...)
				}
			}
		})
	}
	others.Go(func() {
		rnd := rand.New(rand.NewPCG(4, 4))
		for out.Load() < int64(total) {
			if _, err := r.Resize(1+rnd.IntN(100), destroy); err != nil {
				t.Error(err)
			}
			r.Used()
			runtime.Gosched()
		}
	})
	producers.Wait()
	others.Wait()
	if len(check.seen) != total || r.Len() != 0 {
		t.Errorf("%d of %d tickets came out, %d are left", len(check.seen), total, r.Len())
	}
}

// B173: a ring as large as the pool whose entries it recycles is never full for somebody
// who holds one of them.
func TestB173NeverFullFromAnOldPosition(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 2, 64, 256} {
		r, err := New[ticket](size, Options{Exact: true})
		if err != nil {
			t.Fatal(err)
		}
		for range size {
			r.Produce(&ticket{})
		}
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				batch := make([]*ticket, 8)
				for range long(20_000, 5_000_000) {
					n := r.ConsumeBatch(batch)
					if n == 0 {
						runtime.Gosched()
						continue
					}
					for _, k := range batch[:n] {
						if !k.held.CompareAndSwap(0, 1) {
							t.Error("two hold the same entry")
						}
					}
					for _, k := range batch[:n] {
						k.held.Store(0)
						if !r.Produce(k) {
							t.Errorf("a ring of %d was full for one of its %d entries", size, size)
							return
						}
					}
				}
			})
		}
		wg.Wait()
		if r.Len() != size {
			t.Errorf("%d of %d entries are left", r.Len(), size)
		}
	}
}

// hang is how long nothing may happen before a test says that a wake-up was lost. It only has
// to be longer than what a busy machine does to a goroutine.
const hang = time.Minute

// finish waits for done as long as progress moves on.
func finish(t *testing.T, what string, done <-chan struct{}, progress func() int) {
	t.Helper()
	for last := -1; ; {
		select {
		case <-done:
			return
		case <-time.After(hang):
		}
		now := progress()
		if now == last {
			t.Fatalf("%s: nobody was woken", what)
		}
		last = now
	}
}

func noProgress() int { return 0 }

// count returns how many tickets came out so far.
func (c *checker) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.seen)
}

// B174: no wake-up is lost on tiny rings, and Close frees all who wait.
func TestB174HandOver(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ size, producers, consumers int }{
		{1, 1, 1}, {1, 3, 3}, {2, 4, 1}, {2, 1, 4}, {3, 2, 2},
	} {
		t.Run(fmt.Sprintf("%+v", tc), func(t *testing.T) {
			t.Parallel()
			n := long(6_000, 1_000_000)
			r, err := New[ticket](tc.size, Options{
				Wait: true, SingleProducer: tc.producers == 1, SingleConsumer: tc.consumers == 1,
			})
			if err != nil {
				t.Fatal(err)
			}
			check := newChecker(tc.consumers == 1)
			done := make(chan struct{})
			go func() {
				defer close(done)
				handOver(t, r, tc.producers, tc.consumers, n, check)
			}()
			finish(t, "hand over", done, check.count)
			if len(check.seen) != n*tc.producers {
				t.Errorf("%d of %d tickets came out", len(check.seen), n*tc.producers)
			}
		})
	}
}

// handOver lets n tickets of each producer through, with random pauses, closes the ring when
// all have been produced, and returns when all goroutines have.
func handOver(t *testing.T, r *Ring[ticket], producers, consumers, n int, check *checker) {
	ctx := context.Background()
	var in, out sync.WaitGroup
	pause := func(rnd *rand.Rand) {
		switch rnd.IntN(64) {
		case 0:
			time.Sleep(time.Duration(rnd.IntN(20)) * time.Microsecond)
		case 1, 2, 3:
			runtime.Gosched()
		}
	}
	for p := range producers {
		in.Go(func() {
			rnd := rand.New(rand.NewPCG(5, uint64(p)))
			for seq := 1; seq <= n; {
				batch := make([]*ticket, min(1+rnd.IntN(4), n-seq+1))
				for i := range batch {
					batch[i] = &ticket{producer: p, seq: seq + i}
				}
				if k, err := r.ProduceWait(ctx, batch); err != nil || k != len(batch) {
					t.Errorf("produced %d of %d: %v", k, len(batch), err)
					return
				}
				seq += len(batch)
				pause(rnd)
			}
		})
	}
	for c := range consumers {
		out.Go(func() {
			rnd := rand.New(rand.NewPCG(6, uint64(c)))
			dst := make([]*ticket, 4)
			for {
				k, err := r.ConsumeWait(ctx, dst[:1+rnd.IntN(4)])
				if err != nil {
					if !errors.Is(err, ErrClosed) {
						t.Error(err)
					}
					return
				}
				check.add(t, dst[:k])
				pause(rnd)
			}
		})
	}
	in.Wait()
	r.Close()
	out.Wait()
}

// B174: whoever sleeps is woken by Close and by the context.
func TestB174CloseUnblocksAll(t *testing.T) {
	t.Parallel()
	for round := range long(200, 20_000) {
		empty, err := New[ticket](1, Options{Wait: true})
		if err != nil {
			t.Fatal(err)
		}
		full, err := New[ticket](1, Options{Wait: true})
		if err != nil {
			t.Fatal(err)
		}
		full.Produce(&ticket{})
		ctx, cancel := context.WithCancel(context.Background())
		want := ErrClosed
		if round%2 == 1 {
			want = context.Canceled
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if _, err := empty.ConsumeWait(ctx, make([]*ticket, 1)); !errors.Is(err, want) {
					t.Errorf("consumer: %v, want %v", err, want)
				}
			})
			wg.Go(func() {
				if _, err := full.ProduceWait(ctx, []*ticket{{}}); !errors.Is(err, want) {
					t.Errorf("producer: %v, want %v", err, want)
				}
			})
		}
		if round%3 > 0 {
			runtime.Gosched()
		}
		if round%2 == 0 {
			empty.Close()
			full.Close()
		} else {
			cancel()
		}
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		finish(t, "close", done, noProgress)
		cancel()
	}
}

func TestWaitNeedsTheOption(t *testing.T) {
	t.Parallel()
	r := newRing(t, 1, Options{})
	if _, err := r.ConsumeWait(context.Background(), make([]*entry, 1)); !errors.Is(err, ErrNoWait) {
		t.Error(err)
	}
	if _, err := r.ProduceWait(context.Background(), entries(1, 1)); !errors.Is(err, ErrNoWait) {
		t.Error(err)
	}
}

// B174: one batch wakes as many sleepers as it has entries (or makes room for), also those
// who come only once.
func TestB174BatchWakesAll(t *testing.T) {
	t.Parallel()
	const n = 3
	for round := range long(300, 20_000) {
		r, err := New[ticket](n, Options{Wait: true})
		if err != nil {
			t.Fatal(err)
		}
		tickets := make([]*ticket, n)
		for i := range tickets {
			tickets[i] = &ticket{}
		}
		produce := round%2 == 1
		if produce {
			r.ProduceBatch(tickets)
		}
		var wg sync.WaitGroup
		for range n {
			wg.Go(func() {
				var err error
				if produce {
					_, err = r.ProduceWait(context.Background(), []*ticket{{}})
				} else {
					_, err = r.ConsumeWait(context.Background(), make([]*ticket, 1))
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		for range round % 8 { // sometimes all sleep already, sometimes some
			runtime.Gosched()
		}
		moved := 0
		if produce {
			moved = r.ConsumeBatch(make([]*ticket, n))
		} else {
			moved = r.ProduceBatch(tickets)
		}
		if moved != n {
			t.Fatalf("moved %d of %d", moved, n)
		}
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		finish(t, "batch", done, noProgress)
	}
}
