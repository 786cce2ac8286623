// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"runtime"
	"time"

	"github.com/xveth/xveth/pkg/bench/cputime"
)

// path is one way of doing the work of a scenario.
type path struct {
	name string
	// step does some work on one goroutine and returns how many items that was.
	step func() int
	// steps, if set, are several of the same that lie in different memory. They take turns.
	steps []func() int
	// pair does it on several for about that time.
	pair func(d time.Duration) (turn, error)
	// rough says that other work belongs to the path, or that it looks after that itself.
	rough bool
	// lossy says that items can get lost on the way, and are counted then.
	lossy bool
	// check, if set, fails if the path lost something.
	check func() error

	turns int // so far
}

// stepsPerLook is how many steps run between two looks at the clock. A look at a thread's
// clock is a system call and must not show beside steps of some hundred nanoseconds.
const stepsPerLook = 256

// pairTurns is how many times longer several goroutines run: they have to be started, and on a
// busy machine a turn must be longer than what a processor gives to one process at a time.
const pairTurns = 5

// turn is what one turn of a path gave.
type turn struct {
	rate float64 // items per second
	// disturbed is the share of the turn that other work on the machine took part in.
	disturbed float64
	// lost is the share of the items that got lost.
	lost float64
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
	switch {
	case p.rough:
		return p.pair(pairTurns * d)
	case p.pair != nil:
		return calm(func() (turn, error) { return p.pair(pairTurns * d) })
	}
	if n := len(p.steps); n > 0 {
		p.step = p.steps[p.turns%n]
		p.turns++
	}
	rate, err := p.alone(d)
	return turn{rate: rate}, err
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
