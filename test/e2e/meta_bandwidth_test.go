// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

const (
	// metaRate is well below what drip sends: 1200 bytes every millisecond.
	metaRate = 3_000_000
	// metaBurst, in bits, holds a packet of every size but the local jumbo one, and what a
	// sender makes up for when a busy machine has held it up for a moment.
	metaBurst = 480_000
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

// metaDirections are what the limits of a pod are for, by the limit.
func metaDirections(bed *metaBed, a, b *rig.Pod) map[string][]metaMeasured {
	ofPod := func(p *rig.Pod) func(int) netip.Addr {
		return func(fam int) netip.Addr { return addrsOf(p)[fam] }
	}
	return map[string][]metaMeasured{
		"ingress": {
			{"remote host to pod", bed.r.Ext, a.Host, ofPod(a)},
			{"another pod to pod", b.Host, a.Host, ofPod(a)},
		},
		"egress": {
			{"pod to remote host", a.Host, bed.r.Ext, extAddr},
			{"pod to another pod", a.Host, b.Host, ofPod(b)},
		},
	}
}

// metaFlood sends more than the limit until it is told to stop: from one port, or a few
// packets from each of many ports.
func metaFlood(from *rig.Host, dst netip.AddrPort, short bool, done <-chan struct{}) error {
	const every, packets = 8 * time.Millisecond, 8
	tick := time.NewTicker(every)
	defer tick.Stop()
	msg := make([]byte, 1200)
	conn, err := from.DialUDP(netip.AddrPort{}, dst)
	for err == nil {
		select {
		case <-done:
			return conn.Close()
		case <-tick.C:
		}
		for range packets {
			_, _ = conn.Write(msg)
		}
		if short {
			_ = conn.Close()
			conn, err = from.DialUDP(netip.AddrPort{}, dst)
		}
	}
	return err
}

// TestMetaBandwidth measures what the bandwidth plugin lets through of a flood, to and from
// the remote host and another pod: the rate that is configured, with the fast path, without
// it, and behind ptp; each time, with one flow and with many. B086, B087
func TestMetaBandwidth(t *testing.T) {
	t.Parallel()
	off := metaOwn(map[string]any{"fastPath": map[string]any{"mode": "off"}})
	for _, c := range []struct {
		name, file string
		change     metaChange
	}{
		{"xveth", "xveth-bandwidth-portmap.conflist", metaRevalidate},
		{"xveth off", "xveth-bandwidth-portmap.conflist", off},
		{"ptp", "xveth-bandwidth-portmap.conflist", metaWithout},
		{"xveth-chain", "flannel-xveth-chain.conflist", metaRevalidate},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			bed := newMetaBed(t, metaList(t, c.file, c.change))
			a, b := bed.add(t, "a", metaLimits(true, true)), bed.add(t, "b", nil)
			bed.measureAll(t, a, b)
		})
	}
}

// measureAll measures every direction. The two limits do not share anything, so one pair of
// measurements runs at a time.
func (bed *metaBed) measureAll(t *testing.T, a, b *rig.Pod) {
	ears := bed.ears(t, a, b)
	var wg sync.WaitGroup
	for limit, directions := range metaDirections(bed, a, b) {
		wg.Go(func() {
			port := map[string]uint16{"ingress": 7000, "egress": 8000}[limit]
			for _, m := range directions {
				for _, fam := range families {
					for _, short := range []bool{false, true} {
						port++
						rate, err := m.measure(ears[m.to], netip.AddrPortFrom(m.dst(fam), port), short)
						if err != nil || !metaIsLimited(rate) {
							t.Errorf("%s v%d, short flows %v: %.0f bit/s of %d, %v", m.name, fam, short, rate, metaRate, err)
						}
					}
				}
			}
		})
	}
	wg.Wait()
}

func (bed *metaBed) ears(t *testing.T, pods ...*rig.Pod) map[*rig.Host]*ear {
	t.Helper()
	ears := map[*rig.Host]*ear{bed.r.Ext: newEar(t, bed.r.Ext)}
	for _, p := range pods {
		ears[p.Host] = newEar(t, p.Host)
	}
	return ears
}

// measure floods a port and returns the rate that arrives.
func (m *metaMeasured) measure(at *ear, dst netip.AddrPort, short bool) (float64, error) {
	conn, err := m.to.ListenUDP(dst)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	done, failed := make(chan struct{}), make(chan error, 1)
	go func() { failed <- metaFlood(m.from, dst, short, done) }()
	rate, err := metaRateAt(victim{at: at, warmTuple: warmTuple{dst: dst}})
	close(done)
	return rate, errors.Join(err, <-failed)
}

// metaIsLimited says whether a rate is the configured one.
func metaIsLimited(rate float64) bool { return rate > 0.9*metaRate && rate < 1.1*metaRate }

