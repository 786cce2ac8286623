// SPDX-License-Identifier: Apache-2.0

package bulk

import "fmt"

// MaxPackets is the largest number of packets of a pool.
const MaxPackets = 1 << 24

// Packet is a frame that passed, with what is known about it: the library's sk_buff.
// Its owner at a time is one goroutine.
type Packet struct {
	frame *Frame
	home  *PacketPool
	// What follows is the user's, and zero in a fresh packet.

	// Time is when the packet came in, in nanoseconds.
	Time int64
	// IfIndex is the interface it came from.
	IfIndex uint32
	// Mark is as in a packet mark.
	Mark uint32
	// Hash is a hash of its flow.
	Hash uint32
	// Protocol is its Ethernet protocol.
	Protocol uint16
	used     bool // allocated; for builds that check
}

// Frame returns the frame that the packet was built around.
func (k *Packet) Frame() *Frame { return k.frame }

// Build makes f the packet's frame. In a ring of frames, f then stands for the packet.
func (k *Packet) Build(f *Frame) {
	k.frame = f
	f.pkt = k
}

// Detach takes the frame out of the packet. Both have to be freed then.
func (k *Packet) Detach() *Frame {
	f := k.frame
	k.frame = nil
	if f != nil {
		f.pkt = nil
	}
	return f
}

// Free returns the packet and its frame to their pools.
func (k *Packet) Free() {
	if f := k.Detach(); f != nil {
		f.Free()
	}
	k.release()
	k.home.put1(k)
}

func (k *Packet) release() {
	if debug && !k.used {
		panic("bulk: packet freed twice")
	}
	k.used = false
}

// FreePackets returns packets and their frames to their pools: packets and frames of one
// pool that stand side by side go back in one step for each [MaxBatch].
func FreePackets(packets []*Packet) {
	var frames [MaxBatch]*Frame
	for len(packets) > 0 {
		n, nf := 0, 0
		home := packets[0].home
		for _, k := range packets[:min(len(packets), MaxBatch)] {
			if k.home != home {
				break
			}
			if f := k.Detach(); f != nil {
				frames[nf] = f
				nf++
			}
			k.release()
			n++
		}
		FreeBulk(frames[:nf])
		home.put(packets[:n])
		packets = packets[n:]
	}
}

// PacketPool is a set of packets, allocated and freed in bulk. It is safe for any number
// of goroutines.
type PacketPool struct {
	free  *stack[Packet]
	total int
}

// NewPacketPool makes a pool of n packets.
func NewPacketPool(n int) (*PacketPool, error) {
	if n < 1 || n > MaxPackets {
		return nil, fmt.Errorf("make pool of %d packets: %w: 1 to %d", n, ErrConfig, MaxPackets)
	}
	packets := make([]Packet, n)
	p := &PacketPool{total: n}
	for i := range packets {
		packets[i].home = p
	}
	p.free = newStack(packets)
	return p, nil
}

// AllocBulk fills dst with fresh packets in one step and returns how many it got.
func (p *PacketPool) AllocBulk(dst []*Packet) int {
	n := p.free.take(dst)
	for _, k := range dst[:n] {
		*k = Packet{home: p, used: true}
	}
	return n
}

// Alloc returns a fresh packet, or nil if there is none.
func (p *PacketPool) Alloc() *Packet {
	k := p.free.take1()
	if k != nil {
		*k = Packet{home: p, used: true}
	}
	return k
}

func (p *PacketPool) put(packets []*Packet) {
	if !p.free.put(packets) {
		panic("bulk: packet freed twice")
	}
}

func (p *PacketPool) put1(k *Packet) {
	if !p.free.put1(k) {
		panic("bulk: packet freed twice")
	}
}

// Stats returns where the packets are.
func (p *PacketPool) Stats() Stats {
	free := p.free.free()
	return Stats{Total: p.total, Free: free, Out: p.total - free, Short: p.free.short.Load()}
}
