// SPDX-License-Identifier: Apache-2.0

package netbench

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/xveth/xveth/pkg/bench/result"
	"github.com/xveth/xveth/pkg/netbench/ruleset"
)

func TestRatiosOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		paths, want string
		own         func(a, b string) bool
	}{
		{"ptp", "", nil},
		{"ptp xveth", "xveth/ptp", nil},
		{"xveth ptp", "ptp/xveth", nil},
		{"ptp bridge xveth-off xveth redirect", "bridge/ptp xveth-off/ptp xveth/ptp xveth/bridge xveth/xveth-off xveth/redirect redirect/ptp", nil},
		{"ptp xveth xveth-tcx", "xveth/ptp xveth-tcx/ptp", nil},
		{"batch-1 batch-8", "batch-8/batch-1", nil},
		{"xveth-0 xveth-100 ptp-0 ptp-100", "xveth-0/ptp-0 xveth-100/xveth-0 xveth-100/ptp-100 ptp-100/ptp-0", forwardRules.ratios},
	} {
		var got []string
		for _, q := range ratiosOf(strings.Fields(c.paths), c.own) {
			got = append(got, q[0]+"/"+q[1])
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", c.paths, got, c.want)
		}
	}
}

// Turns become rows and ratios; a loss in one round only is no loss in the others.
func TestSamples(t *testing.T) {
	t.Parallel()
	fast, slow := metric{name: "rate", unit: "Mpps"}, metric{name: "p99", unit: "us", lower: true}
	s := newSamples([]string{"ptp", "xveth"})
	for round := range 3 {
		v := float64(round + 1)
		m := &meter{measured: true, spent: cpuTimes{cpuUser: 1, cpuIdle: 3}, took: 2 * time.Second, places: []string{"ring"}}
		if round == 1 {
			m.lost = map[string]uint64{"ring": 10}
		}
		s.add("ptp", round, []figure{{fast, v}, {slow, 4}}, m)
		s.add("xveth", round, []figure{{fast, 2 * v}, {slow, 1}}, &meter{})
	}
	var r result.Result
	if err := s.into(&r); err != nil {
		t.Fatal(err)
	}
	if q := r.Ratios["xveth/ptp"]; q.Median != 2 || q.Lower || !q.Headline || len(q.Samples) != 3 {
		t.Errorf("%+v", q)
	}
	if q := r.Ratios["xveth/ptp p99"]; q.Median != 0.25 || !q.Lower || q.Headline {
		t.Errorf("%+v", q)
	}
	if len(r.Ratios) != 2 {
		t.Errorf("ratios %+v", r.Ratios)
	}
	rows := map[string][]float64{}
	for _, row := range r.Rows {
		rows[row.Path+" "+row.Metric] = row.Samples
	}
	for name, want := range map[string][]float64{
		"ptp rate": {1, 2, 3}, "xveth rate": {2, 4, 6}, "ptp cpu-user": {25, 25, 25}, "ptp cpu-idle": {75, 75, 75},
		"ptp drops ring": {0, 5, 0},
	} {
		if !slices.Equal(rows[name], want) {
			t.Errorf("%s: %v, want %v", name, rows[name], want)
		}
	}
	s.add("xveth", 3, []figure{{fast, 0}}, &meter{})
	if err := s.into(&r); err == nil {
		t.Error("a rate of nothing passes")
	}
}

func TestParseCPU(t *testing.T) {
	t.Parallel()
	got, err := parseCPU([]byte("cpu  10 2 30 400 5 6 70 8 9 1\ncpu0 1 1 1 1 1 1 1 1 0 0\n"))
	if want := (cpuTimes{cpuUser: 12, cpuSystem: 30, cpuIdle: 405, cpuSoftirq: 76}); err != nil || !maps.Equal(got, want) {
		t.Errorf("%v: %v", err, got)
	}
	if d := got.minus(cpuTimes{cpuUser: 2, cpuSystem: 30, cpuIdle: 375, cpuSoftirq: 66}); d.share(cpuIdle) != 60 || d.share(cpuSystem) != 0 {
		t.Errorf("%v", d)
	}
	if (cpuTimes{}).share(cpuIdle) != 0 {
		t.Error("a share of nothing")
	}
	for _, bad := range []string{"", "cpu0 1 1 1 1 1 1 1 1", "cpu 1 2 3", "cpu a b c d e f g h"} {
		if got, err := parseCPU([]byte(bad)); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}

func TestParseProc(t *testing.T) {
	t.Parallel()
	const snmp = "Ip: A B\nIp: 1 2\nUdp: In NoPorts RcvbufErrors\nUdp: 7 8 9\nUdpLite: RcvbufErrors\nUdpLite: 3\n"
	if n, err := parseSNMP([]byte(snmp), "Udp", "RcvbufErrors"); err != nil || n != 9 {
		t.Errorf("%v: %d", err, n)
	}
	if n, err := parseSNMP([]byte(snmp), "Udp", "B"); err == nil {
		t.Errorf("%d", n)
	}
	const meminfo = "MemTotal: 100 kB\nSlab:   3 kB\nPercpu:  4 kB\n"
	if n, err := parseMeminfo(meminfo, []string{"Percpu", "Slab"}); err != nil || n != 7<<10 {
		t.Errorf("%v: %d", err, n)
	}
	if n, err := parseMeminfo(meminfo, []string{"lab"}); err == nil {
		t.Errorf("%d", n)
	}
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(i+1)*time.Microsecond)
	}
	for _, c := range []struct {
		of   []time.Duration
		p    int
		want float64
	}{{hundred, 50, 50}, {hundred, 99, 99}, {hundred, 100, 100}, {hundred[:1], 50, 1}, {hundred[:1], 99, 1}, {hundred[:3], 50, 2}, {nil, 50, 0}} {
		if got := percentile(c.of, c.p); got != c.want {
			t.Errorf("p%d of %d: %v, want %v", c.p, len(c.of), got, c.want)
		}
	}
}

