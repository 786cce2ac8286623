// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// TestReboot is B005: after a reboot the namespaces, veths, rules and pins are gone and
// the reservations are not. DEL of the old ids and GC free all addresses.
func TestReboot(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	before := nodeState(t, r)
	for name, free := range map[string]func(*testing.T, []*rig.Pod){
		"del": func(t *testing.T, pods []*rig.Pod) {
			atOnce(t, pods, func(p *rig.Pod) error { return del(t, r, p) })
		},
		"gc": func(t *testing.T, _ []*rig.Pod) {
			if err := gc(t, r, map[string]any{keyValid: []any{}}); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			pods := newPods(t, r, "b", 20)
			addAll(t, r, pods, nil)
			reboot(t, r, pods)
			if got := reservations(t, r, "rig"); len(got) != 40 {
				t.Errorf("%d addresses are reserved, want 40", len(got))
			}
			free(t, pods)
			if got := reservations(t, r, "rig"); len(got) != 0 {
				t.Errorf("still reserved are %v", got)
			}
			wantState(t, r, before)
			// The node works as a new one.
			p := addPod(t, r, "after", nil)
			canPing(t, p.Host, rig.ExtAddr4)
			if err := p.Remove(ctxOf(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

// reboot removes what a reboot removes.
func reboot(t *testing.T, r *rig.Rig, pods []*rig.Pod) {
	t.Helper()
	for _, p := range pods {
		p.Destroy()
	}
	node(t, r, "ip -o link | sed -n 's/^[0-9]*: \\(xv[^@]*\\)@.*/\\1/p' | while read l; do ip link del $l 2>/dev/null; done; "+
		"ip link set "+rig.Uplink+" xdp off; nft flush ruleset; find "+datapath.DefaultDir+" -type f -delete; rm -r "+datapath.DefaultDir)
}

// TestDeadPodsFlows kills the namespace of a pod under a warm flow and then deletes the
// pod: no flow and no map entry of it is left (B001, B005).
func TestDeadPodsFlows(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for name, free := range map[string]func(*rig.Pod) error{
		"del": func(p *rig.Pod) error { return del(t, r, p) },
		"gc":  func(*rig.Pod) error { return gc(t, r, map[string]any{keyValid: []any{}}) },
	} {
		t.Run(name, func(t *testing.T) {
			p := addPod(t, r, "a", nil)
			at := netip.AddrPortFrom(p.Addr4, 7)
			ctx, exit := context.WithCancel(ctxOf(t))
			defer exit()
			if err := p.EchoUDP(ctx, at); err != nil {
				t.Fatal(err)
			}
			warm(t, r, dial(t, r.Ext, "udp", at))
			exit() // a socket keeps its namespace
			p.Destroy()
			eventually(t, ctxWait, "the veth is gone", func() bool {
				return !strings.Contains(node(t, r, "ip -o link"), p.HostDev)
			})
			if err := free(p); err != nil {
				t.Error(err)
			}
			for f, err := range open(t, r).Flows() {
				t.Errorf("a flow is left: %+v (%v)", f, err)
			}
		})
	}
}

// TestAddressReused deletes a pod under a warm flow and gives its address to another at
// once: the flow reaches the new pod by the kernel, not through what was learned.
func TestAddressReused(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for _, fam := range families {
		ips := map[string]any{"runtimeConfig": map[string]any{"ips": []string{"10.88.0.77", "2001:db8:88::77"}}}
		old := addPod(t, r, "old", ips)
		addr, err := old.Addr(fam)
		if err != nil {
			t.Fatal(err)
		}
		at := netip.AddrPortFrom(addr, 7)
		echo(t, old.Host, "udp", at)
		conn := dial(t, r.Ext, "udp", at)
		warm(t, r, conn)
		if err := old.Remove(ctxOf(t)); err != nil {
			t.Fatal(err)
		}
		for f, err := range open(t, r).Flows() {
			t.Errorf("a flow outlives its pod: %+v (%v)", f, err)
		}
		fresh := addPod(t, r, "fresh", ips)
		if now, _ := fresh.Addr(fam); now != addr {
			t.Fatalf("the new pod has %s, want %s", now, addr)
		}
		echo(t, fresh.Host, "udp", at)
		before := counters(t, open(t, r)).Fast()
		eventually(t, ctxWait, "the new pod answers", func() bool {
			_, err := rig.RoundTrip(conn, []byte("to whom?"), ctxWait/10)
			return err == nil
		})
		if now := counters(t, open(t, r)).Fast(); now != before {
			t.Errorf("%d packets took the fast path of the old pod", now-before)
		}
		if err := fresh.Remove(ctxOf(t)); err != nil {
			t.Fatal(err)
		}
	}
}
