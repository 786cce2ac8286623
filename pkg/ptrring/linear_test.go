// SPDX-License-Identifier: Apache-2.0

package ptrring

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// entry is what the tests put into rings: its number tells it from all others.
type entry struct{ id byte }

type opKind int

const (
	opProduce opKind = iota
	opProduceBatch
	opConsume
	opConsumeBatch
	opPeek
	opLen
	opFull
	opUnconsume
	opResize
)

type ringInput struct {
	kind opKind
	ids  string // what is put in
	n    int    // length of a batch, or the new size
}

type ringOutput struct {
	ids string // what came out
	n   int    // how many went in, or a length
	ok  bool
}

// ringState is the queue that the ring has to look like.
type ringState struct {
	size int
	ids  string
}

// queueModel is a bounded queue with batches that are one step each. slack is how many
// consumed slots may not have been handed back when Produce fails.
func queueModel(size, slack int) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return ringState{size: size} },
		Step: func(state, input, output any) (bool, any) {
			s, in, out := state.(ringState), input.(ringInput), output.(ringOutput)
			return s.step(in, out, slack)
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
	}
}

func (s ringState) step(in ringInput, out ringOutput, slack int) (bool, any) {
	room := s.size - len(s.ids)
	switch in.kind {
	case opProduce, opProduceBatch:
		next := ringState{s.size, s.ids + in.ids[:out.n]}
		// Cut short to nothing: the ring was full. Cut short to something: it was full
		// with these at another moment of the call.
		return out.n <= room && (out.n > 0 || len(in.ids) == 0 || room <= slack), next
	case opConsume, opConsumeBatch:
		n := len(out.ids)
		if n == 0 {
			return len(s.ids) == 0 || in.n == 0, s
		}
		ok := n <= in.n && n <= len(s.ids) && s.ids[:n] == out.ids
		if !ok {
			return false, s
		}
		return true, ringState{s.size, s.ids[n:]}
	case opPeek:
		return out.ids == s.ids[:min(1, len(s.ids))], s
	case opLen:
		return out.n == len(s.ids), s
	case opFull:
		return (out.ok && room <= slack) || (!out.ok && room > 0), s
	case opUnconsume:
		k := min(room, len(in.ids))
		return out.n == len(in.ids)-k, ringState{s.size, in.ids[len(in.ids)-k:] + s.ids}
	case opResize:
		k := min(in.n, len(s.ids))
		return out.n == len(s.ids)-k, ringState{in.n, s.ids[:k]}
	}
	return false, s
}

// player makes random calls and keeps their history.
type player struct {
	ring    *Ring[entry]
	rnd     *rand.Rand
	entries []*entry // to put in
	taken   []*entry // to put back
	maxSize int
	history []porcupine.Operation
}

func ids(entries []*entry) string {
	b := make([]byte, len(entries))
	for i, e := range entries {
		b[i] = e.id
	}
	return string(b)
}

func (p *player) play(client int, kinds []opKind, start time.Time) {
	kind := kinds[p.rnd.IntN(len(kinds))]
	in := ringInput{kind: kind}
	var batch []*entry
	switch kind {
	case opProduce, opProduceBatch:
		n := 1
		if kind == opProduceBatch {
			n = 1 + p.rnd.IntN(p.maxSize+1)
		}
		batch = p.entries[:min(n, len(p.entries))]
		p.entries = p.entries[len(batch):]
		if len(batch) == 0 {
			return
		}
	case opUnconsume:
		batch = p.taken
		p.taken = nil
	case opConsumeBatch:
		in.n = 1 + p.rnd.IntN(p.maxSize+1)
	case opConsume:
		in.n = 1
	case opResize:
		in.n = 1 + p.rnd.IntN(p.maxSize)
	}
	in.ids = ids(batch)
	call := time.Since(start)
	out := p.call(in, batch)
	p.history = append(p.history, porcupine.Operation{
		ClientId: client, Input: in, Output: out, Call: int64(call), Return: int64(time.Since(start)),
	})
}

