// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Write prints the state for people.
func (n *Node) Write(w io.Writer) error {
	n.writeHead(w)
	n.writeLinks(w)
	if !n.Loaded {
		return nil
	}
	t := newTable(w)
	fmt.Fprintln(t, "\nFLOW MAP\tUSED\tMAX")
	for _, f := range n.Flows {
		fmt.Fprintf(t, "IPv%d\t%d\t%d\n", f.Family, f.Used, f.Max)
	}
	_ = t.Flush()
	fmt.Fprintln(t, "\nPROGRAM\tID\tRUNS\tTIME EACH")
	for _, p := range n.Programs {
		each := "-" // kernel.bpf_stats_enabled is 0
		if p.Runs > 0 {
			each = (time.Duration(p.Nanos) / time.Duration(p.Runs)).String()
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\n", p.Name, p.ID, p.Runs, each)
	}
	_ = t.Flush()
	fmt.Fprintln(t, "\nPACKETS\tREASON\t")
	for _, c := range n.Counters {
		if c.Packets > 0 {
			fmt.Fprintf(t, "%d\t%s\t%s\n", c.Packets, c.Reason, c.Meaning)
		}
	}
	_ = t.Flush()
	if len(n.Losses) > 0 {
		fmt.Fprintln(t, "\nLOST FRAMES\tON THE WAY TO\tCAUSE")
		for _, l := range n.Losses {
			fmt.Fprintf(t, "%d\t%s\t%s\n", l.Frames, l.Interface, l.Cause)
		}
	}
	return t.Flush()
}

func (n *Node) writeHead(w io.Writer) {
	t := newTable(w)
	if n.Loaded {
		fmt.Fprintf(t, "fast path:\tloaded, build %s\n", n.Build)
		fmt.Fprintf(t, "settings:\trevalidate %s, maxFlows %d, excludeMark %s\n",
			n.Settings.Revalidate, n.Settings.MaxFlows, n.Settings.ExcludeMark)
	} else {
		fmt.Fprintf(t, "fast path:\t%s\n", n.NotLoaded)
	}
	liberal := n.Liberal
	if liberal == "" {
		liberal = "- (no conntrack in this kernel)"
	}
	fmt.Fprintf(t, "nf_conntrack_tcp_be_liberal:\t%s\n", liberal)
	for _, p := range n.Degraded {
		fmt.Fprintf(t, "degraded:\t%s\n\tto do: %s\n", p.What, p.Do)
	}
	_ = t.Flush()
}

func (n *Node) writeLinks(w io.Writer) {
	t := newTable(w)
	fmt.Fprintln(t, "\nUPLINK\tDRIVEN BY\tWHY")
	for _, u := range n.Uplinks {
		why := u.Obstacles
		if u.Why != "" {
			why = append([]string{u.Why}, why...)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", u.Name, u.Drive, strings.Join(why, "; "))
	}
	_ = t.Flush()
	fmt.Fprintln(t, "\nHOST END\tNETWORK\tCONTAINER\tINTERFACE\tPOD INDEX\tTO POD\tFROM POD\tOTHERS")
	for _, a := range n.Attachments {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", a.HostDev, a.Network, a.ContainerID, a.IfName,
			a.PodIndex, a.ToPod, a.FromPod, strings.Join(a.Others, ", "))
	}
	_ = t.Flush()
}

func (d Direction) String() string {
	if d.Fast {
		return "fast"
	}
	return "kernel: " + d.Why
}
