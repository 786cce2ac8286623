// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/xveth/xveth/pkg/bench"
	"github.com/xveth/xveth/pkg/bench/result"
	"github.com/xveth/xveth/pkg/netbench"
)

func newBench() *cobra.Command {
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure xveth beside the reference plugins, and the host-side library",
		Args:  unknownCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(newBenchList(), newBenchRun(), newBenchReport())
	return c
}

func newBenchList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the scenarios, their paths and their flags",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			fmt.Fprintln(t, "SCENARIO\tMEASURES\tPATHS\tFLAGS")
			for _, s := range netbench.Scenarios() {
				paths := strings.Join(s.Paths, ", ")
				if len(s.More) > 0 {
					paths += " (" + strings.Join(s.More, ", ") + ")"
				}
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", s.Name, s.About, paths, strings.Join(s.Uses, ", "))
			}
			for _, name := range bench.Scenarios() {
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", name, "the host-side library", "", "")
			}
			return t.Flush()
		},
	}
}

// writeResult prints a result as tables: figures, ratios, and what explains them.
func writeResult(w io.Writer, r result.Result) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "%s\n\n", cmp.Or(r.Command, r.Scenario))
	fmt.Fprintln(t, "PATH\tMETRIC\tUNIT\tMEDIAN\tMIN\tMAX")
	writeRows(t, r.Rows, false)
	fmt.Fprintln(t, "\nRATIO\t\t\tMEDIAN\tMIN\tMAX")
	noisy := false
	for _, name := range slices.Sorted(maps.Keys(r.Ratios)) {
		s, mark := r.Ratios[name], ""
		if s.Noisy {
			noisy, mark = true, "\tnoisy"
		}
		fmt.Fprintf(t, "%s\t\t\t%.2f\t%.2f\t%.2f%s\n", name, s.Median, s.Min, s.Max, mark)
	}
	if slices.ContainsFunc(r.Rows, result.Row.Explains) {
		fmt.Fprintln(t, "\nPROCESSORS, LOSSES\t\t\tMEDIAN\tMIN\tMAX")
		writeRows(t, r.Rows, true)
	}
	if noisy {
		fmt.Fprintf(t, "\nnoisy: the rounds do not tell the median to within %.0f %% (more --rounds help, or a quieter machine)\n",
			100*result.Tolerance)
	}
	fmt.Fprintln(t)
	return t.Flush()
}

// writeRows prints the rows that explain the others, or those others.
func writeRows(w io.Writer, rows []result.Row, explaining bool) {
	for _, row := range rows {
		if row.Explains() == explaining {
			fmt.Fprintf(w, "%s\t%s\t%s\t%.4g\t%.4g\t%.4g\n", row.Path, row.Metric, row.Unit, row.Median, row.Min, row.Max)
		}
	}
}
