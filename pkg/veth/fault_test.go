// SPDX-License-Identifier: Apache-2.0

package veth

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
)

// add runs Add on the host.
func add(host *testNS, c Config) error {
	return host.try(func() error { _, err := Add(context.Background(), c); return err })
}

// makeVeth makes a veth pair of somebody else in a namespace.
func makeVeth(t *testing.T, n *testNS, name, peer string) {
	t.Helper()
	err := n.try(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		v := netlink.NewVeth(attrs)
		v.PeerName = peer
		return netlink.LinkAdd(v)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// B019: the second ADD of an interface says so and leaves the first alone.
func TestRepeatedAddB019(t *testing.T) {
	t.Parallel()
	host, pod := newNS(t), newNS(t)
	c := config(1, pod, true, true)
	mustAdd(t, host, c)
	err := add(host, c)
	if !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "eth0") {
		t.Errorf("second add: got %v", err)
	}
	if err := check(host, c); err != nil {
		t.Errorf("check after the second add: %v", err)
	}
	// The same name for another container.
	other := c
	other.ContainerID = "other"
	if err := add(host, other); !errors.Is(err, ErrExists) {
		t.Errorf("add of the same interface by another container: got %v", err)
	}
	if l := host.links(); len(l) != 1 {
		t.Errorf("links on the host: %v", l)
	}
	if err := del(host, c); err != nil {
		t.Error(err)
	}
	wantBare(t, host)
	wantBare(t, pod)
}

func TestFailureLeavesNothing(t *testing.T) {
	t.Parallel()
	host, pod := newNS(t), newNS(t)
	plainFile := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(plainFile, []byte("no namespace"), 0o600); err != nil {
		t.Fatal(err)
	}
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	base := config(1, pod, true, true)
	with := func(change func(*Config)) Config { c := base; change(&c); return c }
	for _, tc := range []struct {
		name string
		ctx  context.Context
		cfg  Config
		want error
	}{
		{"no such netns", context.Background(), with(func(c *Config) { c.NetnsPath = "/nonexistent" }), ErrNetns},
		{"empty netns", context.Background(), with(func(c *Config) { c.NetnsPath = "" }), ErrNetns},
		{"plain file", context.Background(), with(func(c *Config) { c.NetnsPath = plainFile }), ErrNetns},
		{"other kind of namespace", context.Background(), with(func(c *Config) { c.NetnsPath = "/proc/self/ns/mnt" }), ErrNetns},
		{"the host's own", context.Background(), with(func(c *Config) { c.NetnsPath = host.path }), ErrNetns},
		{"cancelled", cancelled, base, context.Canceled},
		{"no address", context.Background(), with(func(c *Config) { c.Addresses = nil }), ErrInvalid},
		{"no gateway", context.Background(), with(func(c *Config) {
			c.Addresses = []Address{{Prefix: netip.MustParsePrefix("10.1.0.9/24")}}
		}), ErrInvalid},
		{"gateway of the other family", context.Background(), with(func(c *Config) {
			c.Addresses = []Address{addr("10.1.0.9/24", "fd00::1")}
		}), ErrInvalid},
		{"name with a slash", context.Background(), with(func(c *Config) { c.IfName = "a/b" }), ErrInvalid},
		{"name too long", context.Background(), with(func(c *Config) { c.IfName = "sixteencharacter" }), ErrInvalid},
		{"mtu below ipv6", context.Background(), with(func(c *Config) { c.MTU = 1000 }), ErrInvalid},
		{"multicast mac", context.Background(), with(func(c *Config) { c.MAC = net.HardwareAddr{1, 2, 3, 4, 5, 6} }), ErrInvalid},
		{"route without family", context.Background(), with(func(c *Config) {
			c.Addresses, c.Routes = c.Addresses[:1], []Route{route("::/0", 0)}
		}), ErrInvalid},
		{"table refused by the kernel", context.Background(), with(func(c *Config) {
			c.Routes = append([]Route{{Dst: netip.MustParsePrefix("10.9.0.0/16"), Table: -1}}, route("10.9.0.0/16", 0))
			c.Routes[1].Gateway, c.Routes[1].Priority = netip.MustParseAddr("127.0.0.1"), 1
		}), nil},
		{"address of the host", context.Background(), with(func(c *Config) {
			c.Addresses, c.Routes = []Address{addr("127.0.0.7/8", "10.1.0.1")}, nil
		}), ErrConflict},
	} {
		err := host.try(func() error { _, err := Add(tc.ctx, tc.cfg); return err })
		if err == nil || tc.want != nil && !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", tc.name, err, tc.want)
		}
		if strings.Contains(fmt.Sprint(err), "%!") {
			t.Errorf("%s: %v", tc.name, err)
		}
		wantBare(t, host)
		wantBare(t, pod)
	}
}

