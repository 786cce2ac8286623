// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/test/rig"
)

// patience is how long an answer is waited for.
const patience = 5 * time.Second

// Types of ICMP messages.
const (
	echoReply4   = 0
	echoRequest4 = 8
	echoRequest6 = 128
	echoReply6   = 129
)

// ping sends an ICMP echo request from a host and waits for the answer. The socket is a
// raw one, so that no command has to be installed and no sysctl to be set.
func ping(from *rig.Host, to netip.Addr) (took time.Duration, err error) {
	err = from.Do(func() error {
		took, err = pingHere(to)
		return err
	})
	return took, err
}

func pingHere(to netip.Addr) (time.Duration, error) {
	family, proto, answer := unix.AF_INET, unix.IPPROTO_ICMP, byte(echoReply4)
	if to.Is6() {
		family, proto, answer = unix.AF_INET6, unix.IPPROTO_ICMPV6, echoReply6
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return 0, fmt.Errorf("open a raw socket: %w", err)
	}
	defer unix.Close(fd)
	wait := unix.NsecToTimeval(patience.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		return 0, fmt.Errorf("limit the wait: %w", err)
	}
	request := echoRequest(to.Is6())
	start := time.Now()
	if err := unix.Sendto(fd, request, 0, sockaddr(to)); err != nil {
		return 0, fmt.Errorf("send an echo request: %w", err)
	}
	buf := make([]byte, 1500)
	for time.Since(start) < patience {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("wait for the answer: %w", err)
		}
		msg := buf[:n]
		if !to.Is6() { // an IPv4 raw socket delivers the IP header as well
			msg = msg[min(n, int(msg[0]&0x0f)*4):]
		}
		if len(msg) >= len(request) && msg[0] == answer && bytes.Equal(msg[4:len(request)], request[4:]) {
			return time.Since(start), nil
		}
	}
	return 0, fmt.Errorf("no answer within %v", patience)
}

// echoRequest builds a request; the kernel fills in the checksum of ICMPv6.
func echoRequest(six bool) []byte {
	msg := append(make([]byte, 8), "xveth demo: an echo request"...)
	msg[0] = echoRequest4
	if six {
		msg[0] = echoRequest6
	}
	binary.BigEndian.PutUint16(msg[4:], uint16(os.Getpid()))
	binary.BigEndian.PutUint16(msg[6:], 1)
	if !six {
		binary.BigEndian.PutUint16(msg[2:], ^rig.Sum(0, msg))
	}
	return msg
}

func sockaddr(to netip.Addr) unix.Sockaddr {
	if to.Is6() {
		return &unix.SockaddrInet6{Addr: to.As16()}
	}
	return &unix.SockaddrInet4{Addr: to.As4()}
}
