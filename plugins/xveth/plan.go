// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/xveth/xveth/pkg/arm"
	"github.com/xveth/xveth/pkg/ipam"
	"github.com/xveth/xveth/pkg/netconf"
	"github.com/xveth/xveth/pkg/veth"
)

const (
	// maxVethMTU is the largest MTU of a veth (ETH_MAX_MTU).
	maxVethMTU = 65535
	// maxRouteMTU is the largest MTU that the kernel keeps for a route (fib_metrics.c).
	maxRouteMTU = maxVethMTU - 15
	// largeTCP is the largest TCP packet between pods, bytes: three of the largest segments.
	// More does not pay: two sockets' worth of it leave the processor's cache.
	largeTCP = 3 << 16
	// ipTCPHeaders is the length of IPv4 and TCP headers without options, bytes.
	ipTCPHeaders = 40
	// noUplinkMTU is the MTU of a pod on a node without a default route.
	noUplinkMTU = 1500
)

// Gateways of a pod whose address manager names none. They are never seen outside
// the pod's link.
var (
	linkGateway4 = netip.MustParseAddr("169.254.1.1")
	linkGateway6 = netip.MustParseAddr("fe80::1")
)

// plan is all that ADD will set up for one attachment.
type plan struct {
	uplinks []netconf.Uplink
	veth    veth.Config
	// masq are the subnets whose pods hide behind the node; empty masquerades
	// nothing.
	masq []netip.Prefix
}

// makePlan decides what the addresses that ipam gave need.
func (a *attachment) makePlan(res *current.Result) (*plan, error) {
	uplinks, err := arm.Uplinks(a.conf)
	if err != nil {
		return nil, err
	}
	pathMTU := a.pathMTU(uplinks)
	p := &plan{uplinks: uplinks, veth: a.vethConfig(a.linkMTU(pathMTU))}
	p.veth.LargeTCP = a.largeTCP(p.veth.MTU, pathMTU)
	if p.veth.Addresses, err = addresses(res); err != nil {
		return nil, err
	}
	if p.veth.Routes, err = a.routes(res, p.veth, pathMTU); err != nil {
		return nil, err
	}
	if p.masq, err = a.masqSubnets(p.veth.Addresses); err != nil {
		return nil, err
	}
	return p, nil
}

func (a *attachment) vethConfig(mtu int) veth.Config {
	return veth.Config{
		Network:       a.conf.Name,
		ContainerID:   a.args.ContainerID,
		IfName:        a.args.IfName,
		NetnsPath:     a.args.Netns,
		MTU:           mtu,
		MAC:           a.conf.Runtime.MAC,
		TxChecksumOff: a.conf.FastPath.Mode == netconf.ModeXDP && !a.conf.Runtime.FastPathOff,
	}
}

// pathMTU is the MTU of everything that leaves the node: the least of the uplinks'. One
// that is not there does not keep a pod from its network; STATUS names it.
func (a *attachment) pathMTU(uplinks []netconf.Uplink) int {
	if a.conf.MTU > 0 {
		return a.conf.MTU
	}
	least := 0
	for _, u := range uplinks {
		mtu, err := veth.LinkMTU(u.Name)
		if err != nil {
			slog.Warn("An uplink is left out.", "uplink", u.Name, "error", err)
			continue
		}
		if least == 0 || mtu < least {
			least = mtu
		}
	}
	if least == 0 {
		return noUplinkMTU
	}
	return min(least, maxVethMTU)
}

// linkMTU is the MTU of the pair: that of the local routes, which are the widest. A
// shaped pod has none, because one jumbo packet would use up its burst.
func (a *attachment) linkMTU(pathMTU int) int {
	switch {
	case a.conf.LocalMTU.Off || a.conf.Runtime.Bandwidth != nil:
		return pathMTU
	case a.conf.LocalMTU.Bytes > 0:
		return max(a.conf.LocalMTU.Bytes, pathMTU)
	default:
		return maxVethMTU
	}
}

// largeTCP lets TCP between local pods use packets of several of the local MTU's segments,
// as long as skbs stay skbs: a frame holds 64 KiB. As many segments as that holds of the
// path's are the most, so that what leaves the node is no larger than ever.
func (a *attachment) largeTCP(linkMTU, pathMTU int) *veth.LargeTCP {
	if linkMTU < 2*pathMTU || a.conf.FastPath.Mode == netconf.ModeXDP {
		return nil
	}
	return &veth.LargeTCP{MaxSize: largeTCP, MaxSegs: uint32(1 << 16 / (pathMTU - ipTCPHeaders))}
}

func addresses(res *current.Result) ([]veth.Address, error) {
	all := make([]veth.Address, 0, len(res.IPs))
	for _, ip := range res.IPs {
		prefix, err := toPrefix(ip.Address)
		if err != nil {
			return nil, fmt.Errorf("address %v from ipam: %w", ip.Address, err)
		}
		gw, ok := netip.AddrFromSlice(ip.Gateway)
		switch {
		case ok:
			gw = gw.Unmap()
		case prefix.Addr().Is4():
			gw = linkGateway4
		default:
			gw = linkGateway6
		}
		all = append(all, veth.Address{Prefix: prefix, Gateway: gw})
	}
	return all, nil
}

