// SPDX-License-Identifier: Apache-2.0

package veth

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// dumpAttempts bounds the repetition of a dump that changes interrupted.
const dumpAttempts = 10

// dump repeats a netlink dump that a change interrupted, because its answer may
// lack entries. Unlike the reference's netlinksafe it never returns such an
// answer: a garbage collection or a CHECK must not act on half a list.
func dump[T any](what string, list func() ([]T, error)) ([]T, error) {
	err := error(netlink.ErrDumpInterrupted)
	var all []T
	for i := 0; i < dumpAttempts && errors.Is(err, netlink.ErrDumpInterrupted); i++ {
		all, err = list()
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", what, err)
	}
	return all, nil
}

func listLinks(h *netlink.Handle) ([]netlink.Link, error) {
	return dump("links", h.LinkList) //nolint:forbidigo // dump retries
}

func listAddrs(h *netlink.Handle, link netlink.Link) ([]netlink.Addr, error) {
	return dump("addresses", func() ([]netlink.Addr, error) {
		return h.AddrList(link, netlink.FAMILY_ALL) //nolint:forbidigo // dump retries
	})
}

func listRoutes(h *netlink.Handle, family int, filter netlink.Route, mask uint64) ([]netlink.Route, error) {
	return dump("routes", func() ([]netlink.Route, error) {
		f := filter
		return h.RouteListFiltered(family, &f, mask) //nolint:forbidigo // dump retries
	})
}
