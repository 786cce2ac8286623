// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// TestFullRing overruns a pod whose receive side is slow: what does not fit into the
// ring of its pair is counted, to the frame.
func TestFullRing(t *testing.T) {
	r := newRig(t, nil)
	pod := addPod(t, r, "a", nil)
	d := open(t, r)
	slowDown(t, pod)
	g, err := r.NewGenerator(rig.UDPFlows{
		Src: netip.AddrPortFrom(rig.ExtAddr4, 9700), Dst: netip.AddrPortFrom(pod.Addr4, 9701), Size: 100,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	before, stats := counters(t, d), readStats(t, pod.Host, rig.PodDev)
	if err := g.Send(100_000); err != nil {
		t.Fatal(err)
	}
	after := counters(t, d)
	fast := after["fast_xdp"] - before["fast_xdp"]
	var slow, arrived, counted uint64
	for reason, n := range after {
		if strings.HasPrefix(reason, "pass_") {
			slow += n - before[reason]
		}
	}
	var why []datapath.Loss
	eventually(t, veryLong, "all that was redirected has arrived or is counted", func() bool {
		arrived = readStats(t, pod.Host, rig.PodDev).minus(stats).rxPackets
		counted, why = lostAt(t, r, d, pod.HostDev)
		return arrived+counted >= fast
	})
	t.Logf("%d redirected, %d passed to the kernel, %d arrived, %d counted as lost: %+v", fast, slow, arrived, counted, why)
	if counted == 0 {
		t.Fatal("nothing was lost; the pod is too fast")
	}
	for _, l := range why {
		if l.Err != nil {
			t.Errorf("the reason is %v, want a full ring", l.Err)
		}
	}
	if arrived+counted > fast+slow {
		t.Errorf("%d arrived and %d lost of %d redirected and %d passed to the kernel", arrived, counted, fast, slow)
	}
}

// slowDown gives the pod's receive side a thread of its own, and that much to do.
func slowDown(t *testing.T, pod *rig.Pod) {
	t.Helper()
	on(t, pod.Host, `echo 1 > /sys/class/net/eth0/threaded
		{ echo 'table ip slow { chain c { type filter hook prerouting priority raw'
		for i in $(seq 2000); do echo "udp dport $i drop"; done
		echo '}'; echo '}'; } | nft -f -`)
}
