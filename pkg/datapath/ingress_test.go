// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// hook is a program that repeats flows, and how it says so.
type hook struct {
	name    string
	prog    *ebpf.Program
	iif     int
	mac     mac
	fast    uint32
	counter string
	pass    uint32
	// longest payload in bytes: a program run makes skbs of one page.
	longest int
}

func (b *bench) hooks() []hook {
	return []hook{
		{"xdp", b.objs.XDP, runXDPDev, mac{2, 0, 0, 0, 0, 7}, xdpRedirect, "fast_xdp", xdpPass, 8900},
		{"tcx", b.objs.TC, b.port, b.portMAC, tcRedirect, "fast_tcx", tcNext, 3000},
	}
}

var runAddrs = map[int][4]netip.Addr{
	4: {netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("10.88.0.1"), netip.MustParseAddr("10.88.0.2")},
	6: {netip.MustParseAddr("2001:db8:1::2"), netip.MustParseAddr("2001:db8:1::1"), netip.MustParseAddr("2001:db8:88::1"), netip.MustParseAddr("2001:db8:88::2")},
}

const allFlags = flagNAT | flagRouted

// flowCase is a packet and the entry of its flow.
type flowCase struct {
	p   packet
	e   entry
	gso int
}

// newFlowCase is a translated, routed flow and a packet of it that may be fast.
func newFlowCase(h *hook, family int, proto uint8) *flowCase {
	a := runAddrs[family]
	c := &flowCase{}
	c.p = packet{
		dst: h.mac, src: mac{2, 0, 0, 0, 9, 9}, from: netip.AddrPortFrom(a[0], 40000), to: netip.AddrPortFrom(a[1], 8080),
		proto: proto, tos: 0xb9, ttl: 64, payload: []byte("what the pod is to get"), tcpFlags: 0x18,
	}
	if family == 4 {
		c.p.id, c.p.frag = 0xbeef, 0x4000
	} else {
		c.p.label = 0xabcde
	}
	c.e = entry{
		iif: h.iif, oif: runXDPDev, proto: proto, from: c.p.from, to: c.p.to,
		newFrom: netip.AddrPortFrom(a[2], 50000), newTo: netip.AddrPortFrom(a[3], 80),
		dst: mac{2, 0, 0, 0, 1, 1}, src: mac{2, 0, 0, 0, 1, 2}, in: h.mac,
		flags: allFlags, maxLen: 1500, left: runInterval / 2,
	}
	return c
}

// expected is the packet as the entry says that it leaves.
func (c *flowCase) expected() *packet {
	q := c.p
	q.dst, q.src, q.pad = c.e.dst, c.e.src, nil
	if c.e.flags&flagNAT != 0 {
		q.from, q.to = c.e.newFrom, c.e.newTo
	}
	if c.e.flags&flagRouted != 0 {
		q.ttl--
	}
	return &q
}

// eachKind calls f for every hook, family and protocol.
func (b *bench) eachKind(t *testing.T, f func(t *testing.T, h *hook, family int, proto uint8)) {
	for _, h := range b.hooks() {
		for _, family := range []int{4, 6} {
			for name, proto := range map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP} {
				t.Run(fmt.Sprintf("%s v%d %s", h.name, family, name), func(t *testing.T) { f(t, &h, family, proto) })
			}
		}
	}
}

// aimAtNoSum gives the payload two bytes with which the checksum comes to zero once the
// packet is translated.
func (c *flowCase) aimAtNoSum() {
	c.p.payload = append(c.p.payload, 0, 0)
	q := *c.expected()
	seg := q.segment()
	check := 6
	if c.p.proto == unix.IPPROTO_TCP {
		check = 16
	}
	copy(c.p.payload[len(c.p.payload)-2:], seg[check:check+2])
}