func TestAddressConflict(t *testing.T) {
	t.Parallel()
	host, a, b := newNS(t), newNS(t), newNS(t)
	ca := config(1, a, true, true)
	mustAdd(t, host, ca)
	for _, only := range []int{0, 1} {
		cb := config(2, b, true, true)
		cb.Addresses[only] = ca.Addresses[only]
		err := add(host, cb)
		name := HostName(ca.Network, ca.ContainerID, ca.IfName)
		if !errors.Is(err, ErrConflict) || !strings.Contains(err.Error(), name) {
			t.Errorf("address %s twice: got %v", cb.Addresses[only].Prefix, err)
		}
		wantBare(t, b)
	}
	if l := host.links(); len(l) != 1 {
		t.Errorf("links on the host: %v", l)
	}
	if err := check(host, ca); err != nil {
		t.Errorf("check: %v", err)
	}
}

// B001: DEL after the namespace's file, or the namespace itself, is gone.
func TestDelWithoutNetnsB001(t *testing.T) {
	t.Parallel()
	host, pod := newNS(t), newNS(t)
	c := config(1, pod, true, false)
	for _, path := range []string{"", "/nonexistent/netns", "/proc/999999999/ns/net", "/dev/null"} {
		mustAdd(t, host, c)
		for range 2 {
			err := host.try(func() error { return Del(c.Network, c.ContainerID, c.IfName, path) })
			if err != nil {
				t.Errorf("del with netns %q: %v", path, err)
			}
		}
		wantBare(t, host)
	}
}

