// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/cpu"

	"github.com/xveth/xveth/pkg/bulk"
	"github.com/xveth/xveth/pkg/ptrring"
)

const (
	// fillSkew is by how much the two may start a round at different times.
	fillSkew = 2 * time.Microsecond
	// A turn needs so many rounds that count, and may become so many times longer for them.
	fillRounds, fillLonger = 20, 6
)

// fillers are two senders with a pool each, as receive queues have. They fill a ring at the same
// time, and stop; then one of them, by turns, empties it, and the clock stands. A round takes some
// ten microseconds, so on a busy machine there are some for which both had a processor. The
// median of those counts.
type fillers struct {
	ring  *ptrring.Ring[bulk.Frame]
	each  [2]*sender
	pools [2]*bulk.Pool
	gate  gate
	// What one of the two writes before a gate, the other reads behind it.
	over   bool
	spans  [2]span
	rates  []float64 // frames per second in the rounds that count
	late   int       // those that do not
	frames [txBudget]*bulk.Frame
}

// span is what a filler notes of a round.
type span struct {
	_          cpu.CacheLinePad
	sent       atomic.Int64 // so far; the other one looks
	begin, end time.Time
	others     int64 // what the other one had sent at the end
}

func newFillers(inBulk bool) (*fillers, error) {
	ring, err := newTxRing(sendRing)
	if err != nil {
		return nil, err
	}
	f := &fillers{ring: ring}
	for i := range f.each {
		if f.pools[i], err = newPool(); err != nil {
			return nil, err
		}
		f.each[i] = newSender(ring, f.pools[i], inBulk)
	}
	return f, nil
}

func (f *fillers) run(d time.Duration) (turn, error) {
	f.rates, f.late, f.over = f.rates[:0], 0, false
	start := time.Now()
	together(len(f.each), func(i int) int {
		for round := 0; ; round++ {
			f.spans[i].sent.Store(0)
			if i == 0 {
				t := time.Since(start)
				f.over = round > 0 && (t >= d && len(f.rates) >= fillRounds || t >= fillLonger*d)
			}
			f.gate.pass(i)
			if f.over {
				return 0
			}
			f.fill(i)
			f.gate.pass(i)
			if i == 0 {
				f.note()
			}
			if round%len(f.each) == i {
				f.empty()
			}
		}
	})
	if len(f.rates) < fillRounds {
		return f.alone(d)
	}
	return turn{
		rate:      median(f.rates),
		disturbed: float64(f.late) / float64(f.late+len(f.rates)),
	}, nil
}

// fill is one round of one of the two.
func (f *fillers) fill(i int) {
	me, other := &f.spans[i], &f.spans[1-i]
	me.begin = time.Now()
	n := 0
	for range txPolls {
		n += f.each[i].send()
		me.sent.Store(int64(n))
	}
	me.end, me.others = time.Now(), other.sent.Load()
}

// note takes down what both sent while both were sending: from when the later one began to when
// the first was ready. Who sleeps for a lock at the end is not waited for. If they did not start
// together, the round does not count.
func (f *fillers) note() {
	a, b := &f.spans[0], &f.spans[1]
	if b.begin.Sub(a.begin).Abs() > fillSkew {
		f.late++
		return
	}
	if b.end.Before(a.end) {
		a, b = b, a
	}
	begin := a.begin
	if b.begin.After(begin) {
		begin = b.begin
	}
	f.rates = append(f.rates, float64(a.sent.Load()+a.others)/a.end.Sub(begin).Seconds())
}

// alone lets one processor do the work of both: there have not been two. Nothing is contended
// then, and the turn counts as disturbed all the time.
func (f *fillers) alone(d time.Duration) (turn, error) {
	f.rates = f.rates[:0]
	for start := time.Now(); len(f.rates) == 0 || time.Since(start) < d; {
		begin := time.Now()
		for _, s := range f.each {
			for range txPolls {
				s.send()
			}
		}
		f.rates = append(f.rates, sendRing/time.Since(begin).Seconds())
		f.empty()
	}
	return turn{rate: median(f.rates), disturbed: 1}, nil
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

func (f *fillers) empty() {
	for {
		n := f.ring.ConsumeBatch(f.frames[:])
		if n == 0 {
			return
		}
		bulk.FreeBulk(f.frames[:n])
	}
}

func (f *fillers) check() error {
	for i, p := range f.pools {
		if err := complete(p, 0, f.each[i]); err != nil {
			return err
		}
	}
	return nil
}

// gate lets two goroutines go on at the same moment, as far as a machine can.
type gate [2]struct {
	_       cpu.CacheLinePad
	arrived atomic.Uint64
}

const (
	// gateSpins is how often is looked between two looks at the clock.
	gateSpins = 1000
	// gatePatience is how long the other one may be on its way. It spins because who is woken by
	// the scheduler comes late, and who gives way lets the other run here, where it stays.
	gatePatience = time.Millisecond
)

func (g *gate) pass(i int) {
	n := g[i].arrived.Add(1)
	var start time.Time
	for spins := 0; g[1-i].arrived.Load() < n; spins++ {
		switch {
		case spins%gateSpins > 0:
		case start.IsZero():
			start = time.Now()
		case time.Since(start) > gatePatience:
			runtime.Gosched()
		}
	}
}
