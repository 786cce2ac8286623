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

// Moved is what a transfer, or several at once, came to.
type Moved struct {
	Bytes int64
	Took  time.Duration
	// CPU is the processor time of both ends and of the network between them.
	CPU time.Duration
}

// Gbit is what was moved, in Gbit.
func (m Moved) Gbit() float64 { return float64(m.Bytes) * 8 / 1e9 }

// Transfer sends as much as it can for some time by every pair at once, as the receivers
// see it. They run on processor reader, the senders on the first.
func Transfer(pairs []*Pair, d time.Duration, reader int) (m Moved, err error) {
	var all []*thread
	counts := make([]int64, len(pairs))
	soft, start := softirqTime(reader+1), time.Now()
	for i, p := range pairs {
		all = append(all,
			onThread(reader, func() error { return p.drain(&counts[i]) }),
			onThread(0, func() error { return p.fill(d) }))
	}
	m.CPU, err = wait(all...)
	m.Took = time.Since(start)
	m.CPU += softirqTime(reader+1) - soft
	for _, n := range counts {
		m.Bytes += n
	}
	return m, err
}

// fill sends for some time and then says that it is all.
func (p *Pair) fill(d time.Duration) error {
	buf := make([]byte, writeSize)
	for end := time.Now().Add(d); time.Now().Before(end); {
		if _, err := one(unix.Write, p.from, buf); err != nil {
			return fmt.Errorf("send by TCP: %w", err)
		}
	}
	return unix.Shutdown(p.from, unix.SHUT_WR)
}

// drain receives until the other end says that it was all.
func (p *Pair) drain(received *int64) error {
	buf := make([]byte, writeSize)
	for {
		n, err := one(unix.Read, p.to, buf)
		if err != nil {
			return fmt.Errorf("receive by TCP: %w", err)
		}
		if n == 0 {
			return nil
		}
		*received += int64(n)
	}
}

// Trips are round trips.
type Trips struct {
	// Times of the trips, in the order in which they were made.
	Times []time.Duration
	Took  time.Duration
	// CPU is the processor time of both ends and of the network between them.
	CPU time.Duration
}

// RoundTrips bounces one byte for some time. The answering end runs on processor answerer,
// the asking one on the first.
func (p *Pair) RoundTrips(d time.Duration, answerer int) (t Trips, err error) {
	soft, start := softirqTime(answerer+1), time.Now()
	answering := onThread(answerer, p.answer)
	asking := onThread(0, func() error {
		var err error
		t.Times, err = p.ask(d)
		return err
	})
	t.CPU, err = wait(asking, answering)
	t.Took = time.Since(start)
	t.CPU += softirqTime(answerer+1) - soft
	return t, err
}

func (p *Pair) answer() error {
	buf := make([]byte, 1)
	for {
		if n, err := one(unix.Read, p.to, buf); err != nil || n == 0 {
			return err
		}
		if _, err := one(unix.Write, p.to, buf); err != nil {
			return err
		}
	}
}

func (p *Pair) ask(d time.Duration) (all []time.Duration, err error) {
	buf := make([]byte, 1)
	for end := time.Now().Add(d); ; {
		start := time.Now()
		if !start.Before(end) {
			return all, unix.Shutdown(p.from, unix.SHUT_WR)
		}
		if _, err := one(unix.Write, p.from, buf); err != nil {
			return nil, err
		}
		if n, err := one(unix.Read, p.from, buf); err != nil || n == 0 {
			return nil, errors.Join(err, io.ErrUnexpectedEOF)
		}
		all = append(all, time.Since(start))
	}
}

func one(call func(int, []byte) (int, error), fd int, buf []byte) (int, error) {
	return retry(func() (int, error) { return call(fd, buf) })
}
