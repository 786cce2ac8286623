// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// neverFlow is a flow that has a connection but has sent little so far.
type neverFlow struct {
	name string
	conn net.Conn
	warmTuple
}

// connectAll connects every family and protocol on every path; every flow has a port
// of its own from first on. The servers answer nothing, so all that is learned is
// learned from what the clients send.
func connectAll(t *testing.T, r *rig.Rig, a, b *rig.Pod, first uint16) (all []neverFlow, next uint16) {
	t.Helper()
	for _, p := range []struct {
		name     string
		from, to *rig.Host
		addrs    map[int]netip.Addr
	}{
		{"ext to pod", r.Ext, a.Host, addrsOf(a)},
		{"pod to pod", b.Host, a.Host, addrsOf(a)},
		{"pod to ext", b.Host, r.Ext, map[int]netip.Addr{4: rig.ExtAddr4, 6: rig.ExtAddr6}},
	} {
		for _, fam := range families {
			for proto, number := range protos {
				dst := netip.AddrPortFrom(p.addrs[fam], first)
				swallow(t, p.to, proto, dst)
				conn := dial(t, p.from, proto, dst)
				name := fmt.Sprintf("%s v%d %s", p.name, fam, proto)
				all = append(all, neverFlow{name, conn, warmTuple{name, number, localOf(conn), dst}})
				first++
			}
		}
	}
	return all, first
}

// pushes is how many packets a flow sends: many more than learning takes.
const pushes = 20

// push sends packets on all flows.
func push(t *testing.T, flows []neverFlow) {
	t.Helper()
	for range pushes {
		for _, f := range flows {
			if _, err := f.conn.Write(make([]byte, 50)); err != nil {
				t.Fatalf("%s: %v", f.name, err)
			}
		}
		time.Sleep(time.Millisecond)
	}
}

// never is a way in which the kernel treats packets so that they must not be learned.
type never struct {
	name    string
	on, off string
	reason  string
	stalls  bool // TCP sends no more than a window
}

// forwardRule is a command that makes a table with one chain in the forward hook.
func forwardRule(rules string) (on, off string) {
	return "nft -f - <<E\ntable inet never { chain f { type filter hook forward priority mangle; " + rules + "; }; }\nE",
		"nft delete table inet never"
}

// nevers lists what must not be learned from, for flows to the ports from first to last.
func nevers(first, last uint16) (all []never) {
	ports := fmt.Sprintf("th dport %d-%d ", first, last)
	v4, v6 := "meta nfproto ipv4 "+ports, "meta nfproto ipv6 "+ports
	add := func(name, rules, reason string) *never {
		set, back := forwardRule(rules)
		all = append(all, never{name, set, back, reason, false})
		return &all[len(all)-1]
	}
	add("dropped", ports+"drop", "pass_no_flow").stalls = true
	// Conntrack knows these flows, and nothing of what the rule does to them.
	add("address by nftables", v4+"ip daddr 10.88.0.0/24 ip saddr set 192.0.2.77; "+v6+"ip6 daddr 2001:db8:88::/64 ip6 saddr set 2001:db8:1::77; "+
		v4+"ip daddr 192.0.2.2 ip daddr set 192.0.2.3; "+v6+"ip6 daddr 2001:db8:1::2 ip6 daddr set 2001:db8:1::3", "learn_note_differs").stalls = true
	add("port by nftables", ports+"th dport set 9999", "learn_note_differs").stalls = true
	add("exclusion mark", ports+"meta mark set 1", "learn_excluded")
	add("exclusion mark among others", ports+"meta mark set 0xff01", "learn_excluded")
	add("DSCP by nftables", v4+"ip dscp set cs1; "+v6+"ip6 dscp set cs1", "learn_note_differs")
	add("TTL by nftables", v4+"ip ttl set 33; "+v6+"ip6 hoplimit set 33", "learn_note_differs")
	var on, off []string
	for _, cmd := range []string{"iptables", "ip6tables"} {
		for proto := range protos {
			rule := fmt.Sprintf("FORWARD -p %s --dport %d:%d -j TOS --set-tos 0x10", proto, first, last)
			on = append(on, cmd+" -w -t mangle -A "+rule)
			off = append(off, cmd+" -w -t mangle -D "+rule)
		}
	}
	return append(all, never{"TOS by iptables", strings.Join(on, " && "), strings.Join(off, " && "), "learn_note_differs", false})
}

