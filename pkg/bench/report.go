// SPDX-License-Identifier: Apache-2.0

//go:generate go run ./internal/variants/gen

package bench

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
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
	// Rounds is the number of turns of each path; 0 means 61.
	Rounds int
	// Duration is the length of a turn; 0 means 3 ms.
	Duration time.Duration
	// Progress, if set, is called after each round.
	Progress func(round, rounds int)
}

// Spread is what the turns of a path gave.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// Row is one metric of one path.
type Row struct {
	Path   string `json:"path"`
	Metric string `json:"metric"`
	Unit   string `json:"unit"`
	Spread
	Samples []float64 `json:"samples"`
}

// Report is the result of a scenario.
type Report struct {
	Scenario string            `json:"scenario"`
	Params   map[string]any    `json:"params"`
	Rows     []Row             `json:"rows"`
	Ratios   map[string]Spread `json:"ratios"`
}

// scenario is a set of paths and the ratios between their rates.
type scenario struct {
	paths  []path
	ratios []ratio
	params map[string]any
}

// ratio is a rate over another, under a name that users know.
type ratio struct{ name, over, under string }

var scenarios = map[string]func() (*scenario, error){
	"ring": ringScenario, "pool": poolScenario, "txqueue": txScenario, "poll": pollScenario,
}

// Scenarios returns the names that Run knows.
func Scenarios() []string { return slices.Sorted(maps.Keys(scenarios)) }

// Run measures a scenario.
func Run(name string, opts Options) (Report, error) {
	build, ok := scenarios[name]
	if !ok {
		return Report{}, fmt.Errorf("%q: %w", name, ErrScenario)
	}
	s, err := build()
	if err != nil {
		return Report{}, fmt.Errorf("prepare %s: %w", name, err)
	}
	if opts.Rounds <= 0 {
		opts.Rounds = defaultRounds
	}
	if opts.Duration <= 0 {
		opts.Duration = defaultDuration
	}
	rates, err := s.measure(opts)
	if err != nil {
		return Report{}, fmt.Errorf("measure %s: %w", name, err)
	}
	return s.report(name, opts, rates), nil
}

// report turns the rates of each path's turns into rows and ratios.
func (s *scenario) report(name string, opts Options, rates map[string][]float64) Report {
	r := Report{Scenario: name, Params: map[string]any{
		"rounds": opts.Rounds, "duration_ms": float64(opts.Duration) / float64(time.Millisecond),
	}, Ratios: map[string]Spread{}}
	maps.Copy(r.Params, s.params)
	for _, p := range s.paths {
		rate := rates[p.name]
		times := make([]float64, len(rate))
		for i, v := range rate {
			times[i] = 1e9 / v
		}
		r.Rows = append(r.Rows,
			Row{p.name, "rate", "items/s", spread(rate), rate},
			Row{p.name, "time", "ns/item", spread(times), times})
	}
	for _, q := range s.ratios {
		over, under := rates[q.over], rates[q.under]
		quotients, saved := make([]float64, len(over)), make([]float64, len(over))
		for i := range over {
			quotients[i] = over[i] / under[i]
			saved[i] = 1e9/under[i] - 1e9/over[i]
		}
		r.Ratios[q.name] = spread(quotients)
		r.Rows = append(r.Rows, Row{q.name, "saved", "ns/item", spread(saved), saved})
	}
	return r
}

func spread(samples []float64) Spread {
	s := slices.Sorted(slices.Values(samples))
	mid := len(s) / 2
	median := s[mid]
	if len(s)%2 == 0 {
		median = (s[mid-1] + s[mid]) / 2
	}
	return Spread{Median: median, Min: s[0], Max: s[len(s)-1]}
}
