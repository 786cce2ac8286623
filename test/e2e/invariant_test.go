// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// cutInterval is short so that the test is; the rule is about the interval.
const cutInterval = 300 * time.Millisecond

// extServer4 and extServer6 are second addresses of the remote host. A route that sends
// them into a black hole leaves the acknowledgements of the other flows alone, so that
// each flow is cut in one direction only and its sender does not stop by itself.
var (
	extServer4 = netip.MustParseAddr("192.0.2.3")
	extServer6 = netip.MustParseAddr("2001:db8:1::3")
)

// addServerAddrs adds them. The IPv6 one is deprecated, so that nobody chooses it as source.
func addServerAddrs(t *testing.T, r *rig.Rig) {
	t.Helper()
	on(t, r.Ext, fmt.Sprintf("ip addr add %s/24 dev ext0; ip addr add %s/64 dev ext0 nodad preferred_lft 0", extServer4, extServer6))
}

// fastFlow is a flow whose packets are sent every millisecond.
type fastFlow struct {
	name   string
	family int
	proto  uint8
	src    netip.AddrPort
	dst    netip.AddrPort
	at     *ear
	// in and out are the node's interfaces that the flow passes.
	in, out string
}

// cutTest is a rig with its flows.
type cutTest struct {
	r     *rig.Rig
	d     *datapath.Datapath
	ears  map[*rig.Host]*ear
	flows []*fastFlow
	port  uint16
}

// cutEnd is an end of flows, and the node's interface that leads there.
type cutEnd struct {
	name string
	*rig.Host
	dev string
}

func podEnd(p *rig.Pod) cutEnd { return cutEnd{"pod", p.Host, p.HostDev} }

// add starts the flows of both families and protocols from one host to another.
func (c *cutTest) add(t *testing.T, from, to cutEnd, addrs map[int]netip.Addr) {
	t.Helper()
	if c.ears[to.Host] == nil {
		c.ears[to.Host] = newEar(t, to.Host)
	}
	for _, fam := range families {
		for proto, number := range protos {
			c.port++
			dst := netip.AddrPortFrom(addrs[fam], c.port)
			swallow(t, to.Host, proto, dst)
			conn := dial(t, from.Host, proto, dst)
			drip(t, conn, 100)
			c.flows = append(c.flows, &fastFlow{
				name:   fmt.Sprintf("%s to %s v%d %s", from.name, to.name, fam, proto),
				family: fam, proto: number, src: localOf(conn), dst: dst, at: c.ears[to.Host],
				in: from.dev, out: to.dev,
			})
		}
	}
}

// warm waits until every flow is on the fast path and moving there.
func (c *cutTest) warm(t *testing.T) {
	t.Helper()
	for _, f := range c.flows {
		eventually(t, 8*time.Second, f.name+" is on the fast path", func() bool {
			first, ok := flow(t, c.d, f.proto, f.src, f.dst)
			if !ok {
				return false
			}
			time.Sleep(20 * time.Millisecond)
			later, ok := flow(t, c.d, f.proto, f.src, f.dst)
			return ok && later.Packets > first.Packets+4
		})
	}
}

// cutWay is a way to stop flows. Flows for which the commands are the same share them.
type cutWay struct {
	name string
	cut  func(f *fastFlow) (on, off string)
}

// TestInvariantCut stops established fast flows by nftables rules, an iptables rule and
// a blackhole route. Each flow stops within the interval and goes on afterwards. Covers
// B070.
func TestInvariantCut(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"xdp", "tcx"} {
		t.Run("uplink "+mode, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, driven(revalidating(cutInterval, nil), mode))
			a, b, c := addPod(t, r, "a", nil), addPod(t, r, "b", nil), addPod(t, r, "c", nil)
			addServerAddrs(t, r)
			dropTables(t, r)
			ct := &cutTest{r: r, d: open(t, r), ears: map[*rig.Host]*ear{}, port: 7000}
			ext := cutEnd{"ext", r.Ext, rig.Uplink}
			ct.add(t, ext, podEnd(a), addrsOf(a))
			// The host veth does the same whatever drives the uplink.
			if mode == "xdp" {
				ct.add(t, podEnd(b), podEnd(c), addrsOf(c))
				ct.add(t, podEnd(b), ext, map[int]netip.Addr{4: extServer4, 6: extServer6})
			}
			fast := map[string]string{"xdp": "fast_xdp", "tcx": "fast_tcx"}[mode]
			ct.warm(t)
			if n := counters(t, ct.d)[fast]; n == 0 {
				t.Fatalf("no packet counted as %s", fast)
			}
			for _, way := range []cutWay{
				{"nftables", cutNft},
				{"iptables", cutIptables},
				{"blackhole route", cutRoute(t, r)},
				{"nftables device ingress", cutNetdev("ingress")},
				{"nftables device egress", cutNetdev("egress")},
			} {
				t.Run(way.name, func(t *testing.T) { ct.cut(t, way) })
			}
			ct.warm(t)
		})
	}
}