// The host's end may be renamed, or lose its alias; what is not ours stays.
func TestDelFindsOnlyOurs(t *testing.T) {
	t.Parallel()
	host, pod := newNS(t), newNS(t)
	c := config(1, pod, true, false)
	p := mustAdd(t, host, c)
	err := host.try(func() error { return netlink.LinkSetName(byIndex(p.HostIndex), "renamed0") })
	if err != nil {
		t.Skipf("rename a device that is up: %v", err)
	}
	if err := del(host, c); err != nil {
		t.Error(err)
	}
	wantBare(t, host)

	makeVeth(t, host, HostName(c.Network, c.ContainerID, c.IfName), "peer0")
	err = host.try(func() error {
		l, err := netlink.LinkByName("peer0")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetAlias(byIndex(l.Attrs().ParentIndex), "not ours"); err != nil {
			return err
		}
		return netlink.LinkSetNsFd(l, int(pod.ns.Fd()))
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := del(host, c); err != nil {
		t.Error(err)
	}
	if len(host.links()) != 1 {
		t.Error("del removed a device that is not ours")
	}
	if err := add(host, c); !errors.Is(err, ErrNotOurs) {
		t.Errorf("add over a device that is not ours: got %v", err)
	}
}

// A host end that a killed ADD left is no obstacle.
func TestAddAfterKilledAdd(t *testing.T) {
	t.Parallel()
	host, old, pod := newNS(t), newNS(t), newNS(t)
	c := config(1, pod, true, true)
	stale := c
	stale.NetnsPath = old.path
	mustAdd(t, host, stale) // its namespace lives on
	mustAdd(t, host, c)
	if err := check(host, c); err != nil {
		t.Errorf("check: %v", err)
	}
	wantBare(t, old)
	if l := host.links(); len(l) != 1 {
		t.Errorf("links on the host: %v", l)
	}
}

// B032: a host without IPv6.
func TestHostWithoutIPv6B032(t *testing.T) {
	t.Parallel()
	host, pod := newNS(t), newNS(t)
	host.do(func() {
		for _, dev := range []string{"all", "default"} {
			if err := setSysctl("1", "net", "ipv6", "conf", dev, "disable_ipv6"); err != nil {
				t.Error(err)
			}
		}
	})
	c := config(1, pod, true, false)
	mustAdd(t, host, c)
	if err := check(host, c); err != nil {
		t.Errorf("check: %v", err)
	}
	exchange(t, pod, host, "10.1.0.1")
	if err := del(host, c); err != nil {
		t.Error(err)
	}
	if err := add(host, config(1, pod, true, true)); !errors.Is(err, ErrNoIPv6) {
		t.Errorf("add with ipv6: got %v", err)
	}
	wantBare(t, host)
	wantBare(t, pod)
}

// A runtime may create the pod's namespace with IPv6 off.
func TestPodWithIPv6Off(t *testing.T) {
	t.Parallel()
	host, pod := newNS(t), newNS(t)
	pod.do(func() {
		for _, dev := range []string{"all", "default"} {
			if err := setSysctl("1", "net", "ipv6", "conf", dev, "disable_ipv6"); err != nil {
				t.Error(err)
			}
		}
	})
	c := config(1, pod, true, true)
	mustAdd(t, host, c)
	if err := check(host, c); err != nil {
		t.Errorf("check: %v", err)
	}
	exchange(t, host, pod, c.Addresses[1].Prefix.Addr().String())
}

// B021: an eth0 of the host is no obstacle and nobody sees a second one.
// B037: afterwards all threads are where they belong.
// Not parallel to other tests, whose threads are in namespaces of theirs.
func TestParallelAddB021B037(t *testing.T) {
	const pods = 30
	host := newNS(t)
	makeVeth(t, host, "eth0", "eth0-peer")
	before := host.links()["eth0"].Attrs()
	events := watchLinks(t, host)
	all := make([]Config, pods)
	for i := range all {
		all[i] = config(i, newNS(t), true, true)
	}
	var wg sync.WaitGroup
	for _, c := range all {
		wg.Go(func() {
			if err := add(host, c); err != nil {
				t.Errorf("add: %v", err)
			}
		})
	}
	wg.Wait()
	wantThreadsAtHome(t)
	for _, c := range all {
		if err := check(host, c); err != nil {
			t.Errorf("check: %v", err)
		}
		wg.Go(func() {
			if err := del(host, c); err != nil {
				t.Errorf("del: %v", err)
			}
		})
	}
	wg.Wait()
	wantThreadsAtHome(t)
	after := host.links()
	if len(after) != 2 || after["eth0"].Attrs().Index != before.Index {
		t.Errorf("links on the host: %v", after)
	}
	if seen := events(); len(seen) > 0 {
		t.Errorf("the host saw %v", seen)
	}
}

// watchLinks returns a function that tells which interfaces came up on the
// host that have no name of ours.
func watchLinks(t *testing.T, host *testNS) func() []string {
	t.Helper()
	updates, done := make(chan netlink.LinkUpdate, 10000), make(chan struct{})
	if err := host.try(func() error { return netlink.LinkSubscribe(updates, done) }); err != nil {
		t.Fatal(err)
	}
	return func() []string {
		close(done)
		var strange []string
		for {
			select {
			case u, open := <-updates:
				if !open {
					return strange
				}
				if u.Link != nil && u.Link.Attrs() != nil && !isHostName(u.Attrs().Name) {
					strange = append(strange, u.Attrs().Name)
				}
			default:
				return strange
			}
		}
	}
}

// wantThreadsAtHome fails when a thread of the test is in another namespace
// than the main one.
func wantThreadsAtHome(t *testing.T) {
	t.Helper()
	home, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		at, err := os.Readlink("/proc/self/task/" + task.Name() + "/ns/net")
		if err == nil && at != home {
			t.Errorf("thread %s is in %s", task.Name(), at)
		}
	}
}

// B040: several interfaces in one pod, of one network or two.
func TestSecondInterfaceB040(t *testing.T) {
	t.Parallel()
	host, pod := newNS(t), newNS(t)
	first, second, third := config(1, pod, true, true), config(2, pod, true, true), config(3, pod, true, true)
	second.IfName, second.ContainerID = "net1", first.ContainerID
	third.IfName, third.ContainerID, third.Network = "net2", first.ContainerID, "other"
	second.Routes, third.Routes = nil, nil
	for _, c := range []*Config{&second, &third} {
		c.Addresses[0].Gateway = netip.MustParseAddr("10.1.0.2")
		c.Addresses[1].Gateway = netip.MustParseAddr("fd00:1::2")
	}
	third.Addresses[0].Gateway = netip.MustParseAddr("10.1.0.3")
	third.Addresses[1].Gateway = netip.MustParseAddr("fd00:1::3")
	p := mustAdd(t, host, first)
	mustAdd(t, host, second)
	mustAdd(t, host, third)
	if err := del(host, second); err != nil {
		t.Error(err)
	}
	mustAdd(t, host, second)
	for _, c := range []Config{first, second, third} {
		if err := check(host, c); err != nil {
			t.Errorf("check %s: %v", c.IfName, err)
		}
	}
	if got := host.links()[p.HostName]; got == nil || got.Attrs().Index != p.HostIndex {
		t.Errorf("the first interface changed: %v", got)
	}
}

// B035: the host's MAC address changes under a pod that has learned it.
func TestHostMACRewrittenB035(t *testing.T) {
	t.Parallel()
	host, pod := newNS(t), newNS(t)
	c := config(1, pod, true, true)
	p := mustAdd(t, host, c)
	exchangeAll := func() {
		for _, a := range c.Addresses {
			exchange(t, pod, host, a.Gateway.String())
			exchange(t, host, pod, a.Prefix.Addr().String())
		}
	}
	exchangeAll()
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 0x35}
	err := host.try(func() error { return netlink.LinkSetHardwareAddr(byIndex(p.HostIndex), mac) })
	if err != nil {
		t.Fatal(err)
	}
	exchangeAll()
	if err := check(host, c); err != nil {
		t.Errorf("check: %v", err)
	}
}

