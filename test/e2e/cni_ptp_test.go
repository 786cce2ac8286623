// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/xveth/xveth/test/rig"
)

// ptpPod is a pod that the reference ptp plugin connects to the same network.
func ptpPod(t *testing.T, r *rig.Rig, id string) *rig.Pod {
	t.Helper()
	p, err := r.NewNetns(id)
	if err != nil {
		t.Fatal(err)
	}
	out, err := callPlugin(t, r, filepath.Join(testBin(t), "ptp"), "ADD", ptpConf(r), p.Env())
	if err != nil {
		t.Fatal(err)
	}
	addrsUsable(t, r.Node)
	p.Result = resultOf(t, out.Stdout)
	p.TakeAddrs()
	return p
}

func ptpConf(r *rig.Rig) []byte {
	return r.Conf(map[string]any{"type": "ptp", "cniVersion": "1.0.0", "ipMasq": nil, "uplinks": nil})
}

func ptpDel(t *testing.T, r *rig.Rig, p *rig.Pod) {
	t.Helper()
	if _, err := callPlugin(t, r, filepath.Join(testBin(t), "ptp"), "DEL", ptpConf(r), p.Env()); err != nil {
		t.Error(err)
	}
	p.Destroy()
}

// TestMoveFromPTP moves a node from the reference ptp plugin to xveth and back under one
// network name: addresses never collide and old pods keep working.
func TestMoveFromPTP(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	before := nodeState(t, r)
	var all, ours, theirs []*rig.Pod
	for round := range 2 {
		for i := range 2 {
			p := ptpPod(t, r, fmt.Sprintf("ptp%d-%d", round, i))
			all, theirs = append(all, p), append(theirs, p)
		}
		wantMesh(t, all)
		for i := range 2 {
			p := addPod(t, r, fmt.Sprintf("xv%d-%d", round, i), nil)
			all, ours = append(all, p), append(ours, p)
		}
		wantMesh(t, all)
	}
	// GC that knows all of them removes none of ptp's.
	if err := gc(t, r, map[string]any{keyValid: attachmentsOf(all...)}); err != nil {
		t.Error(err)
	}
	for _, p := range ours[:2] {
		if err := p.Check(ctxOf(t)); err != nil {
			t.Error(err)
		}
		if err := p.Remove(ctxOf(t)); err != nil {
			t.Error(err)
		}
	}
	ptpDel(t, r, theirs[0])
	wantMesh(t, append(ours[2:], theirs[1:]...))
	for _, p := range theirs[1:] {
		ptpDel(t, r, p)
	}
	removeAll(t, ours[2:])
	eventually(t, ctxWait, "all is as before", func() bool { return nodeState(t, r) == before })
}

// wantMesh checks that each pod reaches the next and the remote host, in both families.
func wantMesh(t *testing.T, pods []*rig.Pod) {
	t.Helper()
	wantDistinct(t, pods)
	atOnce(t, pods, func(p *rig.Pod) error {
		for i, q := range pods {
			if q != p {
				continue
			}
			next := pods[(i+1)%len(pods)]
			for _, to := range []string{next.Addr4.String(), next.Addr6.String(), rig.ExtAddr4.String(), rig.ExtAddr6.String()} {
				if _, err := p.Run(ctxOf(t), "ping", "-n", "-c1", "-W3", "-s", "1200", to); err != nil {
					return err
				}
			}
		}
		return nil
	})
}
