package zz
import ("testing";"time";"net/netip";"github.com/xveth/xveth/test/rig";"github.com/cilium/ebpf";"os")
func TestZZCost(t *testing.T) {
	cl,err:=ebpf.EnableStats(0); if err!=nil {t.Fatal(err)}; defer cl.Close()
	for _, c := range []struct{name string; conf map[string]any; size int}{
		{"xdp", nil, 64},
		{"tcx", map[string]any{"uplinks": []any{map[string]any{"name":"eth0","mode":"tcx"}}}, 64},
	} {
		for _, fl := range []int{1,1000,30000} {
		for _, ip6 := range []bool{false,true} {
			r := newRig(t, c.conf)
			p := addPod(t, r, "a", nil)
			s, _ := rig.NewSink(p.Host, 9)
			src,dst := rig.ExtAddr4,p.Addr4
			if ip6 {src,dst = rig.ExtAddr6,p.Addr6}
			g, err := r.NewGenerator(rig.UDPFlows{Src: netip.AddrPortFrom(src, 1000), Dst: netip.AddrPortFrom(dst, 9), Size: c.size, Flows: fl})
			if err!=nil {t.Fatal(err)}
			start:=time.Now()
			_,err = g.SendFor(time.Second)
			n,_ := s.Packets()
			t.Log(c.name, fl, ip6, "Mpps", float64(n)/time.Since(start).Seconds()/1e6)
			ents,_ := os.ReadDir(r.Node.Path("/sys/fs/bpf/xveth/v1"))
			for _,e := range ents {
				pr,err := ebpf.LoadPinnedProgram(r.Node.Path("/sys/fs/bpf/xveth/v1/"+e.Name()),nil)
				if err!=nil {continue}
				st,_ := pr.Stats()
				if st.RunCount>1000 {t.Logf("   %s runs %d avg %.1f ns", e.Name(), st.RunCount, float64(st.Runtime)/float64(st.RunCount))}
			}
			s.Close()
		}}
	}
}
