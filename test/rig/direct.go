// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"errors"
	"fmt"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
)

// JoinDirectly puts a bridge in the place of the wire's programs. Skbs then cross as
// skbs, as between virtual machines: with checksums that are not finished and segments
// that are not cut, both of which a frame cannot carry.
func (r *Rig) JoinDirectly() error {
	for _, u := range r.undo {
		u()
	}
	r.undo = nil
	return r.Wire.Do(func() error {
		la := netlink.NewLinkAttrs()
		la.Name = "br0"
		bridge := &netlink.Bridge{LinkAttrs: la}
		if err := netlink.LinkAdd(bridge); err != nil {
			return fmt.Errorf("add bridge: %w", err)
		}
		return errors.Join(joinBridge(bridge, "w0"), joinBridge(bridge, "w1"), linkUp(la.Name))
	})
}

func joinBridge(bridge *netlink.Bridge, name string) error {
	l, err := netlinksafe.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %q: %w", name, err)
	}
	if err := netlink.LinkSetMaster(l, bridge); err != nil {
		return fmt.Errorf("join %q to the bridge: %w", name, err)
	}
	return nil
}
