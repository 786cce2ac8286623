// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// Service addresses that no host owns; the node translates them.
var (
	svcAddr4 = netip.MustParseAddr("10.96.0.10")
	svcAddr6 = netip.MustParseAddr("2001:db8:96::10")
)

// natPath is one way in which a client reaches a server.
type natPath struct {
	name     string
	from, to *rig.Host
	// client is the address that the client sends from.
	client netip.Addr
	// dial is where the client connects to, serve where the server listens.
	dial, serve netip.AddrPort
	// mtu is the longest IP packet that gets through whole.
	mtu int
}

// natBed is a rig with two pods and the translations of a node that runs services:
// node ports and service addresses in front of pods and of the remote host.
type natBed struct {
	r    *rig.Rig
	a, b *rig.Pod
}

// newNATBed builds the rig. The node's rules stand in a table of their own, before the
// plugin's masquerade.
func newNATBed(t *testing.T, opts rig.Options) *natBed {
	t.Helper()
	r := newRigWith(t, opts)
	bed := &natBed{r: r, a: addPod(t, r, "a", nil), b: addPod(t, r, "b", nil)}
	applyRules(t, r.Node, "services", bed.rules())
	return bed
}

// applyRules makes an nftables table on a host for the time of the test.
func applyRules(t *testing.T, h *rig.Host, table, rules string) {
	t.Helper()
	on(t, h, fmt.Sprintf("nft -f - <<'END'\ntable inet %s {\n%s\n}\nEND", table, rules))
	t.Cleanup(func() { on(t, h, "nft delete table inet "+table) })
}

// rules are the node's translations, for both families.
func (bed *natBed) rules() string {
	var pre, post strings.Builder
	for _, fam := range families {
		for _, p := range bed.paths(fam) {
			if p.dial == p.serve {
				continue
			}
			fmt.Fprintf(&pre, "%s daddr %s meta l4proto { tcp, udp } th dport %d dnat %s to %s\n",
				nftFamily(fam), p.dial.Addr(), p.dial.Port(), nftFamily(fam), p.serve)
		}
		a, _ := bed.a.Addr(fam)
		fmt.Fprintf(&post, "%[1]s saddr %[2]s %[1]s daddr %[2]s masquerade\n", nftFamily(fam), a)
	}
	return fmt.Sprintf(`
	chain pre { type nat hook prerouting priority dstnat; policy accept;
%s	}
	chain post { type nat hook postrouting priority srcnat - 10; policy accept;
	meta l4proto { tcp, udp } ct original proto-dst 8083 masquerade
%s	}`, &pre, &post)
}

func nftFamily(family int) string {
	if family == 6 {
		return "ip6"
	}
	return "ip"
}

func nodeAddr(family int) netip.Addr {
	if family == 6 {
		return rig.NodeAddr6
	}
	return rig.NodeAddr4
}

// paths lists every kind of translation. The last one, a pod that reaches itself
// through its service, is B062.
func (bed *natBed) paths(fam int) []natPath {
	r := bed.r
	a, _ := bed.a.Addr(fam)
	b, _ := bed.b.Addr(fam)
	ext, nodeIP, svc := extAddr(fam), nodeAddr(fam), svcAddr4
	if fam == 6 {
		svc = svcAddr6
	}
	at := netip.AddrPortFrom
	podA, podB := bed.a.Host, bed.b.Host
	return []natPath{
		{"plain pod to pod", podA, podB, a, at(b, 79), at(b, 79), 65535},
		{"plain", r.Ext, podA, ext, at(a, 80), at(a, 80), 1500},
		{"snat", podA, r.Ext, a, at(ext, 81), at(ext, 81), 1500},
		{"dnat node port", r.Ext, podA, ext, at(nodeIP, 8082), at(a, 82), 1500},
		{"dnat and snat node port", r.Ext, podA, ext, at(nodeIP, 8083), at(a, 83), 1500},
		{"dnat service", podA, podB, a, at(svc, 8084), at(b, 84), 1500},
		{"dnat and snat service", podA, r.Ext, a, at(svc, 8085), at(ext, 85), 1500},
		{"hairpin", podA, podA, a, at(svc, 8086), at(a, 86), 1500},
	}
}

// session is a connection with both of its sockets.
type session struct {
	path   natPath
	proto  string
	client net.Conn
	// server is the accepted connection; for UDP the unconnected socket.
	server net.Conn
	// Tuples as each end sees them.
	clientLocal, clientRemote, serverLocal, serverRemote netip.AddrPort
}

// tuples says what both ends see.
func (s *session) tuples() string {
	return fmt.Sprintf("client %v > %v, server %v > %v", s.clientLocal, s.clientRemote, s.serverLocal, s.serverRemote)
}

// connect makes a session from a fixed port: a handshake, or a datagram both ways. It
// ends before the rules that translate it are removed.
func connect(t *testing.T, p natPath, proto string, port uint16) *session {
	t.Helper()
	s := &session{path: p, proto: proto}
	var err error
	from := netip.AddrPortFrom(p.client, port)
	if proto == "udp" {
		err = s.connectUDP(from)
	} else {
		err = s.connectTCP(from)
	}
	if err != nil {
		t.Fatalf("%s %s: %v", p.name, proto, err)
	}
	t.Cleanup(s.close)
	return s
}

func (s *session) close() {
	for _, c := range []net.Conn{s.client, s.server} {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close()
	}
}

// datapathFlow finds what has been learned for one of the session's directions, and may
// have run out.
func (s *session) datapathFlow(t *testing.T, d *datapath.Datapath, forward bool) (datapath.Flow, bool) {
	t.Helper()
	src, dst := s.clientLocal, s.clientRemote
	if !forward {
		src, dst = s.serverLocal, s.serverRemote
	}
	for f, err := range d.Flows() {
		if err != nil {
			t.Fatal(err)
		}
		if f.Proto == protos[s.proto] && f.Src == src && f.Dst == dst {
			return f, true
		}
	}
	return datapath.Flow{}, false
}
