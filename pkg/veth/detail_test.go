// SPDX-License-Identifier: Apache-2.0

package veth

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ip runs the ip command in the namespace of the calling thread.
func ip(t *testing.T, args string) {
	t.Helper()
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		t.Errorf("ip %s: %v: %s", args, err, out)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 300)
	seen := map[string]string{}
	for _, a := range [][3]string{
		{"net", "pod", "eth0"},
		{"net", "pod", "eth1"},
		{"netp", "od", "eth0"},
		{"ne", "tpod", "eth0"},
		{"net/pod", "x", "eth0"},
		{"net", "pod/x", "eth0"},
		{"#net", "pod", "eth0"},
		{long, long, "eth0"},
		{long + "y", long, "eth0"},
		{"net", long, "eth0"},
		{"", "", ""},
		{"net", token(long, maxContainerID), "eth0"},
		{"net pod", "a\x00b", "eth0"},
	} {
		name, alias := HostName(a[0], a[1], a[2]), Alias(a[0], a[1], a[2])
		if len(name) > 15 || !isHostName(name) || name != HostName(a[0], a[1], a[2]) {
			t.Errorf("host name of %q: %q", a, name)
		}
		if len(alias) > 255 {
			t.Errorf("alias of %q has %d bytes", a, len(alias))
		}
		for _, s := range []string{name, alias} {
			if other, ok := seen[s]; ok {
				t.Errorf("%q is the name of %q and of %q", s, a, other)
			}
			seen[s] = strings.Join(a[:], "|")
		}
		n, c, i, err := ParseAlias(alias)
		if err != nil || AliasPrefix+n+"/"+c+"/"+i != alias {
			t.Errorf("parse %q: %q %q %q %v", alias, n, c, i, err)
		}
		if !(Attachment{Network: n, ContainerID: c, IfName: i}).Is(a[0], a[1], a[2]) {
			t.Errorf("%q is not itself", a)
		}
	}
	for _, bad := range []string{"", "eth0", "xveth:v1:", "xveth:v1:a/b", "xveth:v1:a/b/c/d", "xveth:v2:a/b/c", "xveth:v1:a//c"} {
		if _, _, _, err := ParseAlias(bad); err == nil {
			t.Errorf("parse %q: no error", bad)
		}
	}
}

func TestListAndRemoveByName(t *testing.T) {
	t.Parallel()
	host, a, b := newNS(t), newNS(t), newNS(t)
	ca, cb := config(1, a, true, false), config(2, b, true, false)
	cb.Network = "other"
	mustAdd(t, host, ca)
	mustAdd(t, host, cb)
	makeVeth(t, host, HostName("net", "dead", "eth0"), "dead-peer")
	makeVeth(t, host, "veth1", "veth2")
	host.do(func() {
		for network, want := range map[string]int{"": 3, "net": 2, "other": 1, "none": 0} {
			got, err := List(network)
			if err != nil || len(got) != want {
				t.Errorf("list %q: %+v, %v", network, got, err)
			}
		}
		got, err := List("net")
		if err != nil || len(got) != 2 {
			t.Errorf("list: %v, %v", got, err)
			return
		}
		if !got[0].Is("net", "pod1", "eth0") || got[0].Is("net", "pod2", "eth0") || got[0].Unlabelled {
			t.Errorf("the first is %+v", got[0])
		}
		if !got[1].Unlabelled || !got[1].Is("net", "dead", "eth0") {
			t.Errorf("the second is %+v", got[1])
		}
		for range 2 {
			for _, g := range got {
				if err := RemoveByName(g.HostName); err != nil {
					t.Error(err)
				}
			}
		}
		for _, name := range []string{"veth1", "lo"} {
			if err := RemoveByName(name); !errors.Is(err, ErrNotOurs) {
				t.Errorf("remove %q: got %v", name, err)
			}
		}
	})
}

// Addresses of several ranges, gateways of their own, one shared by two.
func TestSeveralAddresses(t *testing.T) {
	t.Parallel()
	host, pod := newNS(t), newNS(t)
	scope := unix.RT_SCOPE_LINK
	c := config(1, pod, true, true)
	c.MAC = []byte{2, 0, 0, 0, 0, 1}
	c.TxChecksumOff = true
	c.Addresses = append(c.Addresses,
		addr("10.1.0.99/24", "10.1.0.1"), addr("10.2.0.7/16", "169.254.1.1"),
		addr("fd00:2::7/64", "fe80::1"), addr("10.3.0.1/31", "10.3.0.0"))
	c.Routes = append(c.Routes,
		c.Routes[0], // twice
		Route{Dst: netip.MustParsePrefix("10.2.0.0/16"), Gateway: netip.MustParseAddr("169.254.1.1")},
		Route{Dst: netip.MustParsePrefix("10.4.0.0/16"), Gateway: netip.MustParseAddr("10.1.0.77"), Priority: 7},
		Route{Dst: netip.MustParsePrefix("10.5.0.0/16"), Scope: &scope, Table: 300},
		Route{Dst: netip.MustParsePrefix("fd00:2::/64"), Gateway: netip.MustParseAddr("fe80::1"), AdvMSS: 1300},
		Route{Dst: netip.MustParsePrefix("10.1.0.1/32")}, // the gateway itself
	)
	p := mustAdd(t, host, c)
	if p.PodMAC.String() != "02:00:00:00:00:01" || p.PodMTU != 65535 || p.HostMTU != 65535 || len(p.HostMAC) != 6 {
		t.Errorf("pair: %+v", p)
	}
	if err := check(host, c); err != nil {
		t.Errorf("check: %v", err)
	}
	for _, a := range c.Addresses {
		exchange(t, host, pod, a.Prefix.Addr().String())
	}
	for _, gw := range []string{"10.1.0.1", "169.254.1.1", "10.3.0.0", "fd00:1::1"} {
		exchange(t, pod, host, gw)
	}
	if err := del(host, c); err != nil {
		t.Error(err)
	}
	wantBare(t, host)
}

