// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// portOf is the node's end of a pod's pair.
func portOf(t *testing.T, p *rig.Pod) string {
	t.Helper()
	if err := p.FindHostDev(); err != nil {
		t.Fatal(err)
	}
	return p.HostDev
}

// bridgedBed is a bridge with three pods and a short interval.
func bridgedBed(t *testing.T, keys map[string]any) (c *chained, a, b, other *rig.Pod) {
	t.Helper()
	all := map[string]any{"fastPath": map[string]any{"revalidate": cutInterval.String()}}
	for k, v := range keys {
		all[k] = v
	}
	c = newChained(t, "bridge", false, all)
	a, b, other = c.pod(t, "a"), c.pod(t, "b"), c.pod(t, "c")
	for _, p := range []*rig.Pod{a, b, other} {
		portOf(t, p)
	}
	addRoute(t, c.Ext, chainNet4)
	return c, a, b, other
}

// liveAndMoving waits until packets of a flow take the fast path.
func liveAndMoving(t *testing.T, d *datapath.Datapath, src, dst netip.AddrPort) datapath.Flow {
	t.Helper()
	var f datapath.Flow
	eventually(t, 8*time.Second, fmt.Sprintf("%v to %v is fast", src, dst), func() bool {
		first, ok := flow(t, d, protoUDP, src, dst)
		if !ok {
			return false
		}
		time.Sleep(20 * time.Millisecond)
		f, ok = flow(t, d, protoUDP, src, dst)
		return ok && f.Packets > first.Packets+4
	})
	return f
}

// TestBreakBridgeCut changes what a bridge does with a flow that is established and fast: it
// stops within the interval.
func TestBreakBridgeCut(t *testing.T) {
	t.Parallel()
	c, a, b, other := bridgedBed(t, nil)
	d, heard := open(t, c.Rig), newEar(t, b.Host)
	dst := netip.AddrPortFrom(b.Addr4, 7000)
	swallow(t, b.Host, "udp", dst)
	conn := dial(t, a.Host, "udp", dst)
	drip(t, conn, 100)
	macB := etherOf(t, b.Host, rig.PodDev)
	node(t, c.Rig, "ip link add breakbr type bridge && ip link set breakbr up")
	t.Cleanup(func() { node(t, c.Rig, "ip link del breakbr") })
	bridgeRule := func(hook, match string) (string, string) {
		return fmt.Sprintf("nft 'table bridge cut { chain f { type filter hook %s priority 0; %s drop; }; }'", hook, match), "nft delete table bridge cut"
	}
	ways := []struct{ name, on, off string }{
		{name: "inet forward", on: "nft 'table inet cut { chain f { type filter hook forward priority 0; udp dport 7000 drop; }; }'", off: "nft delete table inet cut"},
		{name: "physdev", on: "iptables -w -I FORWARD -m physdev --physdev-in " + a.HostDev + " -j DROP", off: "iptables -w -D FORWARD -m physdev --physdev-in " + a.HostDev + " -j DROP"},
		{name: "ebtables", on: "ebtables -I FORWARD -i " + a.HostDev + " -j DROP", off: "ebtables -D FORWARD -i " + a.HostDev + " -j DROP"},
		{name: "isolated", on: "bridge link set dev " + a.HostDev + " isolated on; bridge link set dev " + b.HostDev + " isolated on", off: "bridge link set dev " + a.HostDev + " isolated off; bridge link set dev " + b.HostDev + " isolated off"},
		{name: "fdb", on: "bridge fdb replace " + macB.String() + " dev " + other.HostDev + " master static", off: "bridge fdb del " + macB.String() + " dev " + other.HostDev + " master"},
		{name: "stp", on: "bridge link set dev " + b.HostDev + " state 0", off: "bridge link set dev " + b.HostDev + " state 3"},
		{name: "locked", on: "bridge link set dev " + a.HostDev + " learning off locked on; bridge fdb del " + etherOf(t, a.Host, rig.PodDev).String() + " dev " + a.HostDev + " master", off: "bridge link set dev " + a.HostDev + " locked off learning on"},
		{name: "other bridge", on: "ip link set " + b.HostDev + " master breakbr", off: "ip link set " + b.HostDev + " master " + chainBridge},
		{name: "no bridge", on: "ip link set " + b.HostDev + " nomaster", off: "ip link set " + b.HostDev + " master " + chainBridge},
		{name: "sender on no bridge", on: "ip link set " + a.HostDev + " nomaster", off: "ip link set " + a.HostDev + " master " + chainBridge},
		{name: "bridge down", on: "ip link set " + chainBridge + " down", off: "ip link set " + chainBridge + " up"},
	}
	for _, hook := range []string{"prerouting", "forward", "postrouting"} {
		w := struct{ name, on, off string }{name: "bridge " + hook}
		w.on, w.off = bridgeRule(hook, "ether type ip udp dport 7000")
		ways = append(ways, w)
	}
	for _, nf := range []string{"1", "0"} {
		node(t, c.Rig, "echo "+nf+" > /proc/sys/net/bridge/bridge-nf-call-iptables")
		for _, w := range ways {
			if nf == "0" && (w.name == "inet forward" || w.name == "physdev") {
				continue
			}
			t.Run(w.name+" nf "+nf, func(t *testing.T) {
				if f := liveAndMoving(t, d, localOf(conn), dst); !f.Bridged {
					t.Errorf("not bridged: %+v", f)
				}
				node(t, c.Rig, w.on)
				since := time.Now()
				time.Sleep(cutInterval + 3*grace)
				took := heard.of(protoUDP, dst).last.Sub(since)
				t.Logf("stopped after %v", took.Round(time.Millisecond))
				if took > cutInterval+grace {
					t.Errorf("went on for %v", took)
				}
				node(t, c.Rig, w.off)
			})
		}
	}
	node(t, c.Rig, "nft delete table bridge filter 2>/dev/null; nft delete table ip filter 2>/dev/null; true")
}

