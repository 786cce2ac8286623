// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"fmt"
	"strings"
)

// State lists what an attachment could leave on a host, and what more commands print.
func (h *Host) State(more ...string) string {
	var b strings.Builder
	for _, cmd := range append([]string{
		"ip -o link | sed 's/^[0-9]*: //; s/ .*//'",
		"ip -4 -o addr show; ip -6 -o addr show scope global",
		"ip -4 route show table all; ip -6 route show table all | grep -v -e multicast -e fe80 -e anycast -e ff00",
		"ip rule", "nft list ruleset", "ls /run/netns",
		"tc qdisc show | grep -v noqueue",
	}, more...) {
		out, _ := h.Run(context.Background(), "sh", "-c", cmd)
		fmt.Fprintf(&b, "# %s\n%s", cmd, out)
	}
	return b.String()
}

// Reserved lists the addresses of a network that host-local has reserved on a host.
func (h *Host) Reserved(network string) ([]string, error) {
	out, err := h.Run(context.Background(), "sh", "-c", "cd /var/lib/cni/networks/"+network+" 2>/dev/null && ls | grep -v -e lock -e last_reserved || true")
	return strings.Fields(out), err
}

// StateDiff lists the lines that only one of two states has.
func StateDiff(before, after string) string {
	count := map[string]int{}
	for _, l := range strings.Split(before, "\n") {
		count[l]--
	}
	for _, l := range strings.Split(after, "\n") {
		count[l]++
	}
	var b strings.Builder
	for l, n := range count {
		if n != 0 {
			fmt.Fprintf(&b, "\n%+d %s", n, l)
		}
	}
	return b.String()
}
