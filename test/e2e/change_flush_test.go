// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/netip"
	"testing"
	"time"

	"github.com/xveth/xveth/test/rig"
)

// TestFlushedRoutes takes the node's routes to its pods and the uplink's addresses away
// under warm flows, as a network manager does that restarts (B140). The fast path
// forwards for no longer than the interval where the kernel has no path, and all goes
// on when they are back.
func TestFlushedRoutes(t *testing.T) {
	t.Parallel()
	const flush = `
		ip -4 route save > /run/r4 && ip -6 route save > /run/r6 && ip addr save dev eth0 > /run/a
		for v in $(ls /sys/class/net | grep -v -e lo -e eth0); do
			ip -4 route flush dev $v proto all; ip -6 route flush dev $v; done
		ip -6 route flush dev eth0; ip addr flush dev eth0`
	const restore = `
		ip addr restore < /run/a 2>/dev/null
		ip -4 route restore < /run/r4 2>/dev/null; ip -6 route restore < /run/r6 2>/dev/null
		rm /run/r4 /run/r6 /run/a`
	for name, conf := range drives {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, shortInterval(conf))
			pod := addPod(t, r, "a", nil)
			d := open(t, r)
			var all []*dgramStream
			for _, fam := range families {
				addr, _ := pod.Addr(fam)
				in, out := netip.AddrPortFrom(addr, 9400), netip.AddrPortFrom(extAddr(fam), 9401)
				for at, hosts := range map[netip.AddrPort][2]*rig.Host{
					in: {r.Ext, pod.Host}, out: {pod.Host, r.Ext},
				} {
					all = append(all, startStream(t, hosts[0], hosts[1], at, at, 5_000))
				}
				for _, at := range []netip.AddrPort{in, out} {
					eventually(t, veryLong, "learned: "+at.String(), func() bool {
						_, ok := flowTo(t, d, at)
						return ok
					})
				}
			}
			node(t, r, flush)
			time.Sleep(changeInterval + 100*time.Millisecond)
			fast := counters(t, d).Fast()
			time.Sleep(2*time.Second - changeInterval)
			if after := counters(t, d).Fast(); after != fast {
				t.Errorf("%d packets took the fast path where the kernel has no path", after-fast)
			}
			node(t, r, restore)
			for _, n := range all {
				heard := n.heard.Load()
				eventually(t, veryLong, "datagrams arrive again", func() bool { return n.heard.Load() > heard+100 })
			}
			isFast(t, d)
			for _, n := range all {
				n.stop()
			}
		})
	}
}
