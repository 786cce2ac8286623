// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/xveth/xveth/test/rig"
)

// TestBreakFlat has the uplink in the pods' bridge: the remote host reaches them without a
// router. Everything arrives, and a rule of the bridge cuts it.
func TestBreakFlat(t *testing.T) {
	t.Parallel()
	for name, uplinks := range map[string]any{
		"port xdp": []any{map[string]string{"name": rig.Uplink, "mode": "xdp"}},
		"port tcx": []any{map[string]string{"name": rig.Uplink, "mode": "tcx"}},
		"bridge":   []any{map[string]string{"name": chainBridge}},
		"both":     []any{map[string]string{"name": rig.Uplink, "mode": "xdp"}, map[string]string{"name": chainBridge, "mode": "tcx"}},
		"default":  nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			c := &chained{Rig: r, cni: runtimeOn(t, r)}
			last := map[string]any{"type": "xveth-chain", "fastPath": map[string]any{"revalidate": cutInterval.String()}}
			if uplinks != nil {
				last["uplinks"] = uplinks
			}
			text, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "chained", "plugins": []any{
				map[string]any{"type": "bridge", "bridge": chainBridge, "ipam": map[string]any{
					"type": "host-local", "subnet": "192.0.2.0/24", "rangeStart": "192.0.2.100", "rangeEnd": "192.0.2.120",
					"routes": []map[string]string{{"dst": "0.0.0.0/0"}}, "gateway": "192.0.2.1",
				}}, last,
			}})
			if err != nil {
				t.Fatal(err)
			}
			if c.list, err = libcni.ConfListFromBytes(text); err != nil {
				t.Fatal(err)
			}
			node(t, r, "ip link add "+chainBridge+" type bridge; ip link set "+chainBridge+" address $(cat /sys/class/net/eth0/address); ip link set eth0 master "+chainBridge+"; ip addr flush dev eth0; ip link set "+chainBridge+" up; ip addr add 192.0.2.1/24 dev "+chainBridge+"; ip route add default via 192.0.2.2")
			t.Cleanup(func() {
				node(t, r, "ip link del "+chainBridge+"; ip link set eth0 promisc off; ip addr add 192.0.2.1/24 brd + dev eth0; ip addr add 2001:db8:1::1/64 dev eth0 nodad; ip route add default via 192.0.2.2; ip -6 route replace default via 2001:db8:1::2 dev eth0")
			})
			a, b := c.pod(t, "a"), c.pod(t, "b")
			d := open(t, r)
			for i, w := range []slowWay{
				{"ext to pod", r.Ext, a.Host, rig.ExtAddr4, a.Addr4},
				{"pod to ext", a.Host, r.Ext, a.Addr4, rig.ExtAddr4},
				{"pod to pod", a.Host, b.Host, a.Addr4, b.Addr4},
				{"ext to node", r.Ext, r.Node, rig.ExtAddr4, rig.NodeAddr4},
				{"pod to node", a.Host, r.Node, a.Addr4, rig.NodeAddr4},
			} {
				at := netip.AddrPortFrom(w.dst, uint16(7100+i))
				before := counters(t, d).Fast()
				for proto := range protos {
					echo(t, w.to, proto, at)
					conn := dial(t, w.from, proto, at)
					for range 100 {
						if _, err := rig.RoundTrip(conn, make([]byte, 1000), 2*time.Second); err != nil {
							t.Errorf("%s %s: %v", w.name, proto, err)
							break
						}
					}
				}
				t.Logf("%s: %d fast", w.name, counters(t, d).Fast()-before)
			}
			heard := newEar(t, a.Host)
			dst := netip.AddrPortFrom(a.Addr4, 7000)
			swallow(t, a.Host, "udp", dst)
			drip(t, dial(t, r.Ext, "udp", dst), 100)
			eventually(t, 5*time.Second, "it arrives", func() bool { return heard.of(protoUDP, dst).packets > 100 })
			lift := impose(t, r, "nft 'table bridge cut { chain f { type filter hook prerouting priority 0; ether type ip udp dport 7000 drop; }; }'", "nft delete table bridge cut")
			since := time.Now()
			time.Sleep(cutInterval + 3*grace)
			if took := heard.of(protoUDP, dst).last.Sub(since); took > cutInterval+grace {
				t.Errorf("went on for %v", took)
			}
			lift()
		})
	}
}
