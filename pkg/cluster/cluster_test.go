// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/xveth/xveth/test/rig"
)

// site is a cluster of three nodes: n1 and n2 on one link, n3 behind a router.
type site struct {
	t      *testing.T
	router *rig.Host
	hosts  map[string]*rig.Host
	nodes  map[string]Node
}

func newSite(t *testing.T) *site {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make network namespaces")
	}
	s := &site{t: t, router: newHost(t, "router"), hosts: map[string]*rig.Host{}, nodes: map[string]Node{}}
	s.run(s.router, "ip link add br0 type bridge", "ip addr add 192.0.2.254/24 dev br0", "ip link set br0 up",
		"ip addr add 2001:db8:1::fe/64 dev br0 nodad", "sysctl -qw net.ipv4.ip_forward=1")
	s.add("n1", "192.0.2.1/24", "2001:db8:1::1/64", 1)
	s.add("n2", "192.0.2.2/24", "2001:db8:1::2/64", 2)
	s.add("n3", "198.51.100.3/24", "", 3)
	return s
}

func newHost(t *testing.T, name string) *rig.Host {
	t.Helper()
	h, err := rig.NewHost(name, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// add gives the site a node with a pod, whose address is on the node's lo.
func (s *site) add(name, addr4, addr6 string, n int) {
	s.t.Helper()
	h := newHost(s.t, name)
	node := Node{
		Name:     name,
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", n)), netip.MustParsePrefix(fmt.Sprintf("fd00:244:%d::/64", n))},
	}
	s.run(s.router, fmt.Sprintf("ip link add ve%d type veth peer name eth0 netns %s", n, h.NetnsPath()), fmt.Sprintf("ip link set ve%d up", n))
	p := netip.MustParsePrefix(addr4)
	node.Addrs = append(node.Addrs, p.Addr())
	gw := p.Masked().Addr().As4()
	gw[3] = 254
	if addr6 != "" {
		s.run(s.router, fmt.Sprintf("ip link set ve%d master br0", n))
	} else {
		s.run(s.router, fmt.Sprintf("ip addr add %s/24 dev ve%d", netip.AddrFrom4(gw), n))
	}
	s.run(h, "ip link set lo up", "ip addr add "+addr4+" dev eth0", "ip link set eth0 up",
		"ip route add default via "+netip.AddrFrom4(gw).String(),
		"ip addr add "+podOf(node, 0)+" dev lo", "ip addr add "+podOf(node, 1)+" dev lo nodad")
	if addr6 != "" {
		s.run(h, "ip addr add "+addr6+" dev eth0 nodad")
		node.Addrs = append(node.Addrs, netip.MustParsePrefix(addr6).Addr())
	}
	s.hosts[name], s.nodes[name] = h, node
}

// podOf is the address of a node's pod in one of its ranges.
func podOf(n Node, i int) string {
	a := n.PodCIDRs[i].Addr()
	for range 5 {
		a = a.Next()
	}
	return netip.PrefixFrom(a, a.BitLen()).String()
}

func (s *site) run(h *rig.Host, commands ...string) string {
	s.t.Helper()
	var last string
	for _, c := range commands {
		words := strings.Fields(c)
		out, err := h.Run(s.t.Context(), words[0], words[1:]...)
		if err != nil {
			s.t.Fatalf("%s on %s: %v", c, h.Name, err)
		}
		last = out
	}
	return last
}

// apply makes a node know the others.
func (s *site) apply(name string, cfg Config, others ...string) (Result, error) {
	s.t.Helper()
	all := make([]Node, 0, len(others))
	for _, o := range others {
		all = append(all, s.nodes[o])
	}
	var r Result
	err := s.hosts[name].Do(func() (err error) {
		r, err = Apply(cfg, s.nodes[name], all)
		return err
	})
	return r, err
}

func (s *site) mustApply(name string, cfg Config, others ...string) Result {
	s.t.Helper()
	r, err := s.apply(name, cfg, others...)
	if err != nil {
		s.t.Fatalf("apply on %s: %v", name, err)
	}
	return r
}

// reaches sends from the pod of one node to that of another, in both families.
func (s *site) reaches(from, to string) {
	s.t.Helper()
	for i := range 2 {
		src, _, _ := strings.Cut(podOf(s.nodes[from], i), "/")
		dst, _, _ := strings.Cut(podOf(s.nodes[to], i), "/")
		if out, err := s.hosts[from].Run(s.t.Context(), "ping", "-c2", "-i0.2", "-W2", "-I", src, dst); err != nil {
			s.t.Errorf("the pod of %s does not reach that of %s: %v\n%s", from, to, err, out)
		}
	}
}

func routes(s *site, name string) string {
	s.t.Helper()
	return s.run(s.hosts[name], "ip -4 route show proto 120") + s.run(s.hosts[name], "ip -6 route show proto 120")
}

func auto() Config { return Config{Tunnel: TunnelAuto, VNI: 1, Port: 8472} }

// TestWays has each pair of nodes reach each other, and looks at the way.
func TestWays(t *testing.T) {
	s := newSite(t)
	all := []string{"n1", "n2", "n3"}
	for _, n := range all {
		r := s.mustApply(n, auto(), without(all, n)...)
		want := Result{MTU: 1450, Uplinks: []string{"eth0", DeviceName}, Native: 2, Tunnelled: 2}
		if n == "n3" {
			want.Native, want.Tunnelled = 0, 4
		}
		if d := cmp.Diff(want, r); d != "" {
			t.Errorf("%s: %s", n, d)
		}
	}
	for _, from := range all {
		for _, to := range without(all, from) {
			s.reaches(from, to)
		}
	}
	got := routes(s, "n1")
	for _, want := range []string{
		"10.244.2.0/24 via 192.0.2.2 dev eth0", "10.244.3.0/24 via 10.244.3.0 dev xveth-vxlan onlink",
		"fd00:244:2::/64 via 2001:db8:1::2 dev eth0", "fd00:244:3::/64 via fe80::",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("n1 has no route %q:\n%s", want, got)
		}
	}
}

func without(all []string, one string) []string {
	var rest []string
	for _, a := range all {
		if a != one {
			rest = append(rest, a)
		}
	}
	return rest
}

// TestNothingToDo applies twice: the second time nothing is written, so nobody who watches
// is told of anything, and Remove leaves nothing.
func TestNothingToDo(t *testing.T) {
	s := newSite(t)
	h := s.hosts["n1"]
	before := h.State("nft list ruleset")
	cfg := auto()
	cfg.Masquerade = true
	s.mustApply("n1", cfg, "n2", "n3")
	once := s.run(h, "ip -d link", "ip -d addr") + routes(s, "n1") + s.run(h, "bridge fdb show dev xveth-vxlan") + s.run(h, "nft -a list ruleset")
	s.mustApply("n1", cfg, "n3", "n2")
	twice := s.run(h, "ip -d link", "ip -d addr") + routes(s, "n1") + s.run(h, "bridge fdb show dev xveth-vxlan") + s.run(h, "nft -a list ruleset")
	if d := cmp.Diff(once, twice); d != "" {
		t.Errorf("the second time something is written: %s", d)
	}
	if err := h.Do(Remove); err != nil {
		t.Fatal(err)
	}
	if d := rig.StateDiff(before, h.State("nft list ruleset")); d != "" {
		t.Errorf("Remove leaves something: %s", d)
	}
}

// TestNodesChange is rows B135, B137 and B138 of what went wrong elsewhere: a range that
// moves to a node with another address, a node whose address changes, ranges that are cut
// anew. A watcher sees no moment without a route.
func TestNodesChange(t *testing.T) {
	s := newSite(t)
	s.mustApply("n1", auto(), "n2", "n3")
	h := s.hosts["n1"]

	t.Run("a new node has the range of an old one", func(t *testing.T) {
		gone := watchGone(t, h, "10.244.2.0/24")
		old := s.nodes["n2"]
		fresh := old
		fresh.Name, fresh.Addrs, fresh.Created = "n4", []netip.Addr{netip.MustParseAddr("192.0.2.4")}, time.Now()
		s.nodes["n4"] = fresh
		for range 2 { // while both are there, and after the old one has gone
			s.mustApply("n1", auto(), "n2", "n4", "n3")
			if got := routes(s, "n1"); !strings.Contains(got, "10.244.2.0/24 via 192.0.2.4 dev eth0") {
				t.Errorf("the range does not lead to the new node:\n%s", got)
			}
		}
		if n := gone(); n > 0 {
			t.Errorf("the route was away %d times", n)
		}
		s.mustApply("n1", auto(), "n2", "n3")
	})
	t.Run("a node gets another address", func(t *testing.T) {
		n := s.nodes["n3"]
		was := n
		n.Addrs = []netip.Addr{netip.MustParseAddr("198.51.100.33")}
		s.nodes["n3"] = n
		s.mustApply("n1", auto(), "n2", "n3")
		fdb := s.run(h, "bridge fdb show dev xveth-vxlan")
		if !strings.Contains(fdb, "dst 198.51.100.33") || strings.Contains(fdb, "dst 198.51.100.3 ") {
			t.Errorf("the tunnel does not lead to the new address alone:\n%s", fdb)
		}
		s.nodes["n3"] = was
	})
	t.Run("this node gets another address", func(t *testing.T) {
		s.run(h, "ip addr add 192.0.2.11/24 dev eth0")
		n := s.nodes["n1"]
		was := n
		n.Addrs = []netip.Addr{netip.MustParseAddr("192.0.2.11"), n.Addrs[1]}
		s.nodes["n1"] = n
		s.mustApply("n1", auto(), "n2", "n3")
		if got := s.run(h, "ip -d link show xveth-vxlan"); !strings.Contains(got, "local 192.0.2.11") {
			t.Errorf("the tunnel does not begin at the new address:\n%s", got)
		}
		s.nodes["n1"] = was
		s.mustApply("n1", auto(), "n2", "n3")
	})
	t.Run("ranges are cut anew", func(t *testing.T) {
		n := s.nodes["n3"]
		n.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.8.0/21")}
		s.nodes["n3"] = n
		s.mustApply("n1", auto(), "n2", "n3")
		got := routes(s, "n1") + s.run(h, "ip neigh show dev xveth-vxlan") + s.run(h, "ip -6 neigh show dev xveth-vxlan")
		if strings.Contains(got, "10.244.3.0") || strings.Contains(got, "244:3:") || !strings.Contains(got, "10.244.8.0/21 via 10.244.8.0 dev xveth-vxlan") {
			t.Errorf("the old ranges left something, or the new one is missing:\n%s", got)
		}
	})
	t.Run("the last tunnelled node goes", func(t *testing.T) {
		r := s.mustApply("n1", auto(), "n2")
		if d := cmp.Diff(Result{MTU: 1500, Uplinks: []string{"eth0"}, Native: 2}, r); d != "" {
			t.Error(d)
		}
		if out, err := h.Run(t.Context(), "ip", "link", "show", DeviceName); err == nil {
			t.Errorf("the tunnel is still there: %s", out)
		}
	})
}

// watchGone counts how often the route to a range is deleted from now on.
func watchGone(t *testing.T, h *rig.Host, dst string) (gone func() int) {
	t.Helper()
	var said bytes.Buffer
	ctx, end := context.WithCancel(t.Context())
	monitor := exec.CommandContext(ctx, "ip", "monitor", "route")
	monitor.Stdout = &said
	if err := h.Start(monitor); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // it does not say when it is ready
	return func() int {
		time.Sleep(100 * time.Millisecond)
		end()
		_ = monitor.Wait()
		if !strings.Contains(said.String(), dst) {
			t.Errorf("the monitor saw nothing of %s: %s", dst, &said)
		}
		return strings.Count(said.String(), "Deleted "+dst)
	}
}

// TestOthersStay has somebody else's route and device in the way: neither is touched, the
// error says so, and the rest is done.
func TestOthersStay(t *testing.T) {
	s := newSite(t)
	h := s.hosts["n1"]
	s.run(h, "ip route add 10.244.2.0/24 via 192.0.2.9", "ip link add xveth-vxlan type bridge")
	_, err := s.apply("n1", auto(), "n2", "n3")
	if err == nil || !strings.Contains(err.Error(), "10.244.2.0/24: somebody else has made one") ||
		!strings.Contains(err.Error(), "a bridge of that name is in the way") {
		t.Errorf("got %v", err)
	}
	if got := s.run(h, "ip route show 10.244.2.0/24"); !strings.Contains(got, "via 192.0.2.9") {
		t.Errorf("the route of somebody else has changed: %s", got)
	}
	if got := routes(s, "n1"); !strings.Contains(got, "fd00:244:2::/64 via 2001:db8:1::2") {
		t.Errorf("the rest was not done: %s", got)
	}
}

// TestUnknownStays has the uplink down, so that it cannot be found out how nodes are
// reached: nothing of theirs is removed.
func TestUnknownStays(t *testing.T) {
	s := newSite(t)
	h := s.hosts["n1"]
	s.mustApply("n1", auto(), "n3")
	fdb := s.run(h, "bridge fdb show dev xveth-vxlan")
	s.run(h, "ip route del default")
	if r := s.mustApply("n1", auto(), "n3"); len(r.Unknown) != 2 {
		t.Errorf("there is no way to n3, and it says %v", r.Unknown)
	}
	if got := s.run(h, "bridge fdb show dev xveth-vxlan"); got != fdb {
		t.Errorf("the tunnel forgot: %s", got)
	}
	if got := routes(s, "n1"); !strings.Contains(got, "10.244.3.0/24") {
		t.Errorf("the route is gone: %s", got)
	}
}

// TestTunnelModes compares what is asked for.
func TestTunnelModes(t *testing.T) {
	s := newSite(t)
	for _, c := range []struct {
		mode Tunnel
		want Result
	}{
		{TunnelAlways, Result{Native: 0, Tunnelled: 4, MTU: 1450}},
		{TunnelNever, Result{Native: 2, Left: 2, MTU: 1500}},
		{TunnelAuto, Result{Native: 2, Tunnelled: 2, MTU: 1450}},
	} {
		cfg := auto()
		cfg.Tunnel = c.mode
		got := s.mustApply("n1", cfg, "n2", "n3")
		if d := cmp.Diff(c.want, got, cmpopts.IgnoreFields(Result{}, "Uplinks")); d != "" {
			t.Errorf("%s: %s", c.mode, d)
		}
	}
}
