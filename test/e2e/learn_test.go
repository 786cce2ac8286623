// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/xveth/xveth/test/rig"
)

// families are the IP versions that every datapath test runs for.
var families = []int{4, 6}

// protos are the transport protocols, with their IP protocol numbers.
var protos = map[string]uint8{"tcp": 6, "udp": 17}

func extAddr(family int) netip.Addr {
	if family == 6 {
		return rig.ExtAddr6
	}
	return rig.ExtAddr4
}

// warm makes round trips until both directions of a flow have taken the fast path.
func warm(t *testing.T, r *rig.Rig, conn net.Conn) {
	t.Helper()
	d := open(t, r)
	start := counters(t, d).Fast()
	eventually(t, 5*time.Second, "the flow takes the fast path", func() bool {
		if _, err := rig.RoundTrip(conn, []byte("0123456789abcdef"), time.Second); err != nil {
			t.Fatal(err)
		}
		return counters(t, d).Fast() >= start+4
	})
}

// dial connects over tcp or udp.
func dial(t *testing.T, from *rig.Host, proto string, to netip.AddrPort) net.Conn {
	t.Helper()
	var (
		conn net.Conn
		err  error
	)
	if proto == "tcp" {
		conn, err = from.DialTCP(netip.AddrPort{}, to)
	} else {
		conn, err = from.DialUDP(netip.AddrPort{}, to)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// echo starts an echo service for tcp or udp.
func echo(t *testing.T, on *rig.Host, proto string, at netip.AddrPort) {
	t.Helper()
	start := on.EchoUDP
	if proto == "tcp" {
		start = on.EchoTCP
	}
	if err := start(ctxOf(t), at); err != nil {
		t.Fatal(err)
	}
}

// TestLearn sends from the remote host to a pod, from a pod to the remote host and from
// pod to pod, and finds all of it on the fast path.
func TestLearn(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	a, b := addPod(t, r, "a", nil), addPod(t, r, "b", nil)
	for _, fam := range families {
		addrA, _ := a.Addr(fam)
		addrB, _ := b.Addr(fam)
		for proto := range protos {
			for _, c := range []struct {
				name     string
				from, to *rig.Host
				at       netip.AddrPort
			}{
				{"ext to pod", r.Ext, a.Host, netip.AddrPortFrom(addrA, 7)},
				{"pod to ext", a.Host, r.Ext, netip.AddrPortFrom(extAddr(fam), 7)},
				{"pod to pod", a.Host, b.Host, netip.AddrPortFrom(addrB, 8)},
			} {
				t.Run(fmt.Sprintf("%s v%d %s", c.name, fam, proto), func(t *testing.T) {
					echo(t, c.to, proto, c.at)
					warm(t, r, dial(t, c.from, proto, c.at))
				})
			}
		}
	}
}
