// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// The configurations that most tests of this file and its neighbours run for.
var (
	offConf = map[string]any{"fastPath": map[string]any{"mode": "off"}}
	drives  = map[string]map[string]any{
		"xdp uplink": nil,
		"tcx uplink": {"uplinks": []any{map[string]any{"name": rig.Uplink, "mode": "tcx"}}},
	}
)

// withFast adds keys to the fastPath section of a configuration.
func withFast(conf map[string]any, keys map[string]any) map[string]any {
	out := map[string]any{"fastPath": keys}
	for k, v := range conf {
		out[k] = v
	}
	return out
}

// crossing is a way in which a connection crosses the node.
type crossing struct {
	name     string
	from, to *rig.Host
	dial     netip.AddrPort // what the client connects to
	at       netip.AddrPort // where the server listens
}

// crossings lists a plain, a masqueraded and a DNATed way between a pod and the remote
// host. The last needs the rules of addDNAT.
func crossings(t *testing.T, r *rig.Rig, pod *rig.Pod, fam int) []crossing {
	t.Helper()
	addr, err := pod.Addr(fam)
	if err != nil {
		t.Fatal(err)
	}
	node := rig.NodeAddr4
	if fam == 6 {
		node = rig.NodeAddr6
	}
	ext := netip.AddrPortFrom(extAddr(fam), 9001)
	return []crossing{
		{"plain", r.Ext, pod.Host, netip.AddrPortFrom(addr, 9000), netip.AddrPortFrom(addr, 9000)},
		{"masquerade", pod.Host, r.Ext, ext, ext},
		{"dnat", r.Ext, pod.Host, netip.AddrPortFrom(node, 9002), netip.AddrPortFrom(addr, 9003)},
	}
}

// addDNAT sends what comes to the node's port 9002 to the pod's port 9003.
func addDNAT(t *testing.T, r *rig.Rig, pod *rig.Pod) {
	t.Helper()
	node(t, r, fmt.Sprintf(`nft 'table inet dnat_test { chain prerouting {
		type nat hook prerouting priority dstnat
		ip daddr %s meta l4proto { tcp, udp } th dport 9002 dnat ip to %s:9003
		ip6 daddr %s meta l4proto { tcp, udp } th dport 9002 dnat ip6 to [%s]:9003
	}
	}'`, rig.NodeAddr4, pod.Addr4, rig.NodeAddr6, pod.Addr6))
	t.Cleanup(func() { node(t, r, "nft delete table inet dnat_test") })
}

// tcpPair is an open connection.
type tcpPair struct {
	client, server *net.TCPConn
	port           uint16 // the client's
}

func tcpConnect(t *testing.T, c crossing) tcpPair {
	t.Helper()
	l, err := c.to.ListenTCP(c.at)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := c.from.DialTCP(netip.AddrPort{}, c.dial)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	if err := l.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	server, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return tcpPair{client, server, client.LocalAddr().(*net.TCPAddr).AddrPort().Port()}
}

// tcpTransfer sends n bytes and waits until they have arrived.
func tcpTransfer(from, to *net.TCPConn, n int64, wait time.Duration) error {
	end := time.Now().Add(wait)
	if err := errors.Join(from.SetDeadline(end), to.SetDeadline(end)); err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() {
		_, err := io.CopyN(from, tcpZeros{}, n)
		sent <- err
	}()
	got, err := io.CopyN(tcpDiscard{}, to, n)
	if err != nil {
		return fmt.Errorf("%d of %d bytes arrived: %w", got, n, err)
	}
	return <-sent
}

// tcpZeros is an endless source.
type tcpZeros struct{}

func (tcpZeros) Read(p []byte) (int, error) { return len(p), nil }

// tcpDiscard hides io.Discard's ReadFrom, whose buffer is too small for bulk.
type tcpDiscard struct{}

func (tcpDiscard) Write(p []byte) (int, error) { return len(p), nil }

// flowsOf lists what is learned of the connection of a client's port.
func flowsOf(t *testing.T, d *datapath.Datapath, proto uint8, port uint16) (live, all int) {
	t.Helper()
	for f, err := range d.Flows() {
		if err != nil {
			t.Fatal(err)
		}
		if f.Proto != proto || f.Src.Port() != port && f.NewDst.Port() != port {
			continue
		}
		all++
		if f.Live() {
			live++
		}
	}
	return live, all
}

// warmPair makes both directions fast, and moves enough by the fast path that
// conntrack's idea of the windows is out of date.
func warmPair(t *testing.T, d *datapath.Datapath, p tcpPair) {
	t.Helper()
	eventually(t, 5*time.Second, "both directions are learned", func() bool {
		if err := pingPong(p); err != nil {
			t.Fatal(err)
		}
		live, _ := flowsOf(t, d, protos["tcp"], p.port)
		return live == 2
	})
	bulkPair(t, p)
}

