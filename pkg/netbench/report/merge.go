// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/xveth/xveth/pkg/bench/result"
)

// publishedKey is the parameter that holds figures of others.
const publishedKey = "published"

// published are figures that a scenario is shown beside.
type published struct {
	What          string
	Before, After float64
	Unit          string
	Ratio         float64
}

func publishedText(v any) string {
	raw, err := json.Marshal(v)
	if err != nil || v == nil {
		return ""
	}
	var p published
	if json.Unmarshal(raw, &p) != nil || p.What == "" {
		return ""
	}
	return fmt.Sprintf("%s: %g to %g %s, %.3f times", p.What, p.Before, p.After, p.Unit, p.Ratio)
}

// howLong are parameters that say how long was measured, not what.
var howLong = []string{"duration", "duration_ms", "rounds"}

// merge makes one result of all runs of a scenario with the same parameters, however long
// they were. Where they do not agree, their ratios are noisy.
func merge(all []result.Result) []result.Result {
	var out []result.Result
	at := map[string]int{}
	for _, one := range all {
		what := slices.DeleteFunc(slices.Sorted(maps.Keys(one.Params)), isHowLong)
		key := one.Scenario + " " + settings(one.Params, what)
		i, have := at[key]
		if !have {
			at[key] = len(out)
			out = append(out, one)
			continue
		}
		out[i] = join(out[i], one)
	}
	return out
}

func join(a, b result.Result) result.Result {
	rows := make([]result.Row, len(a.Rows))
	for i, row := range a.Rows {
		rows[i] = row
		for _, other := range b.Rows {
			if other.Path == row.Path && other.Metric == row.Metric {
				rows[i] = result.NewRow(row.Path, row.Metric, row.Unit, slices.Concat(row.Samples, other.Samples))
			}
		}
	}
	ratios := map[string]result.Ratio{}
	for name, q := range a.Ratios {
		ratios[name] = q
		if other, have := b.Ratios[name]; have {
			ratios[name] = joinRatio(q, other)
		}
	}
	a.Rows, a.Ratios = rows, ratios
	return a
}

func joinRatio(a, b result.Ratio) result.Ratio {
	q := a
	q.Samples = slices.Concat(a.Samples, b.Samples)
	q.Spread = result.SpreadOf(q.Samples)
	apart := math.Abs(a.Median-b.Median) / math.Min(a.Median, b.Median)
	q.Noisy = result.Noisy(q.Samples) || apart > result.Tolerance
	return q
}

// split sorts the parameters of runs into those that all have in common and the others.
func split(runs []result.Result) (fixed, varying []string) {
	keys := map[string]bool{}
	for _, run := range runs {
		for key := range run.Params {
			keys[key] = true
		}
	}
	delete(keys, publishedKey)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		same := !slices.ContainsFunc(runs, func(run result.Result) bool {
			return fmt.Sprint(run.Params[key]) != fmt.Sprint(runs[0].Params[key])
		})
		switch {
		case same:
			fixed = append(fixed, key)
		case !isHowLong(key):
			varying = append(varying, key)
		}
	}
	return fixed, varying
}

func isHowLong(param string) bool { return slices.Contains(howLong, param) }

// settings lists parameters as "flows 1000, size 64".
func settings(params map[string]any, keys []string) string {
	var all []string
	for _, key := range keys {
		if v, have := params[key]; have {
			all = append(all, fmt.Sprintf("%s %v", key, v))
		}
	}
	return strings.Join(all, ", ")
}