// fastCases are packets that take the fast path.
var fastCases = []struct {
	name  string
	apply func(c *flowCase, h *hook)
}{
	{"translated", func(*flowCase, *hook) {}},
	{"plain", func(c *flowCase, _ *hook) { c.e.flags = flagRouted; c.e.newFrom, c.e.newTo = c.e.from, c.e.to }},
	{"bridged", func(c *flowCase, _ *hook) { c.e.flags = 0; c.e.newFrom, c.e.newTo = c.e.from, c.e.to }},
	{"source only", func(c *flowCase, _ *hook) { c.e.newTo = c.e.to }},
	{"destination only", func(c *flowCase, _ *hook) { c.e.newFrom = c.e.from }},
	{"odd length", func(c *flowCase, _ *hook) { c.p.payload = []byte("odd") }},
	{"no payload", func(c *flowCase, _ *hook) { c.p.payload = nil }},
	{"padded", func(c *flowCase, _ *hook) { c.p.payload = []byte{1}; c.p.pad = []byte("0123456789abcdef") }},
	{"lowest TTL", func(c *flowCase, _ *hook) { c.p.ttl = 2 }},
	{"highest TTL", func(c *flowCase, _ *hook) { c.p.ttl = 255 }},
	{"longest", func(c *flowCase, _ *hook) { c.e.maxLen = c.p.ipLen() }},
	{"checksum zero after translation", func(c *flowCase, _ *hook) { c.aimAtNoSum() }},
	{"jumbo", func(c *flowCase, h *hook) { c.p.payload = make([]byte, h.longest); c.e.maxLen = 9000 }},
	{"to a pod", func(c *flowCase, _ *hook) { c.e.flags |= flagPeer }},
	{"just before its deadline", func(c *flowCase, _ *hook) { c.e.left = time.Second }},
}

// TestIngressFast gives packets of learned flows to the programs and compares what comes
// out field by field with what the entry says.
func TestIngressFast(t *testing.T) {
	b := newBench(t)
	b.eachKind(t, func(t *testing.T, h *hook, family int, proto uint8) {
		for _, tc := range fastCases {
			t.Run(tc.name, func(t *testing.T) {
				c := newFlowCase(h, family, proto)
				tc.apply(c, h)
				b.wantFast(t, h, c, h.fast, h.counter)
			})
		}
	})
}

// wantFast runs the case and checks the verdict, the frame and the counters.
func (b *bench) wantFast(t *testing.T, h *hook, c *flowCase, verdict uint32, counter string) {
	t.Helper()
	b.put(t, &c.e)
	before := b.counters(t)
	got, out := b.run(t, h.prog, c.p.build(), c.gso)
	if got != verdict {
		t.Errorf("verdict %d, want %d", int32(got), int32(verdict))
	}
	for _, d := range c.expected().differences(out) {
		t.Error(d)
	}
	if moved := counted(before, b.counters(t)); !slices.Equal(moved, []string{counter}) {
		t.Errorf("counted as %v, want %v", moved, counter)
	}
	segs := uint64(1)
	if c.gso > 0 {
		segs = uint64((len(c.p.build()) + c.gso - 1) / c.gso)
	}
	if n, bytes := b.get(t, &c.e); n != segs || bytes != uint64(c.p.ipLen()) {
		t.Errorf("the flow counts %d packets, %d bytes, want %d and %d", n, bytes, segs, c.p.ipLen())
	}
}

// TestIngressBounce has a flow leave by the interface that it came in on.
func TestIngressBounce(t *testing.T) {
	b := newBench(t)
	h := b.hooks()[0]
	for _, family := range []int{4, 6} {
		c := newFlowCase(&h, family, unix.IPPROTO_UDP)
		c.e.flags |= flagBounce
		b.wantFast(t, &h, c, xdpTX, "fast_xdp_tx")
	}
}

// TestIngressNoChecksum leaves out a UDP checksum, which stays left out.
func TestIngressNoChecksum(t *testing.T) {
	b := newBench(t)
	for _, h := range b.hooks() {
		for _, family := range []int{4, 6} {
			c := newFlowCase(&h, family, unix.IPPROTO_UDP)
			c.p.noSum = true
			b.wantFast(t, &h, c, h.fast, h.counter)
		}
	}
}

// TestIngressGSO judges an skb of many segments by the size of one. B048
func TestIngressGSO(t *testing.T) {
	b := newBench(t)
	h := b.hooks()[1]
	for _, family := range []int{4, 6} {
		c := newFlowCase(&h, family, unix.IPPROTO_TCP)
		c.p.payload = make([]byte, h.longest)
		c.gso = 1400
		b.wantFast(t, &h, c, h.fast, h.counter)
		c.e.maxLen = 1400
		b.wantPass(t, &h, c, "pass_too_long")
	}
}
