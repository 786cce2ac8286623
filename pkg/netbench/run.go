// SPDX-License-Identifier: Apache-2.0

package netbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/xveth/xveth/pkg/bench/result"
)

// scenario is one kind of traffic, or of work.
type scenario struct {
	name, about string
	// uses are the options that mean something to it, by the names of their flags.
	uses []string
	// paths are measured when none are named, more can be.
	paths, more []string
	// flows and pods are their default numbers, if not DefaultFlows and DefaultPods.
	flows, pods int
	// published, if set, is what its ratios are shown beside.
	published *published
	// ratios, if set, says whether a path is compared with another, instead of what ratiosOf does.
	ratios func(a, b string) bool
	// open makes what measures one path.
	open func(ctx context.Context, path string, o *Options) (runner, error)
	// prepare, if set, changes the machine for the time of the run.
	prepare func(o *Options) (undo func() error, err error)
}

// runner measures one path.
type runner interface {
	// turn measures once, about as long as the options say, between the start and the
	// stop of a meter.
	turn(ctx context.Context, m *meter) ([]figure, error)
	// bed that it runs on; nil if there is none.
	on() *bed
	close() error
}

// metric is something that is measured.
type metric struct {
	name, unit string
	// lower says that less is better.
	lower bool
	// alone says that it is not compared between paths.
	alone bool
	// headline says that the scenario is there for it, as for its first metric.
	headline bool
}

// figure is what one turn found. The first of a turn is the scenario's main metric.
type figure struct {
	metric
	value float64
}

func (s *scenario) allPaths() []string { return slices.Concat(s.paths, s.more) }

// Info describes a scenario.
type Info struct {
	Name, About string
	// Uses are the names of the flags that mean something to it.
	Uses []string
	// Paths that it measures, and More that it can.
	Paths, More []string
}

// Scenarios describes all scenarios.
func Scenarios() []Info {
	var all []Info
	for _, s := range scenarios {
		all = append(all, Info{s.name, s.about, s.uses, s.paths, s.more})
	}
	return all
}

// AboutPath describes a path.
func AboutPath(name string) string { return paths[name].about }

// Run measures a scenario. What it made is gone when it returns.
func Run(ctx context.Context, name string, o Options) (res result.Result, err error) {
	i := slices.IndexFunc(scenarios, func(s *scenario) bool { return s.name == name })
	if i < 0 {
		return res, fmt.Errorf("%q: %w", name, ErrScenario)
	}
	s := scenarios[i]
	if err := o.fill(s); err != nil {
		return res, err
	}
	if os.Geteuid() != 0 {
		return res, ErrNotRoot
	}
	machine := result.ThisMachine()
	res = result.Result{Scenario: name, Params: o.params(s), Machine: &machine, Time: time.Now().UTC().Truncate(time.Second)}
	all, err := s.measure(ctx, &o)
	if err != nil {
		if ctx.Err() != nil {
			err = ErrInterrupted
		}
		return res, err
	}
	return res, all.into(&res)
}

// measure opens all paths and lets them take turns.
func (s *scenario) measure(ctx context.Context, o *Options) (all *samples, err error) {
	if s.prepare != nil {
		undo, err := s.prepare(o)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, undo()) }()
	}
	runners := map[string]runner{}
	defer func() {
		o.Progress("removing what was made")
		for _, r := range runners {
			err = errors.Join(err, r.close())
		}
	}()
	for _, p := range o.Paths {
		o.Progress(fmt.Sprintf("%s: making %s", s.name, p))
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		r, err := s.open(ctx, p, o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		runners[p] = r
	}
	all = newSamples(o.Paths)
	all.compared = s.ratios
	for round := range o.Rounds {
		for _, p := range o.Paths {
			o.Progress(fmt.Sprintf("%s: round %d of %d, %s", s.name, round+1, o.Rounds, p))
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			m := &meter{bed: runners[p].on()}
			figures, err := runners[p].turn(ctx, m)
			if err != nil {
				return nil, fmt.Errorf("measure %s: %w", p, err)
			}
			all.add(p, round, figures, m)
		}
	}
	return all, nil
}
