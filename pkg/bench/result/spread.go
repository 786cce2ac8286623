// SPDX-License-Identifier: Apache-2.0

package result

import (
	"math"
	"slices"
)

// Tolerance is by how much the medians of two runs may differ.
const Tolerance = 0.05

// confidence is how sure it has to be that the true median is within the range that Range
// gives.
const confidence = 0.9

// Spread is what the rounds gave.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// SpreadOf sums up samples, of which there has to be at least one.
func SpreadOf(samples []float64) Spread {
	s := slices.Sorted(slices.Values(samples))
	n := len(s)
	return Spread{Median: (s[(n-1)/2] + s[n/2]) / 2, Min: s[0], Max: s[n-1]}
}

// Range is where the median of ever more samples would be, with nine in ten chances:
// between two of the samples in their order, counted from both ends alike. With fewer
// than five samples it is between the outermost, and not that sure.
func Range(samples []float64) (low, high float64) {
	s := slices.Sorted(slices.Values(samples))
	n := len(s)
	// The true median has as many samples below it as a coin that is tossed n times
	// shows heads.
	cut, outside := 0, 0.0
	for k := 0; k < (n-1)/2; k++ {
		outside += 2 * binomial(n, k)
		if 1-outside < confidence {
			break
		}
		cut = k
	}
	return s[cut], s[n-1-cut]
}

// binomial is the probability of k heads in n tosses.
func binomial(n, k int) float64 {
	a, _ := math.Lgamma(float64(n + 1))
	b, _ := math.Lgamma(float64(k + 1))
	c, _ := math.Lgamma(float64(n - k + 1))
	return math.Exp(a - b - c - float64(n)*math.Ln2)
}

// minSamples is with how many samples Range is sure enough.
const minSamples = 5

// Noisy says whether samples differ too much, or are too few, for their median to be
// repeatable.
func Noisy(samples []float64) bool {
	if len(samples) < minSamples {
		return true
	}
	low, high := Range(samples)
	m := SpreadOf(samples).Median
	// Written so that what is no number, or infinite, is noise.
	steady := high == low || high-low < Tolerance*math.Abs(m)
	return !steady
}
