// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/test/rig"
)

// rawPacket is an IP packet in words; the zero value of a field means the usual.
type rawPacket struct {
	src, dst netip.AddrPort
	proto    uint8
	flags    uint8 // of TCP
	seq, ack uint32
	payload  []byte
	ttl      uint8 // 0: 64
	tos      uint8
	df       bool
	options  []byte // IPv4 options, a multiple of four bytes
	ext      []byte // IPv6 extension headers as they stand; the first is of type extType
	extType  uint8
}

// TCP flags of the packets that tests write.
const (
	finFlag = 0x01
	synFlag = 0x02
	rstFlag = 0x04
	pshFlag = 0x08
	ackFlag = 0x10
)

const (
	protoTCP = unix.IPPROTO_TCP
	protoUDP = unix.IPPROTO_UDP
)

// l4 is the TCP or UDP part with its checksum.
func (p rawPacket) l4() []byte {
	var b []byte
	at := 6
	switch p.proto {
	case protoTCP:
		b = make([]byte, 20)
		binary.BigEndian.PutUint32(b[4:], p.seq)
		binary.BigEndian.PutUint32(b[8:], p.ack)
		b[12], b[13] = 0x50, p.flags
		binary.BigEndian.PutUint16(b[14:], 64000)
		at = 16
	case protoUDP:
		b = make([]byte, 8)
		binary.BigEndian.PutUint16(b[4:], uint16(8+len(p.payload)))
	default:
		return p.payload
	}
	binary.BigEndian.PutUint16(b, p.src.Port())
	binary.BigEndian.PutUint16(b[2:], p.dst.Port())
	b = append(b, p.payload...)
	sum := ^rig.Sum(uint32(int(p.proto)+len(b)), p.src.Addr().AsSlice(), p.dst.Addr().AsSlice(), b)
	if sum == 0 && p.proto == protoUDP {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(b[at:], sum)
	return b
}

// ip4 puts an IPv4 header before a payload; frag is the fragment field as it stands.
func (p rawPacket) ip4(frag uint16, payload []byte) []byte {
	h := make([]byte, 20, 20+len(p.options)+len(payload))
	h[0], h[1], h[8], h[9] = byte(0x45+len(p.options)/4), p.tos, p.ttl, p.proto
	binary.BigEndian.PutUint16(h[2:], uint16(20+len(p.options)+len(payload)))
	binary.BigEndian.PutUint16(h[4:], p.src.Port()^0x5a5a) // any id, the same in every run
	if p.df {
		frag |= 0x4000
	}
	binary.BigEndian.PutUint16(h[6:], frag)
	if p.ttl == 0 {
		h[8] = 64
	}
	copy(h[12:], p.src.Addr().AsSlice())
	copy(h[16:], p.dst.Addr().AsSlice())
	h = append(h, p.options...)
	binary.BigEndian.PutUint16(h[10:], ^rig.Sum(0, h))
	return append(h, payload...)
}

// ip6 puts an IPv6 header before a payload.
func (p rawPacket) ip6(next uint8, payload []byte) []byte {
	h := make([]byte, 40, 40+len(payload))
	binary.BigEndian.PutUint32(h, 6<<28|uint32(p.tos)<<20)
	binary.BigEndian.PutUint16(h[4:], uint16(len(payload)))
	h[6], h[7] = next, p.ttl
	if p.ttl == 0 {
		h[7] = 64
	}
	copy(h[8:], p.src.Addr().AsSlice())
	copy(h[24:], p.dst.Addr().AsSlice())
	return append(h, payload...)
}

// bytes is the packet as one piece.
func (p rawPacket) bytes() []byte {
	if p.src.Addr().Is4() {
		return p.ip4(0, p.l4())
	}
	if p.ext != nil {
		return p.ip6(p.extType, append(bytes.Clone(p.ext), p.l4()...))
	}
	return p.ip6(p.proto, p.l4())
}

// fragments cuts the packet into pieces of up to size bytes of payload, in order.
func (p rawPacket) fragments(size int) [][]byte {
	var all [][]byte
	whole := p.l4()
	for off := 0; off < len(whole); off += size {
		part := whole[off:min(off+size, len(whole))]
		more := uint16(0)
		if off+size < len(whole) {
			more = 1
		}
		if p.src.Addr().Is4() {
			all = append(all, p.ip4(uint16(off/8)|more<<13, part))
			continue
		}
		h := []byte{p.proto, 0, 0, 0, 0xab, 0xcd, 0, byte(p.src.Port())}
		binary.BigEndian.PutUint16(h[2:], uint16(off)|more)
		all = append(all, p.ip6(unix.IPPROTO_FRAGMENT, append(h, part...)))
	}
	return all
}

// tap sends and receives whole frames on one interface of a host.
type tap struct {
	t   *testing.T
	fd  int
	mac net.HardwareAddr
}

// newTap opens an AF_PACKET socket.
func newTap(t *testing.T, h *rig.Host, dev string) *tap {
	t.Helper()
	p := &tap{t: t}
	err := h.Do(func() error {
		ifi, err := net.InterfaceByName(dev)
		if err != nil {
			return err
		}
		p.mac = ifi.HardwareAddr
		const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
		p.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all&0xffff))
		if err != nil {
			return err
		}
		if err := unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20); err != nil {
			return err
		}
		return unix.Bind(p.fd, &unix.SockaddrLinklayer{Protocol: all & 0xffff, Ifindex: ifi.Index})
	})
	if err != nil {
		t.Fatalf("tap %s %s: %v", h.Name, dev, err)
	}
	t.Cleanup(func() { unix.Close(p.fd) })
	return p
}

