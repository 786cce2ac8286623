// SPDX-License-Identifier: Apache-2.0

package rig_test

import (
	"context"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

func TestPacketRate(t *testing.T) {
	for _, mode := range []string{"off", "auto"} {
		r, err := rig.New(rig.Options{Plugins: os.Getenv("XVETH_BIN"), Conf: map[string]any{"fastPath": map[string]any{"mode": mode}}})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		p, err := r.AddPod(context.Background(), "a", nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, fam := range []int{4, 6} {
			src := rig.ExtAddr4
			if fam == 6 {
				src = rig.ExtAddr6
			}
			dst, _ := p.Addr(fam)
			s, err := rig.NewSink(p.Host, 9)
			if err != nil {
				t.Fatal(err)
			}
			g, err := r.NewGenerator(rig.UDPFlows{Src: netip.AddrPortFrom(src, 1000), Dst: netip.AddrPortFrom(dst, 9), Flows: 1, Size: 64})
			if err != nil {
				t.Fatal(err)
			}
			_ = g.Send(1000)
			a, _ := s.Packets()
			start := time.Now()
			sent, err := g.SendFor(time.Second)
			if err != nil {
				t.Fatal(err)
			}
			b, err := s.Packets()
			t.Logf("%s v%d: sent %.2f Mpps got %.2f Mpps", mode, fam, float64(sent)/time.Since(start).Seconds()/1e6, float64(b-a)/time.Since(start).Seconds()/1e6)
			s.Close()
			g.Close()
		}
		if d, err := datapath.Open(r.Node.Path(datapath.DefaultDir)); err == nil {
			c, _ := d.Counters()
			for k, v := range c {
				if v > 0 {
					t.Log(k, v)
				}
			}
			for f, err := range d.Flows() {
				t.Logf("%+v %v", f, err)
			}
			l, _ := d.Losses()
			t.Log(l)
		} else if mode != "off" {
			t.Error(err)
			out, err := r.Plugin(context.Background(), "STATUS", r.Conf(nil), nil)
			t.Log(string(out.Stderr), err)
		}
		out, err := r.Node.Run(context.Background(), "nft", "list", "ruleset")
		t.Log(out, err)
	}
}
