// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// sendEvenly sends 10,000 packets a second until it is stopped; sent counts them.
func sendEvenly(t *testing.T, r *rig.Rig, f rig.UDPFlows) (sent *atomic.Uint64, stop func()) {
	t.Helper()
	g, err := r.NewGenerator(f)
	if err != nil {
		t.Fatal(err)
	}
	sent = &atomic.Uint64{}
	done, ended := make(chan struct{}), make(chan struct{})
	var once sync.Once
	stop = func() { once.Do(func() { close(done); <-ended; g.Close() }) }
	t.Cleanup(stop)
	go func() {
		defer close(ended)
		// In batches: a call costs as much as many packets.
		const batch = 50
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				if err := g.Send(batch); err != nil {
					t.Error(err)
					return
				}
				sent.Add(batch)
			}
		}
	}()
	return sent, stop
}

const (
	liveFlows   = 1000
	floodFlows  = 1_000_000
	floodHosts  = 16
	floodPerRun = 12_500 // divides the packets of one host
)

// TestFlood sends a million UDP flows of one packet each beside a thousand live ones.
// None of the live ones is evicted. The flood bypasses conntrack, whose table is smaller
// than the flood: else the kernel would drop most of it, which teaches nothing.
func TestFlood(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	a := addPod(t, r, "a", nil)
	impose(t, r, "nft 'table inet flood { chain p { type filter hook prerouting priority raw; udp dport 9 notrack; }; }'",
		"nft delete table inet flood")
	if _, err := rig.NewSink(a.Host, 9); err != nil {
		t.Fatal(err)
	}
	for _, fam := range families {
		t.Run(fmt.Sprintf("v%d", fam), func(t *testing.T) { flood(t, r, a, fam) })
	}
}

func floodSource(fam, i int) netip.Addr {
	if fam == 4 {
		return netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + i)})
	}
	b := rig.ExtAddr6.As16()
	b[15] = byte(100 + i)
	return netip.AddrFrom16(b)
}

// keepAlive sends a packet on each live flow until all are live at once, and returns how
// old the youngest is.
func keepAlive(t *testing.T, d *datapath.Datapath, live *rig.Generator, dst netip.AddrPort) (youngest time.Duration) {
	t.Helper()
	eventually(t, 20*time.Second, "all live flows are live", func() bool {
		if err := live.Send(liveFlows); err != nil {
			t.Fatal(err)
		}
		n := 0
		youngest = time.Hour
		for _, f := range everyFlow(t, d) {
			if f.Dst == dst && f.Live() {
				n++
				youngest = min(youngest, f.Age)
			}
		}
		return n == liveFlows
	})
	return youngest
}

