// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/test/rig"
)

// tuple names a packet's flow as the packet looks in one place.
type tuple struct {
	proto    uint8
	src, dst netip.AddrPort
}

func (k tuple) String() string { return fmt.Sprintf("%d %v > %v", k.proto, k.src, k.dst) }

// generator makes random packets of one flow, all of them such that the fast path may
// take them.
type generator struct {
	rnd      *rand.Rand
	dst, src []byte // MAC addresses
	in       tuple
	out      tuple // as it will leave, to aim at rare checksums
	mtu      int
	// seq keeps TCP segments apart, so that GRO has nothing to merge.
	seq uint32
}

const (
	ethLen   = 14
	shortest = 60 // an Ethernet frame without its checksum
	tcpPSH   = 0x08
	tcpACK   = 0x10
	tcpURG   = 0x20
)

// packet makes a frame of random size; half of the sizes are small or near the MTU.
func (g *generator) packet() []byte {
	least := g.headers()
	size := least + g.rnd.IntN(g.mtu-least+1)
	switch g.rnd.IntN(4) {
	case 0:
		size = least + g.rnd.IntN(20)
	case 1:
		size = g.mtu - g.rnd.IntN(4)
	}
	return g.packetOf(size)
}

func (g *generator) ipLen() int {
	if g.in.src.Addr().Is6() {
		return 40
	}
	return 20
}

// headers is the least size of a packet, with room for the TCP options.
func (g *generator) headers() int {
	if g.in.proto == unix.IPPROTO_UDP {
		return g.ipLen() + 8
	}
	return g.ipLen() + 20
}

// packetOf makes a frame with an IP packet of some size.
func (g *generator) packetOf(size int) []byte {
	frame := make([]byte, ethLen+size)
	copy(frame, g.dst)
	copy(frame[6:], g.src)
	l4 := frame[ethLen+g.ipLen():]
	g.fillRandom(l4)
	binary.BigEndian.PutUint16(l4, g.in.src.Port())
	binary.BigEndian.PutUint16(l4[2:], g.in.dst.Port())
	if g.in.proto == unix.IPPROTO_UDP {
		g.udp(l4)
	} else {
		g.tcp(l4)
	}
	if g.ipLen() == 20 {
		g.ip4(frame)
	} else {
		g.ip6(frame)
	}
	// Senders pad short frames, and not always with zeros.
	if short := shortest - len(frame); short > 0 && g.rnd.IntN(4) > 0 {
		pad := make([]byte, short)
		g.fillRandom(pad)
		frame = append(frame, pad...)
	}
	return frame
}

func (g *generator) fillRandom(b []byte) {
	for i := range b {
		b[i] = byte(g.rnd.Uint32())
	}
}

// udp fills in length and checksum. Some packets have none, some have one that is zero
// as it leaves and so becomes 0xffff.
func (g *generator) udp(l4 []byte) {
	binary.BigEndian.PutUint16(l4[4:], uint16(len(l4)))
	binary.BigEndian.PutUint16(l4[6:], 0)
	switch g.rnd.IntN(6) {
	case 0:
		if g.ipLen() == 20 {
			return
		}
	case 1:
		g.aimAtZero(l4, g.out)
	case 2:
		g.aimAtZero(l4, g.in)
	}
	sum := ^l4Sum(g.in, l4)
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(l4[6:], sum)
}

// aimAtZero sets two bytes of payload so that the checksum comes to zero when the
// segment has the given tuple.
func (g *generator) aimAtZero(l4 []byte, as tuple) {
	at := len(l4) - 2 - len(l4)%2
	if at < g.headers()-g.ipLen() {
		return
	}
	binary.BigEndian.PutUint16(l4[at:], 0)
	as4 := make([]byte, len(l4))
	copy(as4, l4)
	binary.BigEndian.PutUint16(as4, as.src.Port())
	binary.BigEndian.PutUint16(as4[2:], as.dst.Port())
	binary.BigEndian.PutUint16(l4[at:], ^l4Sum(as, as4))
}

// tcp fills in a segment of an established connection, with options where there is
// room for them.
func (g *generator) tcp(l4 []byte) {
	binary.BigEndian.PutUint32(l4[4:], g.seq+uint32(g.rnd.IntN(1000)))
	words := 5 + g.rnd.IntN(min(10, (len(l4)-20)/4)+1)
	l4[12] = byte(words) << 4
	l4[13] = tcpACK
	for flag, odds := range map[byte]int{tcpPSH: 2, tcpURG: 8} {
		if g.rnd.IntN(odds) == 0 {
			l4[13] |= flag
		}
	}
	fillOptions(l4[20:words*4], g.rnd)
	binary.BigEndian.PutUint16(l4[16:], 0)
	switch g.rnd.IntN(6) {
	case 0:
		if len(l4) >= words*4+3 {
			g.aimAtZero(l4, g.out)
		}
	case 1:
		if len(l4) >= words*4+3 {
			g.aimAtZero(l4, g.in)
		}
	}
	binary.BigEndian.PutUint16(l4[16:], ^l4Sum(g.in, l4))
}

