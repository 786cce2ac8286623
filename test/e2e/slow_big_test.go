// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// numbered is a payload of which every part is different.
func numbered(size int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, "%08d", i)
	}
	return b.Bytes()[:size]
}

// nodePort makes the node pass on UDP and TCP to one of its ports to a pod, as a Service
// does, and removes it when the test ends.
func nodePort(t *testing.T, r *rig.Rig, port uint16, to netip.AddrPort) {
	t.Helper()
	family, addr := "ip", to.Addr().String()
	if to.Addr().Is6() {
		family, addr = "ip6", "["+addr+"]"
	}
	node(t, r, fmt.Sprintf(`nft -f - <<'E'
table %s nodeport {
  chain pre {
    type nat hook prerouting priority dstnat;
    meta l4proto { tcp, udp } th dport %d dnat to %s:%d
  }
}
E`, family, port, addr, to.Port()))
	t.Cleanup(func() { node(t, r, "nft delete table "+family+" nodeport") })
}

func slowNodeAddr(family int) netip.Addr {
	if family == 6 {
		return rig.NodeAddr6
	}
	return rig.NodeAddr4
}

// testFragmentsOutOfOrder sends datagrams of 4 KB in fragments, the last one first, on
// warm flows to a pod and to a NodePort. B054.
func (s *slowRig) testFragmentsOutOfOrder(t *testing.T) {
	for _, fam := range families {
		addr, _ := s.a.Addr(fam)
		service := netip.AddrPortFrom(addr, 7)
		echo(t, s.a.Host, "udp", service)
		nodePort(t, s.Rig, 30007, service)
		for name, at := range map[string]netip.AddrPort{
			"pod": service, "node port": netip.AddrPortFrom(slowNodeAddr(fam), 30007),
		} {
			t.Run(fmt.Sprintf("%s v%d", name, fam), func(t *testing.T) { s.lastFragmentFirst(t, at) })
		}
	}
}

func (s *slowRig) lastFragmentFirst(t *testing.T, at netip.AddrPort) {
	out, up := newTap(t, s.Ext, rig.ExtDev), hostMAC(t, s.Node, rig.Uplink)
	conn := dial(t, s.Ext, "udp", at)
	var before datapath.Counters
	if s.d != nil {
		warm(t, s.Rig, conn)
		before = counters(t, s.d)
	}
	msg := numbered(4096)
	p := rawPacket{src: conn.LocalAddr().(*net.UDPAddr).AddrPort(), dst: at, proto: protoUDP, payload: msg}
	pieces := p.fragments(1400)
	slices.Reverse(pieces)
	for _, f := range pieces {
		out.send(up, f)
	}
	if got := read(t, conn, len(msg)); !bytes.Equal(got, msg) {
		t.Errorf("the echo differs from what was sent")
	}
	if s.d == nil {
		return
	}
	after := counters(t, s.d)
	if n := after["pass_fragment"] - before["pass_fragment"]; n < uint64(len(pieces)) {
		t.Errorf("%d fragments were counted, want %d", n, len(pieces))
	}
	if n := after.Fast() - before.Fast(); n != 0 {
		t.Errorf("%d fragments took the fast path", n)
	}
}

// read reads one datagram of a size.
func read(t *testing.T, conn net.Conn, size int) []byte {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(3 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, size+1)
	n, err := conn.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n]
}

// testLargePings sends pings above every MTU after small ones. B056.
func (s *slowRig) testLargePings(t *testing.T) {
	for _, fam := range families {
		for _, w := range podWays(s.Rig, s.a, s.b, fam) {
			t.Run(fmt.Sprintf("%s v%d", w.name, fam), func(t *testing.T) {
				for _, size := range []int{56, 4000, 60000} {
					on(t, w.from, fmt.Sprintf("ping -n -c 3 -i 0.01 -W 2 -s %d %s", size, w.dst))
				}
			})
		}
	}
}