func flood(t *testing.T, r *rig.Rig, a *rig.Pod, fam int) {
	t.Helper()
	addr, _ := a.Addr(fam)
	dst := netip.AddrPortFrom(addr, 7)
	swallow(t, a.Host, "udp", dst)
	live, err := r.NewGenerator(rig.UDPFlows{
		Src: netip.AddrPortFrom(extAddr(fam), 10000), Dst: dst, Flows: liveFlows, Size: 80,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	d := open(t, r)
	keepAlive(t, d, live, dst)
	before, start := counters(t, d), time.Now()
	for i := range floodHosts {
		g, err := r.NewGenerator(rig.UDPFlows{
			Src: netip.AddrPortFrom(floodSource(fam, i), 1000), Dst: netip.AddrPortFrom(addr, 9),
			Flows: floodFlows / floodHosts, Size: 80,
		})
		if err != nil {
			t.Fatal(err)
		}
		for range floodFlows / floodHosts / floodPerRun {
			if err := errors.Join(g.Send(floodPerRun), live.Send(liveFlows)); err != nil {
				t.Fatal(err)
			}
		}
		g.Close()
	}
	took := time.Since(start)
	youngest := keepAlive(t, d, live, dst)
	passed, learned := rose(t, d, before, "pass_no_flow"), rose(t, d, before, "learn_new")
	t.Logf("flood of %v; passed: %d; waiting: %d; learned: %d", took.Round(time.Millisecond),
		passed, rose(t, d, before, "learn_wait"), learned)
	if youngest < took {
		t.Errorf("a flow is %v old after a flood of %v: it was evicted and learned again", youngest, took)
	}
	// Full rings lose a part of the flood before anything could learn from it.
	if passed < floodFlows*9/10 {
		t.Errorf("only %d packets of the flood reached the programs", passed)
	}
	if learned > floodFlows/1000 {
		t.Errorf("%d flows of one packet were learned", learned)
	}
}

// crowd is many UDP conversations over few sockets: every client talks to every server.
// A server answers with the address that it sees.
type crowd struct {
	name    string
	clients []*net.UDPConn
	// servers as the clients know them.
	servers []netip.AddrPort
	seen    map[string]string
}

// tellSource answers every datagram with the address it came from.
func tellSource(t *testing.T, h *rig.Host, at netip.AddrPort) {
	t.Helper()
	answerUDP(t, h, at, func(from netip.AddrPort, _ []byte) []byte { return []byte(from.String()) })
}

// round talks once over each conversation. Every answer has to come, and the address
// that a server sees must not change.
func (c *crowd) round(t *testing.T) {
	t.Helper()
	buf := make([]byte, 2048)
	for i, conn := range c.clients {
		for _, s := range c.servers {
			if _, err := conn.WriteToUDPAddrPort([]byte("hello"), s); err != nil {
				t.Fatal(err)
			}
		}
		_ = conn.SetReadDeadline(time.Now().Add(2 * time.Second))
		for got := range c.servers {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				t.Fatalf("%s: client %d: %d answers of %d: %v", c.name, i, got, len(c.servers), err)
			}
			key, source := fmt.Sprintf("%d %s", i, from), string(buf[:n])
			if was, ok := c.seen[key]; ok && was != source {
				t.Errorf("%s: %s was translated to %s, now to %s", c.name, key, was, source)
			}
			c.seen[key] = source
		}
	}
	if want := len(c.clients) * len(c.servers); len(c.seen) != want {
		t.Errorf("%s: %d conversations of %d", c.name, len(c.seen), want)
	}
}

// newCrowd opens the sockets.
func newCrowd(t *testing.T, name string, from *rig.Host, local netip.Addr, clients int, servers []netip.AddrPort) *crowd {
	t.Helper()
	c := &crowd{name: name, servers: servers, seen: map[string]string{}}
	for range clients {
		conn, err := from.ListenUDP(netip.AddrPortFrom(local, 0))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		c.clients = append(c.clients, conn)
	}
	return c
}

// TestFlowMapFull runs 20,000 flows, most of them translated, over a map of 1,024: no
// conversation breaks, and the kernel carries what the map does not hold. // B121
func TestFlowMapFull(t *testing.T) {
	t.Parallel()
	// A round may take a second: the interval in which packets count for learning is longer.
	r := newRig(t, revalidating(5*time.Second, map[string]any{"maxFlows": 1024}))
	a, b := addPod(t, r, "a", nil), addPod(t, r, "b", nil)
	var crowds []*crowd
	const servers = 100
	for _, fam := range families {
		podA, _ := a.Addr(fam)
		podB, _ := b.Addr(fam)
		nodeAddr := map[int]netip.Addr{4: rig.NodeAddr4, 6: rig.NodeAddr6}[fam]
		ip := map[int]string{4: "ip", 6: "ip6"}[fam]
		table := fmt.Sprintf("%s dnat%d", ip, fam)
		impose(t, r, fmt.Sprintf("nft 'table %s { chain p { type nat hook prerouting priority dstnat; "+
			"%s daddr %s udp dport 20000-20099 dnat to %s; }; }'", table, ip, nodeAddr, podA), "nft delete table "+table)
		var ext, dnat, pod []netip.AddrPort
		for i := range uint16(servers) {
			tellSource(t, r.Ext, netip.AddrPortFrom(extAddr(fam), 20000+i))
			tellSource(t, a.Host, netip.AddrPortFrom(podA, 20000+i))
			ext = append(ext, netip.AddrPortFrom(extAddr(fam), 20000+i))
			dnat = append(dnat, netip.AddrPortFrom(nodeAddr, 20000+i))
			pod = append(pod, netip.AddrPortFrom(podA, 20000+i))
		}
		crowds = append(crowds,
			newCrowd(t, fmt.Sprintf("v%d masqueraded", fam), b.Host, podB, 20, ext),
			newCrowd(t, fmt.Sprintf("v%d DNAT", fam), r.Ext, extAddr(fam), 20, dnat),
			newCrowd(t, fmt.Sprintf("v%d pod to pod", fam), b.Host, podB, 10, pod))
	}
	d := open(t, r)
	var tcp []net.Conn
	for _, fam := range families {
		echo(t, r.Ext, "tcp", netip.AddrPortFrom(extAddr(fam), 80))
		for range 25 {
			tcp = append(tcp, dial(t, a.Host, "tcp", netip.AddrPortFrom(extAddr(fam), 80)))
		}
	}
	before := counters(t, d)
	for range 6 {
		for _, c := range crowds {
			c.round(t)
		}
		for _, c := range tcp {
			if _, err := rig.RoundTrip(c, make([]byte, 100), 2*time.Second); err != nil {
				t.Errorf("tcp %s: %v", c.LocalAddr(), err)
			}
		}
	}
	wantFull(t, d, before)
}

// wantFull fails unless the map was too small and the fast path was still used.
func wantFull(t *testing.T, d *datapath.Datapath, before datapath.Counters) {
	t.Helper()
	byProto := map[uint8]int{}
	for _, f := range everyFlow(t, d) {
		byProto[f.Proto]++
	}
	learned, fast := rose(t, d, before, "learn_new"), counters(t, d).Fast()-before.Fast()
	t.Logf("in the maps: %v; learned %d; fast %d", byProto, learned, fast)
	if n := byProto[unix.IPPROTO_UDP] + byProto[unix.IPPROTO_TCP]; n > 2048 {
		t.Errorf("%d flows in two maps of 1,024", n)
	}
	if learned < 4096 || fast == 0 {
		t.Errorf("the maps were not under pressure: %d learned, %d packets fast", learned, fast)
	}
}
