// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/xveth/xveth/pkg/status"
)

func writeHead(w io.Writer, r *Report) {
	fmt.Fprintf(w, "Two nodes, one on the kernel's path and one with xveth, each with two pods and a remote host.\n")
	fmt.Fprintf(w, "Machine: %s, %s, %d cores, TCP with %s. It plays all parts, each measurement on one\n"+
		"core: compare the ratios, not the figures.\n", r.Machine.Kernel, r.Machine.CPU, r.Machine.Cores, r.Machine.Congestion)
}

func writeReached(w io.Writer, r *Report) {
	fmt.Fprintf(w, "\nPods, made by the plugin:\n")
	t := table(w)
	for _, p := range r.Pods {
		fmt.Fprintf(t, "  pod %s\t%s\t%s\thost end %s\n", p.Name, p.Addr4, p.Addr6, p.HostDev)
	}
	_ = t.Flush()
	fmt.Fprintf(w, "\nWho reaches whom:\n")
	t = table(w)
	for _, x := range r.Reached {
		fmt.Fprintf(t, "  %s\t%s\tto %s\t%s\t%.0f us\n", x.What, x.From, x.To, x.Addr, x.Micros)
	}
	_ = t.Flush()
	fmt.Fprintf(w, "\nThe kernel's path against xveth, with masquerade and conntrack rules,\n"+
		"median of %d alternate rounds (lowest to highest):\n", r.Rounds)
	fmt.Fprintf(w, "  %-34s  %-6s  %-23s  %-23s  %s\n", "", "", "kernel", "xveth", "ratio")
}

func writeCompared(w io.Writer, title string, c Compared) {
	show := func(s Stat) string { return fmt.Sprintf("%.2f (%.2f to %.2f)", s.Median, s.Min, s.Max) }
	fmt.Fprintf(w, "  %-34s  %-6s  %-23s  %-23s  %.2f\n", title, c.Unit, show(c.Kernel), show(c.Xveth), c.Ratio)
}

func writeFlows(w io.Writer, r *Report) {
	fmt.Fprintf(w, "\nLearned flows, while all of them talk:\n")
	_ = status.WriteFlows(w, r.Flows)
}

func writeTail(w io.Writer, r *Report) {
	fmt.Fprintf(w, "\nAll of it is removed again; it took %.0f s.\n", r.Seconds)
}

func table(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 8, 2, ' ', 0) }