// send sends an IP packet to a MAC address.
func (p *tap) send(dst net.HardwareAddr, packet []byte) {
	p.t.Helper()
	kind := uint16(unix.ETH_P_IP)
	if packet[0]>>4 == 6 {
		kind = unix.ETH_P_IPV6
	}
	frame := append(append(bytes.Clone(dst), p.mac...), byte(kind>>8), byte(kind))
	if _, err := unix.Write(p.fd, append(frame, packet...)); err != nil {
		p.t.Fatalf("send a frame: %v", err)
	}
}

// next returns the next frame that came in; nil when none comes within the time.
func (p *tap) next(wait time.Duration) []byte {
	p.t.Helper()
	buf := make([]byte, 70000)
	for end := time.Now().Add(wait); ; {
		left := int(time.Until(end).Milliseconds())
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}, max(left, 0))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			p.t.Fatalf("wait for a frame: %v", err)
		}
		if n == 0 {
			return nil
		}
		got, from, err := unix.Recvfrom(p.fd, buf, unix.MSG_DONTWAIT)
		if err != nil {
			continue
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		return buf[:got]
	}
}

// drain throws away what has come in so far.
func (p *tap) drain() {
	for p.next(0) != nil {
	}
}

// until collects the IP packets that come in before the one that last accepts. The
// packets that keep refuses are left out.
func (p *tap) until(wait time.Duration, keep, last func(ip []byte) bool) ([][]byte, error) {
	p.t.Helper()
	var all [][]byte
	for end := time.Now().Add(wait); time.Now().Before(end); {
		f := p.next(time.Until(end))
		if len(f) < 34 {
			continue
		}
		switch ip := f[14:]; {
		case last(ip):
			return all, nil
		case keep(ip):
			all = append(all, bytes.Clone(ip))
		}
	}
	return all, fmt.Errorf("the last packet did not come within %v; %d others did", wait, len(all))
}

// icmp builds an ICMP or ICMPv6 message: type, code, four bytes and a body.
func icmp(src, dst netip.Addr, kind, code uint8, rest uint32, body []byte) rawPacket {
	m := make([]byte, 8, 8+len(body))
	m[0], m[1] = kind, code
	binary.BigEndian.PutUint32(m[4:], rest)
	m = append(m, body...)
	p := rawPacket{src: netip.AddrPortFrom(src, 0), dst: netip.AddrPortFrom(dst, 0), proto: unix.IPPROTO_ICMP}
	if src.Is4() {
		binary.BigEndian.PutUint16(m[2:], ^rig.Sum(0, m))
	} else {
		p.proto = unix.IPPROTO_ICMPV6
		binary.BigEndian.PutUint16(m[2:], ^rig.Sum(uint32(int(p.proto)+len(m)), src.AsSlice(), dst.AsSlice(), m))
	}
	p.payload = m
	return p
}

// echoRequest is a ping that its receiver answers.
func echoRequest(src, dst netip.Addr, id, seq uint16) rawPacket {
	kind := uint8(8)
	if src.Is6() {
		kind = 128
	}
	return icmp(src, dst, kind, 0, uint32(id)<<16|uint32(seq), []byte("fence"))
}

// isEcho recognises a ping, or its answer, by id and number.
func isEcho(ip []byte, reply bool, seq uint16) bool {
	off, kind := 20, byte(8)
	if ip[0]>>4 == 6 {
		if ip[6] != unix.IPPROTO_ICMPV6 {
			return false
		}
		off, kind = 40, 128
	} else if ip[9] != unix.IPPROTO_ICMP {
		return false
	}
	if reply && kind == 8 {
		kind = 0
	} else if reply {
		kind = 129
	}
	return len(ip) >= off+13 && ip[off] == kind && string(ip[off+8:off+13]) == "fence" &&
		binary.BigEndian.Uint16(ip[off+6:]) == seq
}

// mute keeps a host's own stack from answering the ports that tests speak for. IPv6
// fragments come to the input hook one by one, and of any but the first nftables reads
// some other bytes for the port (Linux 6.18: the fragment's id): they have to pass.
func mute(t *testing.T, h *rig.Host) {
	t.Helper()
	on(t, h, `nft -f - <<'E'
table inet mute { chain in { type filter hook input priority 300;
  meta nfproto ipv6 exthdr frag exists accept
  tcp dport 20000-29999 drop
  udp dport 20000-29999 drop
}
}
E`)
}
