// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/test/rig"
)

// dgramStream is a stream of numbered datagrams between two hosts.
type dgramStream struct {
	out, in *net.UDPConn
	halt    chan struct{}
	sending sync.WaitGroup
	hearing sync.WaitGroup

	heard atomic.Uint64 // datagrams so far

	// Valid after stop.
	sent, arrived, late, twice uint64
}

// startStream sends datagrams at a rate; rate 0 is as fast as the socket goes. The
// receiver has room for all that comes within some seconds.
func startStream(t *testing.T, from, to *rig.Host, dial, at netip.AddrPort, rate int) *dgramStream {
	t.Helper()
	n := &dgramStream{halt: make(chan struct{})}
	var err error
	if n.in, err = to.ListenUDP(at); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.in.Close() })
	setOption(t, n.in, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 256<<20)
	if n.out, err = from.DialUDP(netip.AddrPort{}, dial); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.out.Close() })
	setOption(t, n.out, unix.SOL_UDP, unix.UDP_SEGMENT, dgramLen)
	n.hearing.Add(1)
	go n.hear()
	n.sending.Add(1)
	go n.send(rate)
	return n
}

func setOption(t *testing.T, c *net.UDPConn, level, option, value int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), level, option, value) })
	if err = errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
}

// The datagrams leave in bursts of one system call, which the sender's interface cuts
// up: a poll of the next interface finds all of a burst.
const (
	burstLen = 32
	dgramLen = 64
)

// send sends bursts, so many that the rate is reached in the long run.
func (n *dgramStream) send(rate int) {
	defer n.sending.Done()
	b := make([]byte, burstLen*dgramLen)
	for start := time.Now(); ; {
		select {
		case <-n.halt:
			return
		default:
		}
		if rate > 0 {
			time.Sleep(time.Until(start.Add(time.Second * time.Duration(n.sent) / time.Duration(rate))))
		}
		for i := range burstLen {
			binary.BigEndian.PutUint64(b[i*dgramLen:], n.sent+uint64(i))
		}
		if _, err := n.out.Write(b); err == nil {
			n.sent += burstLen
		}
	}
}

// orderQuiet is how long nothing must come after the end of a stream for it to be over.
const orderQuiet = 300 * time.Millisecond

// hear counts until the stream is over.
func (n *dgramStream) hear() {
	defer n.hearing.Done()
	b := make([]byte, dgramLen)
	next, before := uint64(0), uint64(0)
	for {
		_, err := n.in.Read(b)
		if errors.Is(err, os.ErrDeadlineExceeded) && n.arrived > before {
			before = n.arrived
			_ = n.in.SetReadDeadline(time.Now().Add(orderQuiet))
			continue
		}
		if err != nil {
			return
		}
		n.arrived = n.heard.Add(1)
		switch seq := binary.BigEndian.Uint64(b); {
		case seq+1 == next:
			n.twice++
		case seq < next:
			n.late++
		default:
			next = seq + 1
		}
	}
}

// stop ends the stream and waits for what is still under way.
func (n *dgramStream) stop() {
	close(n.halt)
	n.sending.Wait()
	_ = n.in.SetReadDeadline(time.Now().Add(orderQuiet))
	n.hearing.Wait()
}

// orderPath is a path for which order is tested.
type orderPath struct {
	name string
	conf map[string]any
	pod  bool // pod to pod, else from the remote host
}

var orderPaths = []orderPath{
	{"xdp", drives["xdp uplink"], false},
	{"tcx", drives["tcx uplink"], false},
	{"pod to pod", nil, true},
}

// orderEnds are the ends of a path on a rig.
type orderEnds struct {
	from, to *rig.Host
	at       netip.AddrPort // at the second host
}

// ways makes the pods of a path.
func (o orderPath) ways(t *testing.T, r *rig.Rig, fam int) orderEnds {
	t.Helper()
	a := addPod(t, r, "a", nil)
	addr, err := a.Addr(fam)
	if err != nil {
		t.Fatal(err)
	}
	w := orderEnds{r.Ext, a.Host, netip.AddrPortFrom(addr, 9100)}
	if o.pod {
		b := addPod(t, r, "b", nil)
		on(t, b.Host, "ethtool -K eth0 tx-udp-segmentation off") // or a burst stays one skb
		w.from = b.Host
	}
	return w
}

// orderInterval is short, so that a second sees a hundred renewals.
const orderInterval = 10 * time.Millisecond

