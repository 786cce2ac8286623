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

// devStats are the counters that users watch, as /proc/net/dev shows them.
type devStats struct{ rxPackets, rxBytes, txPackets, txBytes uint64 }

func readStats(t *testing.T, h *rig.Host, dev string) (s devStats) {
	t.Helper()
	line := on(t, h, "grep "+dev+": /proc/thread-self/net/dev")
	_, after, _ := strings.Cut(line, ":")
	var skip uint64
	_, err := fmt.Sscan(after, &s.rxBytes, &s.rxPackets, &skip, &skip, &skip, &skip, &skip, &skip, &s.txBytes, &s.txPackets)
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return s
}

func (s devStats) minus(b devStats) devStats {
	return devStats{s.rxPackets - b.rxPackets, s.rxBytes - b.rxBytes, s.txPackets - b.txPackets, s.txBytes - b.txBytes}
}

// statsOf sends datagrams both ways and returns what the interfaces counted for each
// 10,000 of them.
func statsOf(t *testing.T, r *rig.Rig) map[string]devStats {
	t.Helper()
	pod := addPod(t, r, "a", nil)
	in, out := netip.AddrPortFrom(pod.Addr4, 9600), netip.AddrPortFrom(rig.ExtAddr4, 9601)
	read := func() map[string]devStats {
		return map[string]devStats{
			"pod": readStats(t, pod.Host, rig.PodDev), "host veth": readStats(t, r.Node, pod.HostDev),
			"uplink": readStats(t, r.Node, rig.Uplink),
		}
	}
	before := read()
	toPod := startStream(t, r.Ext, pod.Host, in, in, 20_000)
	toExt := startStream(t, pod.Host, r.Ext, out, out, 20_000)
	time.Sleep(700 * time.Millisecond)
	toPod.stop()
	toExt.stop()
	after := read()
	counted := map[string]devStats{}
	for name, s := range after {
		s = s.minus(before[name])
		rx, tx := toPod.sent, toExt.sent
		if name == "host veth" { // it sees the pod's traffic the other way round
			rx, tx = tx, rx
		}
		counted[name] = devStats{s.rxPackets * 10_000 / rx, s.rxBytes * 10_000 / rx, s.txPackets * 10_000 / tx, s.txBytes * 10_000 / tx}
	}
	return counted
}

// TestInterfaceStats compares what interfaces count under warm traffic with the kernel
// path (B159). All of it is the same but one thing: a packet that tcx hands straight to
// the pod's end never passes the host's end, whose transmit counters stand still. The
// right figures are the receive counters of the pod's end, and the flows' own.
func TestInterfaceStats(t *testing.T) {
	want := statsOf(t, newRig(t, offConf))
	for drive, conf := range drives {
		t.Run(drive, func(t *testing.T) {
			r := newRig(t, conf)
			have := statsOf(t, r)
			for dev, w := range want {
				h := have[dev]
				t.Logf("%-9s %+v, kernel path %+v", dev, h, w)
				sameStat(t, dev+" rx packets", h.rxPackets, w.rxPackets)
				sameStat(t, dev+" rx bytes", h.rxBytes, w.rxBytes)
				if dev == "host veth" && drive == "tcx uplink" {
					continue
				}
				sameStat(t, dev+" tx packets", h.txPackets, w.txPackets)
				sameStat(t, dev+" tx bytes", h.txBytes, w.txBytes)
			}
			checkFlowStats(t, r)
		})
	}
}

// checkFlowStats finds nearly all packets to the pod in the flow's own counters.
func checkFlowStats(t *testing.T, r *rig.Rig) {
	t.Helper()
	for f, err := range open(t, r).Flows() {
		if err != nil {
			t.Fatal(err)
		}
		if f.Dst.Port() == 9600 && (f.Packets < 10_000 || f.Bytes != f.Packets*(dgramLen+28)) {
			t.Errorf("the flow has counted %d packets, %d bytes", f.Packets, f.Bytes)
		}
	}
}

// sameStat allows for one in a hundred: neighbour discovery comes and goes.
func sameStat(t *testing.T, what string, have, want uint64) {
	t.Helper()
	if diff := max(have, want) - min(have, want); diff*100 > want {
		t.Errorf("%s: %d, on the kernel path %d", what, have, want)
	}
}
