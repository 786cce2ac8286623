// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"net"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/bpf"
)

// The flags of a flow; see bpf/const.h.
const (
	flagNAT     = 1 << 0
	flagRouted  = 1 << 1
	flagPeer    = 1 << 2
	flagBounce  = 1 << 3
	flagBridged = 1 << 6
)

// flowBatch is how many entries one system call reads.
const flowBatch = 4096

// Flow is a learned flow.
type Flow struct {
	// Proto is the IP protocol number: 6 or 17.
	Proto uint8
	// In is the index of the ingress interface.
	In int
	// Src and Dst as the packets come in.
	Src, Dst netip.AddrPort
	// Out is the index of the egress interface.
	Out int
	// NewSrc and NewDst as the packets leave.
	NewSrc, NewDst netip.AddrPort
	// DstMAC and SrcMAC of the frames that leave.
	DstMAC, SrcMAC net.HardwareAddr
	// NAT says that addresses or ports change.
	NAT bool
	// Routed says that the TTL falls by one.
	Routed bool
	// ToPod says that the flow leaves into a pod.
	ToPod bool
	// Bounce says that the flow leaves by the interface it came in on.
	Bounce bool
	// Bridged says that a bridge forwards the flow: its MAC addresses stay.
	Bridged bool
	// MaxLen is the longest IP packet in bytes that takes the fast path.
	MaxLen int
	// Age since the flow was learned.
	Age time.Duration
	// Left until the kernel has to confirm the flow; negative when it is overdue.
	Left time.Duration
	// Packets and Bytes that took the fast path; bytes are of IP packets.
	Packets, Bytes uint64
}

// Live says whether packets of the flow take the fast path now.
func (f *Flow) Live() bool { return f.Left >= 0 }

// Flows walks over the learned flows of both families, expired ones included. Flows
// that come and go meanwhile may be missed or seen twice.
func (d *Datapath) Flows() iter.Seq2[Flow, error] {
	return func(yield func(Flow, error) bool) {
		now, more := coarseNow(), true
		fail := func(f Flow, err error) bool {
			more = yield(f, err)
			return more
		}
		for k, v := range walk[bpf.DatapathXvKey4, bpf.DatapathXvFlow4](d.maps.XvFlows4, fail) {
			if !yield(flow4(k, v, now), nil) {
				return
			}
		}
		if !more {
			return
		}
		for k, v := range walk[bpf.DatapathXvKey6, bpf.DatapathXvFlow6](d.maps.XvFlows6, fail) {
			if !yield(flow6(k, v, now), nil) {
				return
			}
		}
	}
}

// walk reads a map in batches and hands what goes wrong to fail.
func walk[K, V any](m *ebpf.Map, fail func(Flow, error) bool) iter.Seq2[*K, *V] {
	return func(yield func(*K, *V) bool) {
		var cursor ebpf.MapBatchCursor
		keys, values := make([]K, flowBatch), make([]V, flowBatch)
		for {
			n, err := m.BatchLookup(&cursor, keys, values, nil)
			for i := range n {
				if !yield(&keys[i], &values[i]) {
					return
				}
			}
			if errors.Is(err, ebpf.ErrKeyNotExist) {
				return
			}
			if err != nil {
				fail(Flow{}, fmt.Errorf("read flows: %w", err))
				return
			}
		}
	}
}

// coarseNow reads the clock that deadlines are in.
func coarseNow() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &ts)
	return uint64(ts.Nano())
}

func flow4(k *bpf.DatapathXvKey4, v *bpf.DatapathXvFlow4, now uint64) Flow {
	f := flowOf(&v.F, now)
	f.Proto, f.In = uint8(k.Proto), int(k.Ifindex)
	f.Src, f.Dst = addrPort(k.Sport, k.Saddr), addrPort(k.Dport, k.Daddr)
	f.NewSrc, f.NewDst = addrPort(v.F.Sport, v.Saddr), addrPort(v.F.Dport, v.Daddr)
	return f
}

