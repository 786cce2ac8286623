// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/xveth/xveth/pkg/datapath"
)

func (a *app) newFlush() *cobra.Command {
	var (
		f    filterFlags
		maps bool
	)
	c := &cobra.Command{
		Use:   "flush",
		Short: "Forget learned flows",
		Long: `Forget learned flows, all of them or those that are named. Their next packets go to
the kernel, from which they may be learned anew: nothing is cut.

With --maps the pins of programs and maps are removed, so that the next ADD makes them
anew, with the maxFlows of its configuration. Programs that are attached run on with
the old maps until that ADD replaces them.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if maps {
				return a.flushMaps(cmd, f)
			}
			filter, err := f.parse()
			if err != nil {
				return err
			}
			filter.All = true
			d, err := datapath.Open(a.bpffs)
			if err != nil {
				return err
			}
			defer d.Close()
			n, err := d.FlushMatching(filter.Match)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%d flows forgotten\n", n)
			return nil
		},
	}
	f.add(c)
	c.Flags().BoolVar(&maps, "maps", false, "remove the pins of programs and maps")
	return c
}

func (a *app) flushMaps(cmd *cobra.Command, f filterFlags) error {
	if f != (filterFlags{}) {
		return usageError{errors.New("--maps takes no --pod, --port or --proto")}
	}
	if err := datapath.Unload(a.bpffs); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "pins below %s removed: the next ADD makes programs and maps anew\n", a.bpffs)
	return nil
}