func TestUpTo(t *testing.T) {
	t.Parallel()
	for largest, want := range map[int][]int{1: {1}, 10: {1, 10}, 11: {1, 10, 11}, 500: {1, 10, 100, 500}} {
		if got := upTo([]int{1, 10, 100}, largest); !slices.Equal(got, want) {
			t.Errorf("%d: %v, want %v", largest, got, want)
		}
	}
}

func TestBatchOf(t *testing.T) {
	t.Parallel()
	for _, b := range batches {
		if n, err := batchOf(b); err != nil || batchPrefix+strconv.Itoa(n) != b {
			t.Errorf("%s: %d, %v", b, n, err)
		}
	}
	if n, err := batchOf(pathUplinkDrop); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

// What the suite runs is what the scenarios take.
func TestSuite(t *testing.T) {
	t.Parallel()
	in := map[string]bool{}
	for _, set := range Suite() {
		in[set.Scenario] = true
		i := slices.IndexFunc(scenarios, func(s *scenario) bool { return s.name == set.Scenario })
		if i < 0 {
			t.Errorf("no scenario %q", set.Scenario)
			continue
		}
		s, o := scenarios[i], set.Options
		if err := o.fill(s); err != nil {
			t.Errorf("%+v: %v", set, err)
		}
		for _, used := range []struct {
			name string
			set  bool
		}{
			{"flows", set.Flows != 0},
			{"size", set.Size != 0},
			{"rules", set.Rules != ""},
			{"sink", set.Sink != ""},
			{"pods", set.Pods != 0},
			{"parallel", set.Parallel != 0},
			{"cores", set.Cores != 0},
			{"revalidate", set.Revalidate != 0},
			{"congestion", set.Congestion != ""},
		} {
			if used.set && !slices.Contains(s.uses, used.name) {
				t.Errorf("%s does not use %s: %+v", s.name, used.name, set)
			}
		}
	}
	for _, s := range scenarios {
		if !in[s.name] {
			t.Errorf("the suite does not run %s", s.name)
		}
		var o Options
		if err := o.fill(s); err != nil {
			t.Errorf("%s: %v", s.name, err)
		}
		for _, name := range s.uses {
			if _, have := o.params(s)[name]; !have && name != "revalidate" && name != "congestion" {
				t.Errorf("%s: %s is no parameter", s.name, name)
			}
		}
	}
}

func TestOptionsRefused(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{
		{Rounds: -1},
		{Rounds: MaxRounds + 1},
		{Duration: time.Nanosecond},
		{Duration: time.Hour},
		{Size: 59},
		{Size: 1515},
		{Flows: MaxFlows + 1},
		{Flows: -1},
		{Pods: MaxPods + 1},
		{Parallel: MaxParallel + 1},
		{Cores: 3},
		{Sink: "x"},
		{Rules: "x"},
		{Paths: []string{"x"}},
		{Paths: []string{pathPTP, pathPTP}},
	} {
		if _, err := Run(context.Background(), uplinkToPod.name, o); !errors.Is(err, ErrOptions) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := Run(context.Background(), "x", Options{}); !errors.Is(err, ErrScenario) {
		t.Error(err)
	}
}

func TestRules(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]ruleset.Rules{
		"none": {}, "masquerade": {Masquerade: true}, "services=3": {Masquerade: true, Services: 3},
	} {
		if got, err := ruleset.Parse(text); err != nil || got != want {
			t.Errorf("%s: %v: %+v", text, err, got)
		}
	}
	// None in front of the accept of established flows is not the same as no such accept.
	if zero, err := ruleset.Parse("forward=0"); err != nil || zero == (ruleset.Rules{Masquerade: true}) || zero.Forward != 0 {
		t.Errorf("%v: %+v", err, zero)
	}
	for _, bad := range []string{"", "masq", "services", "services=", "services=x", "services=-1", "forward=1000000", "none=1"} {
		if got, err := ruleset.Parse(bad); err == nil {
			t.Errorf("%s: %+v", bad, got)
		}
	}
}

func TestRaise(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "max")
	for _, c := range []struct{ have, want, during string }{{"10\n", "20", "20"}, {"30", "20", "30"}} {
		if err := os.WriteFile(file, []byte(c.have), 0o600); err != nil {
			t.Fatal(err)
		}
		n, _ := strconv.Atoi(c.want)
		restore, err := raise(file, n)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(file); strings.TrimSpace(string(got)) != c.during {
			t.Errorf("%q to %s: %q", c.have, c.want, got)
		}
		if err := restore(); err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(file); strings.TrimSpace(string(got)) != strings.TrimSpace(c.have) {
			t.Errorf("%q came back as %q", c.have, got)
		}
	}
	if restore, err := raise(filepath.Join(t.TempDir(), "none"), 1); err != nil || restore() != nil {
		t.Errorf("what the kernel does not have: %v", err)
	}
}
