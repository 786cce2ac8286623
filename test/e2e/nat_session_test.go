// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long a test waits for a packet that has to come.
const patience = 2 * time.Second

func addrPortOf(a net.Addr) netip.AddrPort {
	var ap netip.AddrPort
	switch a := a.(type) {
	case *net.UDPAddr:
		ap = a.AddrPort()
	case *net.TCPAddr:
		ap = a.AddrPort()
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

func (s *session) connectTCP(from netip.AddrPort) error {
	l, err := s.path.to.ListenTCP(s.path.serve)
	if err != nil {
		return err
	}
	defer l.Close()
	client, err := s.path.from.DialTCP(from, s.path.dial)
	if err != nil {
		return err
	}
	if err := l.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	server, err := l.AcceptTCP()
	if err != nil {
		return err
	}
	// Probes of the sockets' own would be in the way of packets that a test makes.
	if err := errors.Join(client.SetKeepAlive(false), server.SetKeepAlive(false)); err != nil {
		return err
	}
	s.client, s.server = client, server
	s.clientLocal, s.clientRemote = addrPortOf(client.LocalAddr()), addrPortOf(client.RemoteAddr())
	s.serverLocal, s.serverRemote = addrPortOf(server.LocalAddr()), addrPortOf(server.RemoteAddr())
	_, err = s.roundTrip([]byte("hello"))
	return err
}

func (s *session) connectUDP(from netip.AddrPort) error {
	client, err := s.path.from.DialUDP(from, s.path.dial)
	if err != nil {
		return err
	}
	// Several sessions share a server's port: each has a socket that is connected
	// to its own client, as soon as the client is known.
	server, err := s.serveUDP()
	if err != nil {
		return err
	}
	s.client, s.server = client, server
	s.clientLocal, s.clientRemote = addrPortOf(client.LocalAddr()), addrPortOf(client.RemoteAddr())
	s.serverLocal = s.path.serve
	if _, err := client.Write([]byte("hello")); err != nil {
		return err
	}
	if err := server.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	buf := make([]byte, 16)
	_, peer, err := server.ReadFromUDPAddrPort(buf)
	if err != nil {
		return err
	}
	_ = server.Close()
	s.serverRemote = netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port())
	d := net.Dialer{Control: shareAddress, LocalAddr: net.UDPAddrFromAddrPort(s.serverLocal)}
	err = s.path.to.Do(func() (err error) {
		s.server, err = d.Dial("udp", s.serverRemote.String())
		return err
	})
	if err != nil {
		return err
	}
	_, err = s.roundTrip([]byte("hello"))
	return err
}

func (s *session) serveUDP() (conn *net.UDPConn, err error) {
	lc := net.ListenConfig{Control: shareAddress}
	err = s.path.to.Do(func() error {
		c, err := lc.ListenPacket(context.Background(), "udp", s.path.serve.String())
		if err == nil {
			conn = c.(*net.UDPConn)
		}
		return err
	})
	return conn, err
}

func shareAddress(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	})
	return errors.Join(err, failed)
}

// roundTrip sends a message to the server and what the server got back to the client.
func (s *session) roundTrip(msg []byte) ([]byte, error) {
	got, err := pass(s.client, s.server, msg)
	if err != nil {
		return nil, fmt.Errorf("%v to server: %w", s.tuples(), err)
	}
	if got, err = pass(s.server, s.client, got); err != nil {
		return nil, fmt.Errorf("%v to client: %w", s.tuples(), err)
	}
	return got, nil
}

// pass sends a message from one socket to another and checks that it arrives as it is.
func pass(from, to net.Conn, msg []byte) ([]byte, error) {
	if _, err := from.Write(msg); err != nil {
		return nil, err
	}
	if err := to.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	buf := make([]byte, len(msg)+1)
	n, err := to.Read(buf)
	if _, isTCP := to.(*net.TCPConn); isTCP && err == nil && n < len(msg) {
		var rest int
		rest, err = io.ReadFull(to, buf[n:len(msg)])
		n += rest
	}
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(buf[:n], msg) {
		return nil, fmt.Errorf("sent %d bytes, got %d others", len(msg), n)
	}
	return buf[:n], nil
}

// stream sends random bytes through a TCP session one way and compares them.
func stream(from, to net.Conn, size int, rnd *rand.ChaCha8) error {
	sent := make([]byte, size)
	_, _ = rnd.Read(sent)
	failed := make(chan error, 1)
	deadline := time.Now().Add(10 * time.Second)
	if err := errors.Join(from.SetWriteDeadline(deadline), to.SetReadDeadline(deadline)); err != nil {
		return err
	}
	go func() {
		_, err := from.Write(sent)
		failed <- err
	}()
	got := make([]byte, size)
	n, err := io.ReadFull(to, got)
	if err = errors.Join(err, <-failed); err != nil {
		return fmt.Errorf("%d of %d bytes arrived: %w", n, size, err)
	}
	if !bytes.Equal(got, sent) {
		return errors.New("bytes arrived that were not sent")
	}
	return nil
}
