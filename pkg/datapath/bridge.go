// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"

	"github.com/xveth/xveth/bpf"
)

// bridgeProgram serves the bridges that pods are behind.
const bridgeProgram = "xv_tc_bridge"

// A host veth may be the port of a bridge. What the bridge forwards from port to port is
// learned and repeated at the ports; what it hands to the node comes by the bridge's own
// interface, so that is where flows from the pods are learned and repeated.

// bridgeOf returns the bridge that an interface is a port of; nil when there is none.
func bridgeOf(l netlink.Link) (netlink.Link, error) {
	master := l.Attrs().MasterIndex
	if master == 0 {
		return nil, nil
	}
	m, err := netlink.LinkByIndex(master)
	if err != nil {
		return nil, fmt.Errorf("find the master of %q: %w", l.Attrs().Name, err)
	}
	if m.Type() != "bridge" {
		return nil, nil
	}
	return m, nil
}

// armMember does what a host veth needs besides as the port of a bridge.
func (d *Datapath) armMember(l netlink.Link, p Pod) error {
	bridge, err := bridgeOf(l)
	if err != nil || bridge == nil {
		return err
	}
	if p.ToPod {
		if err := d.putMember(l.Attrs().Index, p.MAC); err != nil {
			return err
		}
	}
	if !p.FromPod {
		return nil
	}
	// A bridge that is an uplink has the program that takes frames of every port.
	have, err := hasOurs(bridge.Attrs().Index, ebpf.AttachTCXIngress)
	if err != nil || have {
		return err
	}
	return ensureTCX(bridge.Attrs().Index, ebpf.AttachTCXIngress, d.progs.XvTcBridge)
}

func (d *Datapath) putMember(ifindex int, mac net.HardwareAddr) error {
	if len(mac) != 6 {
		return fmt.Errorf("arm interface %d: it is the port of a bridge, and the pod's MAC address %q is not known", ifindex, mac)
	}
	member := bpf.DatapathXvPort{}
	copy(member.Mac[:], mac)
	if err := d.maps.XvMembers.Put(uint32(ifindex), &member); err != nil {
		return fmt.Errorf("note the MAC address behind interface %d: %w", ifindex, err)
	}
	return nil
}

// checkMember finds missing what armMember puts in place.
func (d *Datapath) checkMember(ifindex int, p Pod) error {
	l, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return fmt.Errorf("find interface %d: %w", ifindex, err)
	}
	bridge, err := bridgeOf(l)
	if err != nil || bridge == nil {
		return err
	}
	if p.ToPod {
		var member bpf.DatapathXvPort
		if err := d.maps.XvMembers.Lookup(uint32(ifindex), &member); err != nil {
			return fmt.Errorf("the MAC address behind the port is not noted: %w", err)
		}
	}
	if !p.FromPod {
		return nil
	}
	if err := checkTCX(bridge.Attrs().Index, ebpf.AttachTCXIngress); err != nil {
		return fmt.Errorf("bridge %q: %w", bridge.Attrs().Name, err)
	}
	return nil
}

// releaseMember forgets a port, and takes our program off its bridge when no other port of
// it is armed.
func (d *Datapath) releaseMember(l netlink.Link) error {
	err := d.maps.XvMembers.Delete(uint32(l.Attrs().Index))
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = nil
	}
	bridge, bridgeErr := bridgeOf(l)
	if bridgeErr != nil || bridge == nil {
		return errors.Join(err, bridgeErr)
	}
	return errors.Join(err, d.releaseBridge(bridge))
}

// releaseBridge takes our program off a bridge that has no armed port. A bridge that is an
// uplink has another one, which stays.
func (d *Datapath) releaseBridge(bridge netlink.Link) error {
	idle, err := isIdle(bridge)
	if err != nil || !idle {
		return err
	}
	return detachTCX(bridge.Attrs().Index, ebpf.AttachTCXIngress)
}

// isIdle says whether a bridge has the program that serves its ports, and none of them is
// armed.
func isIdle(bridge netlink.Link) (bool, error) {
	index := bridge.Attrs().Index
	have, err := tcxPrograms(index, ebpf.AttachTCXIngress)
	if err != nil || !slices.ContainsFunc(have, func(a attached) bool { return a.name == bridgeProgram }) {
		return false, err
	}
	links, err := netlinksafe.LinkList()
	if err != nil {
		return false, fmt.Errorf("list the ports of bridge %q: %w", bridge.Attrs().Name, err)
	}
	for _, l := range links {
		if l.Attrs().MasterIndex != index {
			continue
		}
		if armed, err := hasOurs(l.Attrs().Index, ebpf.AttachTCXIngress); armed || err != nil {
			return false, err
		}
	}
	return true, nil
}

// IdleBridges names the bridges that have our program although no port of theirs is armed
// any more.
func IdleBridges() ([]string, error) {
	links, err := netlinksafe.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list bridges: %w", err)
	}
	var names []string
	for _, l := range links {
		if l.Type() != "bridge" {
			continue
		}
		idle, err := isIdle(l)
		if isGone(l) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if idle {
			names = append(names, l.Attrs().Name)
		}
	}
	return names, nil
}

// ReleaseBridges takes our program off the bridges that need it no more.
func (d *Datapath) ReleaseBridges() error {
	unlock, err := d.lock()
	if err != nil {
		return err
	}
	defer unlock()
	names, err := IdleBridges()
	for _, n := range names {
		l, lookErr := netlink.LinkByName(n)
		if lookErr == nil {
			lookErr = d.releaseBridge(l)
		}
		err = errors.Join(err, lookErr)
	}
	return err
}
