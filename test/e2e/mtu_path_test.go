// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/test/rig"
)

// hopMTU is the MTU of the narrow link behind the remote host.
const hopMTU = 1400

// farAddr is an address behind that link.
func farAddr(family int) netip.Addr {
	if family == 6 {
		return netip.MustParseAddr("2001:db8:f::2")
	}
	return netip.MustParseAddr("198.51.100.2")
}

// addFar makes the remote host a router; behind it are a narrow link, another router and
// a host whose own link is not narrow, so that it does not ask for small segments.
func addFar(t *testing.T, r *rig.Rig) *rig.Host {
	t.Helper()
	var hosts []*rig.Host
	for _, name := range []string{"mid", "far"} {
		h, err := rig.NewHost(name, false)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(h.Close)
		hosts = append(hosts, h)
	}
	mid, far := hosts[0], hosts[1]
	on(t, r.Ext, fmt.Sprintf("ip link add mid0 mtu %d type veth peer name mid1 netns %s mtu %d", hopMTU, mid.NetnsPath(), hopMTU))
	on(t, mid, "ip link add far0 type veth peer name far1 netns "+far.NetnsPath())
	on(t, r.Ext, `sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
		ip addr add 203.0.113.1/24 dev mid0; ip addr add 2001:db8:e::1/64 dev mid0 nodad; ip link set mid0 up
		ip route add 198.51.100.0/24 via 203.0.113.2; ip route add 2001:db8:f::/64 via 2001:db8:e::2`)
	on(t, mid, `sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
		ip addr add 203.0.113.2/24 dev mid1; ip addr add 2001:db8:e::2/64 dev mid1 nodad; ip link set mid1 up
		ip addr add 198.51.100.1/24 dev far0; ip addr add 2001:db8:f::1/64 dev far0 nodad; ip link set far0 up
		ip route add default via 203.0.113.1; ip route add default via 2001:db8:e::1`)
	on(t, far, `ip addr add 198.51.100.2/24 dev far1; ip addr add 2001:db8:f::2/64 dev far1 nodad; ip link set far1 up
		ip route add default via 198.51.100.1; ip route add default via 2001:db8:f::1`)
	return far
}

// routeMTU is the MTU by which a host sends to an address now.
func routeMTU(t *testing.T, h *rig.Host, to netip.Addr) int {
	t.Helper()
	mtu := 0
	out := on(t, h, "ip route get "+to.String())
	if _, after, ok := strings.Cut(out, " mtu "); ok {
		_, _ = fmt.Sscan(strings.TrimPrefix(after, "lock "), &mtu)
	}
	return mtu
}

// upload sends bytes over a connection whose other end throws them away, and waits
// until all have arrived.
func upload(t *testing.T, from, to *rig.Host, at netip.AddrPort, size int, before func(net.Conn)) time.Duration {
	t.Helper()
	l, err := to.ListenTCP(at)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan error, 1)
	go func() { got <- swallowAll(l, size) }()
	c, err := from.DialTCP(netip.AddrPort{}, at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before(c)
	start := time.Now()
	_ = c.SetDeadline(start.Add(10 * time.Second))
	if _, err := c.Write(numbered(size)); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-got:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the transfer does not end")
	}
	return time.Since(start)
}

// swallowAll answers each small message and then reads a large one.
func swallowAll(l *net.TCPListener, size int) error {
	c, err := l.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	small := make([]byte, len(smallMsg))
	for {
		if _, err := io.ReadFull(c, small); err != nil {
			return err
		}
		if string(small) != smallMsg {
			break
		}
		if _, err := c.Write(small); err != nil {
			return err
		}
	}
	rest, err := io.ReadAll(c)
	if err != nil {
		return err
	}
	if string(small)+string(rest) != string(numbered(size)) {
		return fmt.Errorf("%d bytes arrived, and not those that were sent", len(small)+len(rest))
	}
	return nil
}

const smallMsg = "0123456789abcdef"

