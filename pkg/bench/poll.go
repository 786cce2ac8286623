// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"

	nofrags "github.com/xveth/xveth/pkg/bench/internal/nofrags/pipeline"
	"github.com/xveth/xveth/pkg/bench/internal/pipeline"
	"github.com/xveth/xveth/pkg/bulk"
)

// pollRounds is enough to tell two paths apart, or not, that differ by a hundredth.
const pollRounds = 241

// pollScenario compares the whole way from a received frame to a delivered packet with
// packets in bulk and one by one, with and without support of fragments, and in batches of
// several sizes.
func pollScenario() (*scenario, error) {
	s := &scenario{
		rounds: pollRounds,
		params: map[string]any{"budget": 64, "batch": bulk.DefaultBatch, "frame_size": frameSize, "data": 64},
		ratios: []ratio{
			{"bulk/single", "bulk", "single"},
			{"frags/nofrags", "frags", "nofrags"},
			{"batch16/batch8", "batch16", "batch8"},
			{"batch16/batch1", "batch16", "batch1"},
		},
	}
	add := func(name string, batch int, inBulk bool) error {
		p, err := placed(name, func() (line, error) { return pipeline.NewPass(batch, inBulk) })
		s.paths = append(s.paths, p)
		return err
	}
	err := errors.Join(
		add("bulk", bulk.DefaultBatch, true),
		add("single", bulk.DefaultBatch, false),
		add("frags", bulk.DefaultBatch, true),
	)
	// Next to the path that it is compared with.
	plain, err2 := placed("nofrags", func() (line, error) { return nofrags.NewPass(bulk.DefaultBatch, true) })
	s.paths = append(s.paths, plain)
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	for _, n := range batchSizes {
		if err := add(fmt.Sprintf("batch%d", n), n, true); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// line is a pipeline, of whichever variant.
type line interface {
	Step() int
	Check() error
}

// places is how many pipelines of a kind there are. Where one lies in memory, and with it
// which cache lines are in each other's way, makes one and the same code some hundredths faster or
// slower, for as long as it lies there.
const places = 8

// placed makes pipelines of a kind that lie in different places.
func placed(name string, build func() (line, error)) (path, error) {
	p := path{name: name}
	var checks []func() error
	for range places {
		l, err := build()
		if err != nil {
			return path{}, fmt.Errorf("make pipeline %s: %w", name, err)
		}
		p.steps = append(p.steps, l.Step)
		checks = append(checks, l.Check)
	}
	p.step = p.steps[0]
	p.check = func() error {
		var errs []error
		for _, check := range checks {
			errs = append(errs, check())
		}
		return errors.Join(errs...)
	}
	return p, nil
}
