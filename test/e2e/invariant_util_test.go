// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// grace is what the rule allows beyond the revalidate interval (issue 2, "The invariant").
const grace = 100 * time.Millisecond

// earKey tells flows apart by where their packets arrive. IPv6 packets with extension
// headers have the first header's number as protocol, and port 0.
type earKey struct {
	proto uint8
	dst   netip.AddrPort
}

// arrivals is what an ear has heard of one flow.
type arrivals struct {
	packets int
	bytes   int // of frames
	first   time.Time
	last    time.Time
	srcs    map[netip.AddrPort]int
}

// ear listens to every frame that a host receives. The times are the kernel's, so a
// busy machine does not blur them.
type ear struct {
	mu   sync.Mutex
	seen map[earKey]arrivals
}

// newEar starts listening on all interfaces of a host, also those that come later.
func newEar(t *testing.T, h *rig.Host) *ear {
	t.Helper()
	var fd int
	err := h.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(bigEndian16(unix.ETH_P_ALL)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for opt, v := range map[int]int{unix.SO_TIMESTAMPNS: 1, unix.SO_RCVBUFFORCE: 32 << 20} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt, v); err != nil {
			t.Fatal(err)
		}
	}
	// The socket closes only between two reads.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}); err != nil {
		t.Fatal(err)
	}
	p := &ear{seen: map[earKey]arrivals{}}
	stop, done := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(stop); <-done })
	go func() {
		defer close(done)
		defer unix.Close(fd)
		p.run(fd, stop)
	}()
	return p
}

func (p *ear) run(fd int, stop <-chan struct{}) {
	frame, control := make([]byte, 65536), make([]byte, 256)
	for {
		select {
		case <-stop:
			return
		default:
		}
		n, cn, _, from, err := unix.Recvmsg(fd, frame, control, 0)
		if err != nil {
			continue
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		src, key, ok := parseFrame(frame[:n])
		if !ok {
			continue
		}
		at := arrival(control[:cn])
		p.mu.Lock()
		a := p.seen[key]
		if a.srcs == nil {
			a.srcs, a.first = map[netip.AddrPort]int{}, at
		}
		a.packets++
		a.bytes += n
		a.srcs[src]++
		a.last = at
		p.seen[key] = a
		p.mu.Unlock()
	}
}

// arrival reads the kernel's time stamp.
func arrival(control []byte) time.Time {
	msgs, err := unix.ParseSocketControlMessage(control)
	if err == nil {
		for _, m := range msgs {
			if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_TIMESTAMPNS && len(m.Data) >= 16 {
				return time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
			}
		}
	}
	return time.Now()
}

func parseFrame(b []byte) (src netip.AddrPort, key earKey, ok bool) {
	if len(b) < 14+20+8 {
		return src, key, false
	}
	ip := b[14:]
	var from, to netip.Addr
	var l4 []byte
	switch binary.BigEndian.Uint16(b[12:]) {
	case unix.ETH_P_IP:
		key.proto, l4 = ip[9], ip[int(ip[0]&15)*4:]
		from, to = netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20]))
	case unix.ETH_P_IPV6:
		if len(ip) < 48 {
			return src, key, false
		}
		key.proto, l4 = ip[6], ip[40:]
		from, to = netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(ip[24:40]))
	default:
		return src, key, false
	}
	if (key.proto != unix.IPPROTO_UDP && key.proto != unix.IPPROTO_TCP) || len(l4) < 4 {
		key.dst = netip.AddrPortFrom(to, 0)
		return netip.AddrPortFrom(from, 0), key, true
	}
	key.dst = netip.AddrPortFrom(to, binary.BigEndian.Uint16(l4[2:]))
	return netip.AddrPortFrom(from, binary.BigEndian.Uint16(l4)), key, true
}

// of is what has arrived for a destination so far.
func (p *ear) of(proto uint8, dst netip.AddrPort) arrivals {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[earKey{proto, dst}]
}

func bigEndian16(v uint16) uint16 { return v<<8 | v>>8 }

// swallow accepts what comes to a TCP or UDP port and answers nothing of its own.
func swallow(t *testing.T, h *rig.Host, proto string, at netip.AddrPort) {
	t.Helper()
	if proto == "udp" {
		conn, err := h.ListenUDP(at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return
	}
	l, err := h.ListenTCP(at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 65536)
				for {
					if _, err := c.Read(buf); err != nil {
						return
					}
				}
			}()
		}
	}()
}

// drip writes a message of some size every millisecond until the test ends or stop is
// called.
func drip(t *testing.T, conn net.Conn, size int) (stop func()) {
	t.Helper()
	done, ended := make(chan struct{}), make(chan struct{})
	var once sync.Once
	stop = func() {
		once.Do(func() {
			close(done)
			_ = conn.SetWriteDeadline(time.Now()) // a TCP write may wait for room
			<-ended
			_ = conn.SetWriteDeadline(time.Time{})
		})
	}
	t.Cleanup(stop)
	go func() {
		defer close(ended)
		msg := make([]byte, size)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				_, _ = conn.Write(msg)
			}
		}
	}()
	return stop
}

