// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/pkg/dump"
)

// RouteProtocol marks routes of ours (ip route show proto 120); no routing daemon has it.
const RouteProtocol = 120

// hop is how the kernel reaches an address.
type hop struct {
	link int
	name string
	mtu  int
	// direct says that no router is between.
	direct bool
}

func lookUp(a netip.Addr) (hop, error) {
	routes, err := netlink.RouteGet(a.AsSlice())
	if err != nil {
		return hop{}, fmt.Errorf("look up the route to %s: %w", a, err)
	}
	if len(routes) == 0 || routes[0].Type != unix.RTN_UNICAST {
		return hop{}, fmt.Errorf("look up the route to %s: it is an address of this node, or nothing is to be sent there", a)
	}
	l, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return hop{}, fmt.Errorf("look up the device that leads to %s: %w", a, err)
	}
	if l.Attrs().Name == DeviceName {
		return hop{}, fmt.Errorf("the way to %s leads through %q itself: are addresses of nodes among those of pods?", a, DeviceName)
	}
	return hop{link: l.Attrs().Index, name: l.Attrs().Name, mtu: l.Attrs().MTU, direct: routes[0].Gw == nil}, nil
}

// syncRoutes puts the routes of the plan in place, and then takes away those of ours that
// are not of the plan. t is nil where there is no tunnel.
func (p *plan) syncRoutes(t *tunnel) error {
	have, failed := ourRoutes()
	if failed != nil {
		return failed
	}
	stays := slices.Clone(p.unknown)
	for _, w := range p.ways {
		stays = append(stays, w.dst)
		if w.tunnel && t == nil {
			continue // the device could not be made
		}
		want := w.route(t)
		if slices.ContainsFunc(have, func(h netlink.Route) bool { return sameRoute(h, want) }) {
			continue
		}
		failed = errors.Join(failed, setRoute(want, have))
	}
	for _, h := range have {
		if slices.Contains(stays, prefixOf(h.Dst)) {
			continue
		}
		if err := netlink.RouteDel(&h); err != nil && !errors.Is(err, unix.ESRCH) {
			failed = errors.Join(failed, fmt.Errorf("remove the old route to %s: %w", h.Dst, err))
		}
	}
	return failed
}

func (w *way) route(t *tunnel) netlink.Route {
	r := netlink.Route{
		Dst: ipNet(w.dst), LinkIndex: w.link, Gw: w.via.AsSlice(),
		Protocol: RouteProtocol, Table: unix.RT_TABLE_MAIN,
	}
	if w.tunnel {
		r.LinkIndex, r.Gw, r.Flags = t.index, w.gateway().AsSlice(), int(netlink.FLAG_ONLINK)
	}
	return r
}

// setRoute replaces our route to a destination in one step, or adds one. Another's is left
// alone.
func setRoute(want netlink.Route, have []netlink.Route) error {
	set := netlink.RouteAdd
	if slices.ContainsFunc(have, func(h netlink.Route) bool { return prefixOf(h.Dst) == prefixOf(want.Dst) }) {
		set = netlink.RouteReplace
	}
	err := set(&want)
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add the route to %s: somebody else has made one: remove it, or give the node's pods another range", want.Dst)
	}
	if err != nil {
		return fmt.Errorf("set the route to %s: %w", want.Dst, err)
	}
	return nil
}

// ourRoutes lists the routes with our protocol, of both families.
func ourRoutes() ([]netlink.Route, error) {
	var all []netlink.Route
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		filter := netlink.Route{Protocol: RouteProtocol, Table: unix.RT_TABLE_MAIN}
		routes, err := dump.All("routes", func() ([]netlink.Route, error) {
			//nolint:forbidigo // it is repeated
			return netlink.RouteListFiltered(family, &filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
		})
		if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EOPNOTSUPP) {
			return nil, err
		}
		for _, r := range routes {
			if r.Dst != nil { // we make no default routes
				all = append(all, r)
			}
		}
	}
	return all, nil
}

// sameRoute compares what Apply sets.
func sameRoute(have, want netlink.Route) bool {
	return prefixOf(have.Dst) == prefixOf(want.Dst) && have.LinkIndex == want.LinkIndex && have.Gw.Equal(want.Gw)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func prefixOf(n *net.IPNet) netip.Prefix {
	addr, _ := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), ones)
}
