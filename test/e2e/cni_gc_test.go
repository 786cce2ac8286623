// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/xveth/xveth/pkg/veth"
	"github.com/xveth/xveth/test/rig"
)

const (
	keyValid = "cni.dev/valid-attachments"
	keyOld   = "cni.dev/attachments"
)

// attachmentsOf is the list of GC for some pods.
func attachmentsOf(pods ...*rig.Pod) []any {
	list := []any{}
	for _, p := range pods {
		list = append(list, map[string]any{"containerID": p.ID, "ifname": rig.PodDev})
	}
	return list
}

// gc runs GC on the rig's network with some keys.
func gc(t *testing.T, r *rig.Rig, keys map[string]any) error {
	t.Helper()
	_, err := r.Plugin(ctxOf(t), "GC", r.Conf(keys), nil)
	return err
}

// otherNet is a second network of the same node.
func otherNet() map[string]any {
	return map[string]any{"name": "other", "ipam": ipamConf("10.89.0.0/24", "2001:db8:89::/64")}
}

// TestGCKeys is B011: live pods are never cut, whichever key carries them, and with no
// list at all nothing is removed.
func TestGCKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	a, b, c := addPod(t, r, "a", nil), addPod(t, r, "b", nil), addPod(t, r, "c", nil)
	all := attachmentsOf(a, b, c)
	with3 := nodeState(t, r)
	for name, keys := range map[string]map[string]any{
		"valid-attachments": {keyValid: all},
		"attachments":       {keyOld: all},
		"both":              {keyValid: all, keyOld: all},
		"neither":           {},
	} {
		t.Run(name, func(t *testing.T) {
			if err := gc(t, r, keys); err != nil {
				t.Error(err)
			}
			wantState(t, r, with3)
			for _, p := range []*rig.Pod{a, b, c} {
				if err := p.Check(ctxOf(t)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for key, keep := range map[string]*rig.Pod{keyValid: a, keyOld: b} {
		t.Run("one is left under "+key, func(t *testing.T) {
			for _, p := range []*rig.Pod{a, b, c} {
				if err := p.Del(ctxOf(t)); err != nil {
					t.Fatal(err)
				}
				if err := p.Add(ctxOf(t), r.Conf(nil)); err != nil {
					t.Fatal(err)
				}
			}
			if err := gc(t, r, map[string]any{key: attachmentsOf(keep)}); err != nil {
				t.Error(err)
			}
			if err := keep.Check(ctxOf(t)); err != nil {
				t.Error(err)
			}
			if got := reservations(t, r, "rig"); len(got) != 2 {
				t.Errorf("reserved are %v, want only those of %s", got, keep.ID)
			}
			if out := node(t, r, "ip -o link | grep -c '^[0-9]*: xv'"); strings.TrimSpace(out) != "1" {
				t.Errorf("%s host veths are left, want 1", out)
			}
		})
	}
}

// TestGCOddLists is B013: null removes nothing, malformed lists are errors that remove
// nothing, and an empty list clears this network and no other.
func TestGCOddLists(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	addPod(t, r, "a", nil)
	before := nodeState(t, r)
	for _, c := range []struct {
		name string
		list any
		code uint // 0: no error
		says string
	}{
		{"null", nil, 0, ""},
		{"no ifname", []any{map[string]any{"containerID": "a"}}, types.ErrInvalidNetworkConfig, "ifname"},
		{"no container", []any{map[string]any{"ifname": "eth0"}}, types.ErrInvalidNetworkConfig, "containerID"},
		{"null entry", []any{nil}, types.ErrInvalidNetworkConfig, keyValid},
		{"a string", "a", types.ErrInvalidNetworkConfig, keyValid},
		{"an object", map[string]any{"containerID": "a", "ifname": "eth0"}, types.ErrInvalidNetworkConfig, keyValid},
		{"an empty id", []any{map[string]any{"containerID": "", "ifname": "eth0"}}, types.ErrInvalidNetworkConfig, "containerID"},
		{"one good and one bad", []any{map[string]any{"containerID": "x", "ifname": "eth0"}, 7}, types.ErrInvalidNetworkConfig, keyValid},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := gc(t, r, map[string]any{keyValid: c.list})
			if c.code == 0 && err != nil {
				t.Error(err)
			}
			if c.code != 0 {
				wantCode(t, err, c.code, c.says)
			}
			wantState(t, r, before)
		})
	}
}

// TestGCOwnNetwork is B013: an empty list clears everything of this network and nothing
// else.
func TestGCOwnNetwork(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	node(t, r, "ip link add veth77 type veth peer name veth78")
	defer node(t, r, "ip link del veth77")
	b := addPod(t, r, "b", otherNet())
	before := nodeState(t, r)
	for _, p := range newPods(t, r, "a", 3) {
		if err := p.Add(ctxOf(t), r.Conf(nil)); err != nil {
			t.Fatal(err)
		}
		p.Destroy()
	}
	if err := gc(t, r, map[string]any{keyValid: []any{}}); err != nil {
		t.Error(err)
	}
	eventually(t, ctxWait, "only the other network is left", func() bool { return nodeState(t, r) == before })
	if err := b.Check(ctxOf(t)); err != nil {
		t.Error(err)
	}
}

// TestGCLeftovers removes what an ADD that was killed can leave at each step.
func TestGCLeftovers(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	live := addPod(t, r, "live", nil)
	before := nodeState(t, r)
	dead := veth.HostName("rig", "dead", rig.PodDev)
	for name, c := range map[string]string{
		"veth without alias":       "ip link add " + dead + " type veth peer name dead0",
		"veth without reservation": "ip link add " + dead + " type veth peer name dead0 && ip link set " + dead + " alias " + veth.Alias("rig", "dead", rig.PodDev),
		"reservation without veth": "printf 'dead\\r\\neth0' > " + storeDir + "/10.88.0.99",
		"reservation of nobody":    ": > " + storeDir + "/10.88.0.98",
	} {
		t.Run(name, func(t *testing.T) {
			node(t, r, c)
			if nodeState(t, r) == before {
				t.Fatal("nothing was left to collect")
			}
			if err := gc(t, r, map[string]any{keyValid: attachmentsOf(live)}); err != nil {
				t.Error(err)
			}
			wantState(t, r, before)
			if err := live.Check(ctxOf(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestGCAfterKill kills ADD at many moments. GC, or DEL, or another ADD and its DEL,
// leave nothing.
func TestGCAfterKill(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	addPod(t, r, "first", nil) // loads the programs
	before := nodeState(t, r)
	repair := map[string]func(*rig.Pod) error{
		"gc":  func(*rig.Pod) error { return gc(t, r, map[string]any{keyValid: attachmentsOf(r.Pods()[0])}) },
		"del": func(p *rig.Pod) error { return del(t, r, p) },
		"add": func(p *rig.Pod) error {
			// An ADD that finds its own reservation asks for a DEL.
			err := p.Add(ctxOf(t), r.Conf(nil))
			if err != nil && !strings.Contains(err.Error(), "DEL") {
				return err
			}
			return del(t, r, p)
		},
	}
	for name, fix := range repair {
		t.Run(name, func(t *testing.T) {
			for i := range 8 {
				p, err := r.NewNetns(fmt.Sprintf("kill%s%d", name, i))
				if err != nil {
					t.Fatal(err)
				}
				killedAdd(t, r, p, time.Duration(1+4*i)*time.Millisecond)
				if err := fix(p); err != nil {
					t.Error(err)
				}
				p.Destroy()
			}
			wantState(t, r, before)
		})
	}
}

// killedAdd starts ADD and kills it.
func killedAdd(t *testing.T, r *rig.Rig, p *rig.Pod, after time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctxOf(t), after)
	defer cancel()
	_, _ = r.Plugin(ctx, "ADD", r.Conf(nil), p.Env()) // it may be killed or not
}

// del runs DEL for a pod of the rig's default network.
func del(t *testing.T, r *rig.Rig, p *rig.Pod) error {
	t.Helper()
	_, err := r.Plugin(ctxOf(t), "DEL", r.Conf(nil), p.Env())
	return err
}