// TestPathMTU lowers the MTU at every place of the path: behind the remote host (B049),
// on a route of the node (B051) and on the remote host's own link.
func TestPathMTU(t *testing.T) {
	t.Parallel()
	for _, uplink := range []string{"xdp", "tcx"} {
		t.Run(uplink, func(t *testing.T) {
			r := newRig(t, map[string]any{
				"uplinks": []any{map[string]any{"name": rig.Uplink, "mode": uplink}},
			})
			a := addPod(t, r, "a", nil)
			far := addFar(t, r)
			for _, fam := range families {
				t.Run(fmt.Sprintf("NarrowHop v%d", fam), func(t *testing.T) { narrowHop(t, r, a, far, fam) })
				t.Run(fmt.Sprintf("HostRouteMTU v%d", fam), func(t *testing.T) { hostRouteMTU(t, r, a, fam) })
				t.Run(fmt.Sprintf("RemoteLowersMTU v%d", fam), func(t *testing.T) { remoteLowersMTU(t, r, a, fam) })
			}
		})
	}
}

// transferSize is more than a thousand full-size segments.
const transferSize = 2 << 20

// endsInTime fails when a transfer took longer than a warm flow's may.
func endsInTime(t *testing.T, took time.Duration) {
	t.Helper()
	if took > 3*time.Second {
		t.Errorf("the transfer took %v", took)
	}
}

// narrowHop sends full-size packets over a path with a narrow hop while the flow is warm:
// the sender learns the MTU and what it sends arrives. B049.
func narrowHop(t *testing.T, r *rig.Rig, a *rig.Pod, far *rig.Host, fam int) {
	at := netip.AddrPortFrom(farAddr(fam), 5001)
	t.Run("tcp pod to far", func(t *testing.T) {
		endsInTime(t, upload(t, a.Host, far, at, transferSize, func(c net.Conn) { warm(t, r, c) }))
		if mtu := routeMTU(t, a.Host, at.Addr()); mtu != hopMTU {
			t.Errorf("the pod sends with MTU %d, want %d", mtu, hopMTU)
		}
	})
	on(t, a.Host, flushRoutes)
	t.Run("udp pod to far", func(t *testing.T) {
		echo(t, far, "udp", netip.AddrPortFrom(at.Addr(), 7))
		udpLearnsMTU(t, r, a.Host, netip.AddrPortFrom(at.Addr(), 7), func() {})
	})
	t.Run("tcp far to pod", func(t *testing.T) {
		addr, _ := a.Addr(fam)
		endsInTime(t, upload(t, far, a.Host, netip.AddrPortFrom(addr, 5002), transferSize, func(c net.Conn) { warm(t, r, c) }))
	})
}

// flushRoutes forgets what was learned of paths.
const flushRoutes = "ip route flush cache; ip -6 route flush cache"

// setDF makes a UDP socket send packets that must not be fragmented.
func setDF(t *testing.T, c *net.UDPConn, family, value int) {
	t.Helper()
	if family == 6 {
		setOpt(t, c, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, value)
	} else {
		setOpt(t, c, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, value)
	}
}

// familyOf is 4 or 6.
func familyOf(a netip.Addr) int {
	if a.Is4() {
		return 4
	}
	return 6
}

