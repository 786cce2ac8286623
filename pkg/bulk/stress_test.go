// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/xveth/xveth/pkg/ptrring"
)

// worker allocates and frees at random, alone and through what others allocated.
type worker struct {
	t      *testing.T
	rnd    *rand.Rand
	pools  []*Pool
	caches []*Cache
	held   []*Frame // heads of frames, some with fragments
	// owners says for each frame of each pool who has it.
	owners map[*Pool][]atomic.Int32
	id     int32
	mail   *ptrring.Ring[Frame] // frames that go from worker to worker
}

// own notes that the worker has the frame, or, with 0, that it no longer has it.
func (w *worker) own(f *Frame, from, to int32) {
	for ; f != nil; f = f.Next() {
		if !w.owners[f.Pool()][f.index].CompareAndSwap(from, to) {
			w.t.Errorf("a frame of worker %d is also another's", w.id)
		}
	}
}

func (w *worker) alloc(batch ...*Frame) {
	for _, f := range batch {
		w.own(f, 0, w.id)
	}
	w.held = append(w.held, batch...)
}

func (w *worker) takeHeld(n int) []*Frame {
	n = min(n, len(w.held))
	batch := slices.Clone(w.held[len(w.held)-n:])
	w.held = w.held[:len(w.held)-n]
	return batch
}

func (w *worker) step() {
	i := w.rnd.IntN(len(w.pools))
	batch := make([]*Frame, 1+w.rnd.IntN(20))
	switch w.rnd.IntN(10) {
	case 0:
		if f := w.pools[i].Alloc(); f != nil {
			w.alloc(f)
		}
	case 1:
		w.alloc(batch[:w.pools[i].AllocBulk(batch)]...)
	case 2:
		w.alloc(batch[:w.caches[i].AllocBulk(batch)]...)
	case 3:
		if f := w.caches[i].Alloc(); f != nil {
			w.alloc(f)
		}
	case 4: // two become one
		if len(w.held) > 1 {
			two := w.takeHeld(2)
			if two[0].Append(two[1]) != nil {
				w.held = append(w.held, two[1])
			}
			w.held = append(w.held, two[0])
		}
	case 5:
		batch = w.takeHeld(len(batch))
		w.release(batch)
		FreeBulk(batch)
	case 6:
		for _, f := range w.takeHeld(len(batch)) {
			w.release([]*Frame{f})
			f.Free()
		}
	case 7:
		batch = w.takeHeld(len(batch))
		w.release(batch)
		w.caches[i].FreeBulk(batch)
	case 8: // to another worker
		batch = w.takeHeld(len(batch))
		w.release(batch)
		n := w.mail.ProduceBatch(batch)
		FreeBulk(batch[n:])
	case 9: // from another worker
		w.alloc(batch[:w.mail.ConsumeBatch(batch)]...)
	}
	if len(w.held) > 40 {
		batch = w.takeHeld(30)
		w.release(batch)
		FreeBulk(batch)
	}
}

func (w *worker) release(batch []*Frame) {
	for _, f := range batch {
		w.own(f, w.id, 0)
	}
}

// Allocated, cached and free frames add up to all frames after millions of random calls of
// many goroutines, and no frame is ever two's.
func TestConservation(t *testing.T) {
	t.Parallel()
	for _, checked := range []bool{true, false} {
		pools := make([]*Pool, 2)
		owners := map[*Pool][]atomic.Int32{}
		for i := range pools {
			p, err := NewPool(Config{
				Frames: 300, FrameSize: 64, Checked: checked, OnMisuse: func(err error) { t.Error(err) },
			})
			if err != nil {
				t.Fatal(err)
			}
			pools[i] = p
			owners[p] = make([]atomic.Int32, p.Frames())
		}
		mail, err := ptrring.New[Frame](64, ptrring.Options{})
		if err != nil {
			t.Fatal(err)
		}
		workers := make([]*worker, 8)
		var wg sync.WaitGroup
		for i := range workers {
			w := &worker{
				t: t, rnd: rand.New(rand.NewPCG(7, uint64(i))), pools: pools, owners: owners, id: int32(i + 1), mail: mail,
			}
			for _, p := range pools {
				w.caches = append(w.caches, p.NewCache(8))
			}
			workers[i] = w
			wg.Go(func() {
				for range raceShort(long(150_000, 5_000_000)) {
					w.step()
				}
			})
		}
		wg.Wait()
		checkConserved(t, pools, workers, mail)
	}
}

