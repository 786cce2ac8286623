// SPDX-License-Identifier: Apache-2.0

// Command guest is what the test images and machines run: process 1 of a machine or of a
// sandbox, a server that echoes, and a client that measures whether all came back. Under
// the name "hold" it is a CNI plugin that can be made to wait or to fail.
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/test/rig"
)

const usage = `usage: guest init                      process 1 of a machine
       guest pause                     wait for the end
       guest serve PORT                echo TCP and UDP
       guest dial tcp|udp FROM TO N    N round trips on one connection, between an address
                                       and an address with a port`

// patience bounds one round trip.
const patience = 5 * time.Second

func main() {
	if filepath.Base(os.Args[0]) == holdName {
		hold()
		return
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "init":
		return beInit()
	case len(args) == 1 && args[0] == "pause":
		return pause(nil)
	case len(args) == 2 && args[0] == "serve":
		return serve(args[1])
	case len(args) == 5 && args[0] == "dial":
		n, err := strconv.Atoi(args[4])
		if err != nil {
			return err
		}
		return dial(args[1], args[2], args[3], n)
	}
	return errors.New(usage)
}

// beInit mounts /proc of the process namespace and reaps orphans until it is killed.
func beInit() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	// The runtimes keep locks in /dev/shm.
	for dir, kind := range map[string]string{"/proc": "proc", "/dev/shm": "tmpfs"} {
		if err := unix.Mount(kind, dir, kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	fmt.Fprintln(os.Stdout, rig.Ready)
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	for range ended {
		for {
			if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
	return nil
}

// pause waits for the signal to end, or for a server's failure. Process 1 gets no signal
// that it has not asked for.
func pause(failed <-chan error) error {
	end := make(chan os.Signal, 1)
	signal.Notify(end, unix.SIGTERM, unix.SIGINT)
	select {
	case <-end:
		return nil
	case err := <-failed:
		return err
	}
}

func serve(port string) error {
	tcp, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	udp, err := listenUDP(port)
	if err != nil {
		return err
	}
	failed := make(chan error, 2)
	go func() { failed <- serveTCP(tcp) }()
	go func() { failed <- serveUDP(udp) }()
	fmt.Fprintln(os.Stdout, "serving")
	return pause(failed)
}

func serveTCP(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}()
	}
}

// listenUDP opens a socket that tells to which address a datagram was sent: an answer of a
// container with several interfaces would else leave with the address of the first.
func listenUDP(port string) (*net.UDPConn, error) {
	addr, err := net.ResolveUDPAddr("udp", ":"+port)
	if err != nil {
		return nil, err
	}
	conn, err := net.ListenUDP("udp", addr)
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	})
	return conn, errors.Join(err, failed)
}

func serveUDP(conn *net.UDPConn) error {
	buf, info := make([]byte, 65536), make([]byte, 128)
	for {
		n, infoLen, _, from, err := conn.ReadMsgUDPAddrPort(buf, info)
		if err != nil {
			return err
		}
		// An unreachable client is no reason to end.
		_, _, _ = conn.WriteMsgUDPAddrPort(buf[:n], info[:infoLen], from)
	}
}

// dial makes round trips on one connection.
func dial(network, from, to string, n int) error {
	d := net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	if network == "udp" {
		d.LocalAddr = &net.UDPAddr{IP: net.ParseIP(from)}
	}
	conn, err := d.Dial(network, to)
	if err != nil {
		return err
	}
	defer conn.Close()
	for i := range n {
		msg := fmt.Sprintf("message %08d", i)
		got, err := rig.RoundTrip(conn, []byte(msg), patience)
		if err != nil {
			return fmt.Errorf("round trip %d of %d: %w", i, n, err)
		}
		if string(got) != msg {
			return fmt.Errorf("round trip %d: got %q, want %q", i, got, msg)
		}
	}
	return nil
}
