// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/xveth/xveth/bpf"
)

// noteMember tells the programs of a host veth that is the port of a bridge which bridge
// that is, and who is behind the port.
func (d *Datapath) noteMember(l netlink.Link, p Pod) error {
	member, err := memberOf(l, p)
	if err != nil || member == nil {
		return err
	}
	if err := d.maps.XvMembers.Put(uint32(l.Attrs().Index), member); err != nil {
		return fmt.Errorf("note the bridge of %q: %w", l.Attrs().Name, err)
	}
	return nil
}

// memberOf returns what is to be noted of a host veth; nil when no bridge has it.
func memberOf(l netlink.Link, p Pod) (*bpf.DatapathXvMember, error) {
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
	if len(p.MAC) != 6 {
		return nil, fmt.Errorf("arm %q: it is the port of bridge %q, and the pod's MAC address %q is not known",
			l.Attrs().Name, m.Attrs().Name, p.MAC)
	}
	member := &bpf.DatapathXvMember{Bridge: uint32(master)}
	copy(member.Mac[:], p.MAC)
	return member, nil
}

// checkMember compares what is noted with what is there.
func (d *Datapath) checkMember(l netlink.Link, p Pod) error {
	want, err := memberOf(l, p)
	if err != nil || want == nil {
		return err
	}
	var have bpf.DatapathXvMember
	if err := d.maps.XvMembers.Lookup(uint32(l.Attrs().Index), &have); err != nil {
		return fmt.Errorf("its bridge is not noted: %w", err)
	}
	if have != *want {
		return errors.New("its bridge, or the pod's MAC address, is another one than was noted")
	}
	return nil
}
