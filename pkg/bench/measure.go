// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// path is one way of doing the work of a scenario.
type path struct {
	name string
	// step does some work on one goroutine and returns how many items that was.
	step func() int
	// pair does it on several: it runs until stop returns true and returns the items.
	pair func(stop func() bool) int
	// check, if set, fails if the path lost something.
	check func() error
}

// stepsPerLook is how many steps run between two looks at the clock. A look at a thread's
// clock is a system call and must not show beside steps of some hundred nanoseconds.
const stepsPerLook = 256

// pairTurns is how many times longer several goroutines run: they have to be started, and on a
// busy machine a turn must be longer than what a processor gives to one process at a time.
const pairTurns = 5

// measure lets the paths take turns and returns their items per second, turn by turn.
func (s *scenario) measure(opts Options) (map[string][]float64, error) {
	// Thread CPU time is only the path's if the goroutine stays on its thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	rates := map[string][]float64{}
	for round := range opts.Rounds + 1 {
		for i := range s.paths {
			if round%2 == 1 {
				i = len(s.paths) - 1 - i
			}
			p := &s.paths[i]
			rate, err := p.turn(opts.Duration)
			if err != nil {
				return nil, fmt.Errorf("path %s: %w", p.name, err)
			}
			if round > 0 { // the first only warms up
				rates[p.name] = append(rates[p.name], rate)
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
	return rates, nil
}

// turn runs a path for a while and returns its items per second.
func (p *path) turn(d time.Duration) (float64, error) {
	if p.pair != nil {
		start := time.Now()
		n := p.pair(func() bool { return time.Since(start) >= pairTurns*d })
		return float64(n) / time.Since(start).Seconds(), nil
	}
	start, err := threadTime()
	if err != nil {
		return 0, err
	}
	for n := 0; ; {
		for range stepsPerLook {
			n += p.step()
		}
		now, err := threadTime()
		if err != nil {
			return 0, err
		}
		if now-start >= d {
			return float64(n) / (now - start).Seconds(), nil
		}
	}
}

// threadTime returns the CPU time that this thread has used.
func threadTime() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0, fmt.Errorf("read thread clock: %w", err)
	}
	return time.Duration(t.Nano()), nil
}

// together runs f on n goroutines and returns the sum of what they return. They start
// at the same time.
func together(n int, f func(i int) int) int {
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	results := make([]int, n)
	ready.Add(n)
	for i := range n {
		done.Go(func() {
			ready.Done()
			<-start
			results[i] = f(i)
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
	sum := 0
	for _, r := range results {
		sum += r
	}
	return sum
}
