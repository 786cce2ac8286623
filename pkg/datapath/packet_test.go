// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/test/rig"
)

type mac [6]byte

// packet is a frame by its fields.
type packet struct {
	dst, src  mac
	etherType uint16 // 0: that of the addresses' family
	from, to  netip.AddrPort
	proto     uint8
	tos, ttl  uint8
	id        uint16
	frag      uint16 // IPv4 flags and offset
	label     uint32 // IPv6 flow label
	// ext, when there is one, is the number of an IPv6 extension header of eight
	// bytes in front of the segment.
	ext []uint8
	// options of IPv4.
	options  []byte
	tcpFlags uint8
	// tcpOffset in words; 0 means 5.
	tcpOffset uint8
	payload   []byte
	// noSum leaves the UDP checksum out.
	noSum bool
	// pad follows the IP packet.
	pad []byte
	// missing bytes are cut off the end of the frame, though the headers count
	// them.
	missing int
}

func (p *packet) is6() bool { return p.from.Addr().Is6() }

// build makes the frame, with all checksums reckoned from nothing.
func (p *packet) build() []byte {
	seg := p.segment()
	var b []byte
	b = append(append(b, p.dst[:]...), p.src[:]...)
	switch {
	case p.etherType != 0:
		b = binary.BigEndian.AppendUint16(b, p.etherType)
	case p.is6():
		b = binary.BigEndian.AppendUint16(b, unix.ETH_P_IPV6)
	default:
		b = binary.BigEndian.AppendUint16(b, unix.ETH_P_IP)
	}
	if p.is6() {
		b = append(b, p.ip6(len(seg))...)
	} else {
		b = append(b, p.ip4(len(seg))...)
	}
	b = append(append(b, seg...), p.pad...)
	return b[:len(b)-p.missing]
}

func (p *packet) ip4(segment int) []byte {
	h := make([]byte, 20, 60)
	h = append(h, p.options...)
	h[0] = 0x40 | byte(len(h)/4)
	h[1], h[8], h[9] = p.tos, p.ttl, p.proto
	binary.BigEndian.PutUint16(h[2:], uint16(len(h)+segment))
	binary.BigEndian.PutUint16(h[4:], p.id)
	binary.BigEndian.PutUint16(h[6:], p.frag)
	copy(h[12:], p.from.Addr().AsSlice())
	copy(h[16:], p.to.Addr().AsSlice())
	binary.BigEndian.PutUint16(h[10:], ^rig.Sum(0, h))
	return h
}

func (p *packet) ip6(segment int) []byte {
	h := make([]byte, 40, 48)
	binary.BigEndian.PutUint32(h, 6<<28|uint32(p.tos)<<20|p.label)
	h[6], h[7] = p.proto, p.ttl
	copy(h[8:], p.from.Addr().AsSlice())
	copy(h[24:], p.to.Addr().AsSlice())
	if p.ext != nil {
		h[6] = p.ext[0]
		h = append(h, p.proto, 0, 0, 0, 0, 0, 0, 0)
	}
	binary.BigEndian.PutUint16(h[4:], uint16(len(h)-40+segment))
	return h
}

// segment is the TCP or UDP segment.
func (p *packet) segment() []byte {
	var b []byte
	b = binary.BigEndian.AppendUint16(b, p.from.Port())
	b = binary.BigEndian.AppendUint16(b, p.to.Port())
	check := 6
	if p.proto == unix.IPPROTO_TCP {
		check = 16
		offset := p.tcpOffset
		if offset == 0 {
			offset = 5
		}
		b = append(b, 0, 0, 0, 1, 0, 0, 0, 2, offset<<4, p.tcpFlags, 1, 0, 0, 0, 0, 0)
	} else {
		b = binary.BigEndian.AppendUint16(b, uint16(8+len(p.payload)))
		b = append(b, 0, 0)
	}
	b = append(b, p.payload...)
	if p.noSum {
		return b
	}
	sum := ^rig.Sum(uint32(int(p.proto)+len(b)), p.from.Addr().AsSlice(), p.to.Addr().AsSlice(), b)
	if sum == 0 && p.proto == unix.IPPROTO_UDP {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(b[check:], sum)
	return b
}

// ipLen is what the IP header says.
func (p *packet) ipLen() int {
	q := *p
	q.pad, q.missing = nil, 0
	return len(q.build()) - 14
}

// fields lists where everything stands in a frame of p's kind.
func (p *packet) fields() []field {
	all := []field{{"destination MAC", 0, 6}, {"source MAC", 6, 6}, {"EtherType", 12, 2}}
	l4 := 14 + 20 + len(p.options)
	if p.is6() {
		l4 = 14 + 40
		all = append(all, field{"version, traffic class, label", 14, 4}, field{"payload length", 18, 2},
			field{"next header", 20, 1}, field{"hop limit", 21, 1}, field{"source", 22, 16}, field{"destination", 38, 16})
	} else {
		all = append(all, field{"version, header length", 14, 1}, field{"TOS", 15, 1}, field{"length", 16, 2},
			field{"identifier", 18, 2}, field{"fragment", 20, 2}, field{"TTL", 22, 1}, field{"protocol", 23, 1},
			field{"header checksum", 24, 2}, field{"source", 26, 4}, field{"destination", 30, 4})
	}
	all = append(all, field{"source port", l4, 2}, field{"destination port", l4 + 2, 2})
	if p.proto == unix.IPPROTO_TCP {
		return append(all, field{"sequence and acknowledgement", l4 + 4, 8}, field{"offset and flags", l4 + 12, 2},
			field{"window", l4 + 14, 2}, field{"TCP checksum", l4 + 16, 2}, field{"urgent pointer", l4 + 18, 2})
	}
	return append(all, field{"UDP length", l4 + 4, 2}, field{"UDP checksum", l4 + 6, 2})
}

type field struct {
	name    string
	at, len int
}

// differences names every field in which a frame is not what p describes.
func (p *packet) differences(got []byte) []string {
	want := p.build()
	var all []string
	if len(got) != len(want) {
		all = append(all, fmt.Sprintf("frame length %d, want %d", len(got), len(want)))
	}
	end := 14
	for _, f := range p.fields() {
		end = max(end, f.at+f.len)
		if len(got) < end || len(want) < end {
			return append(all, "cut off in: "+f.name)
		}
		if g, w := got[f.at:f.at+f.len], want[f.at:f.at+f.len]; !bytes.Equal(g, w) {
			all = append(all, fmt.Sprintf("%s %x, want %x", f.name, g, w))
		}
	}
	if !bytes.Equal(got[end:], want[end:]) {
		all = append(all, "payload")
	}
	return all
}