// routes are those of ipam with the MTU of the path, and one to each of the node's own
// pod subnets with the MTU of the link.
func (a *attachment) routes(res *current.Result, cfg veth.Config, pathMTU int) ([]veth.Route, error) {
	routeMTU := pathMTU
	if cfg.MTU == pathMTU {
		routeMTU = 0 // the link's own is the same
	}
	all := make([]veth.Route, 0, len(res.Routes)+len(cfg.Addresses))
	for _, r := range res.Routes {
		route, err := toRoute(r)
		if err != nil {
			return nil, err
		}
		if route.MTU == 0 {
			route.MTU = routeMTU
		}
		all = append(all, route)
	}
	subnets, err := a.localSubnets(cfg.Addresses)
	if err != nil {
		return nil, err
	}
	for _, s := range subnets {
		if gw, ok := gatewayFor(cfg.Addresses, s); ok && !hasRoute(all, s) {
			local := veth.Route{Dst: s, Gateway: gw}
			if routeMTU != 0 {
				local.MTU = min(cfg.MTU, maxRouteMTU)
			}
			all = append(all, local)
		}
	}
	return all, nil
}

func toRoute(r *types.Route) (veth.Route, error) {
	dst, err := toPrefix(r.Dst)
	if err != nil {
		return veth.Route{}, fmt.Errorf("route %v from ipam: %w", r, err)
	}
	gw, _ := netip.AddrFromSlice(r.GW)
	route := veth.Route{
		Dst: dst.Masked(), Gateway: gw.Unmap(),
		MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority, Scope: r.Scope,
	}
	if r.Table != nil {
		route.Table = *r.Table
	}
	return route, nil
}

func hasRoute(routes []veth.Route, dst netip.Prefix) bool {
	for _, r := range routes {
		if r.Dst == dst {
			return true
		}
	}
	return false
}

func gatewayFor(addrs []veth.Address, subnet netip.Prefix) (netip.Addr, bool) {
	for _, a := range addrs {
		if a.Prefix.Addr().Is4() == subnet.Addr().Is4() {
			return a.Gateway, true
		}
	}
	return netip.Addr{}, false
}

// localSubnets are those that this node's pods get addresses from.
func (a *attachment) localSubnets(addrs []veth.Address) ([]netip.Prefix, error) {
	subnets, err := ipam.Subnets(a.conf)
	if err != nil {
		return nil, err
	}
	for _, addr := range addrs {
		if addr.Prefix.IsSingleIP() {
			continue
		}
		own := addr.Prefix.Masked()
		seen := false
		for _, s := range subnets {
			seen = seen || s == own
		}
		if !seen {
			subnets = append(subnets, own)
		}
	}
	return subnets, nil
}

func (a *attachment) masqSubnets(addrs []veth.Address) ([]netip.Prefix, error) {
	if !a.conf.IPMasq {
		return nil, nil
	}
	subnets, err := a.localSubnets(addrs)
	if err != nil {
		return nil, err
	}
	for _, addr := range addrs {
		if addr.Prefix.IsSingleIP() {
			subnets = append(subnets, addr.Prefix)
		}
	}
	return subnets, nil
}

func toPrefix(n net.IPNet) (netip.Prefix, error) {
	addr, ok := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	if !ok || bits == 0 {
		return netip.Prefix{}, fmt.Errorf("%v is not an address with a prefix length", n)
	}
	addr = addr.Unmap()
	if addr.Is4() && bits == 128 {
		ones -= 96
	}
	return netip.PrefixFrom(addr, ones), nil
}

func toIPNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// result reports what ADD has set up.
func (a *attachment) result(p *plan, pair *veth.Pair, ipamResult *current.Result) *current.Result {
	res := &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{
			{Name: pair.HostName, Mac: pair.HostMAC.String(), Mtu: pair.HostMTU},
			{Name: a.args.IfName, Mac: pair.PodMAC.String(), Mtu: pair.PodMTU, Sandbox: a.args.Netns},
		},
		DNS: a.conf.DNS,
	}
	if res.DNS.IsEmpty() {
		res.DNS = ipamResult.DNS
	}
	for _, addr := range p.veth.Addresses {
		res.IPs = append(res.IPs, &current.IPConfig{
			Interface: current.Int(1),
			Address:   toIPNet(addr.Prefix),
			Gateway:   addr.Gateway.AsSlice(),
		})
	}
	for _, r := range p.veth.Routes {
		route := &types.Route{Dst: toIPNet(r.Dst), MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority, Scope: r.Scope}
		if r.Gateway.IsValid() {
			route.GW = r.Gateway.AsSlice()
		}
		if r.Table != 0 {
			route.Table = &r.Table
		}
		res.Routes = append(res.Routes, route)
	}
	return res
}
