// SPDX-License-Identifier: Apache-2.0

//go:generate go run ./internal/variants/gen

package bench

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/xveth/xveth/pkg/bench/result"
)

const (
	defaultRounds   = 61
	defaultDuration = 3 * time.Millisecond
)

// ErrScenario says that there is no such scenario.
var ErrScenario = errors.New("unknown scenario")

// Options say how long to measure. Many short turns see through a busy machine better than few
// long ones.
type Options struct {
	// Rounds is the number of turns of each path; 0 means 61, or more where two paths are
	// nearly the same.
	Rounds int
	// Duration is the length of a turn; 0 means 3 ms.
	Duration time.Duration
	// Progress, if set, is called after each round.
	Progress func(round, rounds int)
}

// scenario is a set of paths and the ratios between their rates.
type scenario struct {
	paths  []path
	ratios []ratio
	params map[string]any
	rounds int          // if set, the default
	end    func() error // if set, takes down what was set up
}

// ratio is a rate over another, under a name that users know.
type ratio struct{ name, over, under string }

var scenarios = map[string]func() (*scenario, error){
	"ring": ringScenario, "pool": poolScenario, "txqueue": txScenario, "poll": pollScenario,
	"afxdp": afxdpScenario,
}

// Scenarios returns the names that Run knows.
func Scenarios() []string { return slices.Sorted(maps.Keys(scenarios)) }

// Run measures a scenario.
func Run(name string, opts Options) (result.Result, error) {
	build, ok := scenarios[name]
	if !ok {
		return result.Result{}, fmt.Errorf("%q: %w", name, ErrScenario)
	}
	s, err := build()
	if err != nil {
		return result.Result{}, fmt.Errorf("prepare %s: %w", name, err)
	}
	if opts.Rounds <= 0 {
		opts.Rounds = cmp.Or(s.rounds, defaultRounds)
	}
	if opts.Duration <= 0 {
		opts.Duration = defaultDuration
	}
	turns, err := s.measure(opts)
	if s.end != nil {
		err = errors.Join(err, s.end())
	}
	if err != nil {
		return result.Result{}, fmt.Errorf("measure %s: %w", name, err)
	}
	return s.report(name, opts, turns), nil
}

// report turns the rates of each path's turns into rows and ratios.
func (s *scenario) report(name string, opts Options, turns map[string]*samples) result.Result {
	r := result.Result{Scenario: name, Params: map[string]any{
		"rounds": opts.Rounds, "duration_ms": float64(opts.Duration) / float64(time.Millisecond),
	}, Ratios: map[string]result.Ratio{}}
	maps.Copy(r.Params, s.params)
	for _, p := range s.paths {
		rate := turns[p.name].rate
		times := make([]float64, len(rate))
		for i, v := range rate {
			times[i] = 1e9 / v
		}
		r.Rows = append(r.Rows,
			result.NewRow(p.name, "rate", "items/s", rate),
			result.NewRow(p.name, "time", "ns/item", times))
		if p.pair != nil {
			r.Rows = append(r.Rows, result.NewRow(p.name, "disturbed", "share", turns[p.name].disturbed))
		}
		if p.lossy {
			r.Rows = append(r.Rows, result.NewRow(p.name, "lost", "share", turns[p.name].lost))
		}
	}
	for _, q := range s.ratios {
		over, under := turns[q.over].rate, turns[q.under].rate
		saved := make([]float64, len(over))
		for i := range over {
			saved[i] = 1e9/under[i] - 1e9/over[i]
		}
		r.Ratios[q.name] = result.NewRatio(over, under, false)
		r.Rows = append(r.Rows, result.NewRow(q.name, "saved", "ns/item", saved))
	}
	return r
}
