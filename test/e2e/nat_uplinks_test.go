// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// The second way between the remote host and the node, and a client that both lead to.
const secondUplink = "eth1"

var (
	secondNode = map[int]netip.Prefix{4: netip.MustParsePrefix("198.51.100.1/24"), 6: netip.MustParsePrefix("2001:db8:2::1/64")}
	secondExt  = map[int]netip.Prefix{4: netip.MustParsePrefix("198.51.100.2/24"), 6: netip.MustParsePrefix("2001:db8:2::2/64")}
	farClient  = map[int]netip.Addr{4: netip.MustParseAddr("203.0.113.9"), 6: netip.MustParseAddr("2001:db8:3::9")}
)

// addSecondUplink joins the remote host and the node by a second cable.
func addSecondUplink(t *testing.T, r *rig.Rig) {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(r.Node.Do(func() error {
		la := netlink.NewLinkAttrs()
		la.Name = secondUplink
		v := netlink.NewVeth(la)
		v.PeerName, v.PeerNamespace = "ext1", netlink.NsFd(r.Ext.NetnsFD())
		return netlink.LinkAdd(v)
	}))
	t.Cleanup(func() { on(t, r.Node, "ip link del "+secondUplink) })
	cable := map[string]bool{"rx-gro": true, "tx-checksum-ip-generic": false}
	must(r.Node.Do(func() error { return rig.Offload(secondUplink, cable) }))
	must(r.Ext.Do(func() error { return rig.Offload("ext1", cable) }))
	for _, fam := range families {
		must(r.Node.Do(func() error { return rig.AddAddr(secondUplink, secondNode[fam]) }))
		must(r.Ext.Do(func() error { return rig.AddAddr("ext1", secondExt[fam]) }))
		must(r.Ext.Do(func() error {
			return rig.AddAddr("lo", netip.PrefixFrom(farClient[fam], farClient[fam].BitLen()))
		}))
	}
	on(t, r.Node, "ip link set "+secondUplink+" up")
	on(t, r.Ext, "ip link set ext1 up")
	for _, h := range []*rig.Host{r.Node, r.Ext} {
		on(t, h, "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $f; done")
	}
}

// routeClient makes the node reach the far client by one of the uplinks.
func routeClient(t *testing.T, r *rig.Rig, fam int, second bool) {
	t.Helper()
	via := extAddr(fam)
	if second {
		via = secondExt[fam].Addr()
	}
	node(t, r, fmt.Sprintf("ip -%d route replace %s via %s", fam, farClient[fam], via))
}

// TestNATAsymmetricRoutes sends requests by one uplink while the node's route for the
// answers leads by another. Each direction takes the way on which the kernel forwards
// it, and follows within the interval when the route moves. B066 and B075
func TestNATAsymmetricRoutes(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"xdp", "tcx"} {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, map[string]any{"fastPath": map[string]any{"revalidate": "300ms"}})
			addSecondUplink(t, r)
			uplinks := []any{
				map[string]any{"name": rig.Uplink, "mode": mode}, map[string]any{"name": secondUplink, "mode": mode},
			}
			bed := &natBed{r: r}
			bed.a = addPod(t, r, "a", map[string]any{"uplinks": uplinks})
			bed.b = addPod(t, r, "b", map[string]any{"uplinks": uplinks})
			applyRules(t, r.Node, "services", bed.rules())
			t.Cleanup(func() {
				for _, fam := range families {
					node(t, r, fmt.Sprintf("ip -%d route del %s || true", fam, farClient[fam]))
				}
			})
			port := uint16(45000)
			for _, fam := range families {
				for proto := range protos {
					for _, name := range []string{"plain", "dnat node port"} {
						port++
						p := bed.pathNamed(t, fam, name)
						p.client = farClient[fam]
						t.Run(fmt.Sprintf("%s %s v%d", name, proto, fam), func(t *testing.T) {
							checkAsymmetric(t, r, p, proto, port, fam)
						})
					}
				}
			}
		})
	}
}

