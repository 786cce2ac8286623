// SPDX-License-Identifier: Apache-2.0

package afxdp

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/xveth/xveth/pkg/bulk"
	"github.com/xveth/xveth/test/rig"
)

// The two ends of a veth, each on a host of its own.
const devA, devB = "va", "vb"

const jumbo = 9000

type bed struct {
	a, b *rig.Host
}

// newBed makes two hosts and a veth between them that nobody else uses.
func newBed(t testing.TB, queues, mtu int) *bed {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
	v := &bed{}
	for _, h := range []struct {
		to   **rig.Host
		name string
	}{{&v.a, "a"}, {&v.b, "b"}} {
		host, err := rig.NewHost(h.name, false)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(host.Close)
		*h.to = host
		for _, scope := range []string{"all", "default"} {
			// Nothing but the test's frames may cross the veth.
			if err := host.Sysctl("net.ipv6.conf."+scope+".disable_ipv6", "1"); err != nil {
				t.Fatal(err)
			}
		}
	}
	err := v.a.Do(func() error {
		la := netlink.NewLinkAttrs()
		la.Name, la.NumRxQueues, la.NumTxQueues, la.MTU = devA, queues, queues, mtu
		l := netlink.NewVeth(la)
		l.PeerName, l.PeerNamespace = devB, netlink.NsFd(v.b.NetnsFD())
		l.PeerNumRxQueues, l.PeerNumTxQueues, l.PeerMTU = uint32(queues), uint32(queues), uint32(mtu)
		return netlink.LinkAdd(l)
	})
	if err == nil {
		err = errors.Join(v.a.Do(func() error { return up(devA) }), v.b.Do(func() error { return up(devB) }))
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func up(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

func down(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetDown(l)
}

// txDropped is how many frames a device dropped instead of sending them.
func txDropped(t testing.TB, h *rig.Host, name string) (n uint64) {
	t.Helper()
	err := h.Do(func() error {
		l, err := netlink.LinkByName(name)
		if err == nil {
			n = l.Attrs().Statistics.TxDropped
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

const udpPort = 4242

// udp6Packet is one to an IPv6 address.
func (v *bed) udp6Packet(t testing.TB, port uint16) []byte {
	t.Helper()
	return rig.UDPFrame(mac(t, v.b, devB), mac(t, v.a, devA), rig.UDPFlows{
		Src: netip.MustParseAddrPort("[2001:db8::1]:1000"),
		Dst: netip.AddrPortFrom(netip.MustParseAddr("2001:db8::2"), port),
	})
}

// udpPacket is a packet from the one end to a port of the other.
func (v *bed) udpPacket(t testing.TB) []byte {
	t.Helper()
	return rig.UDPFrame(mac(t, v.b, devB), mac(t, v.a, devA), rig.UDPFlows{
		Src: netip.MustParseAddrPort("192.0.2.1:1000"), Dst: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.2"), udpPort),
	})
}

func mac(t testing.TB, h *rig.Host, dev string) (m net.HardwareAddr) {
	t.Helper()
	err := h.Do(func() error {
		i, err := net.InterfaceByName(dev)
		if err == nil {
			m = i.HardwareAddr
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// newUMEM makes a checked pool and a UMEM of it. At the end of the test no frame may be missing.
func newUMEM(t testing.TB, frames, size int, m Mode) *UMEM {
	t.Helper()
	p, err := bulk.NewPool(bulk.Config{
		Frames: frames, FrameSize: size, Mapped: true, Checked: true,
		OnMisuse: func(err error) { t.Errorf("pool: %v", err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("frames are missing at the end: %v", err)
		}
	})
	u, err := NewUMEM(p, m)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func open(t testing.TB, h *rig.Host, u *UMEM, c Config) *Socket {
	t.Helper()
	var s *Socket
	err := h.Do(func() (err error) {
		s, err = u.Open(c)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeSocket(t, s) })
	return s
}

func closeSocket(t testing.TB, s *Socket) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// attach has a program serve sockets.
func attach(t testing.TB, h *rig.Host, dev string, c ProgramConfig, sockets ...*Socket) *Program {
	t.Helper()
	var p *Program
	err := h.Do(func() (err error) {
		p, err = Attach(dev, c)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close program: %v", err)
		}
	})
	for _, s := range sockets {
		if err := p.Serve(s); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// numbered is a frame with room for a number, and a pattern by which a torn frame is seen.
func numbered(size int) []byte {
	b := make([]byte, size)
	copy(b, net.HardwareAddr{2, 0, 0, 0, 0, 1})
	copy(b[6:], net.HardwareAddr{2, 0, 0, 0, 0, 2})
	b[12], b[13] = 0x88, 0xb5 // for experiments
	for i := numberEnd; i < size; i++ {
		b[i] = byte(i * 7)
	}
	return b
}

const numberAt, numberEnd = 14, 22

func number(b []byte, n uint64) { binary.BigEndian.PutUint64(b[numberAt:], n) }

// checker looks at frames made from a packet. One goroutine uses it.
type checker struct {
	packet []byte
	buf    []byte
	next   uint64
	late   int
	bad    int
	frags  int
}

func newChecker(packet []byte) *checker {
	return &checker{packet: packet, buf: make([]byte, len(packet)+1)}
}

func (c *checker) look(f *bulk.Frame) {
	n := f.CopyTo(c.buf)
	if n != len(c.packet) || string(c.buf[numberEnd:n]) != string(c.packet[numberEnd:]) {
		c.bad++
		return
	}
	c.frags = max(c.frags, f.Frags())
	if got := binary.BigEndian.Uint64(c.buf[numberAt:]); got < c.next {
		c.late++
	} else {
		c.next = got + 1
	}
}

func (c *checker) report(t testing.TB) {
	t.Helper()
	if c.bad > 0 || c.late > 0 {
		t.Errorf("%d frames are torn and %d late or double", c.bad, c.late)
	}
}

// waitFor polls a condition.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within five seconds: %s", what)
		}
	}
}

func stats(t testing.TB, s *Socket) Stats {
	t.Helper()
	st, err := s.Stats()
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// settled waits until all frames that were sent have arrived or been counted as lost, and
// checks that the sums are equal. It returns how many were lost. Nothing may have used the veth
// before.
func (v *bed) settled(t testing.TB, sent uint64, from, to []*Socket) uint64 {
	t.Helper()
	var arrived, lost, done uint64
	sum := func() bool {
		arrived, lost, done = 0, txDropped(t, v.a, devA), 0
		for _, s := range to {
			st := stats(t, s)
			arrived += st.RxFrames
			lost += st.Lost()
			if st.Alien+st.Kernel.RxInvalidDescs != 0 {
				t.Fatalf("the kernel and the socket disagree: %+v", st)
			}
		}
		for _, s := range from {
			st := stats(t, s)
			done += st.TxDone
			if st.Alien+st.Kernel.TxInvalidDescs+st.Unsent != 0 {
				t.Fatalf("the kernel and the socket disagree: %+v", st)
			}
		}
		return arrived+lost >= sent && done >= sent
	}
	waitFor(t, "every frame has arrived or is counted as lost", sum)
	if arrived+lost != sent || done != sent {
		t.Errorf("sent %d, completed %d, arrived %d, counted as lost %d", sent, done, arrived, lost)
	}
	t.Logf("sent %d: arrived %d, counted as lost %d, by the device %d", sent, arrived, lost, txDropped(t, v.a, devA))
	return lost
}

// sink runs a Sink until the test calls what it returns.
func sink(t testing.TB, s *Socket, inspect func(*bulk.Frame)) (k *Sink, stop func()) {
	t.Helper()
	k, err := NewSink(s, SinkConfig{Inspect: inspect})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil && !errors.Is(err, ErrClosed) {
			t.Errorf("sink: %v", err)
		}
	}
	t.Cleanup(stop)
	return k, stop
}

// generate sends count packets as a Generator does.
func generate(t testing.TB, s *Socket, c GeneratorConfig, count uint64) uint64 {
	t.Helper()
	return stepwise(t, s, c, count, count, func(uint64) {})
}

// window is how many packets are on their way at once where none may be lost: half of what
// the queue of a veth holds.
const window = 128

// stepwise sends count packets, step of them at once, and calls after with how many there were.
func stepwise(t testing.TB, s *Socket, c GeneratorConfig, count, step uint64, after func(uint64)) uint64 {
	t.Helper()
	var base uint64
	if vary := c.Vary; vary != nil {
		c.Vary = func(b []byte, n uint64) { vary(b, base+n) }
	}
	g, err := NewGenerator(s, c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for base < count {
		sent, err := g.Run(ctx, min(step, count-base))
		base += sent
		if err != nil {
			t.Fatalf("generator: sent %d of %d: %v", base, count, err)
		}
		after(base)
	}
	return base
}

// arrive returns a function for stepwise that waits until so many frames have come to sockets,
// or been counted as lost there.
func arrive(t testing.TB, sockets ...*Socket) func(uint64) {
	return func(sent uint64) {
		t.Helper()
		waitFor(t, "the frames have arrived", func() bool {
			var n uint64
			for _, s := range sockets {
				st := stats(t, s)
				n += st.RxFrames + st.Lost()
			}
			return n >= sent
		})
	}
}
