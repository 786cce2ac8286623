// SPDX-License-Identifier: Apache-2.0

package veth

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// addPodAddresses adds the addresses of one family to the pod's end, without
// the connected route: all traffic goes by the gateway.
func (m *maker) addPodAddresses(v4 bool) error {
	for _, a := range m.Addresses {
		if a.Prefix.Addr().Is4() != v4 {
			continue
		}
		addr := &netlink.Addr{IPNet: ipNet(a.Prefix), Flags: unix.IFA_F_NOPREFIXROUTE}
		if !v4 {
			addr.Flags |= unix.IFA_F_NODAD
			m.podWatch.expect(m.pair.PodIndex, a.Prefix.Addr())
		}
		if err := m.pod.nl.AddrAdd(byIndex(m.pair.PodIndex), addr); err != nil {
			return fmt.Errorf("add address %s to %q in the pod: %w", a.Prefix, m.IfName, err)
		}
	}
	return nil
}

// addLinkLocal adds, while the link is down, the link-local address that the
// kernel would add when it comes up. The kernel's own is tentative until a
// worker has run, even without duplicate address detection, and until then no
// neighbour is solicited from it: the first packet to a pod waited a second.
func (m *maker) addLinkLocal(h *netlink.Handle, index int, mac net.HardwareAddr) error {
	if !m.v6 {
		return nil
	}
	ip := linkLocal(mac)
	addr := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(ip, 64)), Flags: unix.IFA_F_NODAD, Scope: unix.RT_SCOPE_LINK}
	if err := h.AddrAdd(byIndex(index), addr); err != nil {
		return fmt.Errorf("add address %s: %w", ip, err)
	}
	return nil
}

// linkLocal returns the link-local address that belongs to a MAC address.
func linkLocal(mac net.HardwareAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{
		0: 0xfe, 1: 0x80,
		8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff,
		12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5],
	})
}

// configurePod adds the pod's IPv6 addresses and all routes.
func (m *maker) configurePod() error {
	// Asking for the link also makes the kernel act on the carrier that just
	// came; before, IPv6 would not use the link.
	if _, err := m.pod.nl.LinkByIndex(m.pair.PodIndex); err != nil {
		return fmt.Errorf("look up %q in the pod: %w", m.IfName, err)
	}
	if err := m.addPodAddresses(false); err != nil {
		return err
	}
	for _, g := range m.gateways {
		r := &netlink.Route{
			LinkIndex: m.pair.PodIndex,
			Dst:       ipNet(single(g.addr)),
			Src:       g.src.AsSlice(),
			Scope:     netlink.SCOPE_LINK,
		}
		if err := m.addPodRoute(r); err != nil {
			return fmt.Errorf("add route to gateway %s in the pod: %w", g.addr, err)
		}
	}
	for _, r := range m.routes {
		if err := m.addPodRoute(r.kernel(m.pair.PodIndex)); err != nil {
			return fmt.Errorf("add route %s in the pod: %w", r, err)
		}
	}
	return nil
}

// secondMetric is behind what routes have by default: 0, and 1024 with IPv6.
const secondMetric = 2048

// addPodRoute adds a route to the pod. Where another interface has one to the same
// destination, as the default routes of two networks are, that one stays the first: it may
// carry connections, and IPv6 would spread them over both.
func (m *maker) addPodRoute(r *netlink.Route) error {
	err := m.pod.nl.RouteAdd(r)
	if errors.Is(err, unix.EEXIST) && r.Priority == 0 {
		r.Priority = secondMetric + r.LinkIndex
		err = m.pod.nl.RouteAdd(r)
	}
	return err
}

// configureHost adds the gateway addresses to the host's end and a route to
// each address of the pod.
func (m *maker) configureHost() error {
	host := byIndex(m.pair.HostIndex)
	for _, g := range m.gateways {
		addr := &netlink.Addr{IPNet: ipNet(single(g.addr))}
		if g.addr.Is6() {
			addr.Flags = unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE
			m.hostWatch.expect(m.pair.HostIndex, g.addr)
		}
		if g.addr.IsLinkLocalUnicast() {
			addr.Scope = unix.RT_SCOPE_LINK
		}
		if err := m.host.AddrAdd(host, addr); err != nil {
			return fmt.Errorf("add gateway address %s to %q: %w", g.addr, m.hostName, err)
		}
	}
	for _, a := range m.Addresses {
		dst := a.Prefix.Addr()
		err := m.host.RouteAdd(podRoute(m.pair.HostIndex, dst))
		if errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("%w: the host has a route to %s%s: DEL the attachment that it belongs to", ErrConflict, dst, m.routeOwner(dst))
		}
		if err != nil {
			return fmt.Errorf("add route to %s on %q: %w", dst, m.hostName, err)
		}
	}
	return nil
}

// podRoute leads to a pod by the host's end of its pair.
func podRoute(hostIndex int, pod netip.Addr) *netlink.Route {
	return &netlink.Route{LinkIndex: hostIndex, Dst: ipNet(single(pod)), Scope: netlink.SCOPE_LINK}
}

// EnsureRoutes puts back the routes to the addresses of a pod that the host has lost, and
// returns how many. One that is there stays as it is, whoever's it is.
func EnsureRoutes(hostIndex int, addrs []netip.Addr) (int, error) {
	n := 0
	for _, a := range addrs {
		err := netlink.RouteAdd(podRoute(hostIndex, a))
		switch {
		case errors.Is(err, unix.EEXIST):
		case errors.Is(err, unix.ENODEV): // the pod has gone meanwhile
			return n, nil
		case err != nil:
			return n, fmt.Errorf("add route to %s on interface %d: %w", a, hostIndex, err)
		default:
			n++
		}
	}
	return n, nil
}

// routeOwner names the device that leads to an address, for an error text.
func (m *maker) routeOwner(dst netip.Addr) string {
	routes, err := m.host.RouteGet(dst.AsSlice())
	if err != nil || len(routes) == 0 {
		return ""
	}
	link, err := m.host.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" on %q", link.Attrs().Name)
}

// finish reads back the host's end, waits until the kernel takes packets for
// the IPv6 addresses and announces those of the pod.
func (m *maker) finish() error {
	link, err := m.host.LinkByIndex(m.pair.HostIndex)
	if err != nil {
		return fmt.Errorf("look up %q: %w", m.hostName, err)
	}
	a := link.Attrs()
	m.pair.HostName, m.pair.HostMAC, m.pair.HostMTU = a.Name, a.HardwareAddr, a.MTU
	if !m.v6 {
		return nil
	}
	if err := m.podWatch.wait(m.pod.nl); err != nil {
		return fmt.Errorf("wait for the addresses of %q in the pod: %w", m.IfName, err)
	}
	if err := m.hostWatch.wait(m.host); err != nil {
		return fmt.Errorf("wait for the gateway addresses of %q: %w", m.hostName, err)
	}
	for _, addr := range m.Addresses {
		if ip := addr.Prefix.Addr(); ip.Is6() {
			if err := m.na.announce(ip, m.pair.PodMAC, m.pair.PodIndex); err != nil {
				return fmt.Errorf("announce %s from %q in the pod: %w", ip, m.IfName, err)
			}
		}
	}
	return nil
}
