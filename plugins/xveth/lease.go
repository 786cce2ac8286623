// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/pkg/ipam"
	"github.com/xveth/xveth/pkg/veth"
)

// lease gets addresses. The function that it returns says that the attachment's interface
// is there, or never will be.
//
// When no address is free, those of dead attachments are taken back first: where a later
// plugin of the chain fails DEL, runtimes give up and xveth's own DEL is never called.
func (a *attachment) lease(ctx context.Context) (*current.Result, func(), error) {
	res, visible, err := a.leaseOnce(ctx)
	var said *types.Error
	if err == nil || !errors.As(err, &said) || said.Code != types.ErrTryAgainLater {
		return res, visible, err
	}
	dead, listErr := a.dead()
	if listErr != nil {
		return nil, nil, err
	}
	n, reclaimErr := ipam.Reclaim(ctx, a.conf, dead)
	slog.Warn("No address was free; those of dead attachments are taken back.", "addresses", n, "error", reclaimErr)
	// Also when there were none: another ADD may just have done the same.
	return a.leaseOnce(ctx)
}

// hasReclaimable says whether lease would find an address although none is free.
func (a *attachment) hasReclaimable() bool {
	dead, err := a.dead()
	if err != nil {
		return false
	}
	n, err := ipam.Reclaimable(a.conf, dead)
	return err == nil && n > 0
}

func (a *attachment) leaseOnce(ctx context.Context) (*current.Result, func(), error) {
	visible, err := ipam.Hold(a.conf)
	if err != nil {
		return nil, nil, err
	}
	res, err := ipam.Add(ctx, a.conf, a.args)
	if err != nil {
		visible()
		return nil, nil, err
	}
	return res, visible, nil
}

// dead returns a function that says whether an attachment has no host end and nothing on
// this node is reached at its address. The network may have pods that another plugin made:
// the node has a route to their link.
func (a *attachment) dead() (ipam.Dead, error) {
	have, err := veth.List(a.conf.Name)
	if err != nil {
		return nil, err
	}
	return func(containerID, ifname string, addr netip.Addr) bool {
		if slices.ContainsFunc(have, func(h veth.Attachment) bool { return h.Is(a.conf.Name, containerID, ifname) }) {
			return false
		}
		if hostIndex(veth.HostName(a.conf.Name, containerID, ifname)) != 0 {
			return false // made since the list was
		}
		routes, err := netlink.RouteGet(addr.AsSlice())
		for _, no := range []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EINVAL, unix.EACCES} {
			if errors.Is(err, no) {
				return true // no route, unreachable, blackhole, prohibit
			}
		}
		return err == nil && len(routes) > 0 && routes[0].Gw != nil
	}, nil
}

// hostIndex is the index of an interface; 0 when there is none.
func hostIndex(name string) int {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return 0
	}
	return l.Attrs().Index
}
