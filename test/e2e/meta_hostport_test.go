// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/xveth/xveth/test/rig"
)

// metaHostPort is a port of the node and the pod's port behind it.
var metaHostPort = [2]int{8080, 80}

// metaHostPortPaths lists the ways to a hostPort of pod a. What the node itself sends is
// never fast.
func metaHostPortPaths(bed *metaBed, a, b *rig.Pod, fam int) (fast, slow []natPath) {
	addrA, _ := a.Addr(fam)
	addrB, _ := b.Addr(fam)
	ext, nodeIP := extAddr(fam), nodeAddr(fam)
	dial := netip.AddrPortFrom(nodeIP, uint16(metaHostPort[0]))
	serve := netip.AddrPortFrom(addrA, uint16(metaHostPort[1]))
	const mtu = 1400
	fast = []natPath{
		{"remote host", bed.r.Ext, a.Host, ext, dial, serve, mtu},
		{"another pod", b.Host, a.Host, addrB, dial, serve, mtu},
		{"the pod itself", a.Host, a.Host, addrA, dial, serve, mtu},
	}
	slow = []natPath{{"node", bed.r.Node, a.Host, nodeIP, dial, serve, mtu}}
	if fam == 4 {
		local := netip.MustParseAddr("127.0.0.1")
		slow = append(slow, natPath{
			"node by localhost", bed.r.Node, a.Host, local, netip.AddrPortFrom(local, dial.Port()), serve, mtu,
		})
	}
	return fast, slow
}

// metaXDP drives the uplink by XDP.
var metaXDP = metaFirst(map[string]any{"uplinks": []any{map[string]any{"name": rig.Uplink, "mode": "xdp"}}})

// metaByIPTables makes portmap, as the second plugin, use iptables.
var metaByIPTables = metaPlugin(1, map[string]any{"backend": "iptables"})

// TestMetaHostPort reaches a pod by a hostPort in each chain that has portmap: from the
// remote host, from the node, from another pod and from the pod itself. Flows are
// learned and used, and payloads stay intact.
func TestMetaHostPort(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		file    string
		changes []metaChange
	}{
		{file: "xveth-portmap.conflist"},
		{file: "xveth-portmap.conflist", changes: []metaChange{metaXDP, metaByIPTables}},
		{file: "xveth-bandwidth-portmap.conflist"},
		{file: "xveth-tuning-portmap.conflist", changes: []metaChange{metaXDP}},
		{file: "xveth-firewall-portmap.conflist"},
		{file: "xveth-portmap-firewall-tuning.conflist", changes: []metaChange{metaXDP}},
		{file: "xveth-portmap-sbr.conflist"},
	} {
		t.Run(fmt.Sprintf("%s, %d changes", c.file, len(c.changes)), func(t *testing.T) {
			t.Parallel()
			bed := newMetaBed(t, metaList(t, c.file, c.changes...))
			a, b := bed.add(t, "a", metaPorts(metaHostPort)), bed.add(t, "b", nil)
			bed.hostPorts(t, a, b)
		})
	}
}

// hostPorts runs sessions over every way to a hostPort of pod a.
func (bed *metaBed) hostPorts(t *testing.T, a, b *rig.Pod) {
	d := bed.datapath(t)
	rnd := rand.NewChaCha8([32]byte{1})
	port := uint16(40000)
	for _, fam := range families {
		fast, slow := metaHostPortPaths(bed, a, b, fam)
		for _, proto := range slices.Sorted(maps.Keys(protos)) {
			for i, p := range append(fast, slow...) {
				port++
				t.Run(fmt.Sprintf("from %s v%d %s", p.name, fam, proto), func(t *testing.T) {
					s := connect(t, p, proto, port)
					if i < len(fast) {
						s.warmUp(t, d)
						defer s.checkFast(t, d)
					}
					if err := s.exercise(rnd); err != nil {
						t.Fatal(err)
					}
				})
			}
		}
	}
}