func flow6(k *bpf.DatapathXvKey6, v *bpf.DatapathXvFlow6, now uint64) Flow {
	f := flowOf(&v.F, now)
	f.Proto, f.In = uint8(k.Proto), int(k.Ifindex)
	f.Src, f.Dst = addrPort(k.Sport, k.Saddr[:]...), addrPort(k.Dport, k.Daddr[:]...)
	f.NewSrc, f.NewDst = addrPort(v.F.Sport, v.Saddr[:]...), addrPort(v.F.Dport, v.Daddr[:]...)
	return f
}

// flowOf reads what both families have in common.
func flowOf(v *bpf.DatapathXvFlow, now uint64) Flow {
	return Flow{
		Out:     int(v.Oif),
		DstMAC:  net.HardwareAddr(bytes.Clone(v.DstMac[:])),
		SrcMAC:  net.HardwareAddr(bytes.Clone(v.SrcMac[:])),
		NAT:     v.Flags&flagNAT != 0,
		Routed:  v.Flags&flagRouted != 0,
		ToPod:   v.Flags&flagPeer != 0,
		Bounce:  v.Flags&flagBounce != 0,
		Bridged: v.Flags&flagBridged != 0,
		MaxLen:  int(v.MaxLen),
		Age:     time.Duration(now - v.Born),
		Left:    time.Duration(v.Deadline - now),
		Packets: v.Packets,
		Bytes:   v.Bytes,
	}
}

// addrPort makes an address of words that are in network order in memory.
func addrPort(port uint16, words ...uint32) netip.AddrPort {
	raw := make([]byte, 0, 16)
	for _, w := range words {
		raw = binary.NativeEndian.AppendUint32(raw, w)
	}
	addr, _ := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(addr, bits.ReverseBytes16(port))
}

// ForgetAddrs removes every flow to or from one of some addresses, before or after
// translation. What the kernel did with packets to an address before a pod had it
// does not hold for the pod.
func (d *Datapath) ForgetAddrs(addrs []netip.Addr) error {
	old4, old6 := map[uint32]bool{}, map[[4]uint32]bool{}
	for _, a := range addrs {
		var w [4]uint32
		raw := a.AsSlice()
		for i := 0; i < len(raw); i += 4 {
			w[i/4] = binary.NativeEndian.Uint32(raw[i:])
		}
		if a.Is4() {
			old4[w[0]] = true
		} else {
			old6[w] = true
		}
	}
	return errors.Join(
		forget(d.maps.XvFlows4, func(k *bpf.DatapathXvKey4, v *bpf.DatapathXvFlow4) bool {
			return old4[k.Saddr] || old4[k.Daddr] || old4[v.Saddr] || old4[v.Daddr]
		}),
		forget(d.maps.XvFlows6, func(k *bpf.DatapathXvKey6, v *bpf.DatapathXvFlow6) bool {
			return old6[k.Saddr] || old6[k.Daddr] || old6[v.Saddr] || old6[v.Daddr]
		}),
	)
}

// ForgetInterface removes every flow that comes in or leaves by an interface.
func (d *Datapath) ForgetInterface(ifindex int) error {
	i := uint32(ifindex)
	return errors.Join(
		forget(d.maps.XvFlows4, func(k *bpf.DatapathXvKey4, v *bpf.DatapathXvFlow4) bool {
			return k.Ifindex == i || v.F.Oif == i
		}),
		forget(d.maps.XvFlows6, func(k *bpf.DatapathXvKey6, v *bpf.DatapathXvFlow6) bool {
			return k.Ifindex == i || v.F.Oif == i
		}),
	)
}

