// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// slowCase is a kind of packet that the kernel has to see, on a warm flow.
type slowCase struct {
	name  string
	proto uint8
	// family that the case is for; 0 means both.
	family int
	// counters, one of which counts the packets. XDP and tcx may differ.
	counters []string
	// mac is where to send to; nil means the gateway.
	mac net.HardwareAddr
	// packets of the case.
	packets func(k *talk) [][]byte
	// arrives says that the other end has to get something.
	arrives bool
}

// tcpFlags is one segment with other flags.
func tcpFlags(flags uint8) func(*talk) [][]byte {
	return func(k *talk) [][]byte {
		p := k.next
		p.flags, p.payload = flags, nil
		return [][]byte{p.bytes()}
	}
}

// with is the flow's next packet with a change.
func with(change func(*rawPacket)) func(*talk) [][]byte {
	return func(k *talk) [][]byte {
		p := k.next
		change(&p)
		return [][]byte{p.bytes()}
	}
}

// extHeader is the flow's next packet with an IPv6 extension header.
func extHeader(kind uint8, header ...byte) func(*talk) [][]byte {
	return with(func(p *rawPacket) {
		p.extType, p.ext = kind, append([]byte{protoUDP}, header...)
	})
}

// fragmented is a datagram of 1200 bytes in pieces of 400, perhaps from its end.
func fragmented(backwards bool) func(*talk) [][]byte {
	return func(k *talk) [][]byte {
		p := k.next
		p.payload = bytes.Repeat([]byte("fragment"), 150)
		all := p.fragments(400)
		if backwards {
			slices.Reverse(all)
		}
		return all
	}
}

// unreachable complains about an answer of the flow.
func unreachable(k *talk) [][]byte {
	kind, code := uint8(3), uint8(3)
	if k.src.Is6() {
		kind, code = 1, 4
	}
	return [][]byte{icmp(k.src, k.dst, kind, code, 0, k.seenAnswer[:min(len(k.seenAnswer), 100)]).bytes()}
}

func multicast(p *rawPacket) {
	addr := netip.MustParseAddr("224.0.0.251")
	if p.src.Addr().Is6() {
		addr = netip.MustParseAddr("ff02::fb")
	}
	p.dst = netip.AddrPortFrom(addr, p.dst.Port())
}