// fillOptions writes well-formed options: no-operation, timestamps, and one of a kind
// that nobody knows.
func fillOptions(b []byte, rnd *rand.Rand) {
	for len(b) > 0 {
		switch {
		case len(b) >= 10 && rnd.IntN(2) == 0:
			b[0], b[1] = 8, 10
			b = b[10:]
		case len(b) >= 4 && rnd.IntN(2) == 0:
			b[0], b[1] = 253, 4
			b = b[4:]
		default:
			b[0] = 1
			b = b[1:]
		}
	}
}

// ip4 fills in the IPv4 header. Some identifiers are chosen so that the header's
// checksum is one at which the arithmetic of the TTL wraps.
func (g *generator) ip4(frame []byte) {
	binary.BigEndian.PutUint16(frame[12:], unix.ETH_P_IP)
	ip := frame[ethLen:]
	ip[0], ip[1] = 0x45, byte(g.rnd.Uint32())
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	if g.rnd.IntN(2) == 0 {
		ip[6] = 0x40 // do not fragment
	}
	ip[8], ip[9] = g.ttl(), g.in.proto
	copy(ip[12:], g.in.src.Addr().AsSlice())
	copy(ip[16:], g.in.dst.Addr().AsSlice())
	id := uint16(g.rnd.Uint32())
	rare := []uint16{0, 0xfeff, 0xfefe, 0xff00, 0xfffe, 0x00ff}
	if i := g.rnd.IntN(2 * len(rare)); i < len(rare) {
		// The sum over everything, identifier included, is to be the inverse.
		id = rig.Sum(uint32(^rare[i]), []byte{byte(^rig.Sum(0, ip[:20]) >> 8), byte(^rig.Sum(0, ip[:20]))})
	}
	binary.BigEndian.PutUint16(ip[4:], id)
	binary.BigEndian.PutUint16(ip[10:], ^rig.Sum(0, ip[:20]))
}

func (g *generator) ip6(frame []byte) {
	binary.BigEndian.PutUint16(frame[12:], unix.ETH_P_IPV6)
	ip := frame[ethLen:]
	binary.BigEndian.PutUint32(ip, 6<<28|g.rnd.Uint32()>>4)
	binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-40))
	ip[6], ip[7] = g.in.proto, g.ttl()
	copy(ip[8:], g.in.src.Addr().AsSlice())
	copy(ip[24:], g.in.dst.Addr().AsSlice())
}

// ttl is one that lives through the node.
func (g *generator) ttl() byte { return byte(2 + g.rnd.IntN(254)) }

// l4Sum is the sum that a TCP or UDP checksum is the inverse of.
func l4Sum(as tuple, l4 []byte) uint16 {
	return rig.Sum(uint32(int(as.proto)+len(l4)), as.src.Addr().AsSlice(), as.dst.Addr().AsSlice(), l4)
}

// tupleOf reads the tuple of a frame; false when it is neither TCP nor UDP.
func tupleOf(frame []byte) (tuple, bool) {
	if len(frame) < ethLen+20 {
		return tuple{}, false
	}
	ip := frame[ethLen:]
	var k tuple
	var src, dst, l4 []byte
	switch binary.BigEndian.Uint16(frame[12:]) {
	case unix.ETH_P_IP:
		k.proto, src, dst, l4 = ip[9], ip[12:16], ip[16:20], ip[20:]
	case unix.ETH_P_IPV6:
		if len(ip) < 40 {
			return tuple{}, false
		}
		k.proto, src, dst, l4 = ip[6], ip[8:24], ip[24:40], ip[40:]
	}
	if (k.proto != unix.IPPROTO_TCP && k.proto != unix.IPPROTO_UDP) || len(l4) < 4 {
		return tuple{}, false
	}
	from, _ := netip.AddrFromSlice(src)
	to, _ := netip.AddrFromSlice(dst)
	k.src = netip.AddrPortFrom(from, binary.BigEndian.Uint16(l4))
	k.dst = netip.AddrPortFrom(to, binary.BigEndian.Uint16(l4[2:]))
	return k, true
}
