// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/test/rig"
)

// writeSize is what a bulk transfer hands to the kernel at once.
const writeSize = 256 << 10

// pair is a TCP connection, both ends of which belong to this process. They block:
// Go's poller would wake threads of its own choice on processors of their own choice,
// and that would be measured, not the path.
type pair struct {
	conns    [2]*net.TCPConn
	from, to int
}

func (b *bed) newPair(from, to *rig.Host, at netip.Addr) (*pair, error) {
	l, err := to.ListenTCP(netip.AddrPortFrom(at, 0))
	if err != nil {
		return nil, err
	}
	defer l.Close()
	near, err := from.DialTCP(netip.AddrPort{}, l.Addr().(*net.TCPAddr).AddrPort())
	if err != nil {
		return nil, err
	}
	p := &pair{}
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
			p.close()
			return nil, err
		}
	}
	return p, nil
}

func (p *pair) close() {
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

// onThread runs f on a thread of its own, on one processor.
func onThread(cpu int, f func() error) <-chan error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends, and with it the pinning
		if err := pin(cpu); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return done
}

// transfer sends as much as it can for some time and returns Gbit/s as the receiver saw
// them.
func (b *bed) transfer(from, to *rig.Host, at netip.Addr, for_ time.Duration) (float64, error) {
	p, err := b.newPair(from, to, at)
	if err != nil {
		return 0, err
	}
	defer p.close()
	var received int64
	var took time.Duration
	reading := onThread(0, func() error {
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
	writing := onThread(0, func() error {
		buf := make([]byte, writeSize)
		for end := time.Now().Add(for_); time.Now().Before(end); {
			if _, err := retry(func() (int, error) { return unix.Write(p.from, buf) }); err != nil {
				return err
			}
		}
		return unix.Shutdown(p.from, unix.SHUT_WR)
	})
	if err := errors.Join(<-writing, <-reading); err != nil {
		return 0, err
	}
	return float64(received) * 8 / took.Seconds() / 1e9, nil
}

// roundTrips bounces one byte for some time and returns the median round trip in
// microseconds.
func (b *bed) roundTrips(from, to *rig.Host, at netip.Addr, for_ time.Duration) (float64, error) {
	p, err := b.newPair(from, to, at)
	if err != nil {
		return 0, err
	}
	defer p.close()
	answering := onThread(0, func() error {
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
	var all []time.Duration
	asking := onThread(0, func() error {
		buf := make([]byte, 1)
		for end := time.Now().Add(for_); ; {
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
	if err := errors.Join(<-asking, <-answering); err != nil {
		return 0, err
	}
	slices.Sort(all)
	return float64(all[len(all)/2].Nanoseconds()) / 1e3, nil
}

func one(call func(int, []byte) (int, error), fd int, buf []byte) (int, error) {
	return retry(func() (int, error) { return call(fd, buf) })
}

// retry repeats a system call that a signal interrupted; Go's scheduler sends some.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
