// SPDX-License-Identifier: Apache-2.0

// Package result holds what benchmarks found: rows, ratios with their spread, and the
// machine. It measures nothing itself.
package result

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Metrics that explain the others have names that begin like this: what the processors did,
// and what was lost where.
const (
	CPUPrefix   = "cpu-"
	DropsPrefix = "drops "
)

// Result is what one scenario found with one set of parameters.
type Result struct {
	Scenario string         `json:"scenario"`
	Params   map[string]any `json:"params"`
	Machine  *Machine       `json:"machine,omitempty"`
	// Time at which the run began, the version of xveth, and the command.
	Time    time.Time `json:"time,omitzero"`
	Version string    `json:"version,omitempty"`
	Command string    `json:"command,omitempty"`

	Rows []Row `json:"rows"`
	// Ratios by their name, such as "xveth/ptp"; those of another metric than the
	// scenario's first have it behind the name, as in "xveth/ptp p99".
	Ratios map[string]Ratio `json:"ratios"`
}

// Row is one metric of one path.
type Row struct {
	Path   string `json:"path"`
	Metric string `json:"metric"`
	Unit   string `json:"unit"`
	Spread
	// Samples are the figures of the rounds.
	Samples []float64 `json:"samples"`
}

// Explains says that the row is not what was asked for, but explains it.
func (r Row) Explains() bool {
	return strings.HasPrefix(r.Metric, CPUPrefix) || strings.HasPrefix(r.Metric, DropsPrefix)
}

// Ratio is one path's figure over another's, taken round by round.
type Ratio struct {
	Spread
	Samples []float64 `json:"samples,omitempty"`
	// Lower says that less is better.
	Lower bool `json:"lowerIsBetter,omitempty"`
	// Headline says that it is one of those that the scenario is there for.
	Headline bool `json:"headline,omitempty"`
	// Noisy says that the rounds differ too much for the median to be known to within
	// Tolerance.
	Noisy bool `json:"noisy,omitempty"`
}

// NewRow sums up the samples of a row.
func NewRow(path, metric, unit string, samples []float64) Row {
	return Row{path, metric, unit, SpreadOf(samples), samples}
}

// NewRatio takes a ratio round by round.
func NewRatio(over, under []float64, lower bool) Ratio {
	q := make([]float64, min(len(over), len(under)))
	for i := range q {
		q[i] = over[i] / under[i]
	}
	return Ratio{Spread: SpreadOf(q), Samples: q, Lower: lower, Noisy: Noisy(q)}
}

// Read reads results that were written one behind the other.
func Read(r io.Reader) ([]Result, error) {
	var all []Result
	for d := json.NewDecoder(r); ; {
		var one Result
		err := d.Decode(&one)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err == nil {
			err = one.check()
		}
		if err != nil {
			return nil, fmt.Errorf("read result %d: %w", len(all)+1, err)
		}
		all = append(all, one)
	}
}

// check looks whether it is a result of ours.
func (r *Result) check() error {
	if r.Scenario == "" {
		return errors.New("it names no scenario")
	}
	for _, row := range r.Rows {
		if len(row.Samples) == 0 {
			return fmt.Errorf("row %s of %s has no samples", row.Metric, row.Path)
		}
	}
	for name, q := range r.Ratios {
		if len(q.Samples) == 0 {
			return fmt.Errorf("ratio %s has no samples", name)
		}
	}
	return nil
}
