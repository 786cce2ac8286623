// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"

	"github.com/xveth/xveth/bpf"
	"github.com/xveth/xveth/test/rig"
)

// runSeed keys the hash of the keys, runInterval is the revalidate interval.
const (
	runSeed     = 0x12345678
	runInterval = time.Minute
	// runXDPDev is the loopback interface: the one that program runs give to XDP.
	runXDPDev = 1
)

// What programs return (include/uapi/linux/bpf.h, pkt_cls.h).
const (
	xdpPass     = 2
	xdpTX       = 3
	xdpRedirect = 4
	tcNext      = ^uint32(0)
	tcRedirect  = 7
)

// runObjects are the ingress programs with maps that nothing else uses.
type runObjects struct {
	XDP      *ebpf.Program `ebpf:"xv_xdp_in"`
	TC       *ebpf.Program `ebpf:"xv_tc_in"`
	Learn    *ebpf.Program `ebpf:"xv_learn_pod"`
	Flows4   *ebpf.Map     `ebpf:"xv_flows4"`
	Slots    *ebpf.Map     `ebpf:"xv_slots"`
	Flows6   *ebpf.Map     `ebpf:"xv_flows6"`
	Devs     *ebpf.Map     `ebpf:"xv_devs"`
	Blocked  *ebpf.Map     `ebpf:"xv_blocked"`
	Counters *ebpf.Map     `ebpf:"xv_counters"`
	Polls    *ebpf.Map     `ebpf:"xv_polls"`
	Config   *ebpf.Map     `ebpf:"xv_config"`
}

// bench runs programs on packets in a network namespace of its own.
type bench struct {
	host *rig.Host
	objs runObjects
	// port is a veth, for runs of tcx programs, with the address portMAC.
	port    int
	portMAC mac
}

// oneBench is shared by all tests, which leave its maps as they found them: verifying
// the programs takes longer than all runs together. It ends with the process.
var oneBench = sync.OnceValues(func() (*bench, error) {
	b := &bench{portMAC: mac{2, 0, 0, 0, 0, 1}}
	var err error
	if b.host, err = rig.NewHost("bench", false); err != nil {
		return nil, err
	}
	return b, b.host.Do(b.setUp)
})

func newBench(t *testing.T) *bench {
	t.Helper()
	if testing.Short() {
		t.Skip("needs root; not in short mode")
	}
	b, err := oneBench()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) setUp() error {
	la := netlink.NewLinkAttrs()
	la.Name, la.HardwareAddr = "in0", b.portMAC[:]
	v := netlink.NewVeth(la)
	v.PeerName = "in1"
	if err := netlink.LinkAdd(v); err != nil {
		return err
	}
	l, err := netlinksafe.LinkByName(la.Name)
	if err != nil {
		return err
	}
	b.port = l.Attrs().Index
	spec, err := bpf.LoadDatapath()
	if err != nil {
		return err
	}
	for _, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
	}
	if err := setVariables(spec, runSeed); err != nil {
		return err
	}
	if err := spec.LoadAndAssign(&b.objs, nil); err != nil {
		return err
	}
	if err := b.settings(0); err != nil {
		return err
	}
	return b.objs.Devs.Put(uint32(runXDPDev), bpf.DatapathBpfDevmapVal{Ifindex: runXDPDev})
}

func (b *bench) settings(blockedUntil uint64) error {
	s := bpf.DatapathXvSettings{RevalidateNs: uint64(runInterval), BlockedUntil: blockedUntil, Seed: runSeed}
	return b.objs.Config.Put(uint32(0), &s)
}

// skbContext is struct __sk_buff (include/uapi/linux/bpf.h), as far as a program run
// takes it.
type skbContext struct {
	_       [40]byte
	Ifindex uint32
	_       [120]byte
	GSOSegs uint32
	_       [8]byte
	GSOSize uint32
	_       [12]byte
}

// run gives a frame to a program and returns the verdict and the frame as it is then.
func (b *bench) run(t *testing.T, prog *ebpf.Program, frame []byte, gsoSize int) (verdict uint32, out []byte) {
	t.Helper()
	opts := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256)}
	if prog != b.objs.XDP {
		skb := skbContext{Ifindex: uint32(b.port), GSOSize: uint32(gsoSize)}
		if gsoSize > 0 {
			skb.GSOSegs = uint32((len(frame) + gsoSize - 1) / gsoSize)
		}
		ctx, err := binary.Append(nil, binary.NativeEndian, &skb)
		if err != nil {
			t.Fatal(err)
		}
		opts.Context = ctx
	}
	err := b.host.Do(func() (err error) {
		verdict, err = prog.Run(opts)
		return err
	})
	if err != nil {
		t.Fatalf("run: %v", err)
	}
	return verdict, opts.DataOut
}

