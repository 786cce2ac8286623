// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// lane is a way through the node between two hosts whose packets a test writes itself.
type lane struct {
	name     string
	from, to *tap
	// there and back are the MAC addresses that packets are sent to at the ends.
	there, back net.HardwareAddr
	src, dst    netip.Addr
	seq         uint16 // of the next fence
}

// hostMAC is the MAC address of an interface.
func hostMAC(t *testing.T, h *rig.Host, dev string) net.HardwareAddr {
	t.Helper()
	mac, err := net.ParseMAC(strings.TrimSpace(on(t, h, "cat /sys/class/net/"+dev+"/address")))
	if err != nil {
		t.Fatal(err)
	}
	return mac
}

// podLanes are the three ways of the design: to a pod, from a pod, between pods.
func podLanes(t *testing.T, r *rig.Rig, a, b *rig.Pod, family int) []*lane {
	t.Helper()
	addrA, _ := a.Addr(family)
	addrB, _ := b.Addr(family)
	up := hostMAC(t, r.Node, rig.Uplink)
	gwA, gwB := hostMAC(t, r.Node, a.HostDev), hostMAC(t, r.Node, b.HostDev)
	ext := extAddr(family)
	tapExt, tapA, tapB := newTap(t, r.Ext, rig.ExtDev), newTap(t, a.Host, rig.PodDev), newTap(t, b.Host, rig.PodDev)
	return []*lane{
		{name: "ext to pod", from: tapExt, to: tapA, there: up, back: gwA, src: ext, dst: addrA},
		{name: "pod to ext", from: tapA, to: tapExt, there: gwA, back: up, src: addrA, dst: ext},
		{name: "pod to pod", from: tapA, to: tapB, there: gwA, back: gwB, src: addrA, dst: addrB},
	}
}

// fence sends a ping behind what was sent before and returns what arrived at both ends
// until its answer was back: the ways are queues, so nothing can come later.
func (l *lane) fence(t *testing.T, keep func([]byte) bool) (atTo, atFrom [][]byte) {
	t.Helper()
	l.seq++
	l.from.send(l.there, echoRequest(l.src, l.dst, 77, l.seq).bytes())
	seq := l.seq
	atTo, err := l.to.until(3*time.Second, keep, func(ip []byte) bool { return isEcho(ip, false, seq) })
	if err != nil {
		t.Fatalf("%s: %v", l.name, err)
	}
	atFrom, err = l.from.until(3*time.Second, keep, func(ip []byte) bool { return isEcho(ip, true, seq) })
	if err != nil {
		t.Fatalf("%s, answers: %v", l.name, err)
	}
	return atTo, atFrom
}

// ready waits until both ends know their neighbours.
func (l *lane) ready(t *testing.T) {
	t.Helper()
	eventually(t, 5*time.Second, l.name+": a ping is answered", func() bool {
		l.seq++
		seq := l.seq
		l.from.drain()
		l.from.send(l.there, echoRequest(l.src, l.dst, 77, seq).bytes())
		_, err := l.from.until(200*time.Millisecond, func([]byte) bool { return false },
			func(ip []byte) bool { return isEcho(ip, true, seq) })
		return err == nil
	})
	l.to.drain()
}

// portsAt reads addresses and ports of a packet without options or extensions.
func portsAt(ip []byte) (proto uint8, src, dst netip.AddrPort, ok bool) {
	if len(ip) < 24 {
		return 0, src, dst, false
	}
	l4, s, d := 20, ip[12:16], ip[16:20]
	proto = ip[9]
	if ip[0]>>4 == 6 {
		if len(ip) < 44 {
			return 0, src, dst, false
		}
		l4, s, d, proto = 40, ip[8:24], ip[24:40], ip[6]
	}
	sa, _ := netip.AddrFromSlice(s)
	da, _ := netip.AddrFromSlice(d)
	return proto, netip.AddrPortFrom(sa, binary.BigEndian.Uint16(ip[l4:])),
		netip.AddrPortFrom(da, binary.BigEndian.Uint16(ip[l4+2:])), true
}

