// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/test/rig"
)

// TestBreakLarge changes the pods and the node around large TCP packets: every byte arrives,
// at a rate that is not that of a stall, on a new connection and on one that is under way.
func TestBreakLarge(t *testing.T) {
	t.Parallel()
	for _, w := range []struct {
		name string
		at   func(t *testing.T, r *rig.Rig, a, b *rig.Pod)
	}{
		{name: "plain", at: func(*testing.T, *rig.Rig, *rig.Pod, *rig.Pod) {}},
		{name: "xdp in the receiver", at: func(t *testing.T, _ *rig.Rig, _, b *rig.Pod) { podXDP(t, b, true) }},
		{name: "xdp in the sender", at: func(t *testing.T, _ *rig.Rig, a, _ *rig.Pod) { podXDP(t, a, true) }},
		{name: "tcpdump", at: func(t *testing.T, r *rig.Rig, a, b *rig.Pod) {
			background(t, a.Host, "exec tcpdump -n -i eth0 -w /dev/null")
			background(t, b.Host, "exec tcpdump -n -i eth0 -w /dev/null")
			background(t, r.Node, "exec tcpdump -n -i any -w /dev/null")
		}},
		{name: "iptables length", at: func(t *testing.T, r *rig.Rig, _, _ *rig.Pod) {
			node(t, r, "iptables -w -A FORWARD -m length --length 0:39 -j DROP")
			t.Cleanup(func() { node(t, r, "nft delete table ip filter") })
		}},
		{name: "nft length", at: func(t *testing.T, r *rig.Rig, _, _ *rig.Pod) {
			impose(t, r, "nft 'table inet len { chain f { type filter hook forward priority 0; ip length < 40 drop; }; }'", "nft delete table inet len")
		}},
		{name: "tbf large burst", at: func(t *testing.T, r *rig.Rig, _, b *rig.Pod) {
			node(t, r, "tc qdisc replace dev "+b.HostDev+" root tbf rate 500mbit burst 256kb latency 50ms")
		}},
		{name: "sender tso off", at: func(t *testing.T, _ *rig.Rig, a, _ *rig.Pod) { on(t, a.Host, "ethtool -K eth0 tso off") }},
		{name: "sender gso off", at: func(t *testing.T, _ *rig.Rig, a, _ *rig.Pod) { on(t, a.Host, "ethtool -K eth0 gso off tso off") }},
		{name: "sender tx off", at: func(t *testing.T, _ *rig.Rig, a, _ *rig.Pod) { on(t, a.Host, "ethtool -K eth0 tx off") }},
		{name: "host tso off", at: func(t *testing.T, r *rig.Rig, _, b *rig.Pod) {
			node(t, r, "ethtool -K "+b.HostDev+" tso off gso off sg off")
		}},
		{name: "receiver gro off", at: func(t *testing.T, _ *rig.Rig, _, b *rig.Pod) { on(t, b.Host, "ethtool -K eth0 gro off") }},
		{name: "receiver sg off", at: func(t *testing.T, _ *rig.Rig, _, b *rig.Pod) { on(t, b.Host, "ethtool -K eth0 tx off rx off sg off") }},
		{name: "sender mtu 1400", at: func(t *testing.T, _ *rig.Rig, a, _ *rig.Pod) { on(t, a.Host, "ip link set eth0 mtu 1400") }},
		{name: "receiver mtu 1400", at: func(t *testing.T, _ *rig.Rig, _, b *rig.Pod) { on(t, b.Host, "ip link set eth0 mtu 1400") }},
		{name: "host mtu 1400", at: func(t *testing.T, r *rig.Rig, _, b *rig.Pod) { node(t, r, "ip link set "+b.HostDev+" mtu 1400") }},
		{name: "no pmtu discovery", at: func(t *testing.T, r *rig.Rig, a, b *rig.Pod) {
			on(t, a.Host, "sysctl -qw net.ipv4.ip_no_pmtu_disc=1")
			node(t, r, "ip link set "+b.HostDev+" mtu 1400")
		}},
		{name: "clamped mss", at: func(t *testing.T, r *rig.Rig, _, _ *rig.Pod) {
			node(t, r, "iptables -w -A FORWARD -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --set-mss 1000")
			t.Cleanup(func() { node(t, r, "nft delete table ip filter") })
		}},
	} {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			a, b := addPod(t, r, "a", nil), addPod(t, r, "b", nil)
			send := func(p tcpPair, what string) {
				from := time.Now()
				if err := stream(p.client, p.server, 16<<20, rand.NewChaCha8([32]byte{1})); err != nil {
					t.Errorf("%s: %v", what, err)
				}
				t.Logf("%s: %.0f MB/s", what, 16/time.Since(from).Seconds())
			}
			for _, fam := range families {
				addr, _ := b.Addr(fam)
				at := netip.AddrPortFrom(addr, 9000)
				p := tcpConnect(t, crossing{"", a.Host, b.Host, at, at})
				send(p, fmt.Sprintf("v%d before", fam))
			}
			p4 := tcpConnect(t, crossing{"", a.Host, b.Host, netip.AddrPortFrom(b.Addr4, 9001), netip.AddrPortFrom(b.Addr4, 9001)})
			send(p4, "before")
			w.at(t, r, a, b)
			send(p4, "under way")
			for _, fam := range families {
				addr, _ := b.Addr(fam)
				at := netip.AddrPortFrom(addr, 9002)
				p := tcpConnect(t, crossing{"", a.Host, b.Host, at, at})
				send(p, fmt.Sprintf("v%d cold", fam))
				send(p, fmt.Sprintf("v%d warm", fam))
			}
			node(t, r, "tc qdisc del dev "+b.HostDev+" root 2>/dev/null; true")
		})
	}
}

