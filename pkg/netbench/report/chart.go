// SPDX-License-Identifier: Apache-2.0

package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"strings"
)

// The pictures are bars in a row, with a line from the lowest to the highest round. A
// library for plots would be larger than all of xvethctl, mostly by its fonts.

//go:embed chart.svg.tmpl
var chartText string

var chartTemplate = template.Must(template.New("chart").Parse(chartText))

// Measures of a picture, in its own units.
const (
	chartLeft   = 400
	chartPlot   = 420
	chartRight  = 110
	chartTop    = 40
	chartBar    = 18
	chartGap    = 6
	chartBottom = 30
)

// chart is a picture as its template draws it.
type chart struct {
	Title         string
	Width, Height int
	Left, Right   int
	Top, Bottom   int
	Bars          []bar
	Ticks         []tick
	// Base is where bars begin.
	Base float64
}

type bar struct {
	Label, Value, Class string
	Y, Middle           int
	X, Width            float64
	Low, High           float64
	Thick               int
	// Text is where the value stands.
	Text float64
}

type tick struct {
	X    float64
	Text string
}

// bars are what a picture shows, before it is known where.
type bars struct {
	label, class   string
	low, mid, high float64
	noisy          bool
	// gap leaves room above it.
	gap bool
}

// ratioTicks are marks of an axis on which twice and half are as far from 1.
var ratioTicks = []float64{0.125, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8}

// The axis of ratios goes at least from atLeastLow to atLeastHigh, and not beyond the outermost
// ticks: what is beyond ends there, with its figure.
const (
	atLeastLow  = 0.75
	atLeastHigh = 1.5
)

// ratioChart shows how many times better or worse something is, from the line that says
// "as good" to the right or to the left.
func ratioChart(title string, all []Compared) (template.HTML, error) {
	var list []bars
	low, high := atLeastLow, atLeastHigh
	last := ""
	for _, c := range all {
		label := strings.TrimSpace(c.Scenario + " " + c.Setting)
		list = append(list, bars{label, c.Verdict, c.Min, c.Median, c.Max, c.Noisy, last != "" && last != c.Scenario})
		last = c.Scenario
		low, high = min(low, c.Min), max(high, c.Max)
	}
	low, high = max(low, ratioTicks[0]), min(high, ratioTicks[len(ratioTicks)-1])
	at := func(v float64) float64 {
		v = min(max(v, low), high)
		return chartLeft + chartPlot*math.Log2(v/low)/math.Log2(high/low)
	}
	c := newChart(title, list, at, 1, func(b bars) string { return fmt.Sprintf("%.2f", b.mid) })
	for _, v := range ratioTicks {
		if low <= v && v <= high {
			c.Ticks = append(c.Ticks, tick{at(v), fmt.Sprintf("%.3g", v)})
		}
	}
	return c.draw()
}

// valueChart shows figures side by side, from 0.
func valueChart(title, unit string, list []bars) (template.HTML, error) {
	most := 0.0
	for _, b := range list {
		most = max(most, b.high)
	}
	if most <= 0 {
		most = 1
	}
	at := func(v float64) float64 { return chartLeft + chartPlot*math.Max(v, 0)/most }
	c := newChart(title, list, at, 0, func(b bars) string { return fmt.Sprintf("%.3g %s", b.mid, unit) })
	return c.draw()
}

// newChart puts bars below one another. at says where a value is, and base is the value at
// which bars begin.
func newChart(title string, list []bars, at func(float64) float64, base float64, text func(bars) string) *chart {
	c := &chart{
		Title: title, Width: chartLeft + chartPlot + chartRight, Left: chartLeft, Right: chartLeft + chartPlot,
		Top: chartTop, Base: at(base),
	}
	y := chartTop
	for _, b := range list {
		if b.gap {
			y += 2 * chartGap
		}
		from, to := at(base), at(b.mid)
		class := b.class
		if b.noisy {
			class += " noisy"
		}
		c.Bars = append(c.Bars, bar{
			Label: b.label, Value: text(b), Class: class, Y: y, Middle: y + chartBar/2, Thick: chartBar,
			X: min(from, to), Width: math.Abs(to - from), Low: at(b.low), High: at(b.high),
			Text: max(from, at(b.high)) + 6,
		})
		y += chartBar + chartGap
	}
	c.Bottom, c.Height = y, y+chartBottom
	return c
}

func (c *chart) draw() (template.HTML, error) {
	var b strings.Builder
	if err := chartTemplate.Execute(&b, c); err != nil {
		return "", fmt.Errorf("draw %q: %w", c.Title, err)
	}
	// The template has escaped what is in it.
	return template.HTML(b.String()), nil
}
