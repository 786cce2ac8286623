// SPDX-License-Identifier: Apache-2.0

package netconf

import "strings"

// nearest returns the path of the known key that looks most like key, and
// whether it looks like it at all. A key that is right but stands in the wrong
// object is found too, if no sibling is close.
func nearest(key, path string, siblings []string) (string, bool) {
	best, least := "", len(key)+maxQuote
	folded := strings.ToLower(shorten(key))
	for _, s := range siblings {
		if d := distance(folded, strings.ToLower(s)); d < least {
			best, least = join(path, s), d
		}
	}
	if least <= 1+len(folded)/3 {
		return best, true
	}
	for _, known := range knownKeys() {
		last := known[strings.LastIndexByte(known, '.')+1:]
		if strings.EqualFold(last, key) {
			return known, true
		}
	}
	return best, false
}

// distance counts the letters to insert, remove, replace or swap with their
// neighbour to make a from b.
func distance(a, b string) int {
	before, prev := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, prev = prev, row
	}
	return prev[len(b)]
}
