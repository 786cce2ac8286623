// SPDX-License-Identifier: Apache-2.0

package netbench

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/xveth/xveth/pkg/bench/result"
)

// samples are the figures of all turns, by path and metric.
type samples struct {
	paths   []string
	metrics []metric
	values  map[string]map[string][]float64
	rounds  int
	// compared, if set, says of which paths there are ratios.
	compared func(a, b string) bool
}

func newSamples(paths []string) *samples {
	return &samples{paths: paths, values: map[string]map[string][]float64{}}
}

// add takes the figures of a turn and what its meter found.
func (s *samples) add(path string, round int, figures []figure, m *meter) {
	s.rounds = round + 1
	for _, f := range figures {
		s.put(path, round, f)
	}
	if !m.measured {
		return
	}
	for _, kind := range cpuKinds {
		s.put(path, round, figure{metric{name: kind, unit: "%", alone: true}, m.spent.share(kind)})
	}
	for _, place := range m.places {
		if n, some := m.lost[place]; some {
			s.put(path, round, figure{metric{name: result.DropsPrefix + place, unit: "packets/s", alone: true}, float64(n) / m.took.Seconds()})
		}
	}
}

// put keeps one figure. Rounds that had none before it, such as one without loss, count
// as 0.
func (s *samples) put(path string, round int, f figure) {
	if !slices.ContainsFunc(s.metrics, func(m metric) bool { return m.name == f.name }) {
		s.metrics = append(s.metrics, f.metric)
	}
	of := s.values[path]
	if of == nil {
		of = map[string][]float64{}
		s.values[path] = of
	}
	of[f.name] = append(s.upTo(of[f.name], round), f.value)
}

// upTo fills a series with zeros for the rounds before one.
func (s *samples) upTo(series []float64, round int) []float64 {
	for len(series) < round {
		series = append(series, 0)
	}
	return series
}

// into writes rows and ratios into a result.
func (s *samples) into(res *result.Result) error {
	res.Ratios = map[string]result.Ratio{}
	for _, p := range s.paths {
		for _, m := range s.metrics {
			series, have := s.values[p][m.name]
			if !have {
				continue
			}
			series = s.upTo(series, s.rounds)
			for _, v := range series {
				if math.IsNaN(v) || math.IsInf(v, 0) || !m.alone && v <= 0 {
					return fmt.Errorf("measure %s: %s is %v", p, m.name, v)
				}
			}
			res.Rows = append(res.Rows, result.NewRow(p, m.name, m.unit, series))
		}
	}
	for i, m := range s.metrics {
		if m.alone {
			continue
		}
		for _, q := range ratiosOf(s.paths, s.compared) {
			over, under := s.values[q[0]][m.name], s.values[q[1]][m.name]
			if len(over) == 0 || len(under) == 0 {
				continue
			}
			name := q[0] + "/" + q[1]
			if i > 0 {
				name += " " + m.name
			}
			q := result.NewRatio(over, under, m.lower)
			q.Headline = i == 0 || m.headline
			res.Ratios[name] = q
		}
	}
	return nil
}

// ratiosOf says which paths are compared: all with the first, and xveth's with all that
// are not xveth's fast path, unless a scenario has an order of its own.
func ratiosOf(paths []string, compared func(a, b string) bool) [][2]string {
	fast := func(p string) bool { return strings.HasPrefix(p, pathXveth) && p != pathXvethOff }
	if compared == nil {
		compared = func(a, b string) bool { return b == paths[0] || fast(a) && !fast(b) && a != paths[0] }
	}
	var all [][2]string
	for _, p := range paths {
		for _, q := range paths {
			if p != q && compared(p, q) {
				all = append(all, [2]string{p, q})
			}
		}
	}
	return all
}
