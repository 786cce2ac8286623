// SPDX-License-Identifier: Apache-2.0

package veth

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// usableWithin bounds the wait for an address, which takes the kernel less
// than a millisecond unless its worker has to wait for the lock of all network
// interfaces: a node that makes and removes a hundred pods at once holds that
// for seconds.
const usableWithin = 30 * time.Second

// addrWatch waits until IPv6 addresses can be used. Adding one returns before
// it works, also without duplicate address detection: a worker of the kernel
// still has to join the group for neighbour solicitations and to insert the
// local route, and until then all packets to the address are lost. The local
// route is inserted last and is announced.
type addrWatch struct {
	socket *nl.NetlinkSocket
	want   map[watched]bool
}

type watched struct {
	link int
	ip   netip.Addr
}

// newAddrWatch listens in the namespace of the calling thread.
func newAddrWatch() (*addrWatch, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("listen to ipv6 routes: %w", err)
	}
	return &addrWatch{socket: s, want: map[watched]bool{}}, nil
}

func (w *addrWatch) close() {
	if w != nil {
		w.socket.Close()
	}
}

// expect has to be called before the address is added.
func (w *addrWatch) expect(link int, ip netip.Addr) { w.want[watched{link, ip}] = true }

// wait returns when all addresses expected can be used.
func (w *addrWatch) wait(h *netlink.Handle) error {
	deadline := time.Now().Add(usableWithin)
	for len(w.want) > 0 {
		left := time.Until(deadline)
		if left <= 0 {
			for a := range w.want {
				return fmt.Errorf("address %s is not usable after %s", a.ip, usableWithin)
			}
		}
		tv := unix.NsecToTimeval(left.Nanoseconds() + int64(time.Microsecond))
		if err := w.socket.SetReceiveTimeout(&tv); err != nil {
			return fmt.Errorf("listen to ipv6 routes: %w", err)
		}
		msgs, _, err := w.socket.Receive()
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENOBUFS):
			// So many routes changed that the kernel dropped the news.
			if err := w.ask(h); err != nil {
				return err
			}
		case err != nil:
			return fmt.Errorf("listen to ipv6 routes: %w", err)
		}
		for _, m := range msgs {
			if m.Header.Type == unix.RTM_NEWROUTE {
				w.saw(m.Data)
			}
		}
	}
	return nil
}

// saw takes one announced route.
func (w *addrWatch) saw(data []byte) {
	if len(data) < unix.SizeofRtMsg {
		return
	}
	msg := nl.DeserializeRtMsg(data)
	attrs, err := nl.ParseRouteAttr(data[unix.SizeofRtMsg:])
	if err != nil || msg.Type != unix.RTN_LOCAL {
		return
	}
	var a watched
	for _, attr := range attrs {
		switch attr.Attr.Type {
		case unix.RTA_DST:
			a.ip, _ = netip.AddrFromSlice(attr.Value)
		case unix.RTA_OIF:
			a.link = int(nl.NativeEndian().Uint32(attr.Value))
		}
	}
	delete(w.want, a)
}

// ask looks for the local routes in the table itself.
func (w *addrWatch) ask(h *netlink.Handle) error {
	routes, err := listRoutes(h, netlink.FAMILY_V6, netlink.Route{Table: unix.RT_TABLE_LOCAL}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return err
	}
	for _, r := range routes {
		if r.Type == unix.RTN_LOCAL {
			delete(w.want, watched{r.LinkIndex, kernelDst(r).Addr()})
		}
	}
	return nil
}
