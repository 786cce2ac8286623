// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// slowWay is a direction between two hosts of a rig.
type slowWay struct {
	name     string
	from, to *rig.Host
	src, dst netip.Addr
}

// podWays are to a pod, from a pod, and between pods.
func podWays(r *rig.Rig, a, b *rig.Pod, family int) []slowWay {
	addrA, _ := a.Addr(family)
	addrB, _ := b.Addr(family)
	return []slowWay{
		{"ext to pod", r.Ext, a.Host, extAddr(family), addrA},
		{"pod to ext", a.Host, r.Ext, addrA, extAddr(family)},
		{"pod to pod", a.Host, b.Host, addrA, addrB},
	}
}

var hop = regexp.MustCompile(`(?m)^ *(\d+)  (\S+)`)

// trace runs traceroute with UDP packets of one 5-tuple and lists the hops.
func trace(t *testing.T, w slowWay, sport, dport uint16) []string {
	t.Helper()
	cmd := fmt.Sprintf("traceroute -n -q 1 -N 1 -w 2 -m 4 -U --sport=%d -p %d %s 60", sport, dport, w.dst)
	out := on(t, w.from, cmd)
	var hops []string
	for _, m := range hop.FindAllStringSubmatch(out, -1) {
		hops = append(hops, m[2])
	}
	return hops
}

// warmFrom warms a UDP flow from a port and gives the port back.
func warmFrom(t *testing.T, r *rig.Rig, w slowWay, sport, dport uint16) {
	t.Helper()
	conn, err := w.from.DialUDP(netip.AddrPortFrom(w.src, sport), netip.AddrPortFrom(w.dst, dport))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	d := open(t, r)
	eventually(t, 5*time.Second, "the flow takes the fast path", func() bool {
		if _, err := rig.RoundTrip(conn, make([]byte, 200), time.Second); err != nil {
			t.Fatal(err)
		}
		f, ok := flow(t, d, protoUDP, netip.AddrPortFrom(w.src, sport), netip.AddrPortFrom(w.dst, dport))
		return ok && f.Packets > 0
	})
}

// testNodeInTraceroute traces the route of a warm 5-tuple and finds the node on it, as
// with the fast path off. B082.
func (s *slowRig) testNodeInTraceroute(t *testing.T) {
	for _, fam := range families {
		for i, w := range podWays(s.Rig, s.a, s.b, fam) {
			key := fmt.Sprintf("%s v%d", w.name, fam)
			t.Run(key, func(t *testing.T) {
				sport, dport := uint16(40000+i), uint16(33500+i)
				echo(t, w.to, "udp", netip.AddrPortFrom(w.dst, dport))
				var before datapath.Counters
				if s.d != nil {
					warmFrom(t, s.Rig, w, sport, dport)
					before = counters(t, s.d)
				}
				hops := trace(t, w, sport, dport)
				if s.d == nil {
					s.hops[key] = strings.Join(hops, " ")
				} else if n := counters(t, s.d)["pass_ttl"] - before["pass_ttl"]; n != 1 {
					t.Errorf("%d packets count as pass_ttl, want 1", n)
				}
				want, known := s.hops[key]
				if len(hops) != 2 || hops[1] != w.dst.String() || known && strings.Join(hops, " ") != want {
					t.Errorf("hops are %v, want the node and %v; %q with mode off", hops, w.dst, want)
				}
			})
		}
	}
}

// seenBy is the TTL and the TOS with which a socket received a datagram.
type seenBy struct{ ttl, tos int }

// sendMarked sends datagrams with a TTL and a TOS and returns what the receiver saw.
func sendMarked(t *testing.T, from, to *net.UDPConn, fam, ttl, tos int) seenBy {
	t.Helper()
	level, optTTL, optTOS := unix.IPPROTO_IP, unix.IP_TTL, unix.IP_TOS
	if fam == 6 {
		level, optTTL, optTOS = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, unix.IPV6_TCLASS
	}
	setOpt(t, from, level, optTTL, ttl)
	setOpt(t, from, level, optTOS, tos)
	if _, err := from.Write([]byte("0123456789abcdef")); err != nil {
		t.Fatal(err)
	}
	_ = to.SetReadDeadline(time.Now().Add(3 * time.Second))
	buf, oob := make([]byte, 100), make([]byte, 200)
	_, n, _, peer, err := to.ReadMsgUDPAddrPort(buf, oob)
	if err != nil {
		t.Fatal(err)
	}
	// An answer makes the flow one that the kernel has seen both ways of.
	if _, err := to.WriteToUDPAddrPort([]byte("answer"), peer); err != nil {
		t.Fatal(err)
	}
	read(t, from, 100)
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		t.Fatal(err)
	}
	seen := seenBy{-1, -1}
	for _, m := range msgs {
		switch {
		case m.Header.Type == unix.IP_TTL && fam == 4, m.Header.Type == unix.IPV6_HOPLIMIT && fam == 6:
			seen.ttl = int(m.Data[0])
		case m.Header.Type == unix.IP_TOS && fam == 4, m.Header.Type == unix.IPV6_TCLASS && fam == 6:
			seen.tos = int(m.Data[0])
		}
	}
	return seen
}

func setOpt(t *testing.T, c *net.UDPConn, level, opt, value int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var opErr error
	if err := raw.Control(func(fd uintptr) { opErr = unix.SetsockoptInt(int(fd), level, opt, value) }); err != nil || opErr != nil {
		t.Fatal(err, opErr)
	}
}

// testTTLAndTOS compares what a receiver sees of TTL and TOS (hop limit and traffic
// class) cold and warm with what it must see behind one router. B082.
func (s *slowRig) testTTLAndTOS(t *testing.T) {
	for _, fam := range families {
		for _, w := range podWays(s.Rig, s.a, s.b, fam) {
			t.Run(fmt.Sprintf("%s v%d", w.name, fam), func(t *testing.T) { s.ttlAndTOS(t, w, fam) })
		}
	}
}

func (s *slowRig) ttlAndTOS(t *testing.T, w slowWay, fam int) {
	var before uint64
	if s.d != nil {
		before = counters(t, s.d).Fast()
	}
	to, err := w.to.ListenUDP(netip.AddrPortFrom(w.dst, 4100))
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	from, err := w.from.DialUDP(netip.AddrPort{}, netip.AddrPortFrom(w.dst, 4100))
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	if fam == 4 {
		setOpt(t, to, unix.IPPROTO_IP, unix.IP_RECVTTL, 1)
		setOpt(t, to, unix.IPPROTO_IP, unix.IP_RECVTOS, 1)
	} else {
		setOpt(t, to, unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1)
		setOpt(t, to, unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1)
	}
	marks := []struct{ ttl, tos int }{{64, 0}, {2, 0}, {255, 0x48}, {33, 0xb8}, {128, 0x02}}
	for n := range 6 { // cold, then warm
		for _, m := range marks {
			got := sendMarked(t, from, to, fam, m.ttl, m.tos)
			if want := (seenBy{m.ttl - 1, m.tos}); got != want {
				t.Errorf("round %d: sent with ttl %d, tos %#x: received %+v, want %+v", n, m.ttl, m.tos, got, want)
			}
		}
	}
	if s.d != nil && counters(t, s.d).Fast() == before {
		t.Error("nothing took the fast path")
	}
}