// ForgetGone removes what belongs to interfaces that do not exist any more. The devmap
// forgets them by itself.
func (d *Datapath) ForgetGone() error {
	// The maps are read first: an interface that comes meanwhile is not gone.
	indexes, err := d.Indexes()
	if err != nil {
		return err
	}
	links, err := netlinksafe.LinkList()
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	gone := map[uint32]bool{}
	for _, i := range indexes {
		gone[uint32(i)] = true
	}
	for _, l := range links {
		delete(gone, uint32(l.Attrs().Index))
	}
	for i := range gone { // a list can be short when interfaces come and go
		if !isGone(int(i)) {
			delete(gone, i)
		}
	}
	return d.forgetIndexes(gone)
}

// ForgetRemoved removes what belongs to an interface that has just been removed and to
// uplinks that are gone, or, where that interface is still there, to all that do not exist
// any more.
func (d *Datapath) ForgetRemoved(ifindex int) error {
	if ifindex == 0 || !isGone(ifindex) {
		return d.ForgetGone()
	}
	gone := map[uint32]bool{uint32(ifindex): true}
	var failed error
	for i := range walk[uint32, bpf.DatapathXvPort](d.maps.XvPorts, func(_ Flow, err error) bool { failed = err; return false }) {
		if isGone(int(*i)) {
			gone[*i] = true
		}
	}
	return errors.Join(failed, d.forgetIndexes(gone))
}

func (d *Datapath) forgetIndexes(gone map[uint32]bool) error {
	if len(gone) == 0 {
		return nil
	}
	return errors.Join(
		forget(d.maps.XvFlows4, func(k *bpf.DatapathXvKey4, v *bpf.DatapathXvFlow4) bool {
			return gone[k.Ifindex] || gone[v.F.Oif]
		}),
		forget(d.maps.XvFlows6, func(k *bpf.DatapathXvKey6, v *bpf.DatapathXvFlow6) bool {
			return gone[k.Ifindex] || gone[v.F.Oif]
		}),
		forget(d.maps.XvPorts, func(ifindex *uint32, _ *bpf.DatapathXvPort) bool { return gone[*ifindex] }),
		forget(d.maps.XvMembers, func(ifindex *uint32, _ *bpf.DatapathXvMember) bool { return gone[*ifindex] }),
	)
}

// Flush removes all flows; the kernel has to forward them anew.
func (d *Datapath) Flush() error {
	return errors.Join(
		forget(d.maps.XvFlows4, func(*bpf.DatapathXvKey4, *bpf.DatapathXvFlow4) bool { return true }),
		forget(d.maps.XvFlows6, func(*bpf.DatapathXvKey6, *bpf.DatapathXvFlow6) bool { return true }),
	)
}

// forget removes the entries that match. It collects them first: a batch cursor does
// not survive deletions.
func forget[K, V any](m *ebpf.Map, match func(*K, *V) bool) error {
	var gone []K
	var failed error
	for k, v := range walk[K, V](m, func(_ Flow, err error) bool { failed = err; return false }) {
		if match(k, v) {
			gone = append(gone, *k)
		}
	}
	for i := range gone {
		failed = errors.Join(failed, deleteKey(m, &gone[i]))
	}
	return failed
}

func deleteKey(m *ebpf.Map, key any) error {
	if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("delete map entry: %w", err)
	}
	return nil
}

// Block keeps the fast path away from an interface for one interval: packets for it that
// are under way to a redirect go to the kernel.
func (d *Datapath) Block(ifindex int) error {
	unlock, err := d.lock()
	if err != nil {
		return err
	}
	defer unlock()
	s, err := d.settings()
	if err != nil {
		return err
	}
	until := coarseNow() + s.RevalidateNs
	if err := d.maps.XvBlocked.Put(uint32(ifindex), until); err != nil {
		return fmt.Errorf("block interface %d: %w", ifindex, err)
	}
	s.BlockedUntil = until
	if err := d.maps.XvConfig.Put(uint32(0), &s); err != nil {
		return fmt.Errorf("block interface %d: %w", ifindex, err)
	}
	return nil
}
