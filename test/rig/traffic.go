// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// listen opens a socket on a host. A port can be taken for a moment by a socket that has
// been closed already: a command that another thread is just starting has a copy of it
// until it is executed.
func (h *Host) listen(open func() error) error {
	for end := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		err := h.Do(open)
		if !errors.Is(err, unix.EADDRINUSE) || time.Now().After(end) {
			return err
		}
	}
}

// ListenUDP opens a UDP socket on a host.
func (h *Host) ListenUDP(at netip.AddrPort) (conn *net.UDPConn, err error) {
	err = h.listen(func() error {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: listen: %w", h.Name, err)
	}
	return conn, nil
}

// DialUDP opens a connected UDP socket on a host; the zero local address lets the
// kernel choose.
func (h *Host) DialUDP(from, to netip.AddrPort) (conn *net.UDPConn, err error) {
	var local *net.UDPAddr
	if from.IsValid() {
		local = net.UDPAddrFromAddrPort(from)
	}
	err = h.Do(func() error {
		conn, err = net.DialUDP("udp", local, net.UDPAddrFromAddrPort(to))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: dial: %w", h.Name, err)
	}
	return conn, nil
}

// ListenTCP opens a listening TCP socket on a host.
func (h *Host) ListenTCP(at netip.AddrPort) (l *net.TCPListener, err error) {
	err = h.listen(func() error {
		l, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: listen: %w", h.Name, err)
	}
	return l, nil
}

// DialTCP connects from a host; the zero local address lets the kernel choose.
func (h *Host) DialTCP(from, to netip.AddrPort) (conn *net.TCPConn, err error) {
	d := net.Dialer{Timeout: 5 * time.Second}
	if from.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(from)
	}
	err = h.Do(func() error {
		c, err := d.Dial("tcp", to.String())
		if err == nil {
			conn = c.(*net.TCPConn)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: dial: %w", h.Name, err)
	}
	return conn, nil
}

// EchoUDP answers every datagram with itself until the context ends. Each answer goes
// to whoever the datagram seems to come from.
func (h *Host) EchoUDP(ctx context.Context, at netip.AddrPort) error {
	conn, err := h.AnswerUDP(at, func(_ netip.AddrPort, message []byte) []byte { return message })
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	return nil
}

// AnswerUDP answers every datagram until the connection that it returns is closed.
func (h *Host) AnswerUDP(at netip.AddrPort, answer func(from netip.AddrPort, message []byte) []byte) (*net.UDPConn, error) {
	conn, err := h.ListenUDP(at)
	if err != nil {
		return nil, err
	}
	go func() {
		buf := make([]byte, 65536)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = conn.WriteToUDPAddrPort(answer(from, buf[:n]), from)
			}
		}
	}()
	return conn, nil
}

// EchoTCP answers every connection with what it sends until the context ends.
func (h *Host) EchoTCP(ctx context.Context, at netip.AddrPort) error {
	l, err := h.ListenTCP(at)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(ctx, func() { _ = c.Close() })
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	return nil
}

// RoundTrip sends a message and reads the same number of bytes back.
func RoundTrip(conn net.Conn, msg []byte, wait time.Duration) ([]byte, error) {
	if err := conn.SetDeadline(time.Now().Add(wait)); err != nil {
		return nil, err
	}
	if _, err := conn.Write(msg); err != nil {
		return nil, err
	}
	buf := make([]byte, len(msg))
	if _, err := io.ReadFull(conn, buf); err != nil {
		return nil, err
	}
	return buf, nil
}
