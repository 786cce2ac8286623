// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/netip"
	"testing"
	"time"

	"github.com/xveth/xveth/test/rig"
)

// TestOrderAtFullRate sends numbered packets as fast as a core can, over many renewals:
// none may arrive behind a later one. Nearly all of them share a NAPI poll with the
// renewal, which is when a flow could overtake itself.
func TestOrderAtFullRate(t *testing.T) {
	for _, mode := range []string{"xdp", "tcx"} {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, map[string]any{
				"fastPath": map[string]any{"revalidate": "10ms"},
				"uplinks":  []any{map[string]any{"name": rig.Uplink, "mode": mode}},
			})
			p := addPod(t, r, "a", nil)
			for _, fam := range families {
				fullRate(t, r, p, fam)
			}
			c := counters(t, open(t, r))
			if c["learn_renewed"] < 50 || c.Fast() < 100_000 {
				t.Errorf("too little happened: %d renewals, %d fast packets", c["learn_renewed"], c.Fast())
			}
			t.Logf("%d renewals, %d fast packets", c["learn_renewed"], c.Fast())
		})
	}
}

func fullRate(t *testing.T, r *rig.Rig, p *rig.Pod, fam int) {
	t.Helper()
	addr, err := p.Addr(fam)
	if err != nil {
		t.Fatal(err)
	}
	s, err := rig.NewOrderSink(p.Host, rig.PodDev)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	g, err := r.NewGenerator(rig.UDPFlows{
		Src: netip.AddrPortFrom(extAddr(fam), 1000), Dst: netip.AddrPortFrom(addr, 9),
		Size: 80, NoChecksum: true, Numbered: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	sent, err := g.SendFor(time.Second)
	if err != nil {
		t.Fatal(err)
	}
	arrived, late, err := s.Counts()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("IPv%d: %d sent, %d arrived, %d late", fam, sent, arrived, late)
	if late > 0 {
		t.Errorf("IPv%d: %d of %d packets arrived behind a later one", fam, late, arrived)
	}
	if arrived < uint64(sent)/2 {
		t.Errorf("IPv%d: only %d of %d packets arrived", fam, arrived, sent)
	}
}