// TestInvariantNeverLearned lets the kernel drop, mark or rewrite packets and finds that
// nothing is learned from them; without the rule the same flows are learned.
func TestInvariantNeverLearned(t *testing.T) {
	t.Parallel()
	r := newRig(t, revalidating(time.Second, map[string]any{"excludeMark": "0x1"}))
	a, b := addPod(t, r, "a", nil), addPod(t, r, "b", nil)
	d, port := open(t, r), uint16(7400)
	addServerAddrs(t, r)
	dropTables(t, r)
	for i := range nevers(0, 0) {
		first := port
		n := nevers(first, first+99)[i]
		port += 100
		t.Run(n.name, func(t *testing.T) {
			// Before the rule: a handshake has to come through.
			flows, _ := connectAll(t, r, a, b, first)
			lift := impose(t, r, n.on, n.off)
			before := counters(t, d)
			push(t, flows)
			want := uint64(len(flows) * pushes)
			if n.stalls {
				want /= 2
			}
			noneTo(t, d, first, first+100)
			eventually(t, 3*time.Second, "counted as "+n.reason, func() bool {
				return rose(t, d, before, n.reason) >= want
			})
			noneTo(t, d, first, first+100)
			lift()
			for _, f := range flows {
				eventually(t, 5*time.Second, f.name+" is learned without the rule", func() bool {
					push(t, []neverFlow{f})
					_, ok := flow(t, d, f.proto, f.src, f.dst)
					return ok
				})
			}
		})
	}
}

// TestInvariantNothingToLearn sends what is not to be learned without any rule against
// it: the host's own packets, packets rewritten without conntrack, tunnels.
func TestInvariantNothingToLearn(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	a := addPod(t, r, "a", nil)
	t.Run("own packets", func(t *testing.T) { ownPackets(t, r, a) })
	t.Run("stateless NAT", func(t *testing.T) { statelessNAT(t, r, a) })
	t.Run("tunnel", func(t *testing.T) { tunnel(t, r, a) })
}

// ownPackets sends between the node and its pods: nothing is learned from
// the host's own packets, nor from those to it.
func ownPackets(t *testing.T, r *rig.Rig, a *rig.Pod) {
	t.Helper()
	d := open(t, r)
	before := counters(t, d)
	port := uint16(7000)
	for _, c := range []struct {
		name     string
		from, to *rig.Host
		addrs    map[int]netip.Addr
	}{
		{"node to pod", r.Node, a.Host, addrsOf(a)},
		{"pod to node", a.Host, r.Node, map[int]netip.Addr{4: rig.NodeAddr4, 6: rig.NodeAddr6}},
		{"node to ext", r.Node, r.Ext, map[int]netip.Addr{4: rig.ExtAddr4, 6: rig.ExtAddr6}},
		{"ext to node", r.Ext, r.Node, map[int]netip.Addr{4: rig.NodeAddr4, 6: rig.NodeAddr6}},
	} {
		for _, fam := range families {
			for proto := range protos {
				port++
				at := netip.AddrPortFrom(c.addrs[fam], port)
				echo(t, c.to, proto, at)
				conn := dial(t, c.from, proto, at)
				for range pushes {
					if _, err := rig.RoundTrip(conn, make([]byte, 50), time.Second); err != nil {
						t.Fatalf("%s v%d %s: %v", c.name, fam, proto, err)
					}
				}
			}
		}
	}
	for _, f := range everyFlow(t, d) {
		t.Errorf("learned: %+v", f)
	}
	if n := rose(t, d, before, "learn_no_note"); n < 4*4*pushes {
		t.Errorf("learn_no_note rose by %d", n)
	}
	if n := counters(t, d).Fast() - before.Fast(); n != 0 {
		t.Errorf("%d packets took the fast path", n)
	}
}