// B008: routes that the address manager gave without a gateway.
func TestCheckRoutesWithoutGatewayB008(t *testing.T) {
	t.Parallel()
	host, pod := newNS(t), newNS(t)
	c := config(1, pod, true, true)
	c.Routes = []Route{route("0.0.0.0/0", 0), route("::/0", 0), route("192.0.2.7/24", 1400), route("2001:db8::/32", 0)}
	mustAdd(t, host, c)
	if err := check(host, c); err != nil {
		t.Errorf("check: %v", err)
	}
	// More than ADD made is nobody's business.
	pod.do(func() {
		ip(t, "addr add 10.77.0.1/24 dev eth0")
		ip(t, "route add 10.78.0.0/24 dev eth0")
	})
	if err := check(host, c); err != nil {
		t.Errorf("check with extra address and route: %v", err)
	}
	pod.do(func() { ip(t, "route del 192.0.2.0/24") })
	if err := check(host, c); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "192.0.2.0/24") {
		t.Errorf("check after a route went: %v", err)
	}
}

// The pod announces its addresses when it gets them.
func TestAnnounce(t *testing.T) {
	t.Parallel()
	host, pod := newNS(t), newNS(t)
	c := config(1, pod, true, true)
	var fd int
	err := host.try(func() (err error) {
		// All protocols in network byte order.
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0x0300)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200_000})
	mustAdd(t, host, c)
	v4, v6 := c.Addresses[0].Prefix.Addr().As4(), c.Addresses[1].Prefix.Addr().As16()
	var arp, na bool
	b := make([]byte, 2048)
	for stop := time.Now().Add(2 * time.Second); (!arp || !na) && time.Now().Before(stop); {
		n, _, err := unix.Recvfrom(fd, b, 0)
		if err != nil {
			continue
		}
		f := b[:n]
		// Ethernet header, then ARP: sender at 28, target at 38; or IPv6: type
		// at 54, target at 62.
		arp = arp || n >= 42 && f[12] == 8 && f[13] == 6 && slices.Equal(f[28:32], v4[:]) && slices.Equal(f[38:42], v4[:])
		na = na || n >= 78 && f[12] == 0x86 && f[13] == 0xdd && f[54] == ndNeighborAdvert && f[21] == ndHopLimit && slices.Equal(f[62:78], v6[:])
	}
	if !arp || !na {
		t.Errorf("announced by arp: %v, by neighbour advertisement: %v", arp, na)
	}
}

func TestUplinks(t *testing.T) {
	t.Parallel()
	host := newNS(t)
	host.do(func() {
		if got, err := Uplinks(); err != nil || len(got) != 0 {
			t.Errorf("without default routes: %v, %v", got, err)
		}
	})
	for _, p := range [][2]string{{"up1", "p1"}, {"up2", "p2"}, {"up3", "p3"}} {
		makeVeth(t, host, p[0], p[1])
	}
	host.do(func() {
		for i, dev := range []string{"up1", "up2", "up3"} {
			ip(t, "link set "+dev+" mtu 1400 up")
			ip(t, "link set p"+dev[2:]+" up")
			ip(t, "addr add 10.9."+string(rune('0'+i))+".2/24 dev "+dev)
			ip(t, "-6 addr add fd00:9:"+string(rune('0'+i))+"::2/64 nodad dev "+dev)
		}
		ip(t, "route add default metric 100 via 10.9.2.1")
		ip(t, "route add default metric 50 nexthop via 10.9.0.1 nexthop via 10.9.2.1")
		ip(t, "-6 route add default via fd00:9:1::1")
		ip(t, "route add unreachable default metric 4278198272")
		ip(t, "route add 10.0.0.0/8 via 10.9.0.1")
		got, err := Uplinks()
		if err != nil || !slices.Equal(got, []string{"up1", "up3", "up2"}) {
			t.Errorf("uplinks: %v, %v", got, err)
		}
		if mtu, err := LinkMTU("up1"); err != nil || mtu != 1400 {
			t.Errorf("mtu: %d, %v", mtu, err)
		}
		if _, err := LinkMTU("nosuch"); err == nil {
			t.Error("mtu of a missing device: no error")
		}
	})
}

func BenchmarkAddDel(b *testing.B) {
	host, pod := newNS(b), newNS(b)
	c := config(1, pod, true, false)
	for b.Loop() {
		mustAddOnly(b, host, c)
		b.StopTimer()
		if err := del(host, c); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func mustAddOnly(b *testing.B, host *testNS, c Config) {
	b.Helper()
	if err := host.try(func() error { _, err := Add(context.Background(), c); return err }); err != nil {
		b.Fatal(err)
	}
}
