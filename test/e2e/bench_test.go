// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/xveth/xveth/pkg/bench"
	"github.com/xveth/xveth/pkg/bench/result"
	"github.com/xveth/xveth/pkg/netbench"
)

// benchCase runs a scenario for a moment.
type benchCase struct {
	scenario string
	args     []string
	// paths have rows, of these metrics among others.
	paths, metrics []string
	// ratios are there, among others.
	ratios []string
}

var benchCases = []benchCase{
	{
		"uplink-to-pod",
		[]string{"--path", "ptp,xveth,xveth-tcx,redirect,redirect-dst,redirect-peer,limit", "--flows", "50", "--size", "512"},
		[]string{"ptp", "xveth", "xveth-tcx", "redirect", "redirect-dst", "redirect-peer", "limit"},
		[]string{"rate", "cost", "cpu-softirq", "cpu-idle"},
		[]string{"xveth/ptp", "xveth/redirect", "xveth/redirect-dst", "xveth-tcx/redirect-peer", "limit/ptp", "xveth/ptp cost"},
	},
	{
		"uplink-to-pod",
		[]string{"--path", "bridge,xveth-off,xveth", "--sink", "socket", "--rules", "none"},
		[]string{"bridge", "xveth-off", "xveth"},
		[]string{"rate"},
		[]string{"xveth/bridge", "xveth/xveth-off"},
	},
	{"uplink-to-pod", []string{"--path", "xveth", "--rules", "services=20", "--revalidate", "100ms"}, []string{"xveth"}, []string{"rate"}, nil},
	{"uplink-to-pod", []string{"--path", "xveth", "--rules", "forward=20"}, []string{"xveth"}, []string{"rate"}, nil},
	{"forward-rules", []string{"--path", "xveth-0,xveth-100,ptp-0,ptp-100"}, []string{"xveth-0", "ptp-100"}, []string{"rate"}, []string{"xveth-100/xveth-0", "ptp-100/ptp-0", "xveth-100/ptp-100"}},
	{"pod-to-uplink", []string{"--path", "ptp,xveth", "--flows", "3"}, []string{"ptp", "xveth"}, []string{"rate", "cost", "tcp"}, []string{"xveth/ptp", "xveth/ptp tcp"}},
	{
		"pod-to-pod-tcp",
		[]string{"--path", "ptp,xveth,xveth-xdp", "--flows", "2", "--cores", "2", "--congestion", "reno"},
		[]string{"ptp", "xveth", "xveth-xdp"},
		[]string{"throughput", "cost"},
		[]string{"xveth/ptp", "xveth/ptp cost"},
	},
	{"pod-to-pod-rr", []string{"--path", "ptp,xveth"}, []string{"ptp", "xveth"}, []string{"p50", "p90", "p99", "rate"}, []string{"xveth/ptp", "xveth/ptp p99"}},
	{"uplink-rr", []string{"--path", "ptp,xveth"}, []string{"ptp", "xveth"}, []string{"p50", "p99"}, []string{"xveth/ptp"}},
	{"conn-rate", []string{"--path", "ptp,xveth", "--cores", "2"}, []string{"ptp", "xveth"}, []string{"rate", "cost"}, []string{"xveth/ptp"}},
	{"udp-oneshot", []string{"--path", "ptp,xveth"}, []string{"ptp", "xveth"}, []string{"rate", "cost"}, []string{"xveth/ptp"}},
	{"hostport", []string{"--path", "ptp,xveth", "--flows", "20"}, []string{"ptp", "xveth"}, []string{"rate"}, []string{"xveth/ptp"}},
	{"clusterip", []string{"--path", "ptp,xveth", "--flows", "20"}, []string{"ptp", "xveth"}, []string{"rate"}, []string{"xveth/ptp"}},
	{"chain-ptp", []string{"--flows", "20"}, []string{"plain", "chain"}, []string{"rate", "cost"}, []string{"chain/plain"}},
	{"chain-bridge", []string{"--flows", "20"}, []string{"plain", "chain"}, []string{"rate", "cost"}, []string{"chain/plain"}},
	{"chain-flannel", []string{"--flows", "20"}, []string{"plain", "chain"}, []string{"rate", "cost"}, []string{"chain/plain"}},
	{"chain-meta", []string{"--flows", "20"}, []string{"plain", "chain"}, []string{"rate", "tcp-in", "tcp-out cost", "tcp-local"}, []string{"chain/plain", "chain/plain tcp-in"}},
	{"cni-add-del", []string{"--path", "ptp,xveth", "--pods", "2", "--parallel", "2"}, []string{"ptp", "xveth"}, []string{"add p50", "del p99", "add-alone p50", "del-alone p50"}, []string{"xveth/ptp", "xveth/ptp del p50"}},
	{"scale", []string{"--flows", "100", "--pods", "3"}, []string{"ptp", "xveth"}, []string{"flows=1", "flows=100", "pods=1", "pods=3"}, []string{"xveth/ptp", "xveth/ptp flows=100", "xveth/ptp pods=3"}},
	{"memory", []string{"--path", "ptp,xveth", "--pods", "2"}, []string{"ptp", "xveth"}, []string{"pod", "maps"}, nil},
	{"cpu-per-gbit", []string{"--path", "ptp,xveth"}, []string{"ptp", "xveth"}, []string{"pod-to-pod", "pod-to-uplink", "uplink-to-pod"}, []string{"xveth/ptp", "xveth/ptp uplink-to-pod"}},
	{"two-core", []string{"--path", "ptp,xveth", "--flows", "20"}, []string{"ptp", "xveth"}, []string{"rate", "cost"}, []string{"xveth/ptp"}},
	{"seed-xdp-pass", []string{"--path", "batch-1,batch-16"}, []string{"batch-1", "batch-16"}, []string{"rate"}, []string{"batch-16/batch-1"}},
	{"seed-redirect-drop", []string{"--path", "batch-1,batch-16,uplink-drop"}, []string{"batch-1", "uplink-drop"}, []string{"rate"}, []string{"batch-16/batch-1", "uplink-drop/batch-1"}},
	{"seed-xdp-tx", []string{"--path", "batch-1,batch-16"}, []string{"batch-1", "batch-16"}, []string{"rate"}, []string{"batch-16/batch-1"}},
	{"seed-multibuffer", nil, []string{"xdp", "xdp.frags"}, []string{"drop", "tx", "pass"}, []string{"xdp.frags/xdp", "xdp.frags/xdp pass", "xdp.frags/xdp drop cost"}},
}

