// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

const (
	// metaRate is well below what drip sends: 1200 bytes every millisecond.
	metaRate = 3_000_000
	// metaBurst is used up within milliseconds and holds a packet of every size but the
	// local jumbo one.
	metaBurst = 80_000
)

func metaLimits(ingress, egress bool) map[string]any {
	limits := map[string]any{}
	if ingress {
		limits["ingressRate"], limits["ingressBurst"] = metaRate, metaBurst
	}
	if egress {
		limits["egressRate"], limits["egressBurst"] = metaRate, metaBurst
	}
	return map[string]any{"bandwidth": limits}
}

// metaMeasured is one direction of a limited pod.
type metaMeasured struct {
	name     string
	from, to *rig.Host
	dst      func(family int) netip.Addr
}

// TestMetaBandwidth measures what the bandwidth plugin lets through of a flood, to and from
// the remote host and another pod: the rate that is configured, with the fast path, without
// it, and behind ptp. B086
func TestMetaBandwidth(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change metaChange
	}{
		{"fast path on", metaFirst(nil)},
		{"fast path off", metaFirst(map[string]any{"fastPath": map[string]any{"mode": "off"}})},
		{"ptp", metaWithout},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			bed := newMetaBed(t, metaList(t, "xveth-bandwidth-portmap.conflist", c.change))
			a, b := bed.add(t, "a", metaLimits(true, true)), bed.add(t, "b", nil)
			ofPod := func(p *rig.Pod) func(int) netip.Addr {
				return func(fam int) netip.Addr { return addrsOf(p)[fam] }
			}
			ears := map[*rig.Host]*ear{}
			for _, h := range []*rig.Host{bed.r.Ext, a.Host, b.Host} {
				ears[h] = newEar(t, h)
			}
			port := uint16(7000)
			for _, m := range []metaMeasured{
				{"remote host to pod", bed.r.Ext, a.Host, ofPod(a)},
				{"pod to remote host", a.Host, bed.r.Ext, extAddr},
				{"pod to pod", b.Host, a.Host, ofPod(a)},
				{"pod to another pod", a.Host, b.Host, ofPod(b)},
			} {
				for _, fam := range families {
					port++
					t.Run(fmt.Sprintf("%s v%d", m.name, fam), func(t *testing.T) {
						rate := m.measure(t, ears[m.to], netip.AddrPortFrom(m.dst(fam), port))
						if rate < 0.9*metaRate || rate > 1.1*metaRate {
							t.Errorf("%.0f bit/s of %d", rate, metaRate)
						}
					})
				}
			}
		})
	}
}

// measure floods a port and returns the bits a second that arrive, in frames and by the
// kernel's time stamps.
func (m *metaMeasured) measure(t *testing.T, at *ear, dst netip.AddrPort) float64 {
	t.Helper()
	const window = 500 * time.Millisecond
	swallow(t, m.to, "udp", dst)
	defer drip(t, dial(t, m.from, "udp", dst), 1200)()
	var first, last arrivals
	eventually(t, 5*time.Second, "the burst is used up", func() bool {
		first = at.of(protos["udp"], dst)
		return first.bytes > 2*metaBurst/8
	})
	eventually(t, 5*time.Second, "packets arrive for some time", func() bool {
		last = at.of(protos["udp"], dst)
		return last.last.Sub(first.last) > window
	})
	return float64(last.bytes-first.bytes) * 8 / last.last.Sub(first.last).Seconds()
}

// TestMetaBandwidthOneWay limits one direction of a pod: that one is never fast, and the
// other is. TCP passes through both, also between pods. B086
func TestMetaBandwidthOneWay(t *testing.T) {
	t.Parallel()
	for _, ingress := range []bool{true, false} {
		name, reason := "egress", "pass_foreign_ingress"
		if ingress {
			name, reason = "ingress", "learn_qdisc"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bed := newMetaBed(t, metaList(t, "xveth-bandwidth-portmap.conflist"))
			caps := metaLimits(ingress, !ingress)
			a, b := bed.add(t, "a", caps), bed.add(t, "b", nil)
			d, port := bed.datapath(t), uint16(41000)
			for _, fam := range families {
				addrA, _ := a.Addr(fam)
				addrB, _ := b.Addr(fam)
				to := netip.AddrPortFrom(addrA, 80)
				for _, p := range []natPath{
					{"remote host", bed.r.Ext, a.Host, extAddr(fam), to, to, 1500},
					{"another pod", b.Host, a.Host, addrB, to, to, 1500},
				} {
					for proto := range protos {
						port++
						t.Run(fmt.Sprintf("%s v%d %s", p.name, fam, proto), func(t *testing.T) {
							before := counters(t, d)
							s := connect(t, p, proto, port)
							s.wantOneWay(t, d, !ingress)
							if rose(t, d, before, reason) == 0 {
								t.Errorf("%s did not rise", reason)
							}
						})
					}
				}
			}
		})
	}
}

// wantOneWay sends both ways until one direction has been fast for a while, and wants the
// other one never to be. Forward is to the limited pod.
func (s *session) wantOneWay(t *testing.T, d *datapath.Datapath, forward bool) {
	t.Helper()
	eventually(t, 5*time.Second, "the free direction is fast: "+s.tuples(), func() bool {
		if _, err := s.roundTrip([]byte("0123456789abcdef")); err != nil {
			t.Fatal(err)
		}
		f, ok := s.datapathFlow(t, d, forward)
		return ok && f.Packets > 50
	})
	if s.proto == "tcp" {
		rnd := rand.NewChaCha8([32]byte{1})
		if err := stream(s.client, s.server, 1<<16, rnd); err != nil {
			t.Errorf("to the pod: %v", err)
		}
		if err := stream(s.server, s.client, 1<<16, rnd); err != nil {
			t.Errorf("from the pod: %v", err)
		}
	}
	if f, ok := s.datapathFlow(t, d, !forward); ok {
		t.Errorf("the limited direction was learned: %+v", f)
	}
}