// metaMost is what can arrive within a window when the sender has saved up a whole burst.
const metaMost = metaRate + metaBurst*float64(time.Second)/float64(metaTime)

// metaTime is how long a rate is measured.
const metaTime = 400 * time.Millisecond

// metaRateAt waits until more has arrived of some flows than the burst lets through, and
// returns the bits a second from then on, in frames and by the kernel's time stamps. A busy
// machine may hold up the sender: then less arrives, or what it has saved up, and it is
// measured again.
func metaRateAt(flows ...victim) (rate float64, err error) {
	start := metaHeard(flows)
	for range 5 {
		rate, err = metaWindow(flows, start)
		if err != nil || metaIsLimited(rate) || rate > 1.1*metaMost {
			break
		}
	}
	return rate, err
}

func metaWindow(flows []victim, start arrivals) (float64, error) {
	first, last := start, start
	for end := time.Now().Add(8 * time.Second); last.last.Sub(first.last) < metaTime; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return 0, fmt.Errorf("%d bytes arrived", last.bytes-start.bytes)
		}
		last = metaHeard(flows)
		if first.bytes-start.bytes <= 3*metaBurst/16 { // the burst, and what was let through meanwhile
			first = last
		}
	}
	return float64(last.bytes-first.bytes) * 8 / last.last.Sub(first.last).Seconds(), nil
}

// metaHeard sums up what has arrived of some flows.
func metaHeard(flows []victim) (sum arrivals) {
	for _, v := range flows {
		one := v.at.of(protos["udp"], v.dst)
		sum.bytes += one.bytes
		if one.last.After(sum.last) {
			sum.last = one.last
		}
	}
	return sum
}

// TestMetaBandwidthLater limits a pod whose flows are fast already, by calling the real
// plugin once more: they keep to the limit. B087
func TestMetaBandwidthLater(t *testing.T) {
	t.Parallel()
	bed := newMetaBed(t, metaList(t, "xveth-bandwidth-portmap.conflist", metaRevalidate))
	a, b := bed.add(t, "a", nil), bed.add(t, "b", nil)
	ears, d := bed.ears(t, a, b), bed.datapath(t)
	flows := map[string][]victim{} // that share a limit
	port := uint16(7000)
	for limit, directions := range metaDirections(bed, a, b) {
		for i, m := range directions {
			port++
			dst := netip.AddrPortFrom(m.dst(families[i]), port)
			swallow(t, m.to, "udp", dst)
			conn := dial(t, m.from, "udp", dst)
			drip(t, conn, 1200)
			v := victim{m.name, conn, ears[m.to], warmTuple{m.name, protos["udp"], localOf(conn), dst}}
			flows[limit] = append(flows[limit], v)
		}
	}
	waitFast(t, d, slices.Concat(flows["ingress"], flows["egress"])...)
	bed.limit(t, a)
	time.Sleep(cutInterval + grace)
	for limit, some := range flows {
		for _, v := range some {
			if f, ok := flow(t, d, v.proto, v.src, v.dst); ok {
				t.Errorf("%s is still fast: %+v", v.name, f)
			}
		}
		if rate, err := metaRateAt(some...); err != nil || !metaIsLimited(rate) {
			t.Errorf("%s: %.0f bit/s of %d, %v", limit, rate, metaRate, err)
		}
	}
}

// limit calls the bandwidth plugin for a pod that is there already.
func (bed *metaBed) limit(t *testing.T, p *rig.Pod) {
	t.Helper()
	conf, err := json.Marshal(map[string]any{
		"type": "bandwidth", "name": bed.list.Name, "cniVersion": bed.list.CNIVersion,
		"prevResult": p.Result, "runtimeConfig": metaLimits(true, true),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := callPlugin(t, bed.r, filepath.Join(testBin(t), "bandwidth"), "ADD", conf, p.Env()); err != nil {
		t.Fatal(err)
	}
}

// TestMetaBandwidthOneWay limits one direction of a pod: that one is never fast, and the
// other is. TCP passes through both, also between pods. B086
func TestMetaBandwidthOneWay(t *testing.T) {
	t.Parallel()
	const xveth, chained = "xveth-bandwidth-portmap.conflist", "flannel-xveth-chain.conflist"
	for _, c := range []struct {
		file    string
		ingress bool
		reason  string
	}{
		{xveth, true, "learn_qdisc"},
		{xveth, false, "pass_foreign_ingress"},
		{chained, true, "learn_qdisc"},
		{chained, false, "pass_foreign_ingress"},
	} {
		t.Run(fmt.Sprintf("%s ingress %v", c.file, c.ingress), func(t *testing.T) {
			t.Parallel()
			bed, ingress, reason := newMetaBed(t, metaList(t, c.file)), c.ingress, c.reason
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
