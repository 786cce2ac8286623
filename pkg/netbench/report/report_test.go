// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/xml"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/xveth/xveth/pkg/bench/result"
)

// run is a result of two paths.
func run(scenario string, params map[string]any, lower bool, ptp, xveth []float64) result.Result {
	q := result.NewRatio(xveth, ptp, lower)
	q.Headline = true
	return result.Result{
		Scenario: scenario, Params: params,
		Machine: &result.Machine{Kernel: "Linux 6.18", CPU: "Z80 <fast>", Cores: 2, Congestion: "cubic"},
		Time:    time.Date(2026, 11, 30, 23, 0, 0, 0, time.UTC), Version: "v1", Command: "xvethctl bench run " + scenario,
		Rows: []result.Row{
			result.NewRow("ptp", "rate", "Mpps", ptp), result.NewRow("xveth", "rate", "Mpps", xveth),
			result.NewRow("ptp", "cpu-idle", "%", ptp), result.NewRow("xveth", "cpu-idle", "%", xveth),
		},
		Ratios: map[string]result.Ratio{"xveth/ptp": q},
	}
}

func five(v float64) []float64 { return []float64{v, v, v, v, v} }

func newReport(t *testing.T, all ...result.Result) *Report {
	t.Helper()
	r, err := New(all, func(s string) string { return "About " + s })
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		lower      bool
		ptp, xveth float64
		want       string
		median     float64
	}{
		{"more is better, and it is more", false, 1, 2, wins, 2},
		{"more is better, and it is less", false, 2, 1, loses, 0.5},
		{"less is better, and it is less", true, 2, 1, wins, 2},
		{"less is better, and it is more", true, 1, 2, loses, 0.5},
		{"about the same", false, 1, 1.02, even, 1.02},
		{"about the same, and less is better", true, 1.02, 1, even, 1.02},
	} {
		r := newReport(t, run("s", nil, c.lower, five(c.ptp), five(c.xveth)))
		if len(r.Summary) != 1 || r.Summary[0].Verdict != c.want || r.Summary[0].Median != c.median || r.Summary[0].Noisy {
			t.Errorf("%s: %+v", c.name, r.Summary)
		}
	}
}

func TestInSummary(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		over, under, first string
		want               bool
	}{
		{"xveth", "ptp", "ptp", true},
		{"xveth", "bridge", "ptp", false},
		{"ptp", "xveth", "xveth", false},
		{"chain", "plain", "plain", true},
		{"xveth-tcx", "ptp", "ptp", false},
		{"xveth-100", "ptp-100", "xveth-0", true},
		{"xveth-100", "xveth-0", "xveth-0", false},
		{"batch-8", "batch-1", "batch-1", false},
	} {
		if got := inSummary(c.over, c.under, c.first); got != c.want {
			t.Errorf("%s/%s with %s first: %v", c.over, c.under, c.first, got)
		}
	}
}

// The turned ratio keeps its ends: the best round of one is the worst of the other.
func TestBetter(t *testing.T) {
	t.Parallel()
	q := better(result.NewRatio([]float64{1, 1, 1}, []float64{2, 4, 8}, true))
	if q.Spread != (result.Spread{Median: 4, Min: 2, Max: 8}) || !slices.Equal(q.Samples, []float64{2, 4, 8}) || q.Lower {
		t.Errorf("%+v", q)
	}
}

func TestMerge(t *testing.T) {
	t.Parallel()
	p := func(flows int, rounds int) map[string]any {
		return map[string]any{"flows": flows, "rounds": rounds, "rules": "none"}
	}
	for _, c := range []struct {
		name   string
		second result.Result
		runs   int
		noisy  bool
		median float64
	}{
		{"agree", run("s", p(1, 9), false, five(1), five(2.02)), 1, false, 2.01},
		{"disagree", run("s", p(1, 5), false, five(1), five(2.2)), 1, true, 2.1},
		{"are of other parameters", run("s", p(8, 5), false, five(1), five(2.2)), 2, false, 2},
		{"are of another scenario", run("t", p(1, 5), false, five(1), five(2.2)), 2, false, 2},
	} {
		r := newReport(t, run("s", p(1, 5), false, five(1), five(2)), c.second)
		if len(r.Summary) != c.runs || r.Summary[0].Noisy != c.noisy || r.AnyNoisy != c.noisy || r.Summary[0].Median != c.median {
			t.Errorf("%s: %+v", c.name, r.Summary)
		}
	}
	r := newReport(t, run("s", p(1, 5), false, five(1), five(2)), run("s", p(8, 9), false, five(1), five(2)))
	if s := r.Sections[0]; s.Fixed != "rules none" || s.Lines[0].Setting != "flows 1" || s.Lines[1].Setting != "flows 8" || len(s.Details) != 2 {
		t.Errorf("%+v", s)
	}
}