// podXDP runs a program of the pod's own on its interface: it passes, or drops UDP.
func podXDP(t *testing.T, p *rig.Pod, pass bool) {
	t.Helper()
	insns := asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}
	if !pass {
		insns = asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "own", Type: ebpf.XDP, Flags: unix.BPF_F_XDP_HAS_FRAGS, Instructions: insns, License: "GPL"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	err = p.Do(func() error {
		l, err := netlink.LinkByName(rig.PodDev)
		if err != nil {
			return err
		}
		at, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: l.Attrs().Index, Flags: link.XDPDriverMode})
		if err == nil {
			t.Cleanup(func() { at.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestBreakPodXDP attaches a program to a pod's own interface that drops everything: nothing
// of a fast flow passes it, whatever way the flow comes.
func TestBreakPodXDP(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"pod", "ext by xdp", "ext by tcx"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mode := "xdp"
			if name == "ext by tcx" {
				mode = "tcx"
			}
			r := newRig(t, driven(map[string]any{}, mode))
			a, b := addPod(t, r, "a", nil), addPod(t, r, "b", nil)
			from := a.Host
			if name != "pod" {
				from = r.Ext
			}
			at := netip.AddrPortFrom(b.Addr4, 7)
			echo(t, b.Host, "udp", at)
			conn := dial(t, from, "udp", at)
			warm(t, r, conn)
			podXDP(t, b, false)
			t.Log(node(t, r, "ethtool -k "+b.HostDev+" | grep -e segmentation"))
			// One more interval than a flow may outlive a change by.
			time.Sleep(1200 * time.Millisecond)
			passed := 0
			for range 20 {
				if _, err := rig.RoundTrip(conn, []byte("0123456789abcdef"), 30*time.Millisecond); err == nil {
					passed++
				}
			}
			if passed > 0 {
				t.Errorf("%d of 20 packets passed the pod's own xdp program", passed)
			}
			cold := dial(t, from, "udp", at)
			if _, err := rig.RoundTrip(cold, []byte("0123456789abcdef"), 300*time.Millisecond); err == nil {
				t.Error("the program does not drop")
			}
		})
	}
}

// TestBreakLargeNested forwards inside the receiving pod to a namespace of its own, whose
// interface is an ordinary one.
func TestBreakLargeNested(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	a, b := addPod(t, r, "a", nil), addPod(t, r, "b", nil)
	inner, err := rig.NewHost("inner", false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(inner.Close)
	on(t, b.Host, "ip link add in0 type veth peer name in1")
	moveLink(t, b.Host, "in1", inner)
	on(t, b.Host, "ip addr add 172.31.0.1/24 dev in0; ip link set in0 up; sysctl -qw net.ipv4.ip_forward=1; nft 'table ip n { chain p { type nat hook prerouting priority dstnat; tcp dport { 9000, 9001 } dnat to 172.31.0.2; }; }'")
	on(t, inner, "ip addr add 172.31.0.2/24 dev in1; ip link set in1 up; ip route add default via 172.31.0.1")
	for _, mtu := range []int{1500, 65535} {
		on(t, b.Host, fmt.Sprintf("ip link set in0 mtu %d", mtu))
		on(t, inner, fmt.Sprintf("ip link set in1 mtu %d", mtu))
		to := netip.MustParseAddrPort("172.31.0.2:9000")
		p := tcpConnect(t, crossing{"", a.Host, inner, netip.AddrPortFrom(b.Addr4, 9000), to})
		for _, what := range []string{"cold", "warm"} {
			from := time.Now()
			if err := stream(p.client, p.server, 32<<20, rand.NewChaCha8([32]byte{1})); err != nil {
				t.Errorf("mtu %d, %s: %v", mtu, what, err)
			}
			t.Logf("mtu %d, %s: %.0f MB/s", mtu, what, 32/time.Since(from).Seconds())
		}
		p.client.Close()
		p.server.Close()
	}
}
