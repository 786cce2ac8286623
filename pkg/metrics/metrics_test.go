// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/xveth/xveth/pkg/status"
)

// fixed collects a state that is given.
type fixed struct{ node *status.Node }

func (f fixed) Describe(ch chan<- *prometheus.Desc) { NewCollector("", "").Describe(ch) }

func (f fixed) Collect(ch chan<- prometheus.Metric) { sink{ch}.node(f.node) }

// TestOddStates collects what a registry refuses when it is taken as it is: names that are
// not text, and interfaces that are gone.
func TestOddStates(t *testing.T) {
	t.Parallel()
	n := &status.Node{
		Loaded: true, Settings: &status.Settings{},
		Uplinks: []status.Uplink{{Name: "e\xff"}},
		Losses: []status.Loss{
			{Interface: "#7", Index: 7, Cause: "its ring was full", Frames: 2},
			{Interface: "#8", Index: 8, Cause: "its ring was full", Frames: 3},
			{Interface: "#9", Index: 5, Cause: "its ring was full", Frames: 4},
		},
	}
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(fixed{n})
	if _, err := r.Gather(); err != nil {
		t.Fatal(err)
	}
	if got, err := testutil.GatherAndCount(r, lost.Name); err != nil || got != 2 {
		t.Errorf("%d series of losses, %v; want one for the interface and one for those that are gone", got, err)
	}
}

// TestLint holds the names against the conventions of Prometheus.
func TestLint(t *testing.T) {
	t.Parallel()
	n := &status.Node{Loaded: true, Liberal: "1", Settings: &status.Settings{}, Counters: []status.Counter{
		{Reason: "fast_xdp"}, {Reason: "learn_new"},
	}, Programs: []status.Program{{Name: "p"}}, Losses: []status.Loss{{Interface: "a"}}}
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(fixed{n})
	problems, err := testutil.GatherAndLint(r)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}
