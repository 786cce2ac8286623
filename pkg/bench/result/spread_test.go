// SPDX-License-Identifier: Apache-2.0

package result

import (
	"math"
	"strings"
	"testing"
)

func TestSpreadOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		samples []float64
		want    Spread
	}{
		{[]float64{7}, Spread{7, 7, 7}},
		{[]float64{3, 1, 2}, Spread{2, 1, 3}},
		{[]float64{4, 1, 2, 3}, Spread{2.5, 1, 4}},
	} {
		if got := SpreadOf(c.samples); got != c.want {
			t.Errorf("%v: %+v, want %+v", c.samples, got, c.want)
		}
	}
}

// The ranks are those of statistics tables for the confidence interval of a median.
func TestRange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ n, cut int }{
		{1, 0}, {2, 0}, {3, 0}, {5, 0}, {7, 0}, {8, 1}, {9, 1}, {10, 1}, {11, 2}, {15, 3}, {20, 5}, {61, 23},
	} {
		samples := make([]float64, c.n)
		for i := range samples {
			samples[i] = float64((i*7+3)%c.n + 1)
			if c.n%7 == 0 {
				samples[i] = float64(i + 1)
			}
		}
		low, high := Range(samples)
		if low != float64(c.cut+1) || high != float64(c.n-c.cut) {
			t.Errorf("%d samples: %v to %v, want %d left out at each end", c.n, low, high, c.cut)
		}
	}
}

func TestNoisy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		samples []float64
		want    bool
	}{
		{"the same", []float64{2, 2, 2, 2, 2}, false},
		{"within", []float64{2, 2.02, 2.04, 2.06, 2.08}, false},
		{"wide", []float64{2, 2.02, 2.04, 2.06, 2.2}, true},
		{"one outlier of nine", []float64{2, 2.01, 2.02, 2.02, 2.02, 2.03, 2.04, 2.05, 9}, false},
		{"negative", []float64{-2, -3, -2, -2, -2}, true},
		{"no number", []float64{2, math.NaN(), 2, 2, 2}, true},
		{"divided by nothing", []float64{math.Inf(1), math.Inf(1), 2, math.Inf(1), math.Inf(1)}, true},
		{"too few", []float64{2, 2, 2, 2}, true},
	} {
		if got := Noisy(c.samples); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// A ratio is taken round by round: what both paths have in common is not in it.
func TestNewRatio(t *testing.T) {
	t.Parallel()
	r := NewRatio([]float64{2, 4, 20, 6, 8}, []float64{1, 2, 10, 3, 4}, false)
	if r.Spread != (Spread{2, 2, 2}) || r.Noisy || len(r.Samples) != 5 {
		t.Errorf("%+v", r)
	}
	if r := NewRatio([]float64{1, 2, 3}, []float64{2, 2, 2}, true); r.Spread != (Spread{1, 0.5, 1.5}) || !r.Noisy || !r.Lower {
		t.Errorf("%+v", r)
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	all, err := Read(strings.NewReader(`{"scenario":"a","rows":[{"path":"p","metric":"m","unit":"u","median":2,"min":1,"max":3,"samples":[1,2,3]}],
		"ratios":{"x/y":{"median":1,"min":1,"max":1,"samples":[1,1,1]}}}
		{"scenario":"b"}`))
	if err != nil || len(all) != 2 || all[0].Rows[0].Median != 2 || all[0].Ratios["x/y"].Max != 1 || all[1].Scenario != "b" {
		t.Errorf("%v: %+v", err, all)
	}
	for _, bad := range []string{
		`{}`, `{"scenario":"a"} {`, `[]`, `{"scenario":"a","rows":[{"path":"p","metric":"m"}]}`, `{"scenario":"a","ratios":{"x/y":{"median":1}}}`,
	} {
		if all, err := Read(strings.NewReader(bad)); err == nil {
			t.Errorf("%s: %+v", bad, all)
		}
	}
}