func slowCases() []slowCase {
	flags, ttl, frag := []string{"pass_tcp_flags"}, []string{"pass_ttl"}, []string{"pass_fragment"}
	opts, long, group := []string{"pass_options"}, []string{"pass_too_long"}, []string{"pass_not_for_us", "pass_no_flow"}
	ttlOne := with(func(p *rawPacket) { p.ttl = 1 })
	longer := with(func(p *rawPacket) { p.payload = make([]byte, 900) })
	bcast := net.HardwareAddr{255, 255, 255, 255, 255, 255}
	v4opts := func(o ...byte) func(*talk) [][]byte { return with(func(p *rawPacket) { p.options = o }) }
	plain := with(func(*rawPacket) {})
	return []slowCase{
		{"syn", protoTCP, 0, flags, nil, tcpFlags(synFlag), true},
		{"syn ack", protoTCP, 0, flags, nil, tcpFlags(synFlag | ackFlag), true},
		{"fin", protoTCP, 0, flags, nil, tcpFlags(finFlag | ackFlag), true},
		{"rst", protoTCP, 0, flags, nil, tcpFlags(rstFlag), true},
		{"rst ack", protoTCP, 0, flags, nil, tcpFlags(rstFlag | ackFlag), true},
		{"no ack", protoTCP, 0, flags, nil, tcpFlags(pshFlag), true},
		{"tcp ttl 1", protoTCP, 0, ttl, nil, ttlOne, false}, // B082
		{"tcp longer", protoTCP, 0, long, nil, longer, true},
		{"udp ttl 1", protoUDP, 0, ttl, nil, ttlOne, false}, // B082
		{"udp longer", protoUDP, 0, long, nil, longer, true},
		{"udp longer and df", protoUDP, 4, long, nil, with(func(p *rawPacket) { p.df, p.payload = true, make([]byte, 1400) }), true},
		{"fragments", protoUDP, 0, frag, nil, fragmented(false), true},
		{"fragments, last first", protoUDP, 0, frag, nil, fragmented(true), true}, // B054
		{"fragment alone", protoUDP, 0, frag, nil, func(k *talk) [][]byte { return fragmented(false)(k)[1:2] }, false},
		{"options", protoUDP, 4, opts, nil, v4opts(1, 1, 1, 0), true},
		{"record route", protoUDP, 4, opts, nil, v4opts(7, 7, 4, 0, 0, 0, 0, 0), true},
		// B057
		{"hop by hop", protoUDP, 6, opts, nil, extHeader(0, 0, 1, 4, 0, 0, 0, 0), true},
		{"destination options", protoUDP, 6, opts, nil, extHeader(60, 0, 1, 4, 0, 0, 0, 0), true},
		{"routing header", protoUDP, 6, opts, nil, extHeader(43, 0, 4, 0, 0, 0, 0, 0), true},
		{"authentication header", protoUDP, 6, opts, nil, extHeader(51, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12), true},
		{"esp", protoUDP, 6, opts, nil, extHeader(50, 0, 0, 1, 0, 0, 0, 1), true},
		{"atomic fragment", protoUDP, 6, frag, nil, extHeader(44, 0, 0, 0, 0, 0, 0, 9), true},
		{"icmp error", protoUDP, 0, []string{"pass_proto"}, nil, unreachable, true},
		// B079
		{"multicast", protoUDP, 4, group, net.HardwareAddr{1, 0, 0x5e, 0, 0, 251}, with(multicast), false},
		{"multicast", protoUDP, 6, group, net.HardwareAddr{0x33, 0x33, 0, 0, 0, 0xfb}, with(multicast), false},
		{"broadcast frame", protoUDP, 0, group[:1], bcast, plain, false},
		{
			"limited broadcast", protoUDP, 4, group, bcast,
			with(func(p *rawPacket) { p.dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), 67) }), false,
		},
		{"someone else's frame", protoUDP, 0, group[:1], net.HardwareAddr{2, 9, 9, 9, 9, 9}, plain, false}, // B158
	}
}

// outcome is what arrives at both ends because of a case's packets.
type outcome struct{ to, from []string }

func (o outcome) String() string {
	return fmt.Sprintf("at the receiver:\n  %s\nat the sender:\n  %s", strings.Join(o.to, "\n  "), strings.Join(o.from, "\n  "))
}

// play warms a flow, sends a case's packets and says what became of them.
func (c slowCase) play(t *testing.T, l *lane, d *datapath.Datapath, sport uint16) outcome {
	t.Helper()
	k := l.start(t, d, c.proto, sport)
	var before datapath.Counters
	if d != nil {
		before = counters(t, d)
	}
	packets := c.packets(k)
	mac := c.mac
	if mac == nil {
		mac = l.there
	}
	for _, p := range packets {
		l.from.send(mac, p)
	}
	atTo, atFrom := l.fence(t, func(ip []byte) bool { return !isNeighbour(ip) })
	if d != nil {
		c.checkCounters(t, before, counters(t, d), len(packets))
	}
	if c.arrives && len(atTo) == 0 {
		t.Errorf("nothing arrived")
	}
	if c.counters[0] == "pass_ttl" && len(atFrom) == 0 {
		t.Errorf("the node does not say that time was exceeded")
	}
	var o outcome
	for _, ip := range atTo {
		o.to = append(o.to, normal(ip))
	}
	for _, ip := range atFrom {
		o.from = append(o.from, normal(ip))
	}
	return o
}

func (c slowCase) checkCounters(t *testing.T, before, after datapath.Counters, packets int) {
	t.Helper()
	if n := after.Fast() - before.Fast(); n != 0 {
		t.Errorf("%d packets took the fast path", n)
	}
	var got uint64
	for _, name := range c.counters {
		got += after[name] - before[name]
	}
	// ICMP of others, the fence among them, counts as pass_proto as well, and the hosts'
	// own multicast listener reports, which have a hop-by-hop header, as pass_options.
	noisy := c.counters[0] == "pass_proto" || c.counters[0] == "pass_options"
	if got < uint64(packets) || got > uint64(packets) && !noisy {
		t.Errorf("%d packets count as %v, want %d: before %v, after %v", got, c.counters, packets, before, after)
	}
}

