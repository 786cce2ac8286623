// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/xveth/xveth/pkg/bench"
	"github.com/xveth/xveth/pkg/bench/result"
)

func newBench() *cobra.Command {
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure the host-side library against what it replaces",
		Args:  unknownCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	list := &cobra.Command{
		Use:   "list",
		Short: "List the scenarios",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), strings.Join(bench.Scenarios(), "\n"))
			return err
		},
	}
	list.Args = noArgs
	c.AddCommand(list, newBenchRun())
	return c
}

func newBenchRun() *cobra.Command {
	var (
		asJSON bool
		o      bench.Options
	)
	c := &cobra.Command{
		Use:   "run SCENARIO",
		Short: "Run one scenario: its paths take turns, and ratios are compared",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 && slices.Contains(bench.Scenarios(), args[0]) {
				return nil
			}
			return usageError{fmt.Errorf("want one scenario of: %s", strings.Join(bench.Scenarios(), ", "))}
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Rounds < 0 || o.Rounds > maxRounds || o.Duration < 0 || o.Duration > maxDuration {
				return usageError{fmt.Errorf("want up to %d rounds of up to %v", maxRounds, maxDuration)}
			}
			if isTerminal(os.Stderr) {
				o.Progress = func(round, rounds int) { fmt.Fprintf(os.Stderr, "\r\x1b[Kround %d of %d", round, rounds) }
				defer fmt.Fprint(os.Stderr, "\r\x1b[K")
			}
			report, err := bench.Run(args[0], o)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), report)
			}
			return writeReport(cmd.OutOrStdout(), report)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	c.Flags().IntVar(&o.Rounds, "rounds", 61, "`number` of turns of each path")
	c.Flags().DurationVar(&o.Duration, "duration", 3*time.Millisecond, "`length` of a turn")
	return c
}

func writeReport(w io.Writer, r result.Result) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "PATH\tMETRIC\tUNIT\tMEDIAN\tMIN\tMAX")
	for _, row := range r.Rows {
		fmt.Fprintf(t, "%s\t%s\t%s\t%.4g\t%.4g\t%.4g\n", row.Path, row.Metric, row.Unit, row.Median, row.Min, row.Max)
	}
	fmt.Fprintln(t, "\nRATIO\t\t\tMEDIAN\tMIN\tMAX")
	for _, name := range slices.Sorted(maps.Keys(r.Ratios)) {
		s := r.Ratios[name]
		fmt.Fprintf(t, "%s\t\t\t%.2f\t%.2f\t%.2f\n", name, s.Median, s.Min, s.Max)
	}
	return t.Flush()
}
