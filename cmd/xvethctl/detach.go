// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/xveth/xveth/pkg/datapath"
)

func (a *app) newDetach() *cobra.Command {
	return &cobra.Command{
		Use:   "detach",
		Short: "Take the fast path off this node",
		Long: `Take the programs off every interface and remove the pins of programs and maps. Pods
keep their network, on the kernel's path; somebody else's programs stay. The next ADD of a
pod arms the fast path again, unless its configuration has fastPath.mode "off".`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			names, err := datapath.DetachAll(a.bpffs)
			for _, n := range names {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: detached\n", n)
			}
			return err
		},
	}
}
