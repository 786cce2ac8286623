// SPDX-License-Identifier: Apache-2.0

package veth

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	minMTU   = 68
	minMTUv6 = 1280
	maxMTU   = 65535
	// The kernel lowers larger MTUs and segment sizes of routes to these.
	maxRouteMTU = 65520
	maxAdvMSS   = 65495
)

// plan is a Config that was checked and completed.
type plan struct {
	Config
	hostName string
	alias    string
	hostMAC  net.HardwareAddr
	gateways []gateway
	routes   []plannedRoute
	v4, v6   bool
}

// gateway is one address of the host's end, with the pod's address that talks
// to it.
type gateway struct {
	addr netip.Addr
	src  netip.Addr
}

// plannedRoute is a route whose gateway is decided.
type plannedRoute struct {
	Route
	// onlink is set for a gateway that no route of ours leads to.
	onlink bool
}

// newPlan checks a Config.
func newPlan(cfg Config) (*plan, error) {
	p := &plan{
		Config:   cfg,
		hostName: HostName(cfg.Network, cfg.ContainerID, cfg.IfName),
		alias:    Alias(cfg.Network, cfg.ContainerID, cfg.IfName),
		hostMAC:  hostMAC(cfg.Network, cfg.ContainerID, cfg.IfName),
	}
	p.Addresses = slices.Clone(cfg.Addresses)
	if err := checkIfName(cfg.IfName); err != nil {
		return nil, err
	}
	if cfg.MAC != nil && (len(cfg.MAC) != 6 || cfg.MAC[0]&1 != 0 || slices.Max(cfg.MAC) == 0) {
		return nil, fmt.Errorf("%w: %q is not a unicast ethernet address", ErrInvalid, cfg.MAC)
	}
	if err := p.planAddresses(); err != nil {
		return nil, err
	}
	low := minMTU
	if p.v6 {
		low = minMTUv6
	}
	if cfg.MTU != 0 && (cfg.MTU < low || cfg.MTU > maxMTU) {
		return nil, fmt.Errorf("%w: mtu %d is not within %d and %d", ErrInvalid, cfg.MTU, low, maxMTU)
	}
	return p, p.planRoutes()
}

func checkIfName(name string) error {
	if name == "" || len(name) > maxIfName || name == "." || name == ".." || strings.ContainsAny(name, "/: \t\n\r\v\f%") {
		return fmt.Errorf("%w: %q is not an interface name", ErrInvalid, name)
	}
	return nil
}

// planAddresses checks the addresses and collects the gateways, each once.
func (p *plan) planAddresses() error {
	if len(p.Addresses) == 0 {
		return fmt.Errorf("%w: it has no address", ErrInvalid)
	}
	seen := map[netip.Addr]bool{}
	for i, a := range p.Addresses {
		if !a.Prefix.IsValid() {
			return fmt.Errorf("%w: address number %d has no valid prefix", ErrInvalid, i)
		}
		ip, bits := a.Prefix.Addr(), a.Prefix.Bits()
		if ip.Is4In6() {
			return fmt.Errorf("%w: %s is an ipv4 address written as ipv6", ErrInvalid, a.Prefix)
		}
		if seen[ip] {
			return fmt.Errorf("%w: address %s is given twice", ErrInvalid, ip)
		}
		seen[ip] = true
		gw := a.Gateway.Unmap().WithZone("")
		p.Addresses[i] = Address{Prefix: netip.PrefixFrom(ip.WithZone(""), bits), Gateway: gw}
		p.v4, p.v6 = p.v4 || ip.Is4(), p.v6 || ip.Is6()
		if !gw.IsValid() {
			continue
		}
		if gw.Is4() != ip.Is4() || gw == ip || gw.IsUnspecified() || gw.IsMulticast() {
			return fmt.Errorf("%w: %s cannot be the gateway of %s", ErrInvalid, gw, a.Prefix)
		}
		if !slices.ContainsFunc(p.gateways, func(g gateway) bool { return g.addr == gw }) {
			p.gateways = append(p.gateways, gateway{addr: gw, src: ip})
		}
	}
	for _, a := range p.Addresses {
		if !p.familyGateway(a.Prefix.Addr().Is4()).IsValid() {
			return fmt.Errorf("%w: address %s has no gateway: the address manager has to give one", ErrInvalid, a.Prefix)
		}
		if seen[a.Gateway] {
			return fmt.Errorf("%w: gateway %s is also an address of the pod", ErrInvalid, a.Gateway)
		}
	}
	return nil
}