func pingPong(p tcpPair) error {
	return errors.Join(tcpTransfer(p.client, p.server, 16, 5*time.Second),
		tcpTransfer(p.server, p.client, 16, 5*time.Second))
}

func bulkPair(t *testing.T, p tcpPair) {
	t.Helper()
	const bytes = 8 << 20
	if err := tcpTransfer(p.client, p.server, bytes, 20*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := tcpTransfer(p.server, p.client, bytes, 20*time.Second); err != nil {
		t.Fatal(err)
	}
}

// ctEntry is a line of the node's conntrack table.
type ctEntry struct {
	state   string
	timeout int // seconds
	line    string
}

// ctEntries lists the node's conntrack entries of TCP connections from a client's port.
func ctEntries(t *testing.T, r *rig.Rig, port uint16) (all []ctEntry) {
	t.Helper()
	err := r.Node.Do(func() error {
		f, err := os.Open("/proc/thread-self/net/nf_conntrack")
		if err != nil {
			return err
		}
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			w := strings.Fields(s.Text())
			if len(w) < 6 || w[2] != "tcp" || !strings.Contains(s.Text(), fmt.Sprintf("sport=%d ", port)) {
				continue
			}
			n, err := strconv.Atoi(w[4])
			if err != nil {
				return err
			}
			all = append(all, ctEntry{w[5], n, s.Text()})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// closing ends a warm connection and returns what conntrack then holds of it.
type closing struct {
	name string
	do   func(t *testing.T, first, second *net.TCPConn)
	// last is the state in which the kernel path leaves the connection.
	last string
}

var closings = []closing{
	{"fin", closeByFIN, "TIME_WAIT"},
	{"rst", closeByRST, "CLOSE"},
	{"half-close", closeByHalves, "TIME_WAIT"},
}

func closeByFIN(t *testing.T, first, second *net.TCPConn) {
	t.Helper()
	if err := first.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	expectEOF(t, second)
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	expectEOF(t, first)
	first.Close()
}

// closeByHalves lets the other side go on for a while after the first FIN.
func closeByHalves(t *testing.T, first, second *net.TCPConn) {
	t.Helper()
	if err := first.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	expectEOF(t, second)
	if err := tcpTransfer(second, first, 4<<20, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	second.Close()
	expectEOF(t, first)
	first.Close()
}

func closeByRST(t *testing.T, first, second *net.TCPConn) {
	t.Helper()
	if err := errors.Join(first.SetLinger(0), first.Close()); err != nil {
		t.Fatal(err)
	}
	_ = second.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := second.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("the other side reads %v, want a reset", err)
	}
}

func expectEOF(t *testing.T, c *net.TCPConn) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatalf("read %d bytes, %v; want the end of the stream", n, err)
	}
}

// TestTCPClose ends warm connections by FIN and by RST from either side. Conntrack's
// entry ends as on the kernel path, and no flow is left.
func TestTCPClose(t *testing.T) {
	t.Parallel()
	confs := map[string]map[string]any{"off": offConf}
	for name, conf := range drives {
		confs[name] = conf
	}
	for name, conf := range confs {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, conf)
			pod := addPod(t, r, "a", nil)
			addDNAT(t, r, pod)
			for _, fam := range families {
				for _, c := range crossings(t, r, pod, fam) {
					for _, how := range closings {
						for _, side := range []string{"client", "server"} {
							t.Run(fmt.Sprintf("%s v%d %s by %s", c.name, fam, how.name, side), func(t *testing.T) {
								checkClose(t, r, c, how, side, name == "off")
							})
						}
					}
				}
			}
		})
	}
}

func checkClose(t *testing.T, r *rig.Rig, c crossing, how closing, side string, off bool) {
	p := tcpConnect(t, c)
	if off {
		bulkPair(t, p)
	} else {
		warmPair(t, open(t, r), p)
	}
	first, second := p.client, p.server
	if side == "server" {
		first, second = second, first
	}
	how.do(t, first, second)
	if !off {
		if _, left := flowsOf(t, open(t, r), protos["tcp"], p.port); left != 0 {
			t.Errorf("%d flows are left", left)
		}
	}
	var have []ctEntry
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if have = ctEntries(t, r, p.port); ended(have, how) {
			t.Logf("conntrack: %s", have[0].line)
			return
		}
	}
	t.Errorf("conntrack holds %+v, want one in state %s", have, how.last)
}

// ended says whether conntrack's only entry is in the state where the kernel path
// leaves it, or about to go as soon as that: a RST that conntrack cannot place does not
// change the state, but must not leave the entry for longer than state CLOSE lasts.
func ended(have []ctEntry, how closing) bool {
	if len(have) != 1 {
		return false
	}
	return have[0].state == how.last || how.name == "rst" && have[0].timeout <= 10
}