// TestBreakBridgeAddress sends the tuple of a flow that a bridge forwards fast from another
// port and in frames of other addresses, which a rule forbids: the flow opens no way for them.
func TestBreakBridgeAddress(t *testing.T) {
	t.Parallel()
	for _, nf := range []string{"0", "1"} {
		t.Run("call-iptables "+nf, func(t *testing.T) {
			t.Parallel()
			c, a, b, other := bridgedBed(t, nil)
			node(t, c.Rig, "echo "+nf+" > /proc/sys/net/bridge/bridge-nf-call-iptables")
			d, heard := open(t, c.Rig), newEar(t, b.Host)
			dst := netip.AddrPortFrom(b.Addr4, 7000)
			swallow(t, b.Host, "udp", dst)
			conn := dial(t, a.Host, "udp", dst)
			macA, macB := etherOf(t, a.Host, rig.PodDev), etherOf(t, b.Host, rig.PodDev)
			odd := net.HardwareAddr{2, 0, 0, 0, 0, 9}
			node(t, c.Rig, "nft 'table bridge cut { chain f { type filter hook prerouting priority 0; iifname "+other.HostDev+" udp dport 7000 drop; ether saddr "+odd.String()+" drop; ether daddr != "+macB.String()+" udp dport 7000 drop; }; }'")
			for _, w := range []struct {
				name     string
				from     *rig.Pod
				dst, src net.HardwareAddr
			}{
				{"other port", other, macB, etherOf(t, other.Host, rig.PodDev)},
				{"other port, stolen address", other, macB, macA},
				{"odd source", a, macB, odd},
				{"to the port", a, etherOf(t, c.Node, a.HostDev), macA},
				{"to the bridge", a, etherOf(t, c.Node, chainBridge), macA},
				{"to nobody", a, odd, macA},
			} {
				t.Run(w.name, func(t *testing.T) {
					stop := drip(t, conn, 100)
					liveAndMoving(t, d, localOf(conn), dst)
					stop()
					frame := l4Frame(unix.IPPROTO_UDP, w.dst, w.src, localOf(conn), dst, 128)
					before := heard.of(protoUDP, dst).packets
					rawFrames(t, w.from.Host, rig.PodDev, frame, 200)
					time.Sleep(grace)
					if n := heard.of(protoUDP, dst).packets - before; n > 5 {
						t.Errorf("%d forbidden packets arrived", n)
					}
				})
			}
			node(t, c.Rig, "nft delete table bridge cut")
		})
	}
}

// TestBreakBridgeSpoof lets a pod send with the address of another of its bridge, which rules
// on ports and MAC addresses forbid: a flow of the other that is routed and fast does not
// open the way.
func TestBreakBridgeSpoof(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]string{"port": "physdev --physdev-in %s", "mac": "mac --mac-source %s"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, a, _, other := bridgedBed(t, nil)
			macC := etherOf(t, other.Host, rig.PodDev)
			what := other.HostDev
			if name == "mac" {
				what = macC.String()
			}
			node(t, c.Rig, "iptables -w -I FORWARD -m "+fmt.Sprintf(rule, what)+" -j DROP")
			d, heard := open(t, c.Rig), newEar(t, c.Ext)
			dst := netip.AddrPortFrom(rig.ExtAddr4, 7000)
			swallow(t, c.Ext, "udp", dst)
			conn := dial(t, a.Host, "udp", dst)
			gw := etherOf(t, c.Node, chainBridge)
			// Nobody's flow: the rule holds.
			cold := netip.AddrPortFrom(rig.ExtAddr4, 7001)
			rawFrames(t, other.Host, rig.PodDev, l4Frame(unix.IPPROTO_UDP, gw, macC, localOf(conn), cold, 64), 200)
			stop := drip(t, conn, 100)
			liveAndMoving(t, d, localOf(conn), dst)
			stop()
			before := heard.of(protoUDP, dst).packets
			rawFrames(t, other.Host, rig.PodDev, l4Frame(unix.IPPROTO_UDP, gw, macC, localOf(conn), dst, 64), 200)
			time.Sleep(100 * time.Millisecond)
			if n := heard.of(protoUDP, cold).packets; n > 0 {
				t.Fatalf("the rule does not hold: %d", n)
			}
			if n := heard.of(protoUDP, dst).packets - before; n > 5 {
				t.Errorf("%d packets that a rule forbids were forwarded", n)
			}
			node(t, c.Rig, "iptables -w -F")
		})
	}
}

