// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/xveth/xveth/pkg/status"
)

func (a *app) newStatus() *cobra.Command {
	c := &cobra.Command{
		Use:   "status",
		Short: "Show what the fast path does and what stands in its way",
		Long: `Show the programs, uplinks, pods, flow maps and counters of this node, and what is
degraded with what to do about it. The exit status is 0 when all is well, 1 when
something is degraded or cannot be read, and 3 when the fast path is not loaded.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			n, err := status.Read(a.bpffs)
			if err != nil {
				return err
			}
			if a.asJSON() {
				err = writeJSON(cmd.OutOrStdout(), n)
			} else {
				err = n.Write(cmd.OutOrStdout())
			}
			switch {
			case !n.Loaded:
				err = errors.Join(err, exitError(exitNotLoaded))
			case len(n.Degraded) > 0:
				err = errors.Join(err, exitError(exitFailed))
			}
			return err
		},
	}
	a.outputFlag(c)
	return c
}