func TestEmpty(t *testing.T) {
	t.Parallel()
	if _, err := New(nil, func(string) string { return "" }); !errors.Is(err, ErrEmpty) {
		t.Error(err)
	}
}

func TestPages(t *testing.T) {
	t.Parallel()
	noisy := []float64{1, 2, 3, 4, 5}
	r := newReport(t, run("s", map[string]any{"rules": "a|b"}, false, five(1), five(2)),
		run("t", map[string]any{"published": map[string]any{"what": "veth", "before": 2, "after": 3, "unit": "Mpps", "ratio": 1.5}}, true, noisy, five(2)))
	var page, text strings.Builder
	if err := r.HTML(&page); err != nil {
		t.Fatal(err)
	}
	pictures, err := r.Markdown(&text, "pictures")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range pictures {
		names = append(names, p.Name)
		checkXML(t, p.Name, string(p.SVG))
		if !strings.Contains(text.String(), "](pictures/"+p.Name+".svg)") || !strings.Contains(page.String(), string(p.SVG)) {
			t.Errorf("picture %s is not on both pages", p.Name)
		}
	}
	if !slices.Equal(names, []string{"summary", "s", "t"}) {
		t.Errorf("pictures %q", names)
	}
	for what, has := range map[string]string{
		"the machine": "Linux 6.18, Z80 <fast>, 2 cores", "the day": "2026-11-30", "a ratio": "| 2.00 (2.00 to 2.00) |",
		"a noisy one, turned": "| ~ 1.50 (0.50 to 2.50) | wins |", "what is published": "veth: 2 to 3 Mpps, 1.500 times",
		"the command": "\nxvethctl bench run t\n", "figures": "| 3 (1 to 5) | 2 (2 to 2) |",
	} {
		if !strings.Contains(text.String(), has) {
			t.Errorf("%s: no %q in %s", what, has, text.String())
		}
	}
	if strings.Contains(text.String(), "cpu-idle") || !strings.Contains(page.String(), "cpu-idle") {
		t.Error("what the processors did belongs on the page of HTML only")
	}
	if strings.Contains(page.String(), "Z80 <fast>") || strings.Contains(page.String(), "src=") || strings.Contains(page.String(), "<link") {
		t.Error("html is not escaped, or needs other files")
	}
}

// Wide scenarios have a line for each path.
func TestTall(t *testing.T) {
	t.Parallel()
	one := run("s", nil, false, five(1), five(2))
	for c := 'a'; c < 'a'+tooWide; c++ {
		one.Rows = append(one.Rows, result.NewRow(string(c), "rate", "Mpps", five(float64(c))))
	}
	var text, page strings.Builder
	r := newReport(t, one)
	if _, err := r.Markdown(&text, "p"); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "|  | c | rate | Mpps | 99 (99 to 99) |\n") || !strings.Contains(text.String(), "|  | xveth/ptp | rate | 2.00 (2.00 to 2.00) |\n") {
		t.Error(text.String())
	}
	if err := r.HTML(&page); err != nil || !strings.Contains(page.String(), "<td>c</td><td>rate</td>") {
		t.Errorf("%v: %s", err, page.String())
	}
}

func checkXML(t *testing.T, name, text string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Errorf("%s is no XML: %v\n%s", name, err, text)
			return
		}
	}
}

func TestFigure(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{0: "0", 0.51234: "0.512", 12.345: "12.3", 999.6: "1000", 1234.5: "1234", -2345.6: "-2346"} {
		if got := figure(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
}