// TestBreakBridgeRouter has a pod that opted out forward packets of another.
func TestBreakBridgeRouter(t *testing.T) {
	t.Parallel()
	c := newChained(t, "bridge", false, nil)
	a := c.pod(t, "a")
	out := c.pod(t, "out", [2]string{"IgnoreUnknown", "1"}, [2]string{"FAST_PATH", "off"})
	addRoute(t, c.Ext, chainNet4)
	node(t, c.Rig, "echo 0 > /proc/sys/net/bridge/bridge-nf-call-iptables; for f in /proc/sys/net/ipv4/conf/*/send_redirects; do echo 0 > $f; done")
	on(t, out.Host, "sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.eth0.send_redirects=0")
	on(t, a.Host, "ip route add "+rig.ExtAddr4.String()+" via "+out.Addr4.String())
	at := netip.AddrPortFrom(rig.ExtAddr4, 7)
	echo(t, c.Ext, "udp", at)
	conn := dial(t, a.Host, "udp", at)
	for range 100 {
		if _, err := rig.RoundTrip(conn, []byte("0123456789abcdef"), time.Second); err != nil {
			t.Fatal(err)
		}
	}
	bridge := indexOf(t, c.Node, chainBridge)
	for _, f := range everyFlow(t, open(t, c.Rig)) {
		t.Logf("%+v", f)
		if f.In == bridge && f.Packets > 0 {
			t.Errorf("packets of a pod that opted out were fast: %+v", f)
		}
	}
}

// TestBreakBridgeNAT translates between pods of one bridge and verifies every checksum and
// byte, with offloads off.
func TestBreakBridgeNAT(t *testing.T) {
	t.Parallel()
	for _, w := range []struct{ name, setup string }{
		{"plain", "true"},
		{"promisc", "ip link set " + chainBridge + " promisc on"},
		{"no call", "echo 0 > /proc/sys/net/bridge/bridge-nf-call-iptables; nft 'table ip masq { chain p { type nat hook postrouting priority srcnat; ip daddr 10.90.0.0/24 ip saddr 10.90.0.0/24 masquerade; }; }'"},
	} {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			c, a, b, _ := bridgedBed(t, nil)
			node(t, c.Rig, w.setup)
			service := netip.MustParseAddr("10.96.0.1")
			node(t, c.Rig, fmt.Sprintf(`nft 'table ip dnat_break { chain p { type nat hook prerouting priority dstnat; ip daddr %s dnat to %s; }; }'`, service, b.Addr4))
			for _, p := range []*rig.Pod{a, b} {
				on(t, p.Host, "ethtool -K eth0 tx off rx off gso off tso off >/dev/null")
			}
			d := open(t, c.Rig)
			for _, to := range []*rig.Pod{b, a} { // the second is a hairpin
				if to == a {
					node(t, c.Rig, fmt.Sprintf("nft flush chain ip dnat_break p; nft add rule ip dnat_break p ip daddr %s dnat to %s; nft 'table ip hair { chain p { type nat hook postrouting priority srcnat; ip daddr %s ip saddr %s masquerade; }; }'", service, a.Addr4, a.Addr4, a.Addr4))
				}
				p := tcpConnect(t, crossing{"", a.Host, to.Host, netip.AddrPortFrom(service, 9000), netip.AddrPortFrom(to.Addr4, 9000)})
				before := counters(t, d)
				for range 20 {
					if err := pingPong(p); err != nil {
						t.Fatalf("to %s: %v", to.ID, err)
					}
				}
				bulkPair(t, p)
				t.Logf("to %s: %d fast", to.ID, counters(t, d).Fast()-before.Fast())
				for _, f := range everyFlow(t, d) {
					t.Logf("%+v", f)
				}
				for k, v := range counters(t, d) {
					if v > before[k] && strings.HasPrefix(k, "learn_") || strings.HasPrefix(k, "pass") && v > before[k] {
						t.Logf("%s %d", k, v-before[k])
					}
				}
				if n := checksumErrors(t, a.Host) + checksumErrors(t, b.Host); n > 0 {
					t.Errorf("%d wrong checksums", n)
				}
				if counters(t, d).Fast()-before.Fast() < 100 {
					t.Errorf("to %s: hardly anything was fast", to.ID)
				}
			}
		})
	}
}
