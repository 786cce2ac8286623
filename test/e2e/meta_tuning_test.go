// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// metaPodPaths are the ways to and from a pod that no hostPort changes.
func metaPodPaths(bed *metaBed, a, b *rig.Pod, fam, mtu int) []natPath {
	addrA, addrB, ext := addrsOf(a)[fam], addrsOf(b)[fam], extAddr(fam)
	at := func(addr netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(addr, port) }
	return []natPath{
		{"remote host to pod", bed.r.Ext, a.Host, ext, at(addrA, 90), at(addrA, 90), mtu},
		{"pod to remote host", a.Host, bed.r.Ext, addrA, at(ext, 91), at(ext, 91), mtu},
		{"pod to pod", b.Host, a.Host, addrB, at(addrA, 92), at(addrA, 92), mtu},
		{"pod to another pod", a.Host, b.Host, addrA, at(addrB, 93), at(addrB, 93), mtu},
	}
}

// metaTuned is what tuning shall have done in a pod.
type metaTuned struct {
	mtu, mac, backlog string
}

func (want metaTuned) check(t *testing.T, p *rig.Pod) {
	t.Helper()
	got := metaTuned{
		mtu:     strings.TrimSpace(on(t, p.Host, "cat /sys/class/net/eth0/mtu")),
		mac:     etherOf(t, p.Host, rig.PodDev).String(),
		backlog: strings.TrimSpace(on(t, p.Host, "cat /proc/sys/net/core/somaxconn")),
	}
	for _, c := range []struct{ name, got, want string }{
		{"mtu", got.mtu, want.mtu}, {"mac", got.mac, want.mac}, {"somaxconn", got.backlog, want.backlog},
	} {
		if c.want != "" && c.got != c.want {
			t.Errorf("%s of %s is %s, want %s", c.name, p.ID, c.got, c.want)
		}
	}
}

// metaMAC is an address that a runtime asks for.
const metaMAC = "02:00:5e:10:00:01"

// TestMetaTuning sets MTU, MAC address and sysctls of pods behind xveth: flows of every
// kind are learned and used. Then tuning runs again while they are fast, with another MAC
// address and other flags: they go on and are fast again.
func TestMetaTuning(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		file   string
		change metaChange
		caps   map[string]any
		mtu    int
		want   metaTuned
	}{
		{"xveth-tuning-portmap.conflist", metaXDP, nil, 1400, metaTuned{mtu: "1400", backlog: "512"}},
		{"xveth-portmap-firewall-tuning.conflist", metaFirst(nil), map[string]any{"mac": metaMAC}, 1500, metaTuned{mac: metaMAC}},
	} {
		t.Run(c.file, func(t *testing.T) {
			t.Parallel()
			bed := newMetaBed(t, metaList(t, c.file, c.change))
			a, b := bed.add(t, "a", c.caps), bed.add(t, "b", nil)
			c.want.check(t, a)
			quickNeighbours(t, bed.r.Node, a.HostDev)
			d, port := bed.datapath(t), uint16(41000)
			rnd := rand.NewChaCha8([32]byte{1})
			var open []*session
			for _, fam := range families {
				for _, p := range metaPodPaths(bed, a, b, fam, c.mtu) {
					for proto := range protos {
						port++
						s := connect(t, p, proto, port)
						s.warmUp(t, d)
						if err := s.exercise(rnd); err != nil {
							t.Errorf("%s v%d %s: %v", p.name, fam, proto, err)
						}
						s.checkFast(t, d)
						open = append(open, s)
					}
				}
			}
			bed.tuneAgain(t, a)
			bed.settled(t, a)
			for _, s := range open {
				s.warmUp(t, d)
			}
		})
	}
}

// tuneAgain calls the real plugin once more on a pod.
func (bed *metaBed) tuneAgain(t *testing.T, p *rig.Pod) {
	t.Helper()
	mac := "02:00:5e:10:00:02"
	conf := bed.r.Conf(map[string]any{
		"type": "tuning", "cniVersion": "1.0.0", "name": bed.list.Name, "prevResult": p.Result, "ipMasq": nil, "uplinks": nil, "ipam": nil,
		"mac": mac, "promisc": true, "allmulti": true, "txQLen": 500,
		"sysctl":  map[string]any{"net.core.somaxconn": "256", "net.ipv4.conf.IFNAME.arp_filter": "1"},
		"dataDir": "/run/cni/tuning-again",
	})
	if _, err := callPlugin(t, bed.r, filepath.Join(testBin(t), "tuning"), "ADD", conf, p.Env()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { node(t, bed.r, "rm -r /run/cni/tuning-again") })
	metaTuned{mac: mac, backlog: "256"}.check(t, p)
}

// settled waits until the node has the pod's new MAC address and no flow has the old one.
func (bed *metaBed) settled(t *testing.T, p *rig.Pod) {
	t.Helper()
	for _, addr := range addrsOf(p) {
		eventually(t, 10*time.Second, p.ID+" answers at its new MAC address", func() bool {
			_, err := bed.r.Node.Run(ctxOf(t), "ping", "-n", "-c1", "-W1", addr.String())
			return err == nil
		})
	}
	d := bed.datapath(t)
	eventually(t, 5*time.Second, "flows run out", func() bool {
		return !slices.ContainsFunc(everyFlow(t, d), func(f datapath.Flow) bool { return f.Live() })
	})
}
