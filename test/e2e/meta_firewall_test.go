// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/xveth/xveth/test/rig"
)

// metaOpenedPorts lets new connections from outside to the ports that the test cuts, on a
// node that forwards nothing by itself.
const metaOpenedPorts = `for ipt in iptables ip6tables; do for p in tcp udp; do
	$ipt -w -A CNI-ADMIN -i eth0 -p $p --dport 7000:7099 -j ACCEPT; done; $ipt -w -P FORWARD DROP; done`

// TestMetaFirewall cuts flows that are fast on a node whose forwarding is shut but for
// what the firewall plugin and the administrator's chain let through. Each stops within
// the interval, and goes on when the rule is taken back.
func TestMetaFirewall(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		file string
		mode string
	}{
		{"xveth-firewall-portmap.conflist", "xdp"},
		{"xveth-portmap-firewall-tuning.conflist", "tcx"},
	} {
		t.Run(c.file+" uplink "+c.mode, func(t *testing.T) {
			t.Parallel()
			bed := newMetaBed(t, metaList(t, c.file, metaFirst(driven(revalidating(cutInterval, nil), c.mode))))
			a, b := bed.add(t, "a", nil), bed.add(t, "b", nil)
			addServerAddrs(t, bed.r)
			node(t, bed.r, metaOpenedPorts)
			ct := &cutTest{r: bed.r, d: bed.datapath(t), ears: map[*rig.Host]*ear{}, port: 7000}
			ext := cutEnd{"ext", bed.r.Ext, rig.Uplink}
			ct.add(t, ext, podEnd(a), addrsOf(a))
			ct.add(t, podEnd(a), podEnd(b), addrsOf(b))
			leaving := &cutTest{r: bed.r, d: ct.d, ears: ct.ears, port: 7050}
			leaving.add(t, podEnd(b), ext, map[int]netip.Addr{4: extServer4, 6: extServer6})
			ct.warm(t)
			leaving.warm(t)
			t.Run("administrator's chain", func(t *testing.T) { ct.cut(t, cutWay{"CNI-ADMIN", metaCutAdmin}) })
			t.Run("the pod's rule is gone", func(t *testing.T) { leaving.cut(t, cutWay{"CNI-FORWARD", metaCutPod(b)}) })
			ct.warm(t)
			leaving.warm(t)
		})
	}
}

func metaTables(family int) string { return map[int]string{4: "iptables", 6: "ip6tables"}[family] }

// metaCutAdmin drops the flows before what lets them in.
func metaCutAdmin(f *fastFlow) (string, string) {
	proto := map[uint8]string{6: "tcp", 17: "udp"}[f.proto]
	rule := fmt.Sprintf("CNI-ADMIN -p %s --dport 7000:7099 -j DROP", proto)
	return metaTables(f.family) + " -w -I " + rule, metaTables(f.family) + " -w -D " + rule
}

// metaCutPod takes away what lets a pod send.
func metaCutPod(p *rig.Pod) func(*fastFlow) (string, string) {
	return func(f *fastFlow) (string, string) {
		rule := fmt.Sprintf("CNI-FORWARD -s %s -j ACCEPT", addrsOf(p)[f.family])
		return metaTables(f.family) + " -w -D " + rule, metaTables(f.family) + " -w -A " + rule
	}
}
