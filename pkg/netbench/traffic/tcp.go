// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/test/rig"
)

// writeSize is what a bulk transfer hands to the kernel at once.
const writeSize = 256 << 10

// Pair is a TCP connection, both ends of which belong to this process. They block:
// Go's poller would wake threads of its own choice on processors of their own choice,
// and that would be measured, not the path.
type Pair struct {
	conns    [2]*net.TCPConn
	from, to int
}

// NewPair connects two hosts, with the kernel's default congestion control or another.
func NewPair(from, to *rig.Host, at netip.Addr, congestion string) (*Pair, error) {
	l, err := to.ListenTCP(netip.AddrPortFrom(at, 0))
	if err != nil {
		return nil, err
	}
	defer l.Close()
	near, err := from.DialTCP(netip.AddrPort{}, l.Addr().(*net.TCPAddr).AddrPort())
	if err != nil {
		return nil, err
	}
	p := &Pair{}
	p.conns[0] = near
	if err := l.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	if p.conns[1], err = l.AcceptTCP(); err != nil {
		_ = near.Close()
		return nil, fmt.Errorf("accept: %w", err)
	}
	for i, fd := range []*int{&p.from, &p.to} {
		if *fd, err = blocking(p.conns[i]); err != nil {
			p.Close()
			return nil, err
		}
	}
	if congestion != "" {
		if err := unix.SetsockoptString(p.from, unix.IPPROTO_TCP, unix.TCP_CONGESTION, congestion); err != nil {
			p.Close()
			return nil, fmt.Errorf("use congestion control %q: %w", congestion, err)
		}
	}
	return p, nil
}

// Close ends the connection.
func (p *Pair) Close() {
	for _, c := range p.conns {
		_ = c.Close()
	}
}

// blocking returns the descriptor of a connection after making it block, though not
// for ever.
func blocking(c *net.TCPConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	wait := unix.NsecToTimeval(patience.Nanoseconds())
	out := -1
	var failed error
	err = raw.Control(func(fd uintptr) {
		out = int(fd)
		failed = errors.Join(
			unix.SetNonblock(out, false),
			unix.SetsockoptTimeval(out, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
			unix.SetsockoptTimeval(out, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait),
		)
	})
	return out, errors.Join(err, failed)
}

// Transfer sends as much as it can for some time, and returns the bytes that the receiver
// got and how long it took. The receiver runs on processor reader, the sender on the
// first.
func (p *Pair) Transfer(d time.Duration, reader int) (received int64, took time.Duration, err error) {
	reading := OnThread(reader, func() error {
		buf := make([]byte, writeSize)
		start := time.Now()
		for {
			n, err := retry(func() (int, error) { return unix.Read(p.to, buf) })
			if err != nil || n == 0 {
				took = time.Since(start)
				return err
			}
			received += int64(n)
		}
	})
	writing := OnThread(0, func() error {
		buf := make([]byte, writeSize)
		for end := time.Now().Add(d); time.Now().Before(end); {
			if _, err := retry(func() (int, error) { return unix.Write(p.from, buf) }); err != nil {
				return err
			}
		}
		return unix.Shutdown(p.from, unix.SHUT_WR)
	})
	err = errors.Join(<-writing, <-reading)
	return received, took, err
}

// RoundTrips bounces one byte for some time and returns how long each round trip took.
// The answering end runs on processor answerer, the asking one on the first.
func (p *Pair) RoundTrips(d time.Duration, answerer int) (all []time.Duration, err error) {
	answering := OnThread(answerer, func() error {
		buf := make([]byte, 1)
		for {
			if n, err := one(unix.Read, p.to, buf); err != nil || n == 0 {
				return err
			}
			if _, err := one(unix.Write, p.to, buf); err != nil {
				return err
			}
		}
	})
	asking := OnThread(0, func() error {
		buf := make([]byte, 1)
		for end := time.Now().Add(d); ; {
			start := time.Now()
			if !start.Before(end) {
				return unix.Shutdown(p.from, unix.SHUT_WR)
			}
			if _, err := one(unix.Write, p.from, buf); err != nil {
				return err
			}
			if n, err := one(unix.Read, p.from, buf); err != nil || n == 0 {
				return errors.Join(err, io.ErrUnexpectedEOF)
			}
			all = append(all, time.Since(start))
		}
	})
	err = errors.Join(<-asking, <-answering)
	return all, err
}

func one(call func(int, []byte) (int, error), fd int, buf []byte) (int, error) {
	return retry(func() (int, error) { return call(fd, buf) })
}
