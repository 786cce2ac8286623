// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// passCase is a packet that goes to the kernel as it is.
type passCase struct {
	name   string
	reason string
	apply  func(c *flowCase)
	// family, proto and hook to which the case is limited; 0 and "" mean all.
	family int
	proto  uint8
	hook   string
}

var passCases = []passCase{
	{name: "no flow", reason: "pass_no_flow", apply: func(c *flowCase) { c.p.from = addPort(c.p.from) }},
	{name: "another interface's flow", reason: "pass_no_flow", apply: func(c *flowCase) { c.e.iif = 99 }},
	{name: "expired", reason: "pass_expired", apply: func(c *flowCase) { c.e.left = -time.Second }},
	{name: "silent for long", reason: "pass_no_flow", apply: func(c *flowCase) { c.e.silent = true }},
	{name: "one byte too long", reason: "pass_too_long", apply: func(c *flowCase) { c.e.maxLen = c.p.ipLen() - 1 }},
	{name: "replaced while read", reason: "pass_race", apply: func(c *flowCase) { c.e.tag = 1 }},
	{name: "TTL 1", reason: "pass_ttl", apply: func(c *flowCase) { c.p.ttl = 1 }},
	{name: "TTL 0", reason: "pass_ttl", apply: func(c *flowCase) { c.p.ttl = 0 }},
	{name: "for another MAC address", reason: "pass_not_for_us", apply: func(c *flowCase) { c.p.dst[5]++ }},
	{name: "way out is gone", reason: "pass_device", hook: "xdp", apply: func(c *flowCase) { c.e.oif = 99 }},
	{name: "ARP", reason: "pass_not_ip", apply: func(c *flowCase) { c.p.etherType = unix.ETH_P_ARP }},
	{name: "VLAN tag in the frame", reason: "pass_vlan", hook: "xdp", apply: func(c *flowCase) { c.p.etherType = unix.ETH_P_8021Q }},
	{name: "ICMP", reason: "pass_proto", apply: func(c *flowCase) { c.p.proto = 1 }},
	{name: "SCTP", reason: "pass_proto", apply: func(c *flowCase) { c.p.proto = unix.IPPROTO_SCTP }},
	{name: "options", reason: "pass_options", family: 4, apply: func(c *flowCase) { c.p.options = []byte{1, 1, 1, 0} }},
	{name: "first fragment", reason: "pass_fragment", family: 4, apply: func(c *flowCase) { c.p.frag = 0x2000 }},
	{name: "last fragment", reason: "pass_fragment", family: 4, apply: func(c *flowCase) { c.p.frag = 0x0010 }},
	{name: "hop-by-hop options", reason: "pass_options", family: 6, apply: func(c *flowCase) { c.p.ext = []uint8{unix.IPPROTO_HOPOPTS} }},
	{name: "routing header", reason: "pass_options", family: 6, apply: func(c *flowCase) { c.p.ext = []uint8{unix.IPPROTO_ROUTING} }},
	{name: "destination options", reason: "pass_options", family: 6, apply: func(c *flowCase) { c.p.ext = []uint8{unix.IPPROTO_DSTOPTS} }},
	{name: "fragment header", reason: "pass_fragment", family: 6, apply: func(c *flowCase) { c.p.ext = []uint8{unix.IPPROTO_FRAGMENT} }},
	{name: "cut off in the payload", reason: "pass_short", apply: func(c *flowCase) { c.p.missing = 1 }},
	{name: "cut off in the ports", reason: "pass_short", apply: func(c *flowCase) { c.p.missing = len(c.p.segment()) - 3 }},
	{name: "data offset below 5", reason: "pass_short", proto: unix.IPPROTO_TCP, apply: func(c *flowCase) { c.p.tcpOffset = 4 }},
	{name: "data offset beyond the end", reason: "pass_short", proto: unix.IPPROTO_TCP, apply: func(c *flowCase) { c.p.tcpOffset = 15 }},
	{name: "SYN", reason: "pass_tcp_flags", proto: unix.IPPROTO_TCP, apply: func(c *flowCase) { c.p.tcpFlags = 0x02 }},
	{name: "SYN ACK", reason: "pass_tcp_flags", proto: unix.IPPROTO_TCP, apply: func(c *flowCase) { c.p.tcpFlags = 0x12 }},
	{name: "FIN ACK", reason: "pass_tcp_flags", proto: unix.IPPROTO_TCP, apply: func(c *flowCase) { c.p.tcpFlags = 0x11 }},
	{name: "RST", reason: "pass_tcp_flags", proto: unix.IPPROTO_TCP, apply: func(c *flowCase) { c.p.tcpFlags = 0x04 }},
	{name: "RST ACK", reason: "pass_tcp_flags", proto: unix.IPPROTO_TCP, apply: func(c *flowCase) { c.p.tcpFlags = 0x14 }},
	{name: "no flags", reason: "pass_tcp_flags", proto: unix.IPPROTO_TCP, apply: func(c *flowCase) { c.p.tcpFlags = 0 }},
}