// isNeighbour recognises ARP's successor and other housekeeping on the link.
func isNeighbour(ip []byte) bool {
	if ip[0]>>4 == 4 {
		return ip[9] == 2 // IGMP
	}
	if ip[0]>>4 != 6 {
		return true
	}
	// MLD reports carry a hop-by-hop header.
	if ip[6] == 0 && len(ip) > 48 && ip[40] == 58 {
		return true
	}
	return ip[6] == 58 && len(ip) > 40 && ip[40] >= 130 && ip[40] <= 143
}

// quietRig is a rig with two pods whose ends are silent, and a long interval, so that
// flows stay warm on a busy machine.
func quietRig(t *testing.T, mode, uplink string) (*rig.Rig, *rig.Pod, *rig.Pod) {
	t.Helper()
	r := newRig(t, map[string]any{
		"fastPath": map[string]any{"mode": mode, "revalidate": "20s"},
		"uplinks":  []any{map[string]any{"name": rig.Uplink, "mode": uplink}},
	})
	a, b := addPod(t, r, "a", nil), addPod(t, r, "b", nil)
	for _, h := range []*rig.Host{r.Ext, a.Host, b.Host} {
		mute(t, h)
	}
	for _, h := range []*rig.Host{r.Ext, r.Node, a.Host, b.Host} {
		on(t, h, "sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0")
	}
	return r, a, b
}

// slowRig is a rig in one mode, with what the runs in other modes are compared with.
type slowRig struct {
	*rig.Rig
	a, b   *rig.Pod
	uplink string // how the uplink is driven: off, xdp or tcx
	d      *datapath.Datapath
	// packets and hops hold what arrives with the fast path off.
	packets map[string]outcome
	hops    map[string]string
}

// TestSlowPath sends what the fast path must not take on warm flows, with the fast path
// off, with an uplink by XDP and with one by tcx. What arrives must be the same.
func TestSlowPath(t *testing.T) {
	t.Parallel()
	packets, hops := map[string]outcome{}, map[string]string{}
	for _, uplink := range []string{"off", "xdp", "tcx"} {
		t.Run(uplink, func(t *testing.T) {
			mode := map[string]string{"off": "off", "xdp": "auto", "tcx": "tcx"}[uplink]
			r, a, b := quietRig(t, mode, uplink)
			s := &slowRig{r, a, b, uplink, nil, packets, hops}
			if uplink != "off" {
				s.d = open(t, r)
			}
			t.Run("SpecialPackets", s.testSpecialPackets)
			t.Run("FragmentsOutOfOrder", s.testFragmentsOutOfOrder)
			t.Run("LargePings", s.testLargePings)
			t.Run("NodeInTraceroute", s.testNodeInTraceroute)
			t.Run("TTLAndTOS", s.testTTLAndTOS)
			t.Run("Multicast", s.testMulticast)
		})
	}
}

// testSpecialPackets sends packets that the fast path must not take on warm flows: each
// is counted for what it is, and what arrives, byte for byte, is what arrives with the
// fast path off. B054, B057, B079, B082.
func (s *slowRig) testSpecialPackets(t *testing.T) {
	for _, fam := range families {
		for _, l := range podLanes(t, s.Rig, s.a, s.b, fam) {
			if s.uplink == "tcx" && l.name != "ext to pod" {
				continue // the same hooks as with an uplink by xdp
			}
			l.ready(t)
			playAll(t, l, s.d, fam, s.packets)
		}
	}
}

// playAll runs the cases on a lane; without a datapath their outcomes become what others
// are compared with.
func playAll(t *testing.T, l *lane, d *datapath.Datapath, fam int, want map[string]outcome) {
	for i, c := range slowCases() {
		if c.family != 0 && c.family != fam {
			continue
		}
		t.Run(fmt.Sprintf("%s v%d %s", l.name, fam, c.name), func(t *testing.T) {
			key := fmt.Sprint(l.name, fam, i)
			l.from.drain()
			l.to.drain()
			got := c.play(t, l, d, uint16(20000+10*i))
			if d == nil {
				want[key] = got
			} else if w, ok := want[key]; ok && got.String() != w.String() {
				t.Errorf("what arrives differs from mode off.\nwith the fast path, %v\nmode off, %v", got, w)
			}
		})
	}
}
