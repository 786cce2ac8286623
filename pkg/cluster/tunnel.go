// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/pkg/dump"
)

// DeviceName is the VXLAN device.
const DeviceName = "xveth-vxlan"

// What a tunnelled packet has more than the one inside, in bytes: the IP and UDP headers
// outside, the VXLAN header, and the Ethernet header inside (RFC 7348).
const (
	overhead4 = 20 + 8 + 8 + 14
	overhead6 = 40 + 8 + 8 + 14
)

// tunnel is the VXLAN device as it is.
type tunnel struct {
	index int
	mtu   int
}

// syncTunnel makes the device and fills its tables: each node that is reached through it
// has a MAC address that follows from its name, an entry of the forwarding table that says
// where frames to it are sent, and a neighbour entry for the gateway of each of its ranges.
// So nothing has to be asked or learned. It returns nil where there is no tunnel.
func (p *plan) syncTunnel() (*tunnel, error) {
	ways := p.tunnelled()
	if len(ways) == 0 {
		return nil, nil
	}
	l, err := p.ensureDevice(ways[0])
	if err != nil {
		return nil, fmt.Errorf("make the tunnel %q: %w", DeviceName, err)
	}
	t := &tunnel{index: l.Attrs().Index, mtu: l.Attrs().MTU}
	failed := p.ensureAddresses(l)
	have, err := neighbours(t.index)
	if err != nil {
		return t, errors.Join(failed, err)
	}
	for _, w := range ways {
		for _, n := range w.neighbours(t.index) {
			if contains(have, n) {
				continue
			}
			if err := netlink.NeighSet(&n); err != nil {
				failed = errors.Join(failed, fmt.Errorf("tell %q of node %q: %w", DeviceName, w.node.Name, err))
			}
		}
	}
	return t, failed
}

// neighbours are what the device has to know to reach a node.
func (w *way) neighbours(link int) []netlink.Neigh {
	mac := macOf(w.node.Name)
	gw := w.gateway()
	family := unix.AF_INET6
	if gw.Is4() {
		family = unix.AF_INET
	}
	return []netlink.Neigh{
		{
			LinkIndex: link, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF,
			IP: w.via.AsSlice(), HardwareAddr: mac,
		},
		{LinkIndex: link, Family: family, State: netlink.NUD_PERMANENT, IP: gw.AsSlice(), HardwareAddr: mac},
	}
}

// macOf is the MAC address of a node's end of the tunnel, which follows from its name:
// nodes need not tell it to each other.
func macOf(node string) net.HardwareAddr {
	sum := sha256.Sum256([]byte("xveth tunnel of node " + node))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^1 | 2 // unicast, locally administered
	return mac
}

// gateway is the address that stands for the node: for IPv4 the first of the range, which no
// pod gets; for IPv6 a link-local one, since the kernel looks up any other, and may find
// that it leads elsewhere.
func (w *way) gateway() netip.Addr {
	if w.dst.Addr().Is4() {
		return first(w.dst)
	}
	var ip [16]byte
	ip[0], ip[1] = 0xfe, 0x80
	copy(ip[10:], macOf(w.node.Name))
	return netip.AddrFrom16(ip)
}

func first(r netip.Prefix) netip.Addr { return r.Masked().Addr() }

// ensureDevice makes the device, or makes it anew where it is another than it has to be.
func (p *plan) ensureDevice(w way) (netlink.Link, error) {
	want := p.device(w)
	have, err := device()
	if err != nil {
		return nil, err
	}
	if have != nil && !sameDevice(have, want) {
		if err := netlink.LinkDel(have); err != nil {
			return nil, fmt.Errorf("remove the old one: %w", err)
		}
		have = nil
	}
	if have == nil {
		if err := netlink.LinkAdd(want); err != nil {
			return nil, err
		}
		if have, err = device(); err != nil {
			return nil, err
		}
	}
	if have.MTU != want.MTU {
		if err := netlink.LinkSetMTU(have, want.MTU); err != nil {
			return nil, fmt.Errorf("set its MTU to %d: %w", want.MTU, err)
		}
		have.MTU = want.MTU
	}
	if err := netlink.LinkSetUp(have); err != nil {
		return nil, fmt.Errorf("set it up: %w", err)
	}
	return have, nil
}