// udpLearnsMTU sends datagrams that are too long on a warm flow: the socket is told so
// within the interval, the next ones of the right size arrive, and without DF those that
// are too long arrive as well. The flow is as warm as it can be when lower is called.
func udpLearnsMTU(t *testing.T, r *rig.Rig, from *rig.Host, at netip.AddrPort, lower func()) {
	t.Helper()
	fam, size := familyOf(at.Addr()), 1472
	if fam == 6 {
		size = 1452
	}
	conn := dial(t, from, "udp", at).(*net.UDPConn)
	setDF(t, conn, fam, unix.IP_PMTUDISC_DO)
	warm(t, r, conn)
	warmFullSize(t, r, conn, size)
	lower()
	_ = conn.SetDeadline(time.Time{})
	start := time.Now()
	for {
		_, err := conn.Write(numbered(size))
		if errors.Is(err, unix.EMSGSIZE) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if time.Since(start) > time.Second+100*time.Millisecond {
			t.Fatalf("no message about the MTU within %v", time.Since(start))
		}
		time.Sleep(time.Millisecond)
	}
	if mtu := routeMTU(t, from, at.Addr()); mtu != hopMTU {
		t.Errorf("the route has MTU %d, want %d", mtu, hopMTU)
	}
	// Another socket: this one holds answers to, and messages about, what was sent before.
	conn = dial(t, from, "udp", at).(*net.UDPConn)
	setDF(t, conn, fam, unix.IP_PMTUDISC_DO)
	warm(t, r, conn)
	fits := numbered(size - (1500 - hopMTU))
	for range 20 {
		if got, err := rig.RoundTrip(conn, fits, rigPatience); err != nil || !bytes.Equal(got, fits) {
			t.Fatalf("a datagram that fits: %v", err)
		}
	}
	setDF(t, conn, fam, unix.IP_PMTUDISC_DONT)
	// The other end has to learn the path's MTU as well.
	eventually(t, 5*time.Second, "a fragmented datagram is answered", func() bool {
		_, err := rig.RoundTrip(conn, numbered(size), 200*time.Millisecond)
		return err == nil
	})
	for range 20 {
		if got, err := rig.RoundTrip(conn, numbered(size), rigPatience); err != nil || !bytes.Equal(got, numbered(size)) {
			t.Fatalf("a datagram that is to be fragmented: %v", err)
		}
	}
}

// hostRouteMTU gives a route of the node a lower MTU, before a flow starts and while it
// is warm. B051.
func hostRouteMTU(t *testing.T, r *rig.Rig, a *rig.Pod, fam int) {
	to := extAddr(fam)
	dst := netip.PrefixFrom(to, to.BitLen())
	narrow := fmt.Sprintf("ip route replace %s dev %s mtu %d", dst, rig.Uplink, hopMTU)
	wide := fmt.Sprintf("ip route del %s", dst)
	for i, when := range []string{"before", "while"} {
		t.Run("udp "+when, func(t *testing.T) {
			at := netip.AddrPortFrom(to, uint16(71+i))
			echo(t, r.Ext, "udp", at)
			on(t, a.Host, flushRoutes)
			defer node(t, r, wide)
			if when == "before" {
				node(t, r, narrow)
				udpLearnsMTU(t, r, a.Host, at, func() {})
				return
			}
			udpLearnsMTU(t, r, a.Host, at, func() { node(t, r, narrow) })
		})
		t.Run("tcp "+when, func(t *testing.T) {
			on(t, a.Host, flushRoutes)
			if when == "before" {
				node(t, r, narrow)
			}
			defer node(t, r, wide)
			endsInTime(t, upload(t, a.Host, r.Ext, netip.AddrPortFrom(to, 5003), transferSize, func(c net.Conn) {
				warm(t, r, c)
				if when == "while" {
					node(t, r, narrow)
				}
			}))
			if mtu := routeMTU(t, a.Host, to); mtu != hopMTU {
				t.Errorf("the pod sends with MTU %d, want %d", mtu, hopMTU)
			}
		})
	}
}

// warmFullSize goes on with datagrams that fill the uplink's MTU, until the fast path
// takes them or the path is found to be narrower.
func warmFullSize(t *testing.T, r *rig.Rig, conn net.Conn, size int) {
	t.Helper()
	d := open(t, r)
	eventually(t, 5*time.Second, "full-size packets take the fast path", func() bool {
		before := counters(t, d).Fast()
		_, err := rig.RoundTrip(conn, numbered(size), rigPatience)
		if errors.Is(err, unix.EMSGSIZE) {
			return true
		}
		if err != nil {
			t.Fatal(err)
		}
		return counters(t, d).Fast() >= before+2
	})
}

// remoteLowersMTU lowers the MTU of the remote host's own link under a warm flow from it.
func remoteLowersMTU(t *testing.T, r *rig.Rig, a *rig.Pod, fam int) {
	addr, _ := a.Addr(fam)
	defer on(t, r.Ext, "ip link set "+rig.ExtDev+" mtu 1500")
	endsInTime(t, upload(t, r.Ext, a.Host, netip.AddrPortFrom(addr, 5004), transferSize, func(c net.Conn) {
		warm(t, r, c)
		on(t, r.Ext, fmt.Sprintf("ip link set %s mtu %d", rig.ExtDev, hopMTU))
	}))
}