// localOf is a connection's own address.
func localOf(conn net.Conn) netip.AddrPort {
	ap := netip.MustParseAddrPort(conn.LocalAddr().String())
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// rose is by how much one counter has risen.
func rose(t *testing.T, d *datapath.Datapath, before datapath.Counters, reason string) uint64 {
	t.Helper()
	now := counters(t, d)
	if _, ok := now[reason]; !ok {
		t.Fatalf("there is no counter %q", reason)
	}
	return now[reason] - before[reason]
}

// everyFlow reads the flow maps, expired entries included.
func everyFlow(t *testing.T, d *datapath.Datapath) (all []datapath.Flow) {
	t.Helper()
	for f, err := range d.Flows() {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, f)
	}
	return all
}

func etherOf(t *testing.T, h *rig.Host, dev string) net.HardwareAddr {
	t.Helper()
	mac, err := net.ParseMAC(strings.TrimSpace(on(t, h, "cat /sys/class/net/"+dev+"/address")))
	if err != nil {
		t.Fatal(err)
	}
	return mac
}

func indexOf(t *testing.T, h *rig.Host, dev string) (index int) {
	t.Helper()
	err := h.Do(func() error {
		l, err := netlinksafe.LinkByName(dev)
		if err == nil {
			index = l.Attrs().Index
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return index
}

// rawFrames sends a frame a number of times as it is.
func rawFrames(t *testing.T, h *rig.Host, dev string, frame []byte, times int) {
	t.Helper()
	to := &unix.SockaddrLinklayer{Ifindex: indexOf(t, h, dev)}
	err := h.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for range times {
			if err := unix.Sendto(fd, frame, 0, to); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// l4Frame builds a TCP (ACK) or UDP frame with valid checksums.
func l4Frame(proto uint8, dstMAC, srcMAC net.HardwareAddr, src, dst netip.AddrPort, size int) []byte {
	b := rig.UDPFrame(dstMAC, srcMAC, rig.UDPFlows{Src: src, Dst: dst, Size: size})
	if proto == unix.IPPROTO_UDP {
		return b
	}
	l3 := 20
	if dst.Addr().Is6() {
		l3 = 40
		b[14+6] = proto
	} else {
		b[14+9] = proto
		binary.BigEndian.PutUint16(b[24:], 0)
		binary.BigEndian.PutUint16(b[24:], ^rig.Sum(0, b[14:34]))
	}
	tcp := b[14+l3:]
	clear(tcp[4:20])
	tcp[12], tcp[13], tcp[14] = 0x50, 0x10, 0x7f
	sum := rig.Sum(uint32(int(proto)+len(tcp)), src.Addr().AsSlice(), dst.Addr().AsSlice(), tcp)
	binary.BigEndian.PutUint16(tcp[16:], ^sum)
	return b
}

// foreignProg loads a program of somebody else's.
func foreignProg(t *testing.T, kind ebpf.ProgramType, insns asm.Instructions) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "foreign", Type: kind, Instructions: insns, License: "GPL"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// attachForeign attaches a program on the node's interface; the caller may detach it early.
func attachForeign(t *testing.T, r *rig.Rig, p *ebpf.Program, dev string, hook ebpf.AttachType, at link.Anchor) (detach func()) {
	t.Helper()
	index := indexOf(t, r.Node, dev)
	var l link.Link
	err := r.Node.Do(func() (err error) {
		l, err = link.AttachTCX(link.TCXOptions{Interface: index, Program: p, Attach: hook, Anchor: at})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	detach = func() { once.Do(func() { l.Close() }) }
	t.Cleanup(detach)
	return detach
}

// revalidating is a configuration with an interval and other keys of fastPath.
func revalidating(interval time.Duration, more map[string]any) map[string]any {
	fp := map[string]any{"revalidate": interval.String()}
	for k, v := range more {
		fp[k] = v
	}
	return map[string]any{"fastPath": fp}
}

// driven adds the uplink's mode to a configuration.
func driven(conf map[string]any, mode string) map[string]any {
	conf["uplinks"] = []any{map[string]any{"name": rig.Uplink, "mode": mode}}
	return conf
}

// toldByStatus is what STATUS says about the fast path.
func toldByStatus(t *testing.T, r *rig.Rig) string {
	t.Helper()
	out, err := r.Plugin(ctxOf(t), "STATUS", r.Conf(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(out.Stderr)
}

// dropTables removes the tables that the iptables commands left behind.
func dropTables(t *testing.T, r *rig.Rig) {
	t.Helper()
	t.Cleanup(func() {
		node(t, r, "for f in ip ip6; do for t in filter mangle; do nft delete table $f $t 2>/dev/null; done; done; true")
	})
}

// impose runs a command on the node and returns what takes its effect back, which
// happens at the end of the test at the latest.
func impose(t *testing.T, r *rig.Rig, on, off string) (lift func()) {
	t.Helper()
	node(t, r, on)
	var once sync.Once
	lift = func() { once.Do(func() { node(t, r, off) }) }
	t.Cleanup(lift)
	return lift
}
