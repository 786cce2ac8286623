package zz
import ("testing";"time";"net/netip";"github.com/xveth/xveth/test/rig")
func TestZZOrder(t *testing.T) {
	for _, c := range []struct{name string; conf map[string]any}{
		{"off", map[string]any{"fastPath": map[string]any{"mode":"off"}}},
		{"xdp", map[string]any{"fastPath": map[string]any{"revalidate":"1s"}}},
		{"tcx", map[string]any{"fastPath": map[string]any{"revalidate":"1s"}, "uplinks": []any{map[string]any{"name":"eth0","mode":"tcx"}}}},
	} {
		t.Run(c.name, func(t *testing.T){
			r := newRig(t, c.conf)
			p := addPod(t, r, "a", nil)
			s, err := rig.NewOrderSink(p.Host, "eth0"); if err!=nil {t.Fatal(err)}
			g, err := r.NewGenerator(rig.UDPFlows{Src: netip.AddrPortFrom(rig.ExtAddr4, 1000), Dst: netip.AddrPortFrom(p.Addr4, 9), Size: 80, NoChecksum: true, Numbered: true})
			if err!=nil {t.Fatal(err)}
			start:=time.Now()
			sent,err := g.SendFor(2*time.Second)
			a,l,e := s.Counts()
			t.Log(sent, a, "late", l, e, err, "Mpps", float64(a)/time.Since(start).Seconds()/1e6)
			if c.name!="off" { d:=open(t,r); for k,v:=range counters(t,d) { if v>0 {t.Log(k,v)}}; ls,_:=d.Losses(); t.Log(ls) }
		})
	}
}
