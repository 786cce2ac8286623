// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"

	nofrags "github.com/xveth/xveth/pkg/bench/internal/nofrags/pipeline"
	"github.com/xveth/xveth/pkg/bench/internal/pipeline"
	"github.com/xveth/xveth/pkg/bulk"
)

// pollScenario compares the whole way from a received frame to a delivered packet with
// packets in bulk and one by one, with and without support of fragments, and in batches of
// several sizes.
func pollScenario() (*scenario, error) {
	s := &scenario{
		params: map[string]any{"budget": 64, "batch": bulk.DefaultBatch, "frame_size": frameSize, "data": 64},
		ratios: []ratio{
			{"bulk/single", "bulk", "single"},
			{"frags/nofrags", "frags", "nofrags"},
			{"batch16/batch8", "batch16", "batch8"},
			{"batch16/batch1", "batch16", "batch1"},
		},
	}
	add := func(name string, batch int, inBulk bool) error {
		l, err := pipeline.NewPass(batch, inBulk)
		if err != nil {
			return fmt.Errorf("make pipeline: %w", err)
		}
		s.paths = append(s.paths, path{name: name, step: l.Step, check: l.Check})
		return nil
	}
	plain, err := nofrags.NewPass(bulk.DefaultBatch, true)
	if err != nil {
		return nil, fmt.Errorf("make pipeline without fragments: %w", err)
	}
	if err := errors.Join(
		add("bulk", bulk.DefaultBatch, true),
		add("single", bulk.DefaultBatch, false),
		add("frags", bulk.DefaultBatch, true),
	); err != nil {
		return nil, err
	}
	// Next to the path that it is compared with.
	s.paths = append(s.paths, path{name: "nofrags", step: plain.Step, check: plain.Check})
	for _, n := range batchSizes {
		if err := add(fmt.Sprintf("batch%d", n), n, true); err != nil {
			return nil, err
		}
	}
	return s, nil
}
