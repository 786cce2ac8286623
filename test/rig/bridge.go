// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"errors"
	"fmt"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
)

// joinByBridge connects two interfaces by a bridge.
func joinByBridge(a, b string) error {
	la := netlink.NewLinkAttrs()
	la.Name = "br0"
	bridge := &netlink.Bridge{LinkAttrs: la}
	if err := netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("add bridge: %w", err)
	}
	return errors.Join(joinBridge(bridge, a), joinBridge(bridge, b), LinkUp(la.Name))
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
