// SPDX-License-Identifier: Apache-2.0

// Package report makes pages of what benchmarks found: one of HTML that needs nothing
// else, and one of Markdown with its pictures beside it. It measures nothing.
package report

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/xveth/xveth/pkg/bench/result"
)

// ErrEmpty says that there is nothing to report.
var ErrEmpty = errors.New("no results")

// evenWithin is how far from 1 a ratio may be that is neither won nor lost.
const evenWithin = 0.03

// Report is what the pages show.
type Report struct {
	Machines []string
	Versions []string
	// Began and Ended are the days of the first and the last run.
	Began, Ended string
	Summary      []Compared
	Sections     []Section
	// AnyNoisy says that a mark has to be explained.
	AnyNoisy bool
}

// Compared is a ratio of the summary, turned so that more is better.
type Compared struct {
	Scenario, Setting, Name string
	result.Ratio
	Verdict string
}

// Verdicts of a comparison.
const (
	wins  = "wins"
	even  = "even"
	loses = "loses"
)

// Section is a scenario with all of its runs.
type Section struct {
	Name, About string
	// Fixed are the parameters that all runs have in common.
	Fixed     string
	Published string
	Columns   []string
	Ratios    []string
	Lines     []Line
	// Details are what the processors did and what was lost.
	Details  []Line
	Commands []string
}

// Line is one metric of one run.
type Line struct {
	Setting, Metric, Unit string
	// Cells by column, and by ratio.
	Cells  map[string]result.Row
	Ratios map[string]result.Ratio
	// Headline says that a picture shows it.
	Headline bool

	explains bool
}

// New sorts results into sections, by scenario and in the order in which they come. Runs of
// the same scenario with the same parameters become one. about says what a scenario
// measures.
func New(all []result.Result, about func(scenario string) string) (*Report, error) {
	if len(all) == 0 {
		return nil, ErrEmpty
	}
	all = merge(all)
	r := &Report{}
	r.describe(all)
	var names []string
	runs := map[string][]result.Result{}
	for _, one := range all {
		if _, have := runs[one.Scenario]; !have {
			names = append(names, one.Scenario)
		}
		runs[one.Scenario] = append(runs[one.Scenario], one)
	}
	for _, name := range names {
		s := newSection(name, about(name), runs[name])
		r.Sections = append(r.Sections, s)
		r.Summary = append(r.Summary, s.compare()...)
	}
	for _, s := range r.Sections {
		for _, l := range s.Lines {
			for _, q := range l.Ratios {
				r.AnyNoisy = r.AnyNoisy || q.Noisy
			}
		}
	}
	return r, nil
}

// describe collects where, when and of what the results are.
func (r *Report) describe(all []result.Result) {
	machines, versions := map[string]bool{}, map[string]bool{}
	for _, one := range all {
		if m := one.Machine; m != nil {
			machines[fmt.Sprintf("%s, %s, %d cores, TCP with %s", m.Kernel, m.CPU, m.Cores, m.Congestion)] = true
		}
		if one.Version != "" {
			versions[one.Version] = true
		}
		if one.Time.IsZero() {
			continue
		}
		day := one.Time.Format("2006-01-02")
		if r.Began == "" || day < r.Began {
			r.Began = day
		}
		r.Ended = max(r.Ended, day)
	}
	r.Machines = slices.Sorted(maps.Keys(machines))
	r.Versions = slices.Sorted(maps.Keys(versions))
}

// newSection makes the tables of a scenario.
func newSection(name, about string, runs []result.Result) Section {
	s := Section{Name: name, About: about}
	fixed, varying := split(runs)
	s.Fixed = settings(runs[0].Params, fixed)
	s.Published = publishedText(runs[0].Params[publishedKey])
	for _, run := range runs {
		if run.Command != "" {
			s.Commands = append(s.Commands, run.Command)
		}
		s.add(run, settings(run.Params, varying))
	}
	return s
}

// add makes lines of a run.
func (s *Section) add(run result.Result, setting string) {
	var metrics []string
	lines := map[string]*Line{}
	for _, row := range run.Rows {
		l := lines[row.Metric]
		if l == nil {
			l = &Line{
				Setting: setting, Metric: row.Metric, Unit: row.Unit, explains: row.Explains(),
				Cells: map[string]result.Row{}, Ratios: map[string]result.Ratio{},
			}
			lines[row.Metric] = l
			metrics = append(metrics, row.Metric)
		}
		l.Cells[row.Path] = row
		appendNew(&s.Columns, row.Path)
	}
	for _, key := range slices.Sorted(maps.Keys(run.Ratios)) {
		q := run.Ratios[key]
		name, metric, other := strings.Cut(key, " ")
		if !other && len(metrics) > 0 {
			metric = metrics[0]
		}
		if l := lines[metric]; l != nil {
			l.Ratios[name] = q
			l.Headline = l.Headline || q.Headline
			appendNew(&s.Ratios, name)
		}
	}
	for _, m := range metrics {
		if lines[m].explains {
			s.Details = append(s.Details, *lines[m])
		} else {
			s.Lines = append(s.Lines, *lines[m])
		}
	}
}

func appendNew(to *[]string, s string) {
	if !slices.Contains(*to, s) {
		*to = append(*to, s)
	}
}

// compare takes what the summary shows of a section: headlines against the path that is
// the first, each as how many times better the other is.
func (s *Section) compare() (all []Compared) {
	for _, l := range s.Lines {
		if !l.Headline {
			continue
		}
		for _, name := range s.Ratios {
			q, have := l.Ratios[name]
			over, under, _ := strings.Cut(name, "/")
			if !have || !inSummary(over, under, s.Columns[0]) {
				continue
			}
			setting := l.Setting
			if _, n, numbered := strings.Cut(over, "-"); numbered {
				setting = strings.TrimSpace(setting + " " + n)
			}
			if len(s.headlines()) > 1 {
				setting = strings.TrimSpace(setting + " " + l.Metric)
			}
			c := Compared{Scenario: s.Name, Setting: setting, Name: name, Ratio: better(q)}
			c.Verdict = c.judge()
			all = append(all, c)
		}
	}
	return all
}

// headlines are the metrics of which pictures are shown.
func (s *Section) headlines() (names []string) {
	for _, l := range s.Lines {
		if l.Headline {
			appendNew(&names, l.Metric)
		}
	}
	return names
}

// inSummary says whether a ratio is one of the product to what was there before: xveth to the
// first path, xveth-chain to the network without it, or both with the same number in their
// names.
func inSummary(over, under, first string) bool {
	if n, numbered := strings.CutPrefix(over, "xveth-"); numbered {
		return under == "ptp-"+n
	}
	return under == first && (over == "xveth" || over == "chain")
}

// better turns a ratio of which less is better.
func better(q result.Ratio) result.Ratio {
	if !q.Lower {
		return q
	}
	turned := make([]float64, len(q.Samples))
	for i, v := range q.Samples {
		turned[i] = 1 / v
	}
	q.Spread = result.Spread{Median: 1 / q.Median, Min: 1 / q.Max, Max: 1 / q.Min}
	q.Samples, q.Lower = turned, false
	return q
}

func (c *Compared) judge() string {
	switch {
	case c.Median > 1+evenWithin:
		return wins
	case c.Median < 1-evenWithin:
		return loses
	}
	return even
}
