// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/xveth/xveth/pkg/status"
)

func (a *app) newGC() *cobra.Command {
	var dryRun bool
	c := &cobra.Command{
		Use:   "gc",
		Short: "Remove what belongs to nothing on this node",
		Long: `Remove what was left by processes that were killed: interfaces of ours that no pod
uses, masquerade rules of networks without a pod, and map entries of interfaces that
are gone. Pods, and what other people made, are never touched. Addresses are given
back by the plugin's own GC, to which the runtime says which pods live.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			found, err := status.GC(a.bpffs, dryRun)
			if a.asJSON() {
				return errors.Join(err, writeJSON(cmd.OutOrStdout(), found))
			}
			verb := "removed"
			if dryRun {
				verb = "would remove"
			}
			t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			for _, g := range found {
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", verb, g.Kind, g.Name, g.Why)
			}
			if len(found) == 0 && err == nil {
				fmt.Fprintln(t, "nothing to remove")
			}
			return errors.Join(err, t.Flush())
		},
	}
	c.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be removed")
	a.outputFlag(c)
	return c
}
