// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/pkg/bench/cputime"
)

// path is one way of doing the work of a scenario.
type path struct {
	name string
	// step does some work on one goroutine and returns how many items that was.
	step func() int
	// pair does it on several: it runs until stop returns true.
	pair func(stop func() bool) (work, error)
	// lost, if set, is the share of the items of the last turn that got lost.
	lost func() float64
	// check, if set, fails if the path lost something.
	check func() error
}

// stepsPerLook is how many steps run between two looks at the clock. A look at a thread's
// clock is a system call and must not show beside steps of some hundred nanoseconds.
const stepsPerLook = 256

// pairTurns is how many times longer several goroutines run: they have to be started, and on a
// busy machine a turn must be longer than what a processor gives to one process at a time.
const pairTurns = 5

// work is what several goroutines did together.
type work struct {
	items int
	// all is for how long all of them were at it at the same time.
	all time.Duration
}

// disturbLimit is how much of a turn on several goroutines other work may take, and turnTries how
// often such a turn is made to stay below.
const (
	disturbLimit = 0.05
	turnTries    = 8
)

// turn is what one turn of a path gave.
type turn struct {
	rate float64 // items per second
	// disturbed is the share of the turn in which a thread was ready and had no processor,
	// or a goroutine no thread.
	disturbed float64
	lost      float64
}

// samples are the turns of a path.
type samples struct{ rate, disturbed, lost []float64 }

func (s *samples) add(t turn) {
	s.rate = append(s.rate, t.rate)
	s.disturbed = append(s.disturbed, t.disturbed)
	s.lost = append(s.lost, t.lost)
}

// measure lets the paths take turns and returns them.
func (s *scenario) measure(opts Options) (map[string]*samples, error) {
	// Thread CPU time is only the path's if the goroutine stays on its thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	turns := map[string]*samples{}
	for _, p := range s.paths {
		turns[p.name] = &samples{}
	}
	for round := range opts.Rounds + 1 {
		for i := range s.paths {
			if round%2 == 1 {
				i = len(s.paths) - 1 - i
			}
			p := &s.paths[i]
			t, err := p.turn(opts.Duration)
			if err != nil {
				return nil, fmt.Errorf("path %s: %w", p.name, err)
			}
			if round > 0 { // the first only warms up
				turns[p.name].add(t)
			}
		}
		if opts.Progress != nil && round > 0 {
			opts.Progress(round, opts.Rounds)
		}
	}
	for _, p := range s.paths {
		if p.check == nil {
			continue
		}
		if err := p.check(); err != nil {
			return nil, fmt.Errorf("path %s: %w", p.name, err)
		}
	}
	return turns, nil
}

// turn runs a path for a while.
func (p *path) turn(d time.Duration) (turn, error) {
	if p.pair == nil {
		rate, err := p.alone(d)
		return turn{rate: rate}, err
	}
	var best turn
	for i := range turnTries {
		t, err := p.both(pairTurns * d)
		if err != nil {
			return t, err
		}
		// What counts is how much was taken away, not how fast it was.
		if i == 0 || t.disturbed < best.disturbed {
			best = t
		}
		if best.disturbed <= disturbLimit {
			break
		}
	}
	return best, nil
}

// alone runs steps of a path on this thread and returns the items per second of its CPU time.
func (p *path) alone(d time.Duration) (float64, error) {
	start, err := cputime.Thread()
	if err != nil {
		return 0, err
	}
	for n := 0; ; {
		for range stepsPerLook {
			n += p.step()
		}
		now, err := cputime.Thread()
		if err != nil {
			return 0, err
		}
		if now-start >= d {
			return float64(n) / (now - start).Seconds(), nil
		}
	}
}

// both runs a path on several goroutines.
func (p *path) both(d time.Duration) (turn, error) {
	before, err := waitTime()
	if err != nil {
		return turn{}, err
	}
	start := time.Now()
	w, err := p.pair(func() bool { return time.Since(start) >= d })
	if err != nil {
		return turn{}, err
	}
	took := time.Since(start)
	after, err := waitTime()
	// A thread that has ended took its time along.
	waited := max(0, after-before)
	t := turn{
		rate:      float64(w.items) / took.Seconds(),
		disturbed: max(waited, took-w.all).Seconds() / took.Seconds(),
	}
	if p.lost != nil {
		t.lost = p.lost()
	}
	return t, err
}

// waitTime is how long all threads of the process have been ready to run without running. A
// kernel that does not count it makes it 0.
func waitTime() (time.Duration, error) {
	files, err := filepath.Glob("/proc/self/task/*/schedstat")
	if err != nil {
		return 0, fmt.Errorf("find threads: %w", err)
	}
	var sum time.Duration
	for _, name := range files {
		b, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return 0, fmt.Errorf("read waiting time of a thread: %w", err)
		}
		// Time on a processor, time waiting for one, number of turns.
		if f := strings.Fields(string(b)); len(f) > 1 {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read waiting time of a thread: %w", err)
			}
			sum += time.Duration(n)
		}
	}
	return sum, nil
}

// together runs f on n goroutines. Their items are the sum of what they return.
func together(n int, f func(i int) int) work {
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	type result struct {
		items      int
		begin, end time.Time
	}
	results := make([]result, n)
	ready.Add(n)
	for i := range n {
		done.Go(func() {
			ready.Done()
			<-start
			r := result{begin: time.Now()}
			r.items = f(i)
			r.end = time.Now()
			results[i] = r
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
	begin, end, w := results[0].begin, results[0].end, work{}
	for _, r := range results {
		w.items += r.items
		if r.begin.After(begin) {
			begin = r.begin
		}
		if r.end.Before(end) {
			end = r.end
		}
	}
	w.all = max(0, end.Sub(begin))
	return w
}