// device is the one that the plan needs.
func (p *plan) device(w way) *netlink.Vxlan {
	local := p.self.Addrs[0]
	overhead := overhead6
	if local.Is4() {
		overhead = overhead4
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.MTU = DeviceName, macOf(p.self.Name), p.mtu-overhead
	return &netlink.Vxlan{
		LinkAttrs: attrs, VxlanId: p.cfg.VNI, Port: p.cfg.Port, SrcAddr: local.AsSlice(), VtepDevIndex: w.link,
		UDP6ZeroCSumRx: true,
	}
}

// device returns the one that is there; nil where there is none.
func device() (*netlink.Vxlan, error) {
	l, err := netlink.LinkByName(DeviceName)
	var notFound netlink.LinkNotFoundError
	if errors.As(err, &notFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for it: %w", err)
	}
	v, ok := l.(*netlink.Vxlan)
	if !ok {
		return nil, fmt.Errorf("a %s of that name is in the way", l.Type())
	}
	return v, nil
}

func sameDevice(have, want *netlink.Vxlan) bool {
	return have.VxlanId == want.VxlanId && have.Port == want.Port && have.SrcAddr.Equal(want.SrcAddr) &&
		have.VtepDevIndex == want.VtepDevIndex && !have.Learning &&
		slices.Equal(have.HardwareAddr, want.HardwareAddr)
}

// ensureAddresses gives the device the first address of each of the node's ranges: it is
// what the node's own packets to pods elsewhere carry.
func (p *plan) ensureAddresses(l netlink.Link) error {
	have, err := dump.All("addresses", func() ([]netlink.Addr, error) {
		return netlink.AddrList(l, netlink.FAMILY_ALL) //nolint:forbidigo // it is repeated
	})
	if err != nil {
		return err
	}
	var want []netip.Prefix
	for _, r := range p.self.PodCIDRs {
		gw := first(r)
		want = append(want, netip.PrefixFrom(gw, gw.BitLen()))
	}
	var failed error
	for _, w := range want {
		if slices.ContainsFunc(have, func(a netlink.Addr) bool { return prefixOf(a.IPNet) == w }) {
			continue
		}
		a := &netlink.Addr{IPNet: ipNet(w)}
		if w.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(l, a); err != nil {
			failed = errors.Join(failed, fmt.Errorf("add address %s to %q: %w", w, DeviceName, err))
		}
	}
	for _, a := range have {
		if p := prefixOf(a.IPNet); p.Addr().IsLinkLocalUnicast() || slices.Contains(want, p) {
			continue
		}
		if err := netlink.AddrDel(l, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			failed = errors.Join(failed, fmt.Errorf("remove address %s from %q: %w", a.IPNet, DeviceName, err))
		}
	}
	return failed
}

// dropTunnel removes what the device knows of nodes that are not reached through it any
// more, or the device itself.
func (p *plan) dropTunnel(t *tunnel) error {
	if t == nil && len(p.tunnelled())+len(p.unknown) > 0 {
		return nil // it could not be made, or some range may need it
	}
	l, err := device()
	if err != nil || l == nil {
		return err
	}
	if t == nil {
		if err := netlink.LinkDel(l); err != nil {
			return fmt.Errorf("remove the tunnel %q: %w", DeviceName, err)
		}
		return nil
	}
	if len(p.unknown) > 0 {
		return nil
	}
	var want []netlink.Neigh
	for _, w := range p.tunnelled() {
		want = append(want, w.neighbours(t.index)...)
	}
	have, failed := neighbours(t.index)
	for _, h := range have {
		if contains(want, h) {
			continue
		}
		if err := netlink.NeighDel(&h); err != nil && !errors.Is(err, unix.ENOENT) {
			failed = errors.Join(failed, fmt.Errorf("make %q forget %s: %w", DeviceName, h.IP, err))
		}
	}
	return failed
}

// neighbours lists what a device was told of others: the entries of its forwarding table
// and the permanent ones of both families' neighbour tables.
func neighbours(link int) ([]netlink.Neigh, error) {
	var all []netlink.Neigh
	for _, family := range []int{unix.AF_BRIDGE, unix.AF_INET, unix.AF_INET6} {
		have, err := dump.All("neighbours", func() ([]netlink.Neigh, error) {
			return netlink.NeighList(link, family) //nolint:forbidigo // it is repeated
		})
		if err != nil {
			return nil, err
		}
		for _, h := range have {
			if h.State&netlink.NUD_PERMANENT != 0 {
				all = append(all, h)
			}
		}
	}
	return all, nil
}

func contains(all []netlink.Neigh, n netlink.Neigh) bool {
	return slices.ContainsFunc(all, func(a netlink.Neigh) bool {
		return a.Family == n.Family && a.IP.Equal(n.IP) && slices.Equal(a.HardwareAddr, n.HardwareAddr)
	})
}
