// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// metaConflists holds the network lists that docs/chains.md shows.
const metaConflists = "../../examples/conflists"

// metaPodNet6 holds the IPv6 addresses of those networks.
const metaPodNet6 = "fd00:88::/64"

// metaBed is a rig whose pods are connected by a chain of plugins, through libcni, as a
// runtime does it.
type metaBed struct {
	r    *rig.Rig
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
	// asked is what the runtime asked for, by pod.
	asked map[*rig.Pod]*libcni.RuntimeConf
}

// metaChange alters a network list before it is used.
type metaChange func(list map[string]any, plugins []map[string]any)

// metaFirst changes keys of the first plugin; nil removes one.
func metaFirst(changes map[string]any) metaChange { return metaPlugin(0, changes) }

func metaPlugin(i int, changes map[string]any) metaChange {
	return func(_ map[string]any, plugins []map[string]any) {
		for k, v := range changes {
			if v == nil {
				delete(plugins[i], k)
			} else {
				plugins[i][k] = v
			}
		}
	}
}

// metaOwn changes keys of the plugin that is xveth's: xveth itself, or xveth-chain.
func metaOwn(changes map[string]any) metaChange {
	return func(list map[string]any, plugins []map[string]any) {
		for i, p := range plugins {
			if strings.HasPrefix(p["type"].(string), "xveth") {
				metaPlugin(i, changes)(list, plugins)
			}
		}
	}
}

// metaRevalidate makes the interval as short as tests want it.
var metaRevalidate = metaOwn(revalidating(cutInterval, nil))

// metaWithout is the same list without xveth: ptp in its place, and no xveth-chain.
func metaWithout(list map[string]any, plugins []map[string]any) {
	if plugins[0]["type"] == "xveth" {
		plugins[0]["type"] = "ptp"
		for _, own := range []string{"uplinks", "fastPath", "localMTU"} {
			delete(plugins[0], own)
		}
	}
	list["plugins"] = slices.DeleteFunc(plugins, func(p map[string]any) bool { return p["type"] == "xveth-chain" })
}

// metaList reads a network list of examples/conflists.
func metaList(t *testing.T, file string, changes ...metaChange) *libcni.NetworkConfigList {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(metaConflists, file))
	if err != nil {
		t.Fatal(err)
	}
	var list map[string]any
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	var plugins []map[string]any
	for _, p := range list["plugins"].([]any) {
		plugins = append(plugins, p.(map[string]any))
	}
	list["plugins"] = plugins
	for _, change := range changes {
		change(list, list["plugins"].([]map[string]any))
	}
	if text, err = json.Marshal(list); err != nil {
		t.Fatal(err)
	}
	parsed, err := libcni.NetworkConfFromBytes(text)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return parsed
}

// newMetaBed makes a node that uses a network list. The tables and bridges that reference
// plugins leave behind by design are removed when the test ends; what xveth left is found.
func newMetaBed(t *testing.T, list *libcni.NetworkConfigList) *metaBed {
	t.Helper()
	r := newRig(t, nil)
	t.Cleanup(func() {
		if left := node(t, r, "nft list tables"); strings.Contains(left, "xveth") {
			t.Errorf("xveth left a table: %s", left)
		}
		node(t, r, "nft flush ruleset")
		for _, bridge := range strings.Fields(node(t, r, "ip -br link show type bridge | cut -d ' ' -f 1")) {
			if left := hooksOf(t, r.Node, bridge); len(left) > 0 {
				t.Errorf("programs are left on %s: %v", bridge, left)
			}
			node(t, r, "ip link del "+bridge)
		}
	})
	on(t, r.Ext, "ip route add "+metaPodNet6+" via "+rig.NodeAddr6.String())
	return &metaBed{r: r, cni: runtimeOn(t, r), list: list, asked: map[*rig.Pod]*libcni.RuntimeConf{}}
}

// add connects a new pod, which is removed when the test ends.
func (bed *metaBed) add(t *testing.T, id string, caps map[string]any) *rig.Pod {
	t.Helper()
	p, err := bed.r.NewNetns(id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Destroy)
	if bed.list.Plugins[0].Network.Type != "xveth" {
		// Others wait until nobody else claims the addresses.
		for _, h := range []*rig.Host{bed.r.Node, p.Host} {
			if err := h.Sysctl("net.ipv6.conf.default.dad_transmits", "0"); err != nil {
				t.Fatal(err)
			}
		}
	}
	rt := runtimeConf(p, caps)
	bed.asked[p] = rt
	// What a failed ADD leaves is removed too.
	t.Cleanup(func() {
		if bed.asked[p] == nil {
			return
		}
		if err := bed.cni.DelNetworkList(ctxOf(t), bed.list, rt); err != nil {
			t.Errorf("del of %s: %v", id, err)
		}
	})
	res, err := bed.cni.AddNetworkList(ctxOf(t), bed.list, rt)
	if err != nil {
		t.Fatalf("add of %s: %v", id, err)
	}
	p.Result = resultAs100(t, res)
	addrsUsable(t, bed.r.Node, p.Host)
	for _, intf := range p.Result.Interfaces {
		if intf.Sandbox == "" && p.HostDev == "" {
			p.HostDev = intf.Name
		}
	}
	p.TakeAddrs()
	return p
}

// bridged says that the pods are behind a bridge.
func (bed *metaBed) bridged() bool { return bed.list.Plugins[0].Network.Type == "bridge" }

// datapath is the node's datapath.
func (bed *metaBed) datapath(t *testing.T) *datapath.Datapath {
	t.Helper()
	return open(t, bed.r)
}

// metaPorts maps ports of the node to ports of a pod, by TCP and UDP.
func metaPorts(pairs ...[2]int) map[string]any {
	var all []map[string]any
	for _, p := range pairs {
		for _, proto := range []string{"tcp", "udp"} {
			all = append(all, map[string]any{"hostPort": p[0], "containerPort": p[1], "protocol": proto})
		}
	}
	return map[string]any{"portMappings": all}
}