// TestIngressPass gives packets to the programs that are the kernel's: they stay what
// they are, and the reason is counted.
func TestIngressPass(t *testing.T) {
	b := newBench(t)
	b.eachKind(t, func(t *testing.T, h *hook, family int, proto uint8) {
		for _, tc := range passCases {
			if (tc.family != 0 && tc.family != family) || (tc.proto != 0 && tc.proto != proto) || (tc.hook != "" && tc.hook != h.name) {
				continue
			}
			t.Run(tc.name, func(t *testing.T) {
				c := newFlowCase(h, family, proto)
				tc.apply(c)
				b.wantPass(t, h, c, tc.reason)
			})
		}
	})
}

// wantPass runs the case and checks that nothing but the reason's counter changes.
func (b *bench) wantPass(t *testing.T, h *hook, c *flowCase, reason string) {
	t.Helper()
	b.put(t, &c.e)
	before := b.counters(t)
	frame := c.p.build()
	got, out := b.run(t, h.prog, bytes.Clone(frame), c.gso)
	if got != h.pass {
		t.Errorf("verdict %d, want %d", int32(got), int32(h.pass))
	}
	if !bytes.Equal(out, frame) {
		t.Errorf("the packet was changed:\n%x\n%x", frame, out)
	}
	if moved := counted(before, b.counters(t)); !slices.Equal(moved, []string{reason}) {
		t.Errorf("counted as %v, want %v", moved, reason)
	}
	if n, _ := b.get(t, &c.e); n != 0 {
		t.Errorf("the flow counts %d packets", n)
	}
}

// TestIngressBlocked keeps packets from an interface that refuses frames, until the
// block has run out.
func TestIngressBlocked(t *testing.T) {
	b := newBench(t)
	t.Cleanup(func() { _ = b.settings(0) })
	b.eachKind(t, func(t *testing.T, h *hook, family int, proto uint8) {
		for _, step := range []struct {
			name string
			left time.Duration
			fast bool
		}{{"blocked", time.Minute, false}, {"run out", -time.Second, true}} {
			until := coarseNow() + uint64(step.left)
			if err := b.settings(until); err != nil {
				t.Fatal(err)
			}
			if err := b.objs.Blocked.Put(uint32(runXDPDev), until); err != nil {
				t.Fatal(err)
			}
			c := newFlowCase(h, family, proto)
			if step.fast {
				b.wantFast(t, h, c, h.fast, h.counter)
			} else {
				b.wantPass(t, h, c, "pass_device")
			}
		}
	})
}

// TestIngressPoll has the packets of one NAPI poll go one way.
func TestIngressPoll(t *testing.T) {
	b := newBench(t)
	const poll = 77
	perCPU := make([]uint64, ebpf.MustPossibleCPU())
	for i := range perCPU {
		perCPU[i] = poll
	}
	if err := b.objs.Polls.Put(uint32(0), perCPU); err != nil {
		t.Fatal(err)
	}
	b.eachKind(t, func(t *testing.T, h *hook, family int, proto uint8) {
		c := newFlowCase(h, family, proto)
		c.e.left = runInterval + 40*time.Millisecond // fresh, also when the test takes long
		c.e.slowPoll = poll
		b.wantPass(t, h, c, "pass_poll")
		c.e.slowPoll = poll - 1
		b.wantFast(t, h, c, h.fast, h.counter)
		c.e.left, c.e.fastPoll = -time.Second, poll
		b.wantPass(t, h, c, "pass_expired")
	})
}

// TestLearnNothing shows the egress program a packet that no armed interface has seen.
func TestLearnNothing(t *testing.T) {
	b := newBench(t)
	h := b.hooks()[1]
	h.prog = b.objs.Learn
	for _, family := range []int{4, 6} {
		c := newFlowCase(&h, family, unix.IPPROTO_UDP)
		b.wantPass(t, &h, c, "learn_no_note")
	}
}