// checkAsymmetric has the answers leave by the second uplink, and then by the first.
func checkAsymmetric(t *testing.T, r *rig.Rig, p natPath, proto string, port uint16, fam int) {
	routeClient(t, r, fam, true)
	d := open(t, r)
	s := connect(t, p, proto, port)
	s.warmUp(t, d)
	first, second := linkOf(t, r.Node, rig.Uplink).Attrs().Index, linkOf(t, r.Node, secondUplink).Attrs().Index
	wantWay(t, s, d, first, second)

	routeClient(t, r, fam, false)
	moved := time.Now()
	settings, err := d.Settings()
	if err != nil {
		t.Fatal(err)
	}
	limit := settings.Revalidate + 100*time.Millisecond
	var took time.Duration
	for took = 0; took <= 2*limit; took = time.Since(moved) {
		if _, err := s.roundTrip([]byte("by which way")); err != nil {
			t.Fatal(err)
		}
		if back, ok := s.datapathFlow(t, d, false); ok && back.Out == first {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if took > limit {
		t.Errorf("the flow followed the route after %v, want %v", took, limit)
	}
	wantWay(t, s, d, first, first)
}

// wantWay compares the interfaces by which a session's requests come in and its answers
// leave. Round trips keep the entries from running out meanwhile.
func wantWay(t *testing.T, s *session, d *datapath.Datapath, in, out int) {
	t.Helper()
	eventually(t, patience, fmt.Sprintf("requests come in by %d, answers leave by %d", in, out), func() bool {
		if _, err := s.roundTrip([]byte("by this way")); err != nil {
			t.Fatal(err)
		}
		there, okThere := s.datapathFlow(t, d, true)
		back, okBack := s.datapathFlow(t, d, false)
		return okThere && okBack && there.Live() && back.Live() && there.In == in && back.Out == out
	})
}

// TestNATOneDirection sends masqueraded datagrams that nobody answers: nothing is known
// of answers, so nothing may be learned for them. B066
func TestNATOneDirection(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	a := addPod(t, r, "a", nil)
	applyRules(t, r.Ext, "mute", "chain in { type filter hook input priority filter; udp dport 99 drop; }")
	d := open(t, r)
	for _, fam := range families {
		conn := dial(t, a.Host, "udp", netip.AddrPortFrom(extAddr(fam), 99))
		local, remote := addrPortOf(conn.LocalAddr()), addrPortOf(conn.RemoteAddr())
		eventually(t, 5*time.Second, "the one direction is learned", func() bool {
			if _, err := conn.Write([]byte("anybody there")); err != nil {
				t.Fatal(err)
			}
			f, ok := flow(t, d, protos["udp"], local, remote)
			return ok && f.NAT && f.Packets > 10
		})
		for f, err := range d.Flows() {
			if err != nil {
				t.Fatal(err)
			}
			if f.Src == remote {
				t.Errorf("learned for answers that never came: %+v", f)
			}
		}
	}
}

// TestNATStrictWindows wants traffic to go on by the kernel, and nothing of TCP learned,
// while conntrack checks TCP windows strictly. B066
func TestNATStrictWindows(t *testing.T) {
	t.Parallel()
	bed := newNATBed(t, rig.Options{})
	d := open(t, bed.r)
	if err := bed.r.Node.Sysctl("net.netfilter.nf_conntrack_tcp_be_liberal", "0"); err != nil {
		t.Fatal(err)
	}
	port := uint16(46000)
	for _, fam := range families {
		for _, name := range []string{"snat", "dnat node port"} {
			port++
			s := connect(t, bed.pathNamed(t, fam, name), "tcp", port)
			for range 50 {
				if _, err := s.roundTrip([]byte("by the kernel")); err != nil {
					t.Fatal(err)
				}
			}
			for _, forward := range []bool{true, false} {
				if f, ok := s.datapathFlow(t, d, forward); ok {
					t.Errorf("learned under strict checks: %+v", f)
				}
			}
		}
	}
	if n := counters(t, d)["learn_ct_strict"]; n == 0 {
		t.Error("no packet counts as learn_ct_strict")
	}
}