// talk is a scripted flow on a lane.
type talk struct {
	*lane
	// next is a packet that may follow, from its source.
	next rawPacket
	// answer is one that may follow from the other end, addressed as it sees the flow.
	answer rawPacket
	// seenAnswer is an answer as it arrives at the source.
	seenAnswer []byte
}

// start makes a flow and sends packets both ways until it has been repeated by the fast
// path; d is nil where there is none. Whatever the number of packets, the state of the
// flow is the same in the end: they are all the same segment.
func (l *lane) start(t *testing.T, d *datapath.Datapath, proto uint8, sport uint16) *talk {
	t.Helper()
	k := &talk{lane: l}
	src, dst := netip.AddrPortFrom(l.src, sport), netip.AddrPortFrom(l.dst, 21000)
	k.next = rawPacket{src: src, dst: dst, proto: proto, flags: ackFlag | pshFlag, seq: 1001, ack: 5001, payload: make([]byte, 100)}
	first := k.next
	if proto == protoTCP {
		first.flags, first.seq, first.ack, first.payload = synFlag, 1000, 0, nil
	}
	seen := k.pass(t, l.from, l.there, l.to, first.bytes(), dst.Port())
	_, as, _, _ := portsAt(seen)
	k.answer = rawPacket{src: dst, dst: as, proto: proto, flags: ackFlag | pshFlag, seq: 5001, ack: 1101, payload: make([]byte, 100)}
	if proto == protoTCP {
		synAck := k.answer
		synAck.flags, synAck.seq, synAck.ack, synAck.payload = synFlag|ackFlag, 5000, 1001, nil
		k.pass(t, l.to, l.back, l.from, synAck.bytes(), sport)
	}
	for n := 0; ; n++ {
		k.pass(t, l.from, l.there, l.to, k.next.bytes(), dst.Port())
		k.seenAnswer = k.pass(t, l.to, l.back, l.from, k.answer.bytes(), sport)
		if n < 3 {
			continue
		}
		if d == nil {
			break
		}
		f, ok := flow(t, d, proto, src, dst)
		if ok && f.Packets > 0 {
			break
		}
		if n == 50 {
			t.Fatalf("%s: the flow is not on the fast path: %+v\n%v", l.name, f, counters(t, d))
		}
	}
	k.next.seq, k.next.ack = 1101, 5101
	return k
}

// pass sends a packet and waits until it comes out at the other end.
func (l *lane) pass(t *testing.T, in *tap, mac net.HardwareAddr, out *tap, ip []byte, dport uint16) []byte {
	t.Helper()
	proto, _, _, _ := portsAt(ip)
	var got []byte
	in.send(mac, ip)
	_, err := out.until(3*time.Second, func([]byte) bool { return false }, func(ip []byte) bool {
		pr, _, dst, ok := portsAt(ip)
		if ok && pr == proto && dst.Port() == dport {
			got = append(got, ip...)
			return true
		}
		return false
	})
	if err != nil {
		t.Fatalf("%s: a packet to port %d: %v", l.name, dport, err)
	}
	return got
}

// normal takes out of a packet what differs from run to run by the kernel's choice.
func normal(ip []byte) string {
	switch {
	case ip[0]>>4 == 4 && ip[9] == 1:
		// The id of an ICMP message, and with it the header's checksum.
		copy(ip[4:6], []byte{0, 0})
		copy(ip[10:12], []byte{0, 0})
	case ip[0]>>4 == 6:
		// The flow label, and the id of fragments.
		ip[1] &= 0xf0
		ip[2], ip[3] = 0, 0
		if ip[6] == 44 {
			copy(ip[44:48], []byte{0, 0, 0, 0})
		}
	}
	return fmt.Sprintf("%x", ip)
}
