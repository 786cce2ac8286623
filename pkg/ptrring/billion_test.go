// SPDX-License-Identifier: Apache-2.0

package ptrring

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// token is an entry that goes round: its producer sends it again when it has come out.
type token struct {
	producer int
	seq      uint64
	in       atomic.Bool // between producer and consumer
}

// B166 and B168 in their full size, with XVETH_LONG=1: a thousand million entries, in batches of 1
// to more than the ring holds, through rings that are nearly always full. What has come out
// cannot be listed, so a token says itself when it comes out twice, and numbers and sums have to
// be right in the end.
func TestB166B168Billion(t *testing.T) {
	t.Parallel()
	sizes, consumers := []int{2, 16, 33, 256, 4096}, []int{1, 4}
	each := long(400_000, 1_000_000_000) / (len(sizes) * len(consumers))
	for _, size := range sizes {
		for _, n := range consumers {
			t.Run(fmt.Sprintf("size=%d/consumers=%d", size, n), func(t *testing.T) {
				runTokens(t, size, n, uint64(each))
			})
		}
	}
}

// sums is what came out of one producer's tokens.
type sums struct{ n, seq uint64 }

func runTokens(t *testing.T, size, consumers int, total uint64) {
	const producers = 4
	r, err := New[token](size, Options{SingleConsumer: consumers == 1})
	if err != nil {
		t.Fatal(err)
	}
	each := total / producers
	var got atomic.Uint64
	var mu sync.Mutex
	var seen [producers]sums
	var wg sync.WaitGroup
	for p := range producers {
		largest := []int{1, 8, size + 1, 2*size + 1}[p]
		// As many as can be on their way, and a batch in the hands of each consumer.
		tokens := make([]token, size+consumers*(size+1)+largest)
		wg.Go(func() { sendTokens(r, p, largest, each, tokens) })
	}
	for c := range consumers {
		wg.Go(func() {
			mine := takeTokens(t, r, c, consumers == 1, producers*each, &got)
			mu.Lock()
			defer mu.Unlock()
			for p, s := range mine {
				seen[p].n += s.n
				seen[p].seq += s.seq
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	finish(t, "tokens", done, func() int { return int(got.Load()) })
	for p, s := range seen {
		// Numbers wrap around in both sums alike.
		if want := (sums{each, each * (each + 1) / 2}); s != want {
			t.Errorf("producer %d: %+v came out, want %+v", p, s, want)
		}
	}
	if !r.Empty() {
		t.Errorf("%d entries are left", r.Len())
	}
}

// sendTokens puts numbers 1 to n into the ring, in batches of up to largest.
func sendTokens(r *Ring[token], producer, largest int, n uint64, tokens []token) {
	rnd := rand.New(rand.NewPCG(7, uint64(producer)))
	batch := make([]*token, largest)
	for seq := uint64(1); seq <= n; {
		k := 0
		for want := 1 + rnd.IntN(largest); k < want && seq <= n; k++ {
			b := &tokens[seq%uint64(len(tokens))]
			// One that was lost in the ring never comes back, and stops all.
			for !b.in.CompareAndSwap(false, true) {
				runtime.Gosched()
			}
			b.producer, b.seq = producer, seq
			batch[k] = b
			seq++
		}
		for sent := 0; sent < k; {
			m := r.ProduceBatch(batch[sent:k])
			if sent += m; m == 0 {
				runtime.Gosched()
			}
		}
	}
}

// takeTokens takes tokens out until all consumers together have total. A single consumer sees all
// numbers of a producer, the others see them rise.
func takeTokens(t *testing.T, r *Ring[token], consumer int, single bool, total uint64, got *atomic.Uint64) (seen [4]sums) {
	var last [len(seen)]uint64
	rnd := rand.New(rand.NewPCG(8, uint64(consumer)))
	dst := make([]*token, r.Cap()+1)
	for got.Load() < total {
		n := r.ConsumeBatch(dst[:1+rnd.IntN(len(dst))])
		if n == 0 {
			runtime.Gosched()
			continue
		}
		for _, b := range dst[:n] {
			p, seq := b.producer, b.seq
			if seq <= last[p] || (single && seq != last[p]+1) {
				t.Errorf("producer %d: %d came after %d", p, seq, last[p])
			}
			last[p] = seq
			seen[p].n++
			seen[p].seq += seq
			if !b.in.CompareAndSwap(true, false) {
				t.Errorf("producer %d: %d came out twice", p, seq)
			}
		}
		got.Add(uint64(n))
	}
	return seen
}