// familyGateway returns the first gateway of a family.
func (p *plan) familyGateway(v4 bool) netip.Addr {
	for _, g := range p.gateways {
		if g.addr.Is4() == v4 {
			return g.addr
		}
	}
	return netip.Addr{}
}

// planRoutes decides the gateway of every route and drops repetitions, which
// address managers give when two ranges name the same route.
func (p *plan) planRoutes() error {
	for _, r := range p.Routes {
		if !r.Dst.IsValid() || r.Dst.Addr().Is4In6() {
			return fmt.Errorf("%w: route %q has no valid destination", ErrInvalid, r.Dst)
		}
		r.Dst = r.Dst.Masked()
		r.Gateway = r.Gateway.Unmap().WithZone("")
		r.MTU, r.AdvMSS = min(r.MTU, maxRouteMTU), min(r.AdvMSS, maxAdvMSS)
		v4 := r.Dst.Addr().Is4()
		direct := r.Scope != nil && *r.Scope >= unix.RT_SCOPE_LINK
		switch {
		case r.Gateway.IsValid() && direct:
			return fmt.Errorf("%w: route %s has a gateway and the scope of a link", ErrInvalid, r.Dst)
		case r.Gateway.IsValid() && r.Gateway.Is4() != v4:
			return fmt.Errorf("%w: route %s and its gateway %s differ in family", ErrInvalid, r.Dst, r.Gateway)
		case !r.Gateway.IsValid() && !direct:
			r.Gateway = p.familyGateway(v4)
			if !r.Gateway.IsValid() {
				return fmt.Errorf("%w: route %s has no gateway and no address of its family has one", ErrInvalid, r.Dst)
			}
		}
		// A route to the gateway alone is made anyway.
		if r.Dst.IsSingleIP() && p.isGateway(r.Dst.Addr()) && r.Table == 0 && (direct || r.Gateway == r.Dst.Addr()) {
			continue
		}
		pr := plannedRoute{Route: r, onlink: r.Gateway.IsValid() && !p.isGateway(r.Gateway)}
		if !slices.ContainsFunc(p.routes, func(o plannedRoute) bool { return sameRoute(o.Route, r) }) {
			p.routes = append(p.routes, pr)
		}
	}
	return nil
}

func (p *plan) isGateway(a netip.Addr) bool {
	return slices.ContainsFunc(p.gateways, func(g gateway) bool { return g.addr == a })
}

// sameRoute compares two routes by value.
func sameRoute(a, b Route) bool {
	sa, sb := -1, -1
	if a.Scope != nil {
		sa = *a.Scope
	}
	if b.Scope != nil {
		sb = *b.Scope
	}
	a.Scope, b.Scope = nil, nil
	return a == b && sa == sb
}

// kernel returns the route as netlink wants it.
func (r plannedRoute) kernel(link int) *netlink.Route {
	k := &netlink.Route{
		LinkIndex: link,
		Dst:       ipNet(r.Dst),
		MTU:       r.MTU,
		AdvMSS:    r.AdvMSS,
		Priority:  r.Priority,
		Table:     r.Table,
	}
	if r.Gateway.IsValid() {
		k.Gw = r.Gateway.AsSlice()
	}
	if r.Scope != nil {
		k.Scope = netlink.Scope(*r.Scope)
	}
	if r.onlink {
		k.Flags = int(netlink.FLAG_ONLINK)
	}
	return k
}

func (r plannedRoute) String() string {
	s := r.Dst.String()
	if r.Gateway.IsValid() {
		s += " via " + r.Gateway.String()
	}
	if r.MTU != 0 {
		s += fmt.Sprintf(" mtu %d", r.MTU)
	}
	return s
}

// single returns an address as a prefix of its full length.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
