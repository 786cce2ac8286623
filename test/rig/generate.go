// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/bpf"
)

// liveFrames is BPF_F_TEST_XDP_LIVE_FRAMES: the frames that a program run sends are
// real.
const liveFrames = 1 << 1

// burst is how many packets one system call generates; short enough to end in time.
const burst = 1 << 16

// UDPFlows describes packets that the generator sends from the remote host's address.
type UDPFlows struct {
	Src, Dst netip.AddrPort
	// Flows is how many source ports are used in turn, counting up from that of Src. Behind
	// the last port the next address follows, with the same ports.
	Flows int
	// Dsts is how many destination addresses are used in turn, counting up from that of
	// Dst.
	Dsts int
	// Size of the frame in bytes, without its checksum (FCS).
	Size int
	// NoChecksum leaves the UDP checksum out (IPv4 only).
	NoChecksum bool
	// Numbered writes a number into each packet of one flow, for NewOrderSink to
	// check. The checksum does not cover it.
	Numbered bool
}

// Generator sends UDP frames into the node's uplink as fast as one core can.
type Generator struct {
	rig   *Rig
	objs  *bpf.RigObjects
	frame []byte

	// Batch is how many frames the wire hands over at once; 0 means the kernel's choice.
	Batch uint32
}

// NewGenerator prepares a generator. Close releases it.
func (r *Rig) NewGenerator(f UDPFlows) (*Generator, error) {
	nodeMAC, err := macOf(r.Node, Uplink)
	if err != nil {
		return nil, err
	}
	extMAC, err := macOf(r.Ext, ExtDev)
	if err != nil {
		return nil, err
	}
	frame := UDPFrame(nodeMAC, extMAC, f)
	hdr := 42
	if f.Dst.Addr().Is6() {
		hdr = 62
	}
	var raw [64]byte
	copy(raw[:], frame[:hdr])
	g := &Generator{rig: r, frame: frame}
	err = r.Wire.Do(func() error {
		out, err := netlink.LinkByName(WireNode)
		if err != nil {
			return err
		}
		g.objs, err = loadRig(map[string]any{
			"rig_ifindex": uint32(out.Attrs().Index), "rig_hdr": raw,
			"rig_hdr_len": uint32(hdr), "rig_flows": uint32(max(f.Flows, 1)),
			"rig_ports": 0x10000 - uint32(f.Src.Port()), "rig_dsts": uint32(max(f.Dsts, 1)),
			"rig_numbered": f.Numbered,
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("prepare the generator: %w", err)
	}
	return g, nil
}

// Close releases the generator.
func (g *Generator) Close() { _ = g.objs.Close() }

// Send sends a number of packets.
func (g *Generator) Send(n int) error {
	return g.rig.Wire.Do(func() error { return g.SendHere(n) })
}

// SendHere is Send on the calling thread, which has to be that of the wire.
func (g *Generator) SendHere(n int) error {
	_, err := g.objs.RigGenerate.Run(&ebpf.RunOptions{Data: g.frame, Repeat: uint32(n), Flags: liveFrames, BatchSize: g.Batch})
	if err != nil {
		return fmt.Errorf("generate packets: %w", err)
	}
	return nil
}

// SendFor sends for some time and returns how many packets it sent.
func (g *Generator) SendFor(d time.Duration) (sent int, err error) {
	err = g.rig.Wire.Do(func() error {
		for end := time.Now().Add(d); time.Now().Before(end); sent += burst {
			if err := g.SendHere(burst); err != nil {
				return err
			}
		}
		return nil
	})
	return sent, err
}

func macOf(h *Host, dev string) (mac net.HardwareAddr, err error) {
	err = h.Do(func() error {
		l, err := netlink.LinkByName(dev)
		if err != nil {
			return fmt.Errorf("find %q: %w", dev, err)
		}
		mac = l.Attrs().HardwareAddr
		return nil
	})
	return mac, err
}

// UDPFrame builds a frame of f.Size bytes with a valid checksum.
func UDPFrame(dst, src net.HardwareAddr, f UDPFlows) []byte {
	l3 := 20
	if f.Dst.Addr().Is6() {
		l3 = 40
	}
	size := max(f.Size, 14+l3+8)
	if l3 == 40 {
		size = max(size, 62)
	}
	b := make([]byte, max(size, 62))[:size]
	copy(b, dst)
	copy(b[6:], src)
	ip, udp := b[14:], b[14+l3:]
	if l3 == 20 {
		binary.BigEndian.PutUint16(b[12:], unix.ETH_P_IP)
		ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_UDP
		binary.BigEndian.PutUint16(ip[2:], uint16(size-14))
		copy(ip[12:], f.Src.Addr().AsSlice())
		copy(ip[16:], f.Dst.Addr().AsSlice())
		binary.BigEndian.PutUint16(ip[10:], ^Sum(0, ip[:20]))
	} else {
		binary.BigEndian.PutUint16(b[12:], unix.ETH_P_IPV6)
		ip[0], ip[6], ip[7] = 0x60, unix.IPPROTO_UDP, 64
		binary.BigEndian.PutUint16(ip[4:], uint16(size-14-40))
		copy(ip[8:], f.Src.Addr().AsSlice())
		copy(ip[24:], f.Dst.Addr().AsSlice())
	}
	binary.BigEndian.PutUint16(udp, f.Src.Port())
	binary.BigEndian.PutUint16(udp[2:], f.Dst.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	if !f.NoChecksum {
		sum := Sum(uint32(unix.IPPROTO_UDP+len(udp)), f.Src.Addr().AsSlice(), f.Dst.Addr().AsSlice(), udp)
		if sum = ^sum; sum == 0 {
			sum = 0xffff
		}
		binary.BigEndian.PutUint16(udp[6:], sum)
	}
	return b
}

// Sum is the Internet checksum's sum of some bytes, not yet inverted.
func Sum(start uint32, parts ...[]byte) uint16 {
	sum := start
	for _, p := range parts {
		for i := 0; i+1 < len(p); i += 2 {
			sum += uint32(p[i])<<8 | uint32(p[i+1])
		}
		if len(p)%2 == 1 {
			sum += uint32(p[len(p)-1]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}
