// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/xveth/xveth/test/rig"
)

// TestBigFrames moves bulk TCP between a pod, whose interface has a jumbo MTU, and the
// remote host, by an uplink of 1500 bytes (B046, B047, B048). Segments stay together in
// big skbs on the fast path; nothing is cut, and nobody is told to send less.
func TestBigFrames(t *testing.T) {
	t.Parallel()
	// Frames that come in by XDP are never put together, so only tcx sees big ones.
	r := newRig(t, drives["tcx uplink"])
	pod := addPod(t, r, "a", nil)
	d := open(t, r)
	for _, fam := range families {
		addr, _ := pod.Addr(fam)
		for _, c := range []crossing{
			{"pod to ext", pod.Host, r.Ext, netip.AddrPortFrom(extAddr(fam), 9500), netip.AddrPortFrom(extAddr(fam), 9500)},
			{"ext to pod", r.Ext, pod.Host, netip.AddrPortFrom(addr, 9501), netip.AddrPortFrom(addr, 9501)},
		} {
			t.Run(fmt.Sprintf("%s v%d", c.name, fam), func(t *testing.T) {
				p := tcpConnect(t, c)
				warmPair(t, d, p)
				before := counters(t, d)
				flowBefore, ok := flowTo(t, d, c.dial)
				if !ok {
					t.Fatal("the flow is not learned")
				}
				tcpStream(t, p, 300*time.Millisecond)
				after := counters(t, d)
				flowAfter, _ := flowTo(t, d, c.dial)
				segs := flowAfter.Packets - flowBefore.Packets
				bytes := flowAfter.Bytes - flowBefore.Bytes
				skbs := after.Fast() - before.Fast()
				info := tcpInfo(t, p.client)
				t.Logf("%d segments in at most %d skbs, MSS %d, %d of %d sent again", segs, skbs, info.Snd_mss,
					info.Total_retrans, info.Segs_out)
				// The skbs of both directions together: acknowledgements make it worse.
				if segs < 2*skbs || bytes == 0 {
					t.Errorf("%d segments in %d skbs: not kept together", segs, skbs)
				}
				if info.Total_retrans > info.Segs_out/100 {
					t.Errorf("%d of %d segments sent again", info.Total_retrans, info.Segs_out)
				}
				if flowAfter.MaxLen != 1500 {
					t.Errorf("the longest packet is %d bytes", flowAfter.MaxLen)
				}
			})
		}
	}
	checkNotCut(t, r, pod)
}

// checkNotCut finds segmentation offload on, and no path MTU exception.
func checkNotCut(t *testing.T, r *rig.Rig, pod *rig.Pod) {
	t.Helper()
	for _, f := range []string{"tcp-segmentation-offload: on", "generic-segmentation-offload: on"} {
		if have := on(t, pod.Host, "ethtool -k eth0"); !strings.Contains(have, f) {
			t.Errorf("in the pod not %q:\n%s", f, have)
		}
		if have := node(t, r, "ethtool -k "+pod.HostDev); !strings.Contains(have, f) {
			t.Errorf("on %s not %q:\n%s", pod.HostDev, f, have)
		}
	}
	for _, h := range []*rig.Host{pod.Host, r.Ext} {
		if have := on(t, h, "ip -4 route show cache; ip -6 route show cache"); strings.Contains(have, "mtu") {
			t.Errorf("%s was told to send less:\n%s", h.Name, have)
		}
		icmp := on(t, h, "grep -h -e ^Icmp: /proc/thread-self/net/snmp | tail -1 | cut -d' ' -f4; grep -h Icmp6InPktTooBigs /proc/thread-self/net/snmp6")
		if f := strings.Fields(icmp); len(f) != 3 || f[0] != "0" || f[2] != "0" {
			t.Errorf("%s got ICMP errors: %q", h.Name, icmp)
		}
	}
}