const benchRounds = 2

// TestBench runs every scenario of the network for a moment: what it says makes sense, and
// nothing of it is left.
func TestBench(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and network namespaces; not in short mode")
	}
	before := machine(t)
	for _, s := range netbench.Scenarios() {
		if !slices.ContainsFunc(benchCases, func(c benchCase) bool { return c.scenario == s.Name }) {
			t.Errorf("scenario %q is not tested", s.Name)
		}
	}
	t.Run("scenarios", func(t *testing.T) {
		for _, c := range benchCases {
			t.Run(c.scenario, func(t *testing.T) {
				t.Parallel()
				checkResult(t, c, runBench(t, c))
			})
		}
	})
	if after := machine(t); after != before {
		t.Errorf("left behind:\n%s\nbefore:\n%s", after, before)
	}
}

func benchCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	return exec.CommandContext(ctxOf(t), filepath.Join(plugins, "xvethctl"), append([]string{"bench"}, args...)...)
}

func runBench(t *testing.T, c benchCase) result.Result {
	t.Helper()
	args := append([]string{"run", c.scenario, "--json", "--rounds", "2", "--duration", "30ms", "--reference", testBin(t)}, c.args...)
	cmd := benchCommand(t, args...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s%s", err, out, said.String())
	}
	// The form that others read.
	var form struct {
		Scenario string         `json:"scenario"`
		Params   map[string]any `json:"params"`
		Rows     []struct {
			Path, Metric, Unit string
			Median, Min, Max   *float64
			Samples            []float64
		} `json:"rows"`
		Ratios map[string]struct{ Median, Min, Max *float64 } `json:"ratios"`
	}
	if err := json.Unmarshal(out, &form); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if form.Scenario != c.scenario || form.Params["rounds"] != float64(benchRounds) || len(form.Rows) == 0 || form.Ratios == nil {
		t.Errorf("not the form of a result: %s", out)
	}
	all, err := result.Read(strings.NewReader(string(out)))
	if err != nil || len(all) != 1 {
		t.Fatalf("%v: %s", err, out)
	}
	return all[0]
}

func checkResult(t *testing.T, c benchCase, r result.Result) {
	t.Helper()
	for _, path := range c.paths {
		for _, metric := range c.metrics {
			if !slices.ContainsFunc(r.Rows, func(r result.Row) bool { return r.Path == path && r.Metric == metric }) {
				t.Errorf("no %s of %s", metric, path)
			}
		}
	}
	for _, row := range r.Rows {
		if len(row.Samples) != benchRounds || row.Min > row.Median || row.Median > row.Max || row.Unit == "" {
			t.Errorf("row %+v", row)
		}
		if strings.HasPrefix(row.Metric, "cpu-") && (row.Min < 0 || row.Max > 100) {
			t.Errorf("more than all processors, or less than none: %+v", row)
		}
	}
	for _, name := range c.ratios {
		q, have := r.Ratios[name]
		if !have || q.Min <= 0 || q.Min > q.Median || q.Median > q.Max {
			t.Errorf("ratio %s is %+v", name, q)
		}
		if !q.Noisy {
			t.Errorf("ratio %s of %d rounds passes for repeatable", name, benchRounds)
		}
	}
	if r.Machine == nil || r.Machine.Kernel == "" || r.Machine.Cores == 0 || r.Time.IsZero() || !strings.HasPrefix(r.Command, "xvethctl bench run "+c.scenario) {
		t.Errorf("where, when and how: %+v, %v, %q", r.Machine, r.Time, r.Command)
	}
}

