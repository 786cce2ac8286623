// SPDX-License-Identifier: Apache-2.0

package top

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/xveth/xveth/pkg/status"
)

// Write prints the rates for people and scripts, at any width.
func (r *Rates) Write(w io.Writer) error {
	b := bufio.NewWriter(w)
	for _, l := range r.totals() {
		fmt.Fprintln(b, l)
	}
	fmt.Fprintln(b)
	writeTable(b, interfaceColumns, r.Interfaces)
	fmt.Fprintln(b)
	writeTable(b, flowColumns, r.Flows)
	return b.Flush()
}

func writeTable[T any](w io.Writer, cols []column[T], rows []T) {
	widths := natural(cols, rows)
	fmt.Fprintln(w, heading(cols, widths))
	for i := range rows {
		fmt.Fprintln(w, rowLine(cols, widths, &rows[i]))
	}
}

// totals of the node, a line for each way. What does not fit on a screen is at the end.
func (r *Rates) totals() []string {
	share := "-"
	if all := r.Fast + r.Kernel; all > 0 {
		share = percent(r.Fast/all, true)
	}
	lost := fmt.Sprintf("lost    %5s pkt/s", si(r.Lost))
	for _, l := range r.Losses {
		lost += fmt.Sprintf("  %s to %s: %s", si(l.Frames), l.Interface, l.Cause)
	}
	return []string{
		fmt.Sprintf("fast    %5s pkt/s %4s  %5s bit/s%s", si(r.Fast), share, si(r.FastBits), r.reasons(status.Fast)),
		fmt.Sprintf("kernel  %5s pkt/s%s", si(r.Kernel), r.reasons(status.Kernel)),
		lost + r.reasons(status.Lost),
		fmt.Sprintf("flows   %5d fast now, %d known%s", r.Live, r.Known, r.reasons(status.Learning)),
	}
}

// reasons of one way, the most frequent first.
func (r *Rates) reasons(path status.Path) string {
	var s strings.Builder
	for _, x := range r.Reasons {
		if x.Path == path {
			fmt.Fprintf(&s, "  %s %s", x.Reason, si(x.Packets))
		}
	}
	return s.String()
}
