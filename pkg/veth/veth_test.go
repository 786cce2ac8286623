// SPDX-License-Identifier: Apache-2.0

package veth

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
)

func addr(prefix, gw string) Address {
	return Address{Prefix: netip.MustParsePrefix(prefix), Gateway: netip.MustParseAddr(gw)}
}

func route(dst string, mtu int) Route {
	return Route{Dst: netip.MustParsePrefix(dst), MTU: mtu}
}

// config returns an attachment with one address of each family asked for.
func config(n int, pod *testNS, v4, v6 bool) Config {
	c := Config{
		Network: "net", ContainerID: fmt.Sprintf("pod%d", n), IfName: "eth0",
		NetnsPath: pod.path, MTU: 65535,
	}
	if v4 {
		c.Addresses = append(c.Addresses, addr(fmt.Sprintf("10.1.0.%d/24", 10+n), "10.1.0.1"))
		c.Routes = append(c.Routes, route("10.1.0.0/24", 65535), route("0.0.0.0/0", 1500))
	}
	if v6 {
		c.Addresses = append(c.Addresses, addr(fmt.Sprintf("fd00:1::%x/64", 16+n), "fd00:1::1"))
		c.Routes = append(c.Routes, route("fd00:1::/64", 65535), route("::/0", 1500))
	}
	return c
}

func mustAdd(t testing.TB, host *testNS, c Config) *Pair {
	t.Helper()
	var p *Pair
	err := host.try(func() (err error) { p, err = Add(context.Background(), c); return err })
	if err != nil {
		t.Fatalf("add: %v", err)
	}
	return p
}

func del(host *testNS, c Config) error {
	return host.try(func() error { return Del(c.Network, c.ContainerID, c.IfName, c.NetnsPath) })
}

func check(host *testNS, c Config) error { return host.try(func() error { return Check(c) }) }

// links returns the names of all links but loopback.
func (n *testNS) links() map[string]netlink.Link {
	n.t.Helper()
	all := map[string]netlink.Link{}
	n.do(func() {
		list, err := netlinksafe.LinkList()
		if err != nil {
			n.t.Errorf("list links: %v", err)
		}
		for _, l := range list {
			if l.Attrs().Name != "lo" {
				all[l.Attrs().Name] = l
			}
		}
	})
	return all
}

// wantBare fails unless a namespace has no link but loopback and no route.
func wantBare(t *testing.T, n *testNS) {
	t.Helper()
	if l := n.links(); len(l) != 0 {
		t.Errorf("links are left: %v", l)
	}
	n.do(func() {
		routes, err := netlinksafe.RouteList(nil, netlink.FAMILY_ALL)
		if err != nil || len(routes) != 0 {
			t.Errorf("routes are left: %v, %v", routes, err)
		}
	})
}

// exchange sends one message by UDP and one by TCP from one namespace to an
// address in another. There is no retry: the first packet has to arrive.
func exchange(t *testing.T, from, to *testNS, ip string) {
	t.Helper()
	var pc net.PacketConn
	var l net.Listener
	to.do(func() {
		var err error
		if pc, err = net.ListenPacket("udp", net.JoinHostPort(ip, "0")); err != nil {
			t.Errorf("listen udp: %v", err)
		}
		if l, err = net.Listen("tcp", net.JoinHostPort(ip, "0")); err != nil {
			t.Errorf("listen tcp: %v", err)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	defer pc.Close()
	defer l.Close()
	from.do(func() {
		for _, target := range []net.Addr{pc.LocalAddr(), l.Addr()} {
			c, err := net.DialTimeout(target.Network(), target.String(), 2*time.Second)
			if err != nil {
				t.Errorf("dial %s %s: %v", target.Network(), target, err)
				return
			}
			defer c.Close()
			if _, err := c.Write([]byte("hello")); err != nil {
				t.Errorf("send: %v", err)
			}
		}
	})
	b := make([]byte, 16)
	pc.SetDeadline(time.Now().Add(2 * time.Second))
	if n, _, err := pc.ReadFrom(b); err != nil || string(b[:n]) != "hello" {
		t.Errorf("udp to %s: got %q, %v", ip, b[:n], err)
	}
	l.(*net.TCPListener).SetDeadline(time.Now().Add(2 * time.Second))
	c, err := l.Accept()
	if err != nil {
		t.Fatalf("accept from %s: %v", ip, err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(2 * time.Second))
	if n, err := c.Read(b); err != nil || string(b[:n]) != "hello" {
		t.Errorf("tcp to %s: got %q, %v", ip, b[:n], err)
	}
}

func TestAddCheckDel(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		v4, v6 bool
	}{{"ipv4", true, false}, {"ipv6", false, true}, {"dual", true, true}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			host, a, b := newNS(t), newNS(t), newNS(t)
			ca, cb := config(1, a, tc.v4, tc.v6), config(2, b, tc.v4, tc.v6)
			start := time.Now()
			mustAdd(t, host, ca)
			t.Logf("add took %v", time.Since(start))
			mustAdd(t, host, cb)
			for i := range ca.Addresses {
				exchange(t, a, b, cb.Addresses[i].Prefix.Addr().String())
				exchange(t, host, a, ca.Addresses[i].Prefix.Addr().String())
				exchange(t, b, host, ca.Addresses[i].Gateway.String())
			}
			for _, c := range []Config{ca, cb} {
				if err := check(host, c); err != nil {
					t.Errorf("check: %v", err)
				}
			}
			for range 2 {
				for _, c := range []Config{ca, cb} {
					if err := del(host, c); err != nil {
						t.Errorf("del: %v", err)
					}
				}
			}
			for _, n := range []*testNS{host, a, b} {
				wantBare(t, n)
			}
		})
	}
}
