// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/xveth/xveth/bpf"
	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// armedHooks are the hooks of an uplink and of a host veth that carry a program of ours.
func armedHooks(uplink string, pod *rig.Pod) map[string][]string {
	up := []string{"ingress", "egress"}
	if uplink == "xdp" {
		up = append(up, "xdp")
	}
	return map[string][]string{rig.Uplink: up, pod.HostDev: {"ingress", "egress"}}
}

// underTraffic runs a change while every packet of a warm flow and every program is
// watched: none may be missing at any time.
func underTraffic(t *testing.T, uplink string, change func(t *testing.T, r *rig.Rig, a *rig.Pod)) {
	r := newRig(t, map[string]any{
		"uplinks": []any{map[string]any{"name": rig.Uplink, "mode": uplink}},
	})
	a := addPod(t, r, "a", nil)
	at := netip.AddrPortFrom(a.Addr4, 7)
	echo(t, a.Host, "udp", at)
	warm(t, r, dial(t, r.Ext, "udp", at))
	traffic := startCounted(t, r.Ext, at)
	endWatch := watchHooks(t, r.Node, armedHooks(uplink, a))
	change(t, r, a)
	traffic.progress(t, 100)
	endWatch()
	traffic.finish(t)
	if f := counters(t, open(t, r)); f.Fast() == 0 {
		t.Errorf("nothing took the fast path: %v", f)
	}
}

// TestRearmUnderTraffic arms again and again what is armed: there is one program on each
// hook, always, and no packet is lost. B093, B101.
func TestRearmUnderTraffic(t *testing.T) {
	for _, uplink := range []string{"xdp", "tcx"} {
		t.Run(uplink, func(t *testing.T) {
			underTraffic(t, uplink, func(t *testing.T, r *rig.Rig, a *rig.Pod) {
				before := hooksOf(t, r.Node, rig.Uplink)
				want := map[string]datapath.Want{"xdp": datapath.WantXDP, "tcx": datapath.WantTCX}[uplink]
				for range 20 {
					rearm(t, r, a, want)
				}
				for range 2 {
					churn(t, r, nil)
				}
				if after := hooksOf(t, r.Node, rig.Uplink); !reflect.DeepEqual(before, after) {
					t.Errorf("programs were %v, are %v", before, after)
				}
			})
		})
	}
}

// rearm does what an ADD does, for an uplink and a host veth that are armed.
func rearm(t *testing.T, r *rig.Rig, a *rig.Pod, want datapath.Want) {
	t.Helper()
	err := r.Node.Do(func() error {
		d, err := datapath.Ensure(datapath.DefaultDir, datapath.Settings{Revalidate: time.Second, MaxFlows: 65536})
		if err != nil {
			return err
		}
		defer d.Close()
		if _, _, err := d.AttachUplink(rig.Uplink, want); err != nil {
			return err
		}
		ifi, err := net.InterfaceByName(a.HostDev)
		if err != nil {
			return err
		}
		return d.AttachPod(ifi.Index, datapath.Pod{ToPod: true, FromPod: true})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// otherBuild makes the pinned programs look like those of another build.
func otherBuild(t *testing.T, r *rig.Rig) {
	t.Helper()
	pins, err := filepath.Glob(r.Node.Path(datapath.DefaultDir) + "/*/xv_config")
	if err != nil || len(pins) != 1 {
		t.Fatal(pins, err)
	}
	m, err := ebpf.LoadPinnedMap(pins[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var s bpf.DatapathXvSettings
	if err := m.Lookup(uint32(0), &s); err != nil {
		t.Fatal(err)
	}
	s.Build ^= 1
	if err := m.Put(uint32(0), &s); err != nil {
		t.Fatal(err)
	}
}

// TestUpgradeUnderTraffic lets an ADD of another build swap the programs: no packet is
// lost, no hook is ever empty, and flows stay learned. B093, B101.
func TestUpgradeUnderTraffic(t *testing.T) {
	for _, uplink := range []string{"xdp", "tcx"} {
		t.Run(uplink, func(t *testing.T) {
			underTraffic(t, uplink, func(t *testing.T, r *rig.Rig, a *rig.Pod) {
				for range 2 {
					upHooks, podHooks := hooksOf(t, r.Node, rig.Uplink), hooksOf(t, r.Node, a.HostDev)
					packets := fastPackets(t, r)
					otherBuild(t, r)
					churn(t, r, nil)
					checkSwapped(t, upHooks, hooksOf(t, r.Node, rig.Uplink))
					checkSwapped(t, podHooks, hooksOf(t, r.Node, a.HostDev))
					for key, n := range fastPackets(t, r) {
						if old, ok := packets[key]; ok && n < old {
							t.Errorf("flow %v had %d packets and has %d", key, old, n)
						}
						delete(packets, key)
					}
					if len(packets) > 0 {
						t.Errorf("flows were forgotten: %v", packets)
					}
				}
			})
		})
	}
}

// fastPackets are the packets of each learned flow.
func fastPackets(t *testing.T, r *rig.Rig) map[[2]netip.AddrPort]uint64 {
	t.Helper()
	all := map[[2]netip.AddrPort]uint64{}
	for f, err := range open(t, r).Flows() {
		if err != nil {
			t.Fatal(err)
		}
		all[[2]netip.AddrPort{f.Src, f.Dst}] = f.Packets
	}
	return all
}

// checkSwapped compares the programs before and after an upgrade.
func checkSwapped(t *testing.T, before, after map[string][]ebpf.ProgramID) {
	t.Helper()
	for hook := range maps.Keys(before) {
		if len(after[hook]) != 1 || after[hook][0] == before[hook][0] {
			t.Errorf("%s had program %v and has %v", hook, before[hook], after[hook])
		}
	}
	if len(after) != len(before) {
		t.Errorf("hooks were %v, are %v", before, after)
	}
}

// TestPinsVanishUnderTraffic removes the pins, as the end of a private mount does: traffic
// goes on, and the next ADD puts programs with new maps in the place of the old ones
// without a lost packet. B115.
func TestPinsVanishUnderTraffic(t *testing.T) {
	underTraffic(t, "xdp", func(t *testing.T, r *rig.Rig, a *rig.Pod) {
		if err := os.RemoveAll(r.Node.Path(datapath.DefaultDir)); err != nil {
			t.Fatal(err)
		}
		before := hooksOf(t, r.Node, rig.Uplink)
		churn(t, r, nil)
		checkSwapped(t, before, hooksOf(t, r.Node, rig.Uplink))
		at := netip.AddrPortFrom(a.Addr4, 7)
		warm(t, r, dial(t, r.Ext, "udp", at))
	})
}
