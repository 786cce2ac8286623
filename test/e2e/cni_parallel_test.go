// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// pins lists the node's pins with the ids of what they hold.
func pins(t *testing.T, r *rig.Rig) string {
	t.Helper()
	return node(t, r, `cd `+datapath.DefaultDir+` && find . -type f | sort | while read f; do
		id=$( { bpftool -j prog show pinned $f || bpftool -j map show pinned $f || bpftool -j link show pinned $f; } 2>/dev/null | sed 's/.*"id":\([0-9]*\).*/\1/')
		echo $f ${id%%,*}; done`)
}

// oneRuleSet checks that the node has one table with one chain, and each rule once.
func oneRuleSet(t *testing.T, r *rig.Rig) {
	t.Helper()
	out := node(t, r, "nft list ruleset")
	if n := strings.Count(out, "table "); n != 1 {
		t.Errorf("%d tables, want 1:\n%s", n, out)
	}
	if n := strings.Count(out, "chain "); n != 1 {
		t.Errorf("%d chains, want 1:\n%s", n, out)
	}
	seen := map[string]bool{}
	for _, l := range strings.Split(out, "\n") {
		l = strings.TrimSpace(l)
		if seen[l] && strings.Contains(l, "comment") {
			t.Errorf("twice in the rules: %s", l)
		}
		seen[l] = true
	}
}

// wantPods runs CHECK on all pods and looks for addresses that two of them share.
func wantPods(t *testing.T, pods []*rig.Pod) {
	t.Helper()
	ctx := ctxOf(t)
	wantDistinct(t, pods)
	atOnce(t, pods, func(p *rig.Pod) error { return p.Check(ctx) })
}

// TestParallelFirst is B015 and B016: 50 ADDs at the same instant on a node on which
// nothing was loaded or made before.
func TestParallelFirst(t *testing.T) {
	r := newRig(t, nil)
	pods := newPods(t, r, "p", 50)
	addAll(t, r, pods, nil)
	oneRuleSet(t, r)
	wantPods(t, pods)
	if out := node(t, r, "ip -o addr show | grep -c '10.88.0.1/32'"); strings.TrimSpace(out) != "50" {
		t.Errorf("the gateway address is there %s times, want once on each of 50 veths", out)
	}
	removeAll(t, pods)
}

// TestParallelTableDeleted is B015: somebody deletes our table while ADDs make it.
func TestParallelTableDeleted(t *testing.T) {
	r := newRig(t, nil)
	stop := background(t, r.Node, "while :; do nft delete table "+masqTable+" 2>/dev/null; done")
	pods := newPods(t, r, "p", 25)
	addAll(t, r, pods, nil)
	stop()
	wantDistinct(t, pods)
	// The next ADD puts back what was deleted last, for all of them.
	addPod(t, r, "last", nil)
	oneRuleSet(t, r)
	wantPods(t, pods)
	removeAll(t, pods)
}

// TestHostHasEth0 is B021: the host's own eth0 is not in the way of the pods', nobody who
// watches the host ever sees a second one, and the first is not touched.
func TestHostHasEth0(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	eth0 := linkIndex(t, r.Node, rig.Uplink)
	addrs := node(t, r, "ip -o addr show scope global dev "+rig.Uplink)
	stop := background(t, r.Node, "ip -o monitor link")
	pods := newPods(t, r, "p", 30)
	addAll(t, r, pods, nil)
	wantPods(t, pods)
	removeAll(t, pods)
	seen := stop()
	if !strings.Contains(seen, ": xv") {
		t.Errorf("the monitor saw no veth: %s", seen)
	}
	for _, l := range strings.Split(seen, "\n") {
		index, rest, _ := strings.Cut(strings.TrimPrefix(l, "Deleted "), ": ")
		if strings.HasPrefix(rest, rig.Uplink) && index != fmt.Sprint(eth0) {
			t.Errorf("the host showed another %s: %s", rig.Uplink, l)
		}
	}
	if now := node(t, r, "ip -o addr show scope global dev "+rig.Uplink); now != addrs {
		t.Errorf("the host's %s has changed: %s", rig.Uplink, now)
	}
}

// TestChurn makes 100 ADDs and DELs at once, in a random mixture, on a node that has pods
// (B037: nothing lands in a namespace that it does not belong to).
func TestChurn(t *testing.T) {
	r := newRig(t, nil)
	addPod(t, r, "first", nil)
	before, pinned := nodeState(t, r), pins(t, r)
	old, fresh := newPods(t, r, "old", 50), newPods(t, r, "fresh", 50)
	addAll(t, r, old, nil)
	turns := append(slices.Clone(old), fresh...)
	rand.Shuffle(len(turns), func(i, j int) { turns[i], turns[j] = turns[j], turns[i] })
	ctx := ctxOf(t)
	atOnce(t, turns, func(p *rig.Pod) error {
		if p.Result != nil {
			return p.Remove(ctx)
		}
		return p.Add(ctx, r.Conf(nil))
	})
	wantPods(t, fresh)
	oneRuleSet(t, r)
	for _, p := range fresh {
		if out := on(t, p.Host, "ip -o link | wc -l; nft list ruleset"); strings.TrimSpace(out) != "2" {
			t.Errorf("%s has not just lo and its own link, and no rules: %s", p.ID, out)
		}
	}
	if now := pins(t, r); now != pinned {
		t.Errorf("pins were\n%s\nand are\n%s", pinned, now)
	}
	removeAll(t, fresh)
	wantState(t, r, before)
}

// TestXtablesLock is B018: somebody holds the lock of iptables; xveth does not wait for it.
func TestXtablesLock(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	letGo := holdXtables(t, r)
	p := addPod(t, r, "a", nil)
	if err := p.Check(ctxOf(t)); err != nil {
		t.Error(err)
	}
	if err := p.Remove(ctxOf(t)); err != nil {
		t.Error(err)
	}
	letGo()
}

// holdXtables takes the lock of iptables on the node. The function that it returns checks
// that it is still held, and lets it go.
func holdXtables(t *testing.T, r *rig.Rig) func() {
	t.Helper()
	isHeld := func() bool {
		_, err := r.Node.Run(ctxOf(t), "flock", "-n", "/run/xtables.lock", "true")
		return err != nil
	}
	stop := background(t, r.Node, "exec flock /run/xtables.lock sleep 50")
	eventually(t, ctxWait, "the lock of iptables is held", isHeld)
	return func() {
		if !isHeld() {
			t.Error("the lock of iptables was let go before the plugins were done")
		}
		stop()
		node(t, r, "rm /run/xtables.lock")
	}
}