func (p *player) call(in ringInput, batch []*entry) (out ringOutput) {
	switch in.kind {
	case opProduce:
		if p.ring.Produce(batch[0]) {
			out.n = 1
		}
	case opProduceBatch:
		out.n = p.ring.ProduceBatch(batch)
	case opConsume, opConsumeBatch:
		dst := make([]*entry, in.n)
		if in.kind == opConsume {
			dst[0] = p.ring.Consume()
			if dst[0] == nil {
				dst = nil
			}
		} else {
			dst = dst[:p.ring.ConsumeBatch(dst)]
		}
		out.ids = ids(dst)
		p.taken = dst
	case opPeek:
		if e := p.ring.Peek(); e != nil {
			out.ids = string([]byte{e.id})
		}
	case opLen:
		out.n = p.ring.Len()
	case opFull:
		out.ok = p.ring.Full()
	case opUnconsume:
		out.n = p.ring.Unconsume(batch, nil)
	case opResize:
		n, err := p.ring.Resize(in.n, nil)
		if err != nil {
			panic(err)
		}
		out.n = n
	}
	return out
}

// playAll lets clients play at the same time and returns what they did.
func playAll(t *testing.T, r *Ring[entry], seed uint64, kinds [][]opKind, calls, maxSize int) []porcupine.Operation {
	t.Helper()
	var history []porcupine.Operation
	var mu sync.Mutex
	var wg sync.WaitGroup
	start := time.Now()
	perClient := 250 / len(kinds)
	for client, k := range kinds {
		wg.Go(func() {
			p := &player{ring: r, rnd: rand.New(rand.NewPCG(seed, uint64(client))), maxSize: maxSize}
			for i := range perClient {
				p.entries = append(p.entries, &entry{byte(1 + client*perClient + i)})
			}
			for range calls {
				p.play(client, k, start)
				if p.rnd.IntN(3) == 0 {
					runtime.Gosched()
				}
			}
			mu.Lock()
			defer mu.Unlock()
			history = append(history, p.history...)
		})
	}
	wg.Wait()
	return history
}

// What goroutines do to a ring at the same time looks like one after the other.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	in := []opKind{opProduce, opProduceBatch, opFull}
	out := []opKind{opConsume, opConsumeBatch, opConsumeBatch, opPeek, opLen}
	back := append([]opKind{opUnconsume, opUnconsume}, out...)
	all := append(append([]opKind{opResize}, in...), back...)
	for _, tc := range []struct {
		name    string
		size    int
		opts    Options
		slack   int
		kinds   [][]opKind
		maxSize int
	}{
		{"many producers and consumers", 3, Options{}, 0, [][]opKind{in, in, out, out}, 3},
		{"one entry", 1, Options{}, 0, [][]opKind{in, in, out, out}, 2},
		{"single producer", 4, Options{SingleProducer: true}, 0, [][]opKind{in, out, out}, 4},
		{"single consumer", 4, Options{SingleConsumer: true}, 0, [][]opKind{in, in, out}, 4},
		{"single both", 2, Options{SingleProducer: true, SingleConsumer: true}, 0, [][]opKind{in, out}, 3},
		{"unconsume", 4, Options{}, 0, [][]opKind{in, in, back, back}, 3},
		{"unconsume by a single consumer", 4, Options{SingleConsumer: true}, 0, [][]opKind{in, in, back}, 3},
		{"resize", 4, Options{}, 0, [][]opKind{all, all, all, all}, 6},
		{"exact", 32, Options{Exact: true}, 0, [][]opKind{in, in, out, out}, 24},
		{"handed back late", 32, Options{}, HandBack - 1, [][]opKind{in, in, out, out}, 24},
		{"waiting", 5, Options{Wait: true}, 0, [][]opKind{in, in, back, out}, 4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(long(60, 5000)) {
				r, err := New[entry](tc.size, tc.opts)
				if err != nil {
					t.Fatal(err)
				}
				history := playAll(t, r, seed, tc.kinds, 14, tc.maxSize)
				res := porcupine.CheckOperationsTimeout(queueModel(tc.size, tc.slack), history, time.Minute)
				if res != porcupine.Ok {
					for _, op := range history {
						t.Logf("%d [%d %d] %+v -> %+v", op.ClientId, op.Call, op.Return, op.Input, op.Output)
					}
					t.Fatalf("seed %d: %s", seed, res)
				}
			}
		})
	}
}