// cutPorts holds the destination ports of all flows that are cut, and of no answers.
const cutPorts = "7000-7099"

func cutNft(*fastFlow) (string, string) {
	return "nft 'table inet cut { chain f { type filter hook forward priority 0; th dport " + cutPorts + " drop; }; }'",
		"nft delete table inet cut"
}

// cutNetdev uses the hooks of a device, which packets of the fast path do not reach.
func cutNetdev(hook string) func(f *fastFlow) (string, string) {
	return func(f *fastFlow) (string, string) {
		dev := f.in
		if hook == "egress" {
			dev = f.out
		}
		return fmt.Sprintf("nft 'table netdev cut-%s { chain f { type filter hook %s device %s priority 0; th dport %s drop; }; }'",
			dev, hook, dev, cutPorts), "nft delete table netdev cut-" + dev
	}
}

func cutIptables(f *fastFlow) (string, string) {
	cmd := map[int]string{4: "iptables", 6: "ip6tables"}[f.family]
	proto := map[uint8]string{6: "tcp", 17: "udp"}[f.proto]
	rule := fmt.Sprintf("FORWARD -p %s --dport %s -j DROP", proto, strings.Replace(cutPorts, "-", ":", 1))
	return cmd + " -w -I " + rule, cmd + " -w -D " + rule
}

// cutRoute sends a destination into a black hole.
func cutRoute(t *testing.T, r *rig.Rig) func(f *fastFlow) (string, string) {
	return func(f *fastFlow) (string, string) {
		t.Helper()
		ip, to := fmt.Sprintf("ip -%d route", f.family), f.dst.Addr().String()
		old := strings.TrimSpace(node(t, r, ip+" show exact "+to))
		set := ip + " add blackhole " + to + " metric 1"
		back := ip + " del blackhole " + to
		if old != "" {
			set = ip + " del " + old + " && " + set
			back += " && " + ip + " add " + old
		}
		return set, back
	}
}

// cut stops all flows, checks when the last packet of each arrived, and lets them go on.
func (c *cutTest) cut(t *testing.T, way cutWay) {
	c.warm(t)
	// The commands are made first: making them asks the node.
	var ons, offs []string
	for _, f := range c.flows {
		set, back := way.cut(f)
		ons, offs = append(ons, set), append(offs, back)
	}
	since := map[string]time.Time{}
	for _, cmd := range ons {
		if _, done := since[cmd]; !done {
			node(t, c.r, cmd)
			since[cmd] = time.Now()
		}
	}
	// What comes later than it may is still to be seen.
	time.Sleep(cutInterval + 3*grace)
	before := map[*fastFlow]arrivals{}
	for i, f := range c.flows {
		before[f] = f.at.of(f.proto, f.dst)
		took := before[f].last.Sub(since[ons[i]])
		t.Logf("%s stopped after %v", f.name, took.Round(time.Millisecond))
		if took > cutInterval+grace {
			t.Errorf("%s went on for %v", f.name, took)
		}
	}
	for _, cmd := range offs {
		if !since[cmd].IsZero() {
			continue
		}
		node(t, c.r, cmd)
		since[cmd] = time.Now()
	}
	for _, f := range c.flows {
		eventually(t, 8*time.Second, f.name+" goes on", func() bool {
			return f.at.of(f.proto, f.dst).packets > before[f].packets+20
		})
		if a := f.at.of(f.proto, f.dst); len(a.srcs) != 1 {
			t.Errorf("%s came from %v", f.name, a.srcs)
		}
	}
}
