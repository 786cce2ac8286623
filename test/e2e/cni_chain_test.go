// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/xveth/xveth/test/rig"
)

// runtimeOn is libcni with the node's plugins and some of the test's own.
func runtimeOn(t *testing.T, r *rig.Rig, more ...string) *libcni.CNIConfig {
	t.Helper()
	paths := append([]string{plugins, testBin(t)}, more...)
	return libcni.NewCNIConfigWithCacheDir(paths, t.TempDir(), rig.NewExec(r.Node))
}

// chain is a network list that begins with the rig's network.
func chain(t *testing.T, r *rig.Rig, changes map[string]any, more ...map[string]any) *libcni.NetworkConfigList {
	t.Helper()
	list, err := libcni.ConfListFromFile(filepath.Join(confDir(t, r, changes, more...), "10-rig.conflist"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// failing writes a plugin that fails the verbs that are given, and returns its folder.
func failing(t *testing.T, name string, verbs ...string) string {
	t.Helper()
	dir := t.TempDir()
	script := "#!/bin/sh\ncat > /dev/null\ncase $CNI_COMMAND in " + strings.Join(verbs, "|") +
		") echo '{\"cniVersion\":\"1.1.0\",\"code\":100,\"msg\":\"as always\"}'; exit 1;; esac\n"
	if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func runtimeConf(p *rig.Pod, caps map[string]any) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: p.ID, NetNS: p.Netns, IfName: rig.PodDev, CapabilityArgs: caps}
}

// TestChainFails is B004: a later plugin fails ADD. When its DEL succeeds, the runtime's
// DEL reaches xveth and nothing is left.
func TestChainFails(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	cni := runtimeOn(t, r, failing(t, "fails-add", "ADD"))
	list := chain(t, r, nil, map[string]any{"type": "fails-add"})
	before := nodeState(t, r)
	for i := range 3 {
		p, err := r.NewNetns(fmt.Sprintf("f%d", i))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cni.AddNetworkList(ctxOf(t), list, runtimeConf(p, nil)); err == nil || !strings.Contains(err.Error(), "as always") {
			t.Errorf("add: %v", err)
		}
		if err := cni.DelNetworkList(ctxOf(t), list, runtimeConf(p, nil)); err != nil {
			t.Error(err)
		}
		p.Destroy()
	}
	wantState(t, r, before)
}

// TestChainAlwaysFails is B004: a later plugin fails ADD and DEL, so that libcni never
// calls xveth's DEL. The pods die with their namespaces; 300 of them do not use up a /24,
// and a pod that lives keeps its address. Those that fill the range to begin with are only
// what such pods leave behind.
func TestChainAlwaysFails(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	live := addPod(t, r, "live", nil)
	node(t, r, "cd "+storeDir+` && for i in $(seq 10 254); do
		for a in 10.88.0.$i 2001:db8:88::$i; do printf "left$i\r\neth0" > $a; done; done`)
	cni := runtimeOn(t, r, failing(t, "fails", "ADD", "DEL"))
	list := chain(t, r, nil, map[string]any{"type": "fails"})
	const workers, rounds = 2, 28
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range rounds {
				if err := failOnce(t, r, cni, list, fmt.Sprintf("w%d-%d", w, i)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err := live.Check(ctxOf(t)); err != nil {
		t.Error(err)
	}
	// Whoever kept a list of what lives gets everything back.
	if err := gc(t, r, map[string]any{keyValid: attachmentsOf(live)}); err != nil {
		t.Error(err)
	}
	if got := reservations(t, r, "rig"); len(got) != 2 {
		t.Errorf("reserved are %v, want only those of the live pod", got)
	}
}

// TestReclaim is B004: a range that only dead attachments fill up is no reason for STATUS
// to keep the node from new pods, and the next ADD gets an address of theirs. What lives,
// or was reserved by hand, stays.
func TestReclaim(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	small := map[string]any{"ipam": ipamConf("10.88.0.0/29")} // 5 pods
	live := addPod(t, r, "live", small)
	foreign := ptpPod(t, r, "foreign")
	defer ptpDel(t, r, foreign)
	node(t, r, "cd "+storeDir+` && printf 'left\r\neth0' > 10.88.0.4 && printf 'left2\r\neth0' > 10.88.0.5 && echo mine > 10.88.0.6`)
	if _, err := statusOf(t, r, small); err != nil {
		t.Error(err)
	}
	pods := newPods(t, r, "new", 2)
	addAll(t, r, pods, small)
	wantDistinct(t, append(pods, live, foreign))
	_, err := statusOf(t, r, small)
	wantCode(t, err, types.ErrPluginNotAvailable, "no free address")
	full := newPods(t, r, "full", 1)[0]
	wantCode(t, full.Add(ctxOf(t), r.Conf(small)), types.ErrTryAgainLater, "no IP addresses available")
	full.Destroy()
	if err := live.Check(ctxOf(t)); err != nil {
		t.Error(err)
	}
	removeAll(t, pods)
	node(t, r, "rm "+storeDir+"/10.88.0.6")
}

// failOnce runs ADD and DEL of a chain that fails, as a runtime that then gives up.
func failOnce(t *testing.T, r *rig.Rig, cni *libcni.CNIConfig, list *libcni.NetworkConfigList, id string) error {
	p, err := r.NewNetns(id)
	if err != nil {
		return err
	}
	defer p.Destroy()
	_, err = cni.AddNetworkList(ctxOf(t), list, runtimeConf(p, nil))
	if err == nil || !strings.Contains(err.Error(), "as always") {
		return fmt.Errorf("add of %s did not fail in the last plugin: %w", id, err)
	}
	err = cni.DelNetworkList(ctxOf(t), list, runtimeConf(p, nil))
	if err == nil || !strings.Contains(err.Error(), "as always") {
		return fmt.Errorf("del of %s did not fail in the last plugin: %w", id, err)
	}
	return nil
}

// TestChainPlugins is B025 and B018: portmap, tuning and bandwidth behind xveth act on the
// right device, while somebody holds the lock of iptables.
func TestChainPlugins(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	letGo := holdXtables(t, r)
	cni := runtimeOn(t, r)
	list := chain(t, r, map[string]any{"ipMasq": false, "fastPath": map[string]any{"mode": "off"}},
		map[string]any{"type": "portmap", "capabilities": map[string]any{"portMappings": true}, "backend": "nftables"},
		map[string]any{"type": "tuning", "mtu": 1450},
		map[string]any{"type": "bandwidth", "ingressRate": 100000000, "ingressBurst": 8000000, "egressRate": 100000000, "egressBurst": 8000000})
	p, err := r.NewNetns("chained")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Destroy()
	rt := runtimeConf(p, map[string]any{"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}})
	res, err := cni.AddNetworkList(ctxOf(t), list, rt)
	if err != nil {
		t.Fatal(err)
	}
	if out := on(t, p.Host, "ip -o link show dev "+rig.PodDev); !strings.Contains(out, "mtu 1450") {
		t.Errorf("tuning did not reach the pod: %s", out)
	}
	host := resultAs100(t, res).Interfaces[0].Name
	if out := node(t, r, "tc qdisc show dev "+host); !strings.Contains(out, "tbf") {
		t.Errorf("bandwidth did not reach %q: %s", host, out)
	}
	addr := strings.Split(resultAs100(t, res).IPs[0].Address.String(), "/")[0]
	if out := node(t, r, "nft list ruleset"); !strings.Contains(out, "dnat") || !strings.Contains(out, addr) {
		t.Errorf("portmap has no rule to %s: %s", addr, out)
	}
	if err := cni.DelNetworkList(ctxOf(t), list, rt); err != nil {
		t.Error(err)
	}
	letGo()
	node(t, r, "nft flush ruleset") // portmap leaves its chains by design
}