// TestOrderUDP sends numbered datagrams over many renewals. None of them arrives
// behind a later one, as none does on the kernel path.
func TestOrderUDP(t *testing.T) {
	for _, o := range orderPaths {
		t.Run(o.name, func(t *testing.T) {
			off := o.ways(t, newRig(t, offConf), 4)
			r := newRig(t, withFast(o.conf, map[string]any{"revalidate": orderInterval.String()}))
			fast := o.ways(t, r, 4)
			for name, rate := range map[string]int{"paced": 50_000, "full": 0} {
				t.Run(name+" off", func(t *testing.T) { checkOrderUDP(t, off, rate, 300*time.Millisecond) })
				t.Run(name, func(t *testing.T) {
					before := counters(t, open(t, r))
					arrived := checkOrderUDP(t, fast, rate, 1200*time.Millisecond)
					after := counters(t, open(t, r))
					renewals := after["learn_renewed"] - before["learn_renewed"]
					t.Logf("%d renewals", renewals)
					if n := after.Fast() - before.Fast(); n < arrived/2 || renewals < 20 {
						t.Errorf("%d of %d packets took the fast path, %d renewals", n, arrived, renewals)
					}
				})
			}
		})
	}
}

func checkOrderUDP(t *testing.T, w orderEnds, rate int, span time.Duration) (arrived uint64) {
	t.Helper()
	n := startStream(t, w.from, w.to, w.at, w.at, rate)
	time.Sleep(span)
	n.stop()
	t.Logf("%d sent, %d arrived (%.0f/s), %d late, %d twice", n.sent, n.arrived,
		float64(n.arrived)/span.Seconds(), n.late, n.twice)
	if n.late > 0 || n.twice > 0 {
		t.Errorf("%d late, %d twice, of %d", n.late, n.twice, n.arrived)
	}
	return n.arrived
}

// tcpInfo reads what the kernel knows of a connection.
func tcpInfo(t *testing.T, c *net.TCPConn) *unix.TCPInfo {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var info *unix.TCPInfo
	var failed error
	err = raw.Control(func(fd uintptr) {
		info, failed = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	})
	if err = errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	return info
}

// TestOrderTCP sends bulk over many renewals. Order is lost no more often, and no more
// segments are sent again, than on the kernel path.
func TestOrderTCP(t *testing.T) {
	for _, o := range orderPaths {
		t.Run(o.name, func(t *testing.T) {
			off := measureTCP(t, newRig(t, offConf), o)
			r := newRig(t, withFast(o.conf, map[string]any{"revalidate": orderInterval.String()}))
			out := measureTCP(t, r, o)
			renewals := counters(t, open(t, r))["learn_renewed"]
			t.Logf("%d renewals", renewals)
			if renewals < 20 {
				t.Errorf("%d renewals, too few", renewals)
			}
			// On a busy machine the sender moves between CPUs, so that a few are seen on
			// either path.
			few := uint32(renewals / 20)
			// Times, not segments: one move puts all that are under way out of order.
			if out.Reord_seen > off.Reord_seen+few {
				t.Errorf("order was lost %d times, %d on the kernel path", out.Reord_seen, off.Reord_seen)
			}
			if tcpLost(out) > tcpLost(off)+few {
				t.Errorf("%d segments lost, %d on the kernel path", tcpLost(out), tcpLost(off))
			}
		})
	}
}

// tcpLost is how many segments had to be sent again. Probes of the tail, which come with a
// busy machine, are not among them: the receiver reports that it has seen those twice.
func tcpLost(i *unix.TCPInfo) uint32 {
	return i.Total_retrans - min(i.Total_retrans, i.Dsack_dups)
}

func measureTCP(t *testing.T, r *rig.Rig, o orderPath) *unix.TCPInfo {
	t.Helper()
	w := o.ways(t, r, 4)
	p := tcpConnect(t, crossing{o.name, w.from, w.to, w.at, w.at})
	start := time.Now()
	tcpStream(t, p, 700*time.Millisecond)
	out, in := tcpInfo(t, p.client), tcpInfo(t, p.server)
	t.Logf("%.2f Gbit/s, %d segments, %d sent again (%d in vain), %d out of order, reordering seen %d times",
		float64(out.Bytes_acked)*8/time.Since(start).Seconds()/1e9, out.Segs_out, out.Total_retrans, out.Dsack_dups,
		in.Rcv_ooopack, out.Reord_seen)
	return out
}
