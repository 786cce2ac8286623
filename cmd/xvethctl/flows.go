// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/pkg/status"
)

// filterFlags are the flags that say which flows are meant.
type filterFlags struct {
	pod, proto string
	port       uint16
}

func (f *filterFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.pod, "pod", "", "only flows with this `address` at either end, before or after translation")
	c.Flags().Uint16Var(&f.port, "port", 0, "only flows with this port `number` at either end")
	c.Flags().StringVar(&f.proto, "proto", "", "only this `protocol`: tcp or udp")
	complete(c, "proto", "tcp", "udp")
}

func (f *filterFlags) parse() (status.FlowFilter, error) {
	filter := status.FlowFilter{Port: f.port}
	var err error
	if f.pod != "" {
		if filter.Pod, err = netip.ParseAddr(f.pod); err != nil {
			return filter, usageError{fmt.Errorf("pod %q is not an address", f.pod)}
		}
	}
	if f.proto != "" {
		if filter.Proto, err = status.ParseProto(f.proto); err != nil {
			return filter, usageError{err}
		}
	}
	return filter, nil
}

// minWatch keeps a watch from being a load.
const minWatch = 100 * time.Millisecond

// flowsOptions are the flags of the command besides the filter.
type flowsOptions struct {
	filterFlags
	all   bool
	sort  string
	watch time.Duration
}

func (a *app) newFlows() *cobra.Command {
	var o flowsOptions
	c := &cobra.Command{
		Use:   "flows",
		Short: "List the learned flows",
		Long: `List the flows that the node has learned from the kernel, with the interfaces they
come in and leave by. SOURCE and DESTINATION are those of packets that come in;
LEAVES AS shows what is translated ("=" is what stays). AGE is the time since a flow
was learned, LEFT the time until the kernel has to confirm it. PACKETS and BYTES are
those that took the fast path.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runFlows(cmd, &o) },
	}
	o.add(c)
	c.Flags().BoolVar(&o.all, "all", false, "also flows that wait for the kernel's confirmation")
	c.Flags().StringVar(&o.sort, "sort", "src", "sort by this `column`: "+strings.Join(status.SortKeys(), ", "))
	c.Flags().DurationVar(&o.watch, "watch", 0, "show it again at this `interval` (--watch alone: 1s)")
	c.Flags().Lookup("watch").NoOptDefVal = "1s"
	complete(c, "sort", status.SortKeys()...)
	a.outputFlag(c)
	return c
}

func (a *app) runFlows(cmd *cobra.Command, o *flowsOptions) error {
	filter, err := o.parse()
	if err != nil {
		return err
	}
	filter.All = o.all
	if err := status.SortFlows(nil, o.sort); err != nil {
		return usageError{err}
	}
	if o.watch != 0 && o.watch < minWatch {
		return usageError{fmt.Errorf("watch: %v is less than %v", o.watch, minWatch)}
	}
	d, err := datapath.Open(a.bpffs)
	if err != nil {
		return err
	}
	defer d.Close()
	clearScreen := o.watch > 0 && !a.asJSON() && isTerminal(os.Stdout)
	for {
		all, err := status.Flows(d, filter)
		if err != nil {
			return err
		}
		if err := status.SortFlows(all, o.sort); err != nil {
			return err
		}
		if clearScreen {
			fmt.Fprint(cmd.OutOrStdout(), "\x1b[H\x1b[2J")
		}
		if a.asJSON() {
			err = writeJSON(cmd.OutOrStdout(), all)
		} else {
			err = status.WriteFlows(cmd.OutOrStdout(), all)
		}
		if err != nil || o.watch == 0 {
			return err
		}
		select {
		case <-cmd.Context().Done():
			return nil // the way in which a watch ends
		case <-time.After(o.watch):
		}
	}
}
