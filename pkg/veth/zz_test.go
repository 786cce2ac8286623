package veth
import ("testing";"time";"github.com/vishvananda/netlink";"fmt")
func TestZZ(t *testing.T){
	host, a, b := newNS(t), newNS(t), newNS(t)
	ca, cb := config(1, a, false, true), config(2, b, false, true)
	mustAdd(t, host, ca); mustAdd(t, host, cb)
	var out []string
	st := func(w string, n *testNS, name string){ n.do(func(){ l,_ := netlink.LinkByName(name); out=append(out, fmt.Sprintf("%s %s tx %d drop %d rx %d drop %d oper %v", w,name,l.Attrs().Statistics.TxPackets,l.Attrs().Statistics.TxDropped,l.Attrs().Statistics.RxPackets,l.Attrs().Statistics.RxDropped, l.Attrs().OperState)) }) }
	all := func(w string){ st(w,host,HostName("net","pod1","eth0")); st(w,host,HostName("net","pod2","eth0")); st(w,a,"eth0"); st(w,b,"eth0") }
	all("before")
	s:=time.Now(); exchange(t,a,b,cb.Addresses[0].Prefix.Addr().String()); d := time.Since(s); all("after"); t.Log("T", d); if d > 500*time.Millisecond { t.Log("SLOW") }
	for _, o := range out { t.Log(o) }
}
