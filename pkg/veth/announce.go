// SPDX-License-Identifier: Apache-2.0

package veth

import (
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	ndNeighborAdvert  = 136
	ndOverride        = 0x20
	ndTargetLinkLayer = 2
	ndHopLimit        = 255
)

// naSocket sends unsolicited neighbour advertisements. A raw ICMPv6 socket
// does: the kernel fills in headers and checksum, and closing it is cheap.
type naSocket struct{ fd int }

// newNASocket opens the socket in the calling thread's namespace.
func newNASocket() (*naSocket, error) {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		return nil, fmt.Errorf("open raw icmpv6 socket: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, ndHopLimit); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("set hop limit: %w", err)
	}
	return &naSocket{fd: fd}, nil
}

func (s *naSocket) close() {
	if s != nil {
		unix.Close(s.fd)
	}
}

// announce tells everybody on a link that an address is at a MAC address.
func (s *naSocket) announce(ip netip.Addr, mac net.HardwareAddr, ifindex int) error {
	target := ip.As16()
	msg := []byte{ndNeighborAdvert, 0, 0, 0, ndOverride, 0, 0, 0}
	msg = append(msg, target[:]...)
	msg = append(msg, ndTargetLinkLayer, 1)
	msg = append(msg, mac...)
	source := unix.PktInfo6(&unix.Inet6Pktinfo{Addr: target, Ifindex: uint32(ifindex)})
	all := &unix.SockaddrInet6{Addr: netip.IPv6LinkLocalAllNodes().As16(), ZoneId: uint32(ifindex)}
	return unix.Sendmsg(s.fd, msg, source, all, 0)
}