// TestBenchReport makes pages of results from standard input and from files.
func TestBenchReport(t *testing.T) {
	if testing.Short() {
		t.Skip("runs binaries that only the end-to-end tests build")
	}
	t.Parallel()
	dir := t.TempDir()
	one, err := benchCommand(t, "run", "txqueue", "--json", "--rounds", "2").Output()
	if err != nil {
		t.Fatal(err)
	}
	file, markdown, html := filepath.Join(dir, "r.json"), filepath.Join(dir, "page.md"), filepath.Join(dir, "page.html")
	if err := os.WriteFile(file, slices.Concat(one, one), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "page"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "page", "old.svg"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := benchCommand(t, "report", file, file, "--markdown", markdown, "--html", html).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, page := range []string{markdown, html} {
		if text, err := os.ReadFile(page); err != nil || !strings.Contains(string(text), "txqueue") || !strings.Contains(string(text), "bulk2/lock2") {
			t.Errorf("%v: %s", err, text)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "page", "old.svg")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a picture of an earlier page is left: %v", err)
	}
	fromStdin := benchCommand(t, "report", "--html", html)
	fromStdin.Stdin = strings.NewReader(string(one))
	if out, err := fromStdin.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	for _, args := range [][]string{{"report", file}, {"report", filepath.Join(dir, "none"), "--html", html}} {
		if out, err := benchCommand(t, args...).CombinedOutput(); err == nil {
			t.Errorf("%q: %s", args, out)
		}
	}
}

// TestBenchInterrupted stops a run half way.
func TestBenchInterrupted(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and network namespaces; not in short mode")
	}
	before := machine(t)
	cmd := benchCommand(t, "run", "uplink-to-pod", "--duration", "50ms", "--rounds", "900", "--path", "ptp,xveth", "--reference", testBin(t))
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// Two nodes, each with a pod, a remote host and a wire between them: it measures.
	eventually(t, 60*time.Second, "the networks are made", func() bool { return namespaces(cmd.Process.Pid) > 8 })
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Error(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(said.String(), "interrupted") {
		t.Errorf("%v: %q", err, said.String())
	}
	if after := machine(t); after != before {
		t.Errorf("left behind:\n%s\nbefore:\n%s", after, before)
	}
}

// namespaces counts the network namespaces that the threads of a process are in.
func namespaces(pid int) int {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/ns/net", pid))
	seen := map[string]bool{}
	for _, l := range links {
		if id, err := os.Readlink(l); err == nil {
			seen[id] = true
		}
	}
	return len(seen)
}

// TestBenchUsage refuses what makes no sense, and says what does.
func TestBenchUsage(t *testing.T) {
	if testing.Short() {
		t.Skip("runs binaries that only the end-to-end tests build")
	}
	t.Parallel()
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"run"}, "want one scenario of"},
		{[]string{"run", "uplink"}, "uplink-to-pod"},
		{[]string{"run", "ring", "--size", "64"}, "ring takes no --size"},
		{[]string{"run", "conn-rate", "--flows", "3"}, "conn-rate takes no --flows"},
		{[]string{"run", "uplink-to-pod", "--path", "ptp,nowhere"}, `path "nowhere"`},
		{[]string{"run", "uplink-to-pod", "--path", "ptp,ptp"}, "twice"},
		{[]string{"run", "uplink-to-pod", "--rules", "many"}, "services=N"},
		{[]string{"run", "uplink-to-pod", "--rules", "services=-1"}, "number of rules"},
		{[]string{"run", "uplink-to-pod", "--size", "20"}, "size"},
		{[]string{"run", "uplink-to-pod", "--sink", "hole"}, `sink "hole"`},
		{[]string{"run", "uplink-to-pod", "--duration", "1ns"}, "duration"},
		{[]string{"run", "uplink-to-pod", "--rounds", "-1"}, "rounds"},
	} {
		cmd := benchCommand(t, append(c.args, "--reference", testBin(t))...)
		if len(c.args) < 2 || c.args[1] == "ring" {
			cmd = benchCommand(t, c.args...)
		}
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(string(out), c.says) {
			t.Errorf("%q: %v: %s", c.args, err, out)
		}
	}
}

// TestBenchList names both kinds of scenarios.
func TestBenchList(t *testing.T) {
	if testing.Short() {
		t.Skip("runs binaries that only the end-to-end tests build")
	}
	t.Parallel()
	out, err := benchCommand(t, "list").Output()
	if err != nil {
		t.Fatal(err)
	}
	names := bench.Scenarios()
	for _, s := range netbench.Scenarios() {
		names = append(names, s.Name)
	}
	for _, name := range names {
		if !strings.Contains(string(out), "\n"+name+" ") {
			t.Errorf("%s is not listed in %s", name, out)
		}
	}
}
