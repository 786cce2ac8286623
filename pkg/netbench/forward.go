// SPDX-License-Identifier: Apache-2.0

package netbench

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/xveth/xveth/pkg/netbench/ruleset"
)

// forwardCounts are how many rules stand before that which accepts established flows.
var forwardCounts = []string{"0", "100", "1000", "10000"}

var forwardRules = &scenario{
	name:  "forward-rules",
	about: "UDP packets from the wire into a pod, with ever more FORWARD rules; paths end in their number",
	uses:  []string{"size", "flows", "revalidate"},
	paths: slices.Concat(forwardPaths(pathXveth), forwardPaths(pathPTP)),
	// A path with all others of its kind, and with the other kind under the same rules.
	ratios: func(a, b string) bool {
		kindA, countA := splitForward(a)
		kindB, countB := splitForward(b)
		return kindA == kindB && countB == forwardCounts[0] || kindA == pathXveth && kindB == pathPTP && countA == countB
	},
	open: func(ctx context.Context, name string, o *Options) (runner, error) {
		kind, count := splitForward(name)
		with := *o
		var err error
		if with.rules, err = ruleset.Parse("forward=" + count); err != nil {
			return nil, fmt.Errorf("path %s: %w", name, err)
		}
		return openUplink(ctx, kind, &with, bedOptions{pods: 1}, toPod)
	},
}

func forwardPaths(kind string) (all []string) {
	for _, n := range forwardCounts {
		all = append(all, kind+"-"+n)
	}
	return all
}

func splitForward(name string) (kind, count string) {
	kind, count, _ = strings.Cut(name, "-")
	return kind, count
}