func TestCheckNamesTheSingleThingMissing(t *testing.T) {
	t.Parallel()
	host, pod := newNS(t), newNS(t)
	base := config(1, pod, true, true)
	base.Routes = append(base.Routes, route("192.0.2.0/24", 0), Route{
		Dst: netip.MustParsePrefix("198.51.100.0/24"), Gateway: netip.MustParseAddr("10.1.0.1"), MTU: 1400,
	})
	host1, inner := HostName(base.Network, base.ContainerID, base.IfName), base.IfName
	for _, tc := range []struct {
		where *testNS
		run   string
		want  string
	}{
		{pod, "addr del 10.1.0.11/24 dev " + inner, "no address 10.1.0.11/24"},
		{pod, "addr del fd00:1::11/64 dev " + inner, "no address fd00:1::11/64"},
		{pod, "route del 10.1.0.0/24", "no route 10.1.0.0/24"},
		{pod, "route del default", "no route 0.0.0.0/0"},
		{pod, "route del 192.0.2.0/24", "no route 192.0.2.0/24"},
		{pod, "route replace 198.51.100.0/24 via 10.1.0.1 mtu 1300", "no route 198.51.100.0/24"},
		{pod, "-6 route del default", "no route ::/0"},
		{pod, "-6 route del fd00:1::1/128", "no route to its gateway fd00:1::1"},
		{pod, "link set " + inner + " mtu 1500", "mtu 1500, less than its route"},
		{host, "link set " + host1 + " mtu 1500", "mtu 1500, not 65535"},
		{host, "link set " + host1 + " down", "is down"},
		{pod, "link set " + inner + " down", "is down"},
		{host, "addr del 10.1.0.1/32 dev " + host1, "no gateway address 10.1.0.1"},
		{host, "addr del fd00:1::1/128 dev " + host1, "no gateway address fd00:1::1"},
		{host, "route del 10.1.0.11", "no route to 10.1.0.11"},
		{host, "-6 route del fd00:1::11", "no route to fd00:1::11"},
		{host, "link del " + host1, "no interface \"eth0\""},
		{host, "link set " + host1 + " alias strange", "peer of \"eth0\" is not"},
		{pod, "GRO", "gro of \"eth0\" in the pod is off"},
	} {
		mustAdd(t, host, base)
		if err := check(host, base); err != nil {
			t.Fatalf("check before %q: %v", tc.run, err)
		}
		tc.where.do(func() {
			if tc.run == "GRO" {
				e, err := ethtool.NewEthtool()
				if err == nil {
					defer e.Close()
					err = e.Change(inner, map[string]bool{"rx-gro": false})
				}
				if err != nil {
					t.Errorf("turn off gro: %v", err)
				}
				return
			}
			ip(t, tc.run)
		})
		err := check(host, base)
		if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("after %q: got %v, want %q", tc.run, err, tc.want)
		}
		if err := host.try(func() error { return removeAny(host1) }); err != nil {
			t.Fatal(err)
		}
	}
}

// removeAny removes a link, also one that lost its alias.
func removeAny(name string) error {
	link, err := netlink.LinkByName(name)
	if isNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return netlink.LinkDel(link)
}
