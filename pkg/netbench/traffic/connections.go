// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/pkg/bench/cputime"
	"github.com/xveth/xveth/test/rig"
)

// backlog of a listening socket; there is one connection at a time.
const backlog = 16

// Conns are connections that were made one after the other.
type Conns struct {
	Made int
	Took time.Duration
	// CPU is the processor time of both ends and of the network between them.
	CPU time.Duration
}

// Connections connects, sends a byte, reads the answer and closes, again and again for some
// time. The server runs on processor server, the client on the first.
func Connections(ctx context.Context, from, to *rig.Host, at netip.AddrPort, d time.Duration, server int) (c Conns, err error) {
	addr := &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}
	listener, err := listenTCP(to, addr)
	if err != nil {
		return c, err
	}
	defer unix.Close(listener)
	var over atomic.Bool
	soft, start := softirqTime(server+1), time.Now()
	serving := onThread(server, func() error { return serve(listener, &over) })
	// The client's sockets are made in the namespace of its host, so on that host's thread.
	var cpu time.Duration
	err = from.Do(func() error {
		if err := Pin(0); err != nil {
			return err
		}
		before, err := cputime.Thread()
		if err != nil {
			return err
		}
		for end := start.Add(d); time.Now().Before(end); c.Made++ {
			if err := errors.Join(ctx.Err(), connectOnce(addr)); err != nil {
				return err
			}
		}
		after, err := cputime.Thread()
		cpu = after - before
		return err
	})
	c.Took = time.Since(start)
	over.Store(true)
	served, errServe := wait(serving)
	c.CPU = cpu + served + softirqTime(server+1) - soft
	return c, errors.Join(err, errServe)
}

func listenTCP(h *rig.Host, at unix.Sockaddr) (fd int, err error) {
	err = h.Do(func() error {
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		// An accept that waits in vain looks whether it shall end.
		wait := unix.NsecToTimeval(lookEvery.Nanoseconds())
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
			unix.Bind(fd, at), unix.Listen(fd, backlog))
	})
	if err != nil {
		return -1, fmt.Errorf("%s: listen: %w", h.Name, err)
	}
	return fd, nil
}

// serve answers each connection once, and closes it when the client has.
func serve(listener int, over *atomic.Bool) error {
	buf := make([]byte, 1)
	for {
		fd, err := retry(func() (int, error) {
			fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
			return fd, err
		})
		if errors.Is(err, unix.EAGAIN) {
			if over.Load() {
				return nil
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		err = converse(fd, unix.Read, unix.Write, buf)
		if err == nil {
			_, err = one(unix.Read, fd, buf) // its end
		}
		_ = unix.Close(fd)
		if err != nil {
			return fmt.Errorf("serve a connection: %w", err)
		}
	}
}

func connectOnce(to unix.Sockaddr) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(fd)
	wait := unix.NsecToTimeval(patience.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		return err
	}
	if err := unix.Connect(fd, to); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	return converse(fd, unix.Write, unix.Read, make([]byte, 1))
}

// converse is one byte in one direction, and then one in the other.
func converse(fd int, first, second func(int, []byte) (int, error), buf []byte) error {
	for _, call := range []func(int, []byte) (int, error){first, second} {
		n, err := one(call, fd, buf)
		if err == nil && n == 0 {
			err = errors.New("the connection was closed too early")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ForgetConntrack empties a host's conntrack table.
func ForgetConntrack(h *rig.Host) error {
	return h.Do(func() error {
		if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
			return fmt.Errorf("%s: empty the conntrack table: %w", h.Name, err)
		}
		return nil
	})
}
