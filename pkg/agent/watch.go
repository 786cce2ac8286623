// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/pkg/cluster"
	"github.com/xveth/xveth/pkg/veth"
)

// watchKernel wakes the loop when something that it has made, or that it follows from, is
// changed by somebody else. What a full socket loses is found by the next round.
func (a *Agent) watchKernel(ctx context.Context) error {
	lost := func(err error) { slog.Debug("Changes of the kernel were missed.", "error", err) }
	routes := make(chan netlink.RouteUpdate)
	err := netlink.RouteSubscribeWithOptions(routes, ctx.Done(), netlink.RouteSubscribeOptions{ErrorCallback: lost})
	if err != nil {
		return fmt.Errorf("watch routes: %w", err)
	}
	addrs := make(chan netlink.AddrUpdate)
	err = netlink.AddrSubscribeWithOptions(addrs, ctx.Done(), netlink.AddrSubscribeOptions{ErrorCallback: lost})
	if err != nil {
		return fmt.Errorf("watch addresses: %w", err)
	}
	links := make(chan netlink.LinkUpdate)
	err = netlink.LinkSubscribeWithOptions(links, ctx.Done(), netlink.LinkSubscribeOptions{ErrorCallback: lost})
	if err != nil {
		return fmt.Errorf("watch interfaces: %w", err)
	}
	go func() {
		for u := range routes {
			if concerns(u) {
				a.poke()
			}
		}
	}()
	go func() {
		for u := range addrs {
			if l, err := netlink.LinkByIndex(u.LinkIndex); err != nil || l.Type() != "veth" || !ofPod(l.Attrs()) {
				a.poke()
			}
		}
	}()
	go func() {
		up := map[int32]bool{}
		for u := range links {
			is := u.Header.Type == unix.RTM_NEWLINK && u.IfInfomsg.Flags&unix.IFF_UP != 0
			was, known := up[u.Index]
			if known && was == is || ofPod(u.Attrs()) {
				continue // counters, or one of many pods
			}
			up[u.Index] = is
			a.poke()
		}
	}()
	return nil
}

// concerns says whether a change may have taken away a route of ours, or changed what a
// way to another node follows from.
func concerns(u netlink.RouteUpdate) bool {
	if u.Protocol == cluster.RouteProtocol {
		return u.Type == unix.RTM_DELROUTE
	}
	ones := 0
	if u.Dst != nil {
		var bits int
		if ones, bits = u.Dst.Mask.Size(); ones == bits {
			// Routes to pods: one that goes is that of a pod that goes, mostly.
			return u.Type == unix.RTM_DELROUTE
		}
	}
	return u.Table == unix.RT_TABLE_MAIN
}

// ofPod says whether a link is the host's end of a pod of ours.
func ofPod(l *netlink.LinkAttrs) bool { return strings.HasPrefix(l.Alias, veth.AliasPrefix) }
