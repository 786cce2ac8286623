// SPDX-License-Identifier: Apache-2.0

package veth

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrMissing says that Check found something to be gone or different.
var ErrMissing = errors.New("attachment is not as ADD left it")

// checker holds both ends while Check compares them.
type checker struct {
	*plan
	host, pod    *netlink.Handle
	outer, inner netlink.Link
}

// Check compares what the pod's network relies on with the kernel: both ends
// and their MTU, the pod's offloads, addresses and routes, the gateway
// addresses and the host's routes. More than that may exist, and the MAC of
// the host's end may have changed. The error names the first thing missing.
func Check(cfg Config) error {
	p, err := newPlan(cfg)
	if err != nil {
		return err
	}
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink of the host: %w", err)
	}
	defer host.Close()
	pod, err := openPod(cfg.NetnsPath)
	if err != nil {
		return err
	}
	defer pod.close()
	c := &checker{plan: p, host: host, pod: pod.nl}
	if err := c.links(); err != nil {
		return err
	}
	if err := pod.offloads.check(p.IfName, p.TxChecksumOff); err != nil {
		return fmt.Errorf("%w: %w", ErrMissing, err)
	}
	for _, step := range []func() error{c.podAddresses, c.podRoutes, c.hostAddresses, c.hostRoutes} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func missing(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrMissing}, args...)...)
}

// links finds both ends and compares what they are.
func (c *checker) links() error {
	var err error
	c.inner, err = c.pod.LinkByName(c.IfName)
	if isNotFound(err) {
		return missing("the pod has no interface %q", c.IfName)
	}
	if err != nil {
		return fmt.Errorf("look up %q in the pod: %w", c.IfName, err)
	}
	in := c.inner.Attrs()
	if c.inner.Type() != "veth" || in.ParentIndex <= 0 {
		return missing("%q in the pod is a %s and not our veth", c.IfName, c.inner.Type())
	}
	c.outer, err = c.host.LinkByIndex(in.ParentIndex)
	if isNotFound(err) {
		return missing("the host has no peer of %q", c.IfName)
	}
	if err != nil {
		return fmt.Errorf("look up the peer of %q: %w", c.IfName, err)
	}
	out := c.outer.Attrs()
	if !isOurs(c.outer, c.hostName, c.alias) || out.ParentIndex != in.Index {
		return missing("the peer of %q is not the host veth %q", c.IfName, c.hostName)
	}
	switch {
	case in.RawFlags&unix.IFF_UP == 0:
		return missing("%q in the pod is down", c.IfName)
	case out.RawFlags&unix.IFF_UP == 0:
		return missing("host veth %q is down", out.Name)
	case c.MTU != 0 && in.MTU > c.MTU:
		return missing("%q in the pod has mtu %d, not %d", c.IfName, in.MTU, c.MTU)
	case c.MTU != 0 && out.MTU != c.MTU:
		return missing("host veth %q has mtu %d, not %d", out.Name, out.MTU, c.MTU)
	case c.MAC != nil && in.HardwareAddr.String() != c.MAC.String():
		return missing("%q in the pod has mac %s, not %s", c.IfName, in.HardwareAddr, c.MAC)
	}
	// A later plugin may lower the pod's MTU, as tuning does. What a route's metric asks for
	// must fit all the same: the kernel takes it even if the link's MTU is lower.
	for _, r := range c.routes {
		if r.MTU > in.MTU {
			return missing("%q in the pod has mtu %d, less than its route %s", c.IfName, in.MTU, r)
		}
	}
	return nil
}

func (c *checker) podAddresses() error {
	have, err := addressSet(c.pod, c.inner)
	if err != nil {
		return err
	}
	for _, a := range c.Addresses {
		if !have[a.Prefix] {
			return missing("%q in the pod has no address %s", c.IfName, a.Prefix)
		}
	}
	return nil
}

func (c *checker) hostAddresses() error {
	have, err := addressSet(c.host, c.outer)
	if err != nil {
		return err
	}
	for _, g := range c.gateways {
		if !have[single(g.addr)] {
			return missing("host veth %q has no gateway address %s", c.outer.Attrs().Name, g.addr)
		}
	}
	return nil
}

func addressSet(h *netlink.Handle, link netlink.Link) (map[netip.Prefix]bool, error) {
	addrs, err := listAddrs(h, link)
	if err != nil {
		return nil, err
	}
	set := map[netip.Prefix]bool{}
	for _, a := range addrs {
		set[prefixOf(a.IPNet)] = true
	}
	return set, nil
}

// podRoutes looks for the route to each gateway and for every route asked for.
func (c *checker) podRoutes() error {
	have, err := c.routesOf(c.pod, c.inner)
	if err != nil {
		return err
	}
	for _, g := range c.gateways {
		want := plannedRoute{Route: Route{Dst: single(g.addr)}}
		if !slices.ContainsFunc(have, want.matches) {
			return missing("the pod has no route to its gateway %s on %q", g.addr, c.IfName)
		}
	}
	for _, want := range c.routes {
		if !slices.ContainsFunc(have, want.matches) {
			return missing("the pod has no route %s on %q", want, c.IfName)
		}
	}
	return nil
}

func (c *checker) hostRoutes() error {
	have, err := c.routesOf(c.host, c.outer)
	if err != nil {
		return err
	}
	for _, a := range c.Addresses {
		want := plannedRoute{Route: Route{Dst: single(a.Prefix.Addr())}}
		if !slices.ContainsFunc(have, want.matches) {
			return missing("the host has no route to %s on %q", a.Prefix.Addr(), c.outer.Attrs().Name)
		}
	}
	return nil
}

// routesOf returns the routes of a link, in all tables, of the families in use.
func (c *checker) routesOf(h *netlink.Handle, link netlink.Link) ([]netlink.Route, error) {
	filter := netlink.Route{LinkIndex: link.Attrs().Index}
	mask := netlink.RT_FILTER_TABLE | netlink.RT_FILTER_OIF
	var all []netlink.Route
	for _, f := range []struct {
		used   bool
		family int
	}{{c.v4, netlink.FAMILY_V4}, {c.v6, netlink.FAMILY_V6}} {
		if !f.used {
			continue
		}
		routes, err := listRoutes(h, f.family, filter, mask)
		if err != nil {
			return nil, err
		}
		all = append(all, routes...)
	}
	// The filter of the library stops at the first condition that is met.
	return slices.DeleteFunc(all, func(r netlink.Route) bool {
		return r.LinkIndex != link.Attrs().Index || r.Table == unix.RT_TABLE_LOCAL
	}), nil
}

// matches compares destination, gateway, MTU and, where they were asked for,
// table and priority.
func (r plannedRoute) matches(k netlink.Route) bool {
	table := r.Table
	if table == 0 {
		table = unix.RT_TABLE_MAIN
	}
	gw, _ := netip.AddrFromSlice(k.Gw)
	return k.Type == unix.RTN_UNICAST &&
		kernelDst(k) == r.Dst && gw.Unmap() == r.Gateway && k.MTU == r.MTU && k.Table == table &&
		(r.Priority == 0 || k.Priority == r.Priority) && (r.AdvMSS == 0 || k.AdvMSS == r.AdvMSS)
}

// kernelDst returns the destination of a route that the kernel listed.
func kernelDst(k netlink.Route) netip.Prefix {
	if k.Dst != nil && k.Dst.IP != nil {
		return prefixOf(k.Dst)
	}
	if k.Family == netlink.FAMILY_V6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

func prefixOf(n *net.IPNet) netip.Prefix {
	a, _ := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), bits)
}
