// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/bpf"
)

// LinkUp sets an interface of the calling thread's namespace up.
func LinkUp(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %q: %w", name, err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("set %q up: %w", name, err)
	}
	return nil
}

// addVeth makes a pair with one end here and the other on a host.
func addVeth(name, peer string, to *Host) error {
	la := netlink.NewLinkAttrs()
	la.Name = name
	v := netlink.NewVeth(la)
	v.PeerName, v.PeerNamespace = peer, netlink.NsFd(to.NetnsFD())
	if err := netlink.LinkAdd(v); err != nil {
		return fmt.Errorf("add veth %q: %w", name, err)
	}
	if err := LinkUp(name); err != nil {
		return err
	}
	return to.Do(func() error { return LinkUp(peer) })
}

// Offload switches offloads of an interface of the calling thread's namespace, by
// their ethtool names.
func Offload(name string, features map[string]bool) error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("open ethtool: %w", err)
	}
	defer e.Close()
	if err := e.Change(name, features); err != nil {
		return fmt.Errorf("change offloads of %q: %w", name, err)
	}
	return nil
}

// AddAddr gives an interface of the calling thread's namespace an address that is
// usable at once.
func AddAddr(name string, prefix netip.Prefix) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %q: %w", name, err)
	}
	addr := &netlink.Addr{IPNet: toIPNet(prefix)}
	if prefix.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	if err := netlink.AddrAdd(l, addr); err != nil {
		return fmt.Errorf("add %s to %q: %w", prefix, name, err)
	}
	return nil
}

// AddRoute adds a route to the calling thread's namespace.
func AddRoute(dst netip.Prefix, gw netip.Addr) error {
	if err := netlink.RouteAdd(&netlink.Route{Dst: toIPNet(dst), Gw: gw.AsSlice()}); err != nil {
		return fmt.Errorf("add route to %s: %w", dst, err)
	}
	return nil
}

func toIPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// joinWire makes what comes in at each of two interfaces leave by the other.
func joinWire(a, b string) (func(), error) {
	var undo []func()
	for _, ends := range [][2]string{{a, b}, {b, a}} {
		closeEnd, err := wireEnd(ends[0], ends[1])
		if err != nil {
			return nil, err
		}
		undo = append(undo, closeEnd)
	}
	return func() {
		for _, u := range undo {
			u()
		}
	}, nil
}

// joinOneWay makes what comes in at the first interface leave by the second, and drops what
// comes in at the second.
func joinOneWay(a, b string) (func(), error) {
	cut, err := wireEnd(a, b)
	if err != nil {
		return nil, err
	}
	end, err := Verdict{Action: XDPDrop, Frags: true}.attachHere(b)
	if err != nil {
		cut()
		return nil, err
	}
	return func() { end(); cut() }, nil
}

func wireEnd(in, out string) (func(), error) {
	from, err := netlink.LinkByName(in)
	if err != nil {
		return nil, fmt.Errorf("find %q: %w", in, err)
	}
	to, err := netlink.LinkByName(out)
	if err != nil {
		return nil, fmt.Errorf("find %q: %w", out, err)
	}
	objs, err := loadRig(map[string]any{"rig_ifindex": uint32(to.Attrs().Index)})
	if err != nil {
		return nil, err
	}
	defer objs.Close()
	l, err := link.AttachXDP(link.XDPOptions{
		Program: objs.RigWire, Interface: from.Attrs().Index, Flags: link.XDPDriverMode,
	})
	if err != nil {
		return nil, fmt.Errorf("attach the wire to %q: %w", in, err)
	}
	return func() { _ = l.Close() }, nil
}

func loadRig(vars map[string]any) (*bpf.RigObjects, error) {
	spec, err := bpf.LoadRig()
	if err != nil {
		return nil, fmt.Errorf("read the rig's programs: %w", err)
	}
	for name, v := range vars {
		if err := spec.Variables[name].Set(v); err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
	}
	var objs bpf.RigObjects
	if err := spec.LoadAndAssign(&objs, &ebpf.CollectionOptions{}); err != nil {
		return nil, fmt.Errorf("load the rig's programs: %w", err)
	}
	return &objs, nil
}
