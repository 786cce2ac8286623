// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"github.com/xveth/xveth/pkg/metrics"
)

func (a *app) newMetrics() *cobra.Command {
	var listen string
	var once bool
	c := &cobra.Command{
		Use:   "metrics",
		Short: "Serve Prometheus metrics of this node",
		Long: `Serve metrics at http://ADDRESS/metrics until Ctrl-C or SIGTERM, or print them once.
A scrape reads the kernel's counters and the state of interfaces, and no flow. It works
while nothing is loaded, and says so (xveth_loaded). There is no authentication: listen
where only those can connect who may see it.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m := metrics.NewCollector(a.bpffs, version)
			if once && cmd.Flags().Changed("listen") {
				return usageError{errors.New("--once does not go with --listen")}
			}
			if once {
				return m.Write(cmd.OutOrStdout())
			}
			if _, _, err := net.SplitHostPort(listen); err != nil {
				return usageError{fmt.Errorf("listen: %w", err)}
			}
			return m.Serve(cmd.Context(), listen, func(at net.Addr) {
				fmt.Fprintf(cmd.ErrOrStderr(), "serving http://%s/metrics\n", at)
			})
		},
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:9476", "`address` and port to listen at")
	c.Flags().BoolVar(&once, "once", false, "print the metrics in the text format and end")
	return c
}
