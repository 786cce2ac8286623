// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/xveth/xveth/test/rig"
)

// setMTU sets the MTU of the wire and of what is at its ends.
func setMTU(t *testing.T, r *rig.Rig, mtu int) {
	t.Helper()
	for dev, h := range map[string]*rig.Host{"w0": r.Wire, "w1": r.Wire, rig.ExtDev: r.Ext, rig.Uplink: r.Node} {
		on(t, h, fmt.Sprintf("ip link set %s mtu %d", dev, mtu))
	}
}

// TestJumboUplink drives an uplink of MTU 9000 by XDP: frames of several buffers come
// through it whole. B107.
func TestJumboUplink(t *testing.T) {
	t.Parallel()
	for _, uplink := range []string{"xdp", "tcx"} {
		t.Run(uplink, func(t *testing.T) {
			r := newRig(t, map[string]any{
				"uplinks": []any{map[string]any{"name": rig.Uplink, "mode": uplink}},
			})
			setMTU(t, r, 9000)
			t.Cleanup(func() { setMTU(t, r, 1500) })
			a := addPod(t, r, "a", nil)
			wantStatus(t, r, nil, "uplink eth0: "+uplink)
			if mtu := routeMTU(t, a.Host, extAddr(4)); mtu != 9000 {
				t.Errorf("the pod sends with MTU %d, want 9000", mtu)
			}
			for _, fam := range families {
				addr, _ := a.Addr(fam)
				for _, w := range []slowWay{
					{"ext to pod", r.Ext, a.Host, extAddr(fam), addr}, {"pod to ext", a.Host, r.Ext, addr, extAddr(fam)},
				} {
					t.Run(fmt.Sprintf("%s v%d", w.name, fam), func(t *testing.T) { jumboFrames(t, r, w, uplink) })
				}
			}
		})
	}
}

// jumboFrames sends datagrams and segments of nearly 9000 bytes on warm flows.
func jumboFrames(t *testing.T, r *rig.Rig, w slowWay, uplink string) {
	d := open(t, r)
	echo(t, w.to, "udp", netip.AddrPortFrom(w.dst, 7))
	conn := dial(t, w.from, "udp", netip.AddrPortFrom(w.dst, 7))
	msg := numbered(8900)
	fast := func() uint64 { return counters(t, d)["fast_"+uplink] }
	before := fast()
	eventually(t, 5*time.Second, "jumbo datagrams take the fast path", func() bool {
		got, err := rig.RoundTrip(conn, msg, rigPatience)
		if err != nil || !bytes.Equal(got, msg) {
			t.Fatalf("a datagram differs: %v", err)
		}
		return fast() >= before+20
	})
	upload(t, w.from, w.to, netip.AddrPortFrom(w.dst, 5001), transferSize, func(c net.Conn) {
		warm(t, r, c)
		if mss := sendMSS(t, c); mss < 8900 {
			t.Errorf("the segments are of %d bytes", mss)
		}
	})
}

// TestUplinkMTUChanges raises and lowers the MTU of an uplink on which XDP runs. B107.
func TestUplinkMTUChanges(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	a := addPod(t, r, "a", nil)
	for _, mtu := range []int{9000, 1500, 1400} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) {
			setMTU(t, r, mtu)
			t.Cleanup(func() { setMTU(t, r, 1500) })
			for _, fam := range families {
				bothWays(t, r, a, fam)
				addr, _ := a.Addr(fam)
				endsInTime(t, upload(t, r.Ext, a.Host, netip.AddrPortFrom(addr, 5001), transferSize, func(c net.Conn) { warm(t, r, c) }))
				endsInTime(t, upload(t, a.Host, r.Ext, netip.AddrPortFrom(extAddr(fam), 5001), transferSize, func(c net.Conn) { warm(t, r, c) }))
			}
			wantStatus(t, r, nil, "uplink eth0: xdp")
			churn(t, r, nil)
			wantStatus(t, r, nil, "uplink eth0: xdp")
		})
	}
}
