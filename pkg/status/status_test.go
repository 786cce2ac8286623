// SPDX-License-Identifier: Apache-2.0

package status

import (
	"net/netip"
	"testing"
	"time"

	"github.com/xveth/xveth/pkg/datapath"
)

// TestMeanings compares the counters' meanings with the reasons of the programs.
func TestMeanings(t *testing.T) {
	reasons, err := datapath.Reasons()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, r := range reasons {
		known[r] = true
		if Meaning(r) == "" {
			t.Errorf("reason %q has no meaning (pkg/status/meaning.go)", r)
		}
	}
	for r := range meanings {
		if !known[r] {
			t.Errorf("reason %q is none of bpf/reason.h", r)
		}
	}
}

func TestFlowFilter(t *testing.T) {
	ap := netip.MustParseAddrPort
	f := datapath.Flow{
		Proto: 17, Src: ap("192.0.2.2:5000"), Dst: ap("192.0.2.1:8080"),
		NewSrc: ap("192.0.2.2:5000"), NewDst: ap("10.88.0.2:80"), Left: time.Second,
	}
	for _, c := range []struct {
		name   string
		filter FlowFilter
		left   time.Duration
		want   bool
	}{
		{"everything", FlowFilter{}, 1, true},
		{"expired", FlowFilter{}, -1, false},
		{"expired, all", FlowFilter{All: true}, -1, true},
		{"translated address", FlowFilter{Pod: netip.MustParseAddr("10.88.0.2")}, 1, true},
		{"mapped address", FlowFilter{Pod: netip.MustParseAddr("::ffff:10.88.0.2")}, 1, true},
		{"another address", FlowFilter{Pod: netip.MustParseAddr("10.88.0.3")}, 1, false},
		{"port before", FlowFilter{Port: 8080}, 1, true},
		{"port after", FlowFilter{Port: 80}, 1, true},
		{"another port", FlowFilter{Port: 81}, 1, false},
		{"protocol", FlowFilter{Proto: 17}, 1, true},
		{"another protocol", FlowFilter{Proto: 6}, 1, false},
		{"one of two", FlowFilter{Proto: 17, Port: 81}, 1, false},
	} {
		f.Left = c.left
		if got := c.filter.Match(&f); got != c.want {
			t.Errorf("%s: got %v", c.name, got)
		}
	}
}

func TestSortFlows(t *testing.T) {
	all := []Flow{{Proto: "tcp", Packets: 1, Age: 2}, {Proto: "udp", Packets: 3, Age: 1}}
	for by, first := range map[string]string{"packets": "udp", "age": "tcp"} {
		if err := SortFlows(all, by); err != nil || all[0].Proto != first {
			t.Errorf("by %s: %q is first (%v)", by, all[0].Proto, err)
		}
	}
	if err := SortFlows(all, "colour"); err == nil {
		t.Error("sorted by colour")
	}
}