// raceShort makes less of a test under the race detector, which is ten times as slow.
func raceShort(n int) int {
	if raceDetector {
		return n / 10
	}
	return n
}

func checkConserved(t *testing.T, pools []*Pool, workers []*worker, mail *ptrring.Ring[Frame]) {
	t.Helper()
	count := map[*Pool]int{}
	add := func(f *Frame) {
		for ; f != nil; f = f.Next() {
			count[f.Pool()]++
		}
	}
	for _, w := range workers {
		for _, f := range w.held {
			add(f)
		}
	}
	inMail := make([]*Frame, mail.Cap())
	inMail = inMail[:mail.ConsumeBatch(inMail)]
	for _, f := range inMail {
		add(f)
	}
	for i, p := range pools {
		cached := 0
		for _, w := range workers {
			cached += w.caches[i].Len()
		}
		if s := p.Stats(); s.Free+cached+count[p] != s.Total || s.Total != p.Frames() {
			t.Errorf("pool %d: %d free, %d cached, %d allocated of %d", i, s.Free, cached, count[p], s.Total)
		}
	}
	FreeBulk(inMail)
	for _, w := range workers {
		FreeBulk(w.held)
		for _, c := range w.caches {
			c.Flush()
		}
	}
	seen := map[*Frame]bool{}
	for _, p := range pools {
		wantFree(t, p, p.Frames())
		for f := p.Alloc(); f != nil; f = p.Alloc() {
			if seen[f] {
				t.Error("a frame is in the list twice")
			}
			seen[f] = true
		}
	}
}

// B169: eight frames and sixteen goroutines that want several at once, with the garbage
// collector at work: nobody hangs, no frame is two's, and all are back in the end.
func TestB169FewFramesManyGoroutines(t *testing.T) {
	t.Parallel()
	p := newPool(t, 8)
	var owners [8]atomic.Int32
	var over atomic.Bool
	var garbage, wg sync.WaitGroup
	garbage.Go(func() {
		for !over.Load() {
			runtime.GC()
			runtime.Gosched()
		}
	})
	for g := range 16 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(8, uint64(g)))
			batch := make([]*Frame, 8)
			for range raceShort(long(5_000, 3_000_000)) {
				n := p.AllocBulk(batch[:1+rnd.IntN(8)])
				for _, f := range batch[:n] {
					if !owners[f.index].CompareAndSwap(0, int32(g+1)) {
						t.Error("a frame is two goroutines'")
					}
				}
				for _, f := range batch[:n] {
					owners[f.index].Store(0)
				}
				FreeBulk(batch[:n])
			}
		})
	}
	wg.Wait()
	over.Store(true)
	garbage.Wait()
	wantFree(t, p, 8)
}

// FuzzPool holds a pool and a cache against a count.
func FuzzPool(f *testing.F) {
	f.Add(uint8(10), uint8(3), []byte{0, 1, 1, 9, 2, 4, 3, 8, 4, 5, 5, 1})
	f.Fuzz(func(t *testing.T, frames, batch uint8, calls []byte) {
		p, err := NewPool(Config{
			Frames: int(frames), FrameSize: 16, Checked: true, OnMisuse: func(err error) { t.Fatal(err) },
		})
		if err != nil {
			if frames > 0 {
				t.Fatal(err)
			}
			return
		}
		c := p.NewCache(int(batch))
		var held []*Frame
		buf := make([]*Frame, 256)
		for i := 0; i+1 < len(calls); i += 2 {
			n := int(calls[i+1])
			k := min(n, len(held))
			switch calls[i] % 6 {
			case 0:
				if got := p.AllocBulk(buf[:n]); got <= n {
					held = append(held, buf[:got]...)
				}
			case 1:
				held = append(held, buf[:c.AllocBulk(buf[:n])]...)
			case 2:
				FreeBulk(held[:k])
				held = held[k:]
			case 3:
				c.FreeBulk(held[:k])
				held = held[k:]
			case 4:
				if len(held) > 1 && held[0].Append(held[1]) == nil {
					held[1] = held[0]
					held = held[1:]
				}
			case 5:
				c.Flush()
			}
			allocated := 0
			for _, f := range held {
				allocated += 1 + f.Frags()
			}
			if s := p.Stats(); s.Free+c.Len()+allocated != s.Total {
				t.Fatalf("call %d: %d free, %d cached, %d allocated of %d", i/2, s.Free, c.Len(), allocated, s.Total)
			}
		}
	})
}