// statelessNAT rewrites addresses by nftables rules without conntrack, both
// ways. The traffic flows, and nothing of it is learned.
func statelessNAT(t *testing.T, r *rig.Rig, a *rig.Pod) {
	t.Helper()
	d := open(t, r)
	vips := map[int]netip.Addr{4: netip.MustParseAddr("10.88.0.200"), 6: netip.MustParseAddr("2001:db8:88::200")}
	for _, hook := range []string{"prerouting priority raw", "prerouting priority mangle"} {
		for _, fam := range families {
			pod, _ := a.Addr(fam)
			ip := map[int]string{4: "ip", 6: "ip6"}[fam]
			lift := impose(t, r, fmt.Sprintf(`nft -f - <<E
table %[1]s stateless {
	chain raw { type filter hook prerouting priority -301; %[1]s daddr %[2]s notrack; %[1]s saddr %[3]s notrack; }
	chain nat { type filter hook %[4]s; %[1]s daddr %[2]s %[1]s daddr set %[3]s; meta l4proto { tcp, udp } %[1]s saddr %[3]s %[1]s saddr set %[2]s; }
}
E`, ip, vips[fam], pod, hook), "nft delete table "+ip+" stateless")
			for proto := range protos {
				t.Run(fmt.Sprintf("%s v%d %s", hook, fam, proto), func(t *testing.T) {
					at := netip.AddrPortFrom(pod, uint16(7000+fam))
					echo(t, a.Host, proto, at)
					conn := dial(t, r.Ext, proto, netip.AddrPortFrom(vips[fam], at.Port()))
					before := counters(t, d)
					for range pushes {
						if _, err := rig.RoundTrip(conn, make([]byte, 50), time.Second); err != nil {
							t.Fatal(err)
						}
					}
					if n := rose(t, d, before, "learn_note_differs"); n < 2*pushes {
						t.Errorf("learn_note_differs rose by %d", n)
					}
					for _, f := range everyFlow(t, d) {
						t.Errorf("learned: %+v", f)
					}
				})
			}
			lift()
		}
	}
}

// tunnel sends a pod's packets through a VXLAN device of the node. Neither
// the packets in the tunnel nor the tunnel's own are learned.
func tunnel(t *testing.T, r *rig.Rig, a *rig.Pod) {
	t.Helper()
	d := open(t, r)
	up := "ip link add vx0 type vxlan id 7 dstport 4789 local %s remote %s dev %s && " +
		"ip addr add 172.31.0.%d/24 dev vx0 && ip addr add 2001:db8:31::%d/64 dev vx0 nodad && ip link set vx0 up"
	node(t, r, fmt.Sprintf(up, rig.NodeAddr4, rig.ExtAddr4, rig.Uplink, 1, 1))
	t.Cleanup(func() { node(t, r, "ip link del vx0") })
	on(t, r.Ext, fmt.Sprintf(up, rig.ExtAddr4, rig.NodeAddr4, rig.ExtDev, 2, 2))
	peers := map[int]netip.Addr{4: netip.MustParseAddr("172.31.0.2"), 6: netip.MustParseAddr("2001:db8:31::2")}
	for _, fam := range families {
		for proto := range protos {
			t.Run(fmt.Sprintf("v%d %s", fam, proto), func(t *testing.T) {
				at := netip.AddrPortFrom(peers[fam], uint16(7000+fam))
				echo(t, r.Ext, proto, at)
				conn := dial(t, a.Host, proto, at)
				before := counters(t, d)
				for range pushes {
					if _, err := rig.RoundTrip(conn, make([]byte, 50), time.Second); err != nil {
						t.Fatal(err)
					}
				}
				seen := rose(t, d, before, "learn_note_differs") + rose(t, d, before, "learn_no_note")
				if seen < 2*pushes {
					t.Errorf("learn_note_differs and learn_no_note rose by %d", seen)
				}
				for _, f := range everyFlow(t, d) {
					t.Errorf("learned: %+v", f)
				}
			})
		}
	}
}

