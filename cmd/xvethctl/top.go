// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/xveth/xveth/pkg/top"
)

// minTop keeps the view from being a load.
const minTop = 100 * time.Millisecond

// topOptions are the flags of the command.
type topOptions struct {
	top.Options
	once, json bool
}

func (a *app) newTop() *cobra.Command {
	var o topOptions
	c := &cobra.Command{
		Use:   "top",
		Short: "Watch pods and flows by packets and bits a second",
		Long: `Show the traffic of pods, uplinks and flows, the share that takes the fast path, why
the rest does not, and what is lost. Keys: tab changes between pods and flows, s sorts,
/ filters, p pauses, q ends. --once prints the rates of one interval, for scripts.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runTop(cmd, &o) },
	}
	c.Flags().BoolVar(&o.once, "once", false, "print the rates of one interval and end")
	c.Flags().BoolVar(&o.json, "json", false, "with --once: print JSON")
	c.Flags().DurationVar(&o.Interval, "interval", time.Second, "`time` between two readings")
	c.Flags().StringVar(&o.Sort, "sort", "bits", "sort by this `column`: "+strings.Join(top.SortKeys(), ", "))
	c.Flags().StringVar(&o.Filter, "filter", "", "only what this `text` is part of: a name, a pod, an address")
	complete(c, "sort", top.SortKeys()...)
	return c
}

func (o *topOptions) check() error {
	if err := (&top.Rates{}).Sort(o.Sort); err != nil {
		return usageError{err}
	}
	if o.Interval < minTop {
		return usageError{fmt.Errorf("interval: %v is less than %v", o.Interval, minTop)}
	}
	if o.json && !o.once {
		return usageError{errors.New("--json goes with --once")}
	}
	return nil
}

func (a *app) runTop(cmd *cobra.Command, o *topOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	if !o.once && (!isTerminal(os.Stdin) || !isTerminal(os.Stdout)) {
		return usageError{errors.New("no terminal to show it on: use --once")}
	}
	s, err := top.NewSampler(a.bpffs)
	if err != nil {
		return err
	}
	if !o.once {
		return top.Live(cmd.Context(), s, os.Stdin, os.Stdout, o.Options)
	}
	select {
	case <-cmd.Context().Done():
		return cmd.Context().Err()
	case <-time.After(o.Interval):
	}
	r, err := s.Rates()
	if err != nil {
		return err
	}
	r.Filter(o.Filter)
	if err := r.Sort(o.Sort); err != nil {
		return err
	}
	if o.json {
		return writeJSON(cmd.OutOrStdout(), r)
	}
	return r.Write(cmd.OutOrStdout())
}
