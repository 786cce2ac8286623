// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/test/rig"
)

const (
	// socketBuffer is what programs that expect many datagrams ask for.
	socketBuffer = 4 << 20
	// lookEvery is after how long a reader looks whether it shall end.
	lookEvery = 50 * time.Millisecond
)

// udpSocket opens a blocking socket in the calling thread's network namespace.
func udpSocket(bind, connect netip.AddrPort, buffer int) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open a socket: %w", err)
	}
	wait := unix.NsecToTimeval(lookEvery.Nanoseconds())
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait))
	if err == nil && bind.IsValid() {
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: bind.Addr().As4(), Port: int(bind.Port())})
	}
	if err == nil && connect.IsValid() {
		err = unix.Connect(fd, &unix.SockaddrInet4{Addr: connect.Addr().As4(), Port: int(connect.Port())})
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("set up a socket: %w", err)
	}
	return fd, nil
}

// reader is a socket on a host that a thread of its own reads from.
type reader struct {
	n      atomic.Uint64
	stop   atomic.Bool
	thread *thread
}

// newReader reads datagrams on a processor, and calls each for what one system call gave.
func newReader(h *rig.Host, at netip.AddrPort, buffer, cpu int, names bool, each func(fd int, m *messages, n int) error) (*reader, error) {
	var fd int
	err := h.Do(func() (err error) {
		fd, err = udpSocket(at, netip.AddrPort{}, buffer)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: read %s: %w", h.Name, at, err)
	}
	r := &reader{}
	r.thread = onThread(cpu, func() error {
		defer unix.Close(fd)
		for m := newMessages(datagramMax, names); !r.stop.Load(); {
			m.reset()
			n, err := m.receive(fd)
			if errors.Is(err, unix.EAGAIN) {
				continue
			}
			if err != nil {
				return fmt.Errorf("%s: read %s: %w", h.Name, at, err)
			}
			if err := each(fd, m, n); err != nil {
				return fmt.Errorf("%s: answer from %s: %w", h.Name, at, err)
			}
			r.n.Add(uint64(n))
		}
		return nil
	})
	return r, nil
}

// Packets is how many datagrams have been read.
func (r *reader) Packets() (uint64, error) { return r.n.Load(), nil }

// Close ends the reader.
func (r *reader) Close() error {
	r.stop.Store(true)
	_, err := wait(r.thread)
	return err
}

// NewSocketSink counts what a program on a host can read from a socket, on a processor.
func NewSocketSink(h *rig.Host, at netip.AddrPort, cpu int) (Counter, error) {
	return newReader(h, at, socketBuffer, cpu, false, func(int, *messages, int) error { return nil })
}

// Sender sends datagrams of some size from sockets on a host, one socket a flow.
type Sender struct {
	fds []int
	m   *messages
}

// NewSender connects sockets. size is that of the datagram.
func NewSender(h *rig.Host, to netip.AddrPort, flows, size int) (*Sender, error) {
	s := &Sender{m: newMessages(size, false)}
	err := h.Do(func() error {
		for range flows {
			fd, err := udpSocket(netip.AddrPort{}, to, socketBuffer)
			if err != nil {
				return err
			}
			s.fds = append(s.fds, fd)
		}
		return nil
	})
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("%s: send to %s: %w", h.Name, to, err)
	}
	return s, nil
}

// Close closes the sockets.
func (s *Sender) Close() {
	for _, fd := range s.fds {
		_ = unix.Close(fd)
	}
}

// Greet sends one datagram by each socket and waits for the answers.
func (s *Sender) Greet() error {
	buf := make([]byte, datagramMax)
	for _, fd := range s.fds {
		if _, err := one(unix.Write, fd, buf[:1]); err != nil {
			return fmt.Errorf("greet by UDP: %w", err)
		}
		for end := time.Now().Add(patience); ; {
			_, err := one(unix.Read, fd, buf)
			if err == nil {
				break
			}
			if !errors.Is(err, unix.EAGAIN) || time.Now().After(end) {
				return fmt.Errorf("wait for an answer by UDP: %w", err)
			}
		}
	}
	return nil
}

// Send sends for some time on the first processor. It returns how many datagrams that
// were, and the processor time of all that was done for them there.
func (s *Sender) Send(d time.Duration) (sent uint64, cpu time.Duration, err error) {
	soft := softirqTime(1)
	cpu, err = wait(onThread(0, func() error {
		for end := time.Now().Add(d); time.Now().Before(end); {
			for _, fd := range s.fds {
				n, err := s.m.send(fd, atOnce)
				if err != nil {
					return fmt.Errorf("send datagrams: %w", err)
				}
				sent += uint64(n)
			}
		}
		return nil
	}))
	return sent, cpu + softirqTime(1) - soft, err
}