// TestInvariantOwnRedirect drops a warm flow from a pod to the remote host in the kernel
// while the fast path goes on sending it through the uplink's egress hook: those packets
// must not renew the entry.
func TestInvariantOwnRedirect(t *testing.T) {
	t.Parallel()
	r := newRig(t, revalidating(cutInterval, nil))
	a, b := addPod(t, r, "a", nil), addPod(t, r, "b", nil)
	d := open(t, r)
	flows, next := connectAll(t, r, a, b, 7000)
	var all []neverFlow
	for _, f := range flows {
		if strings.HasSuffix(f.name, "udp") {
			drip(t, f.conn, 50)
			all = append(all, f)
		}
	}
	for _, f := range all {
		eventually(t, 5*time.Second, f.name+" is fast", func() bool {
			have, ok := flow(t, d, f.proto, f.src, f.dst)
			return ok && have.Packets > 100
		})
	}
	set, back := forwardRule(fmt.Sprintf("th dport 7000-%d drop", next))
	impose(t, r, set, back)
	since := time.Now()
	before := counters(t, d)
	time.Sleep(time.Until(since.Add(cutInterval + grace)))
	for _, f := range all {
		if have, ok := flow(t, d, f.proto, f.src, f.dst); ok {
			t.Errorf("%s is still live: %+v", f.name, have)
		}
	}
	for _, reason := range []string{"learn_renewed", "learn_new", "learn_changed"} {
		if n := rose(t, d, before, reason); n != 0 {
			t.Errorf("%s rose by %d after the kernel had begun to drop", reason, n)
		}
	}
}

// tcIndexOffset is where struct __sk_buff has tc_index.
const tcIndexOffset = 44

// TestInvariantNoteOverwritten lets a program of somebody else's overwrite tc_index
// before ours reads it: nothing is learned.
func TestInvariantNoteOverwritten(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	a, b := addPod(t, r, "a", nil), addPod(t, r, "b", nil)
	d, port := open(t, r), uint16(7400)
	for _, c := range []struct {
		name   string
		value  int32
		reason string
	}{{"cleared", 0, "learn_no_note"}, {"no note", 0x1234, "learn_no_note"}, {"another note", 0x8123, "learn_note_differs"}} {
		t.Run(c.name, func(t *testing.T) {
			p := foreignProg(t, ebpf.SchedCLS, asm.Instructions{
				asm.Mov.Imm(asm.R2, c.value),
				asm.StoreMem(asm.R1, tcIndexOffset, asm.R2, asm.Word),
				asm.Mov.Imm(asm.R0, -1),
				asm.Return(),
			})
			flows, next := connectAll(t, r, a, b, port)
			first := port
			port = next
			detach := []func(){
				attachForeign(t, r, p, a.HostDev, ebpf.AttachTCXEgress, link.Head()),
				attachForeign(t, r, p, rig.Uplink, ebpf.AttachTCXEgress, link.Head()),
			}
			before := counters(t, d)
			push(t, flows)
			eventually(t, 3*time.Second, "counted as "+c.reason, func() bool {
				return rose(t, d, before, c.reason) >= uint64(len(flows)*pushes)
			})
			noneTo(t, d, first, next)
			for _, stop := range detach {
				stop()
			}
			for _, f := range flows {
				eventually(t, 5*time.Second, f.name+" is learned without the program", func() bool {
					push(t, []neverFlow{f})
					_, ok := flow(t, d, f.proto, f.src, f.dst)
					return ok
				})
			}
		})
	}
}

// noneTo fails for every flow to a range of ports.
func noneTo(t *testing.T, d *datapath.Datapath, first, end uint16) {
	t.Helper()
	for _, f := range everyFlow(t, d) {
		if p := f.Dst.Port(); p >= first && p < end {
			t.Errorf("learned: %+v", f)
		}
	}
}
