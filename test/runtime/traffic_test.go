// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

const (
	// burst is how many round trips are made at a time.
	burst = 100
	// fastEnough is how many packets of a flow have to take the fast path for it to count
	// as used.
	fastEnough = 100
	// extPort is where the remote host echoes.
	extPort = 9000
	// warmWait bounds the wait for that.
	warmWait = 60 * time.Second
)

// protocols by their names in package net.
var protocols = map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP}

// dial connects a host to an address.
func dial(h *rig.Host, network string, to netip.AddrPort) (net.Conn, error) {
	if network == "tcp" {
		return h.DialTCP(netip.AddrPort{}, to)
	}
	return h.DialUDP(netip.AddrPort{}, to)
}

// flows finds the live flows from src to dst as their packets come in; a port of 0 stands
// for any.
func flows(t *testing.T, d *datapath.Datapath, network string, src, dst netip.AddrPort) (found []datapath.Flow) {
	t.Helper()
	is := func(have, want netip.AddrPort) bool {
		return have.Addr() == want.Addr() && (want.Port() == 0 || have.Port() == want.Port())
	}
	for f, err := range d.Flows() {
		if err != nil {
			t.Fatal(err)
		}
		if f.Proto == protocols[network] && is(f.Src, src) && is(f.Dst, dst) && f.Live() {
			found = append(found, f)
		}
	}
	return found
}

// fast is how many packets of the flows from src to dst took the fast path.
func fast(t *testing.T, d *datapath.Datapath, network string, src, dst netip.AddrPort) (n uint64) {
	t.Helper()
	for _, f := range flows(t, d, network, src, dst) {
		n += f.Packets
	}
	return n
}

// wantFastIn makes the remote host talk to a server in a container until both directions
// have been learned and used. The server is reached at dst and is at pod.
func (b *bed) wantFastIn(t *testing.T, network string, dst, pod netip.AddrPort) {
	t.Helper()
	d := b.datapath(t)
	conn, err := dial(b.Ext, network, dst)
	if err != nil {
		t.Fatalf("%s %s: %v", network, dst, err)
	}
	defer conn.Close()
	src := netip.MustParseAddrPort(conn.LocalAddr().String())
	eventually(t, warmWait, fmt.Sprintf("%s from the remote host to %s is fast", network, dst), func() bool {
		for i := range burst {
			msg := fmt.Sprintf("message %d", i)
			got, err := rig.RoundTrip(conn, []byte(msg), 5*time.Second)
			if err != nil || string(got) != msg {
				t.Fatalf("%s %s: got %q, want %q: %v", network, dst, got, msg, err)
			}
		}
		return fast(t, d, network, src, dst) >= fastEnough && fast(t, d, network, pod, src) >= fastEnough
	})
}

// roundTrip checks that a connection lives.
func roundTrip(t *testing.T, conn net.Conn) {
	t.Helper()
	if got, err := rig.RoundTrip(conn, []byte("still there?"), 10*time.Second); err != nil {
		t.Errorf("got %q: %v", got, err)
	}
}

// client runs a command in a container and returns what it printed.
type client func(t *testing.T, args ...string) string

// wantFastOut makes a container talk to the remote host.
func (b *bed) wantFastOut(t *testing.T, run client, network string, pod, server netip.Addr) {
	t.Helper()
	b.wantFastDial(t, run, network, pod, netip.AddrPortFrom(server, extPort))
}

// wantFastDial runs a client in a container until most of its packets, and most of the
// replies, take the fast path. Nothing else may send meanwhile: a flow that has ended can
// no longer be looked at, so all packets of the node are counted.
func (b *bed) wantFastDial(t *testing.T, run client, network string, pod netip.Addr, server netip.AddrPort) {
	t.Helper()
	const trips = 200
	d := b.datapath(t)
	eventually(t, warmWait, fmt.Sprintf("%s from %s to %s is fast", network, pod, server), func() bool {
		before := fastOf(t, d)
		run(t, "/bin/guest", "dial", network, pod.String(), server.String(), fmt.Sprint(trips))
		// One direction alone cannot have so many.
		return fastOf(t, d)-before >= trips*3/2
	})
}

// fastOf is how many packets of the node took the fast path.
func fastOf(t *testing.T, d *datapath.Datapath) uint64 {
	t.Helper()
	c, err := d.Counters()
	if err != nil {
		t.Fatal(err)
	}
	return c.Fast()
}
