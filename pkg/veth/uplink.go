// SPDX-License-Identifier: Apache-2.0

package veth

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Uplinks returns the names of the devices that the default routes of the main
// table leave by, IPv4 before IPv6, each once, the preferred ones first.
func Uplinks() ([]string, error) {
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink of the host: %w", err)
	}
	defer host.Close()
	var names []string
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		indexes, err := defaultLinks(host, family)
		if err != nil {
			return nil, err
		}
		for _, index := range indexes {
			link, err := host.LinkByIndex(index)
			if isNotFound(err) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("look up device %d of a default route: %w", index, err)
			}
			if a := link.Attrs(); a.RawFlags&unix.IFF_LOOPBACK == 0 && !slices.Contains(names, a.Name) {
				names = append(names, a.Name)
			}
		}
	}
	return names, nil
}

// defaultLinks returns the indexes of the devices of a family's default routes.
func defaultLinks(host *netlink.Handle, family int) ([]int, error) {
	// A nil destination in the filter stands for the default route.
	routes, err := listRoutes(host, family, netlink.Route{}, netlink.RT_FILTER_DST)
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find the default routes of the host: %w", err)
	}
	slices.SortStableFunc(routes, func(a, b netlink.Route) int { return a.Priority - b.Priority })
	var indexes []int
	for _, r := range routes {
		if r.Type != unix.RTN_UNICAST {
			continue
		}
		if r.LinkIndex > 0 {
			indexes = append(indexes, r.LinkIndex)
		}
		for _, hop := range r.MultiPath {
			indexes = append(indexes, hop.LinkIndex)
		}
	}
	return indexes, nil
}

// LinkMTU returns the MTU of a device of the host.
func LinkMTU(name string) (int, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("look up device %q: %w", name, err)
	}
	return link.Attrs().MTU, nil
}