// counters reads all counters, by name.
func (b *bench) counters(t *testing.T) Counters {
	t.Helper()
	d := &Datapath{maps: bpf.DatapathMaps{XvCounters: b.objs.Counters}}
	c, err := d.Counters()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// entry is a learned flow, for either family.
type entry struct {
	iif, oif       int
	proto          uint8
	from, to       netip.AddrPort
	newFrom, newTo netip.AddrPort
	dst, src, in   mac
	flags          uint16
	maxLen         int
	left           time.Duration
	tag            uint32 // added to the right one
	silent         bool   // its slot says that no flow is live
	// polls in which the flow was slow and fast.
	slowPoll, fastPoll uint64
}

// words are an address as the programs have it in memory.
func words(a netip.Addr) (w [4]uint32) {
	raw := a.AsSlice()
	for i := range len(raw) / 4 {
		w[i] = binary.NativeEndian.Uint32(raw[4*i:])
	}
	return w
}

// netOrder is a port as the programs have it in memory.
func netOrder(port uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, port))
}

func (e *entry) key4() bpf.DatapathXvKey4 {
	return bpf.DatapathXvKey4{
		Saddr: words(e.from.Addr())[0], Daddr: words(e.to.Addr())[0], Ifindex: uint32(e.iif), Proto: uint32(e.proto),
		Sport: netOrder(e.from.Port()), Dport: netOrder(e.to.Port()),
	}
}

func (e *entry) key6() bpf.DatapathXvKey6 {
	return bpf.DatapathXvKey6{
		Saddr: words(e.from.Addr()), Daddr: words(e.to.Addr()), Ifindex: uint32(e.iif), Proto: uint32(e.proto),
		Sport: netOrder(e.from.Port()), Dport: netOrder(e.to.Port()),
	}
}

func (e *entry) value() bpf.DatapathXvFlow {
	return bpf.DatapathXvFlow{
		Oif: uint32(e.oif), Deadline: coarseNow() + uint64(e.left), Flags: e.flags, MaxLen: uint16(e.maxLen),
		Sport: netOrder(e.newFrom.Port()), Dport: netOrder(e.newTo.Port()),
		DstMac: e.dst, SrcMac: e.src, InMac: e.in, SlowPoll: e.slowPoll, FastPoll: e.fastPoll,
	}
}

// put writes the entry.
func (b *bench) put(t *testing.T, e *entry) {
	t.Helper()
	f, err := e.value(), error(nil)
	var hash uint32
	if e.from.Addr().Is6() {
		k := e.key6()
		hash = hash6(&k)
		f.Tag = hash + e.tag
		err = b.objs.Flows6.Put(&k, &bpf.DatapathXvFlow6{F: f, Saddr: words(e.newFrom.Addr()), Daddr: words(e.newTo.Addr())})
	} else {
		k := e.key4()
		hash = hash4(runSeed, &k)
		f.Tag = hash + e.tag
		err = b.objs.Flows4.Put(&k, &bpf.DatapathXvFlow4{F: f, Saddr: words(e.newFrom.Addr())[0], Daddr: words(e.newTo.Addr())[0]})
	}
	var slot bpf.DatapathXvSlot
	if !e.silent {
		slot.LiveUntil = f.Deadline + uint64(time.Minute)
	}
	err = errors.Join(err, b.objs.Slots.Put(hash%b.objs.Slots.MaxEntries(), slot))
	if err != nil {
		t.Fatal(err)
	}
}

// get reads the entry's counters and takes the entry away.
func (b *bench) get(t *testing.T, e *entry) (packets, byteSum uint64) {
	t.Helper()
	var f bpf.DatapathXvFlow
	var err error
	if e.from.Addr().Is6() {
		var v bpf.DatapathXvFlow6
		k := e.key6()
		err, f = b.objs.Flows6.LookupAndDelete(&k, &v), v.F
	} else {
		var v bpf.DatapathXvFlow4
		k := e.key4()
		err, f = b.objs.Flows4.LookupAndDelete(&k, &v), v.F
	}
	if err != nil {
		t.Fatal(err)
	}
	return f.Packets, f.Bytes
}

func addPort(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr(), a.Port()+1) }

// hash4 is xv_hash4 of bpf/parse.h.
func hash4(seed uint32, k *bpf.DatapathXvKey4) uint32 {
	h := (seed ^ k.Saddr) * 0x9e3779b1
	h = (h ^ (h >> 15) ^ k.Daddr) * 0x85ebca6b
	h = (h ^ (h >> 13) ^ (uint32(k.Sport)<<16 | uint32(k.Dport))) * 0xc2b2ae35
	h = (h ^ (h >> 16) ^ (k.Ifindex << 1) ^ (k.Proto << 24)) * 0x27d4eb2f
	return h ^ (h >> 15)
}

// hash6 is xv_hash6 of bpf/parse.h.
func hash6(k *bpf.DatapathXvKey6) uint32 {
	folded := bpf.DatapathXvKey4{Sport: k.Sport, Dport: k.Dport, Ifindex: k.Ifindex, Proto: k.Proto}
	h := uint32(runSeed)
	for _, w := range k.Saddr {
		h = (h ^ (h >> 15) ^ w) * 0x9e3779b1
	}
	folded.Saddr = h
	for _, w := range k.Daddr {
		h = (h ^ (h >> 13) ^ w) * 0x85ebca6b
	}
	folded.Daddr = h
	return hash4(runSeed, &folded)
}

// counted names the counters that have moved between two readings.
func counted(before, after Counters) (names []string) {
	for name, n := range after {
		if n != before[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
