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
func metaHostPortPaths(bed *metaBed, a, b *rig.Pod, fam int, ports [2]int) (fast, slow []natPath) {
	addrA, _ := a.Addr(fam)
	addrB, _ := b.Addr(fam)
	ext, nodeIP := extAddr(fam), nodeAddr(fam)
	dial := netip.AddrPortFrom(nodeIP, uint16(ports[0]))
	serve := netip.AddrPortFrom(addrA, uint16(ports[1]))
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
	if bed.bridged() {
		// A bridge turns around what br_netfilter has translated: see metaProbe.
		fast, slow = fast[:1], append(slow, fast[1:]...)
	}
	return fast, slow
}

// metaXDP drives the uplink by XDP.
var metaXDP = metaOwn(map[string]any{"uplinks": []any{map[string]any{"name": rig.Uplink, "mode": "xdp"}}})

// metaPortmapBy makes portmap use a backend.
func metaPortmapBy(backend string) metaChange {
	return func(_ map[string]any, plugins []map[string]any) {
		for _, p := range plugins {
			if p["type"] == "portmap" {
				p["backend"] = backend
			}
		}
	}
}

// TestMetaHostPort reaches a pod by a hostPort in chains that the matrix does not ask about:
// from the remote host, from the node, from another pod and from the pod itself. Flows are
// learned and used, and payloads stay intact. Then it calls every verb.
func TestMetaHostPort(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, file string
		change     metaChange
	}{
		{"iptables", "xveth-portmap.conflist", metaPortmapBy("iptables")},
		{"bandwidth", "xveth-bandwidth-portmap.conflist", metaXDP},
		{"tuning", "xveth-tuning-portmap.conflist", metaXDP},
		{"sbr", "xveth-portmap-sbr.conflist", metaXDP},
		{"xveth-chain first", "ptp-xveth-chain-portmap.conflist", metaXDP},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			bed := newMetaBed(t, metaList(t, c.file, c.change, metaVersion("1.1.0")))
			a, b := bed.add(t, "a", metaPorts(metaHostPort)), bed.add(t, "b", nil)
			bed.hostPorts(t, a, b, metaHostPort)
			bed.verbs(t, a)
		})
	}
}

// hostPorts runs sessions over every way to a hostPort of pod a.
func (bed *metaBed) hostPorts(t *testing.T, pod, other *rig.Pod, ports [2]int) {
	d := bed.datapath(t)
	rnd := rand.NewChaCha8([32]byte{1})
	port := uint16(40000)
	for _, fam := range families {
		fast, slow := metaHostPortPaths(bed, pod, other, fam, ports)
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
