// SPDX-License-Identifier: Apache-2.0

package veth

import (
	"github.com/vishvananda/netlink"

	"github.com/xveth/xveth/pkg/dump"
)

func listLinks(h *netlink.Handle) ([]netlink.Link, error) {
	return dump.All("links", h.LinkList) //nolint:forbidigo // it is repeated
}

func listAddrs(h *netlink.Handle, link netlink.Link) ([]netlink.Addr, error) {
	return dump.All("addresses", func() ([]netlink.Addr, error) {
		return h.AddrList(link, netlink.FAMILY_ALL) //nolint:forbidigo // it is repeated
	})
}

func listRoutes(h *netlink.Handle, family int, filter netlink.Route, mask uint64) ([]netlink.Route, error) {
	return dump.All("routes", func() ([]netlink.Route, error) {
		f := filter
		return h.RouteListFiltered(family, &f, mask) //nolint:forbidigo // it is repeated
	})
}
