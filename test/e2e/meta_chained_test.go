// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/google/go-cmp/cmp"

	"github.com/xveth/xveth/test/rig"
)

// metaLast puts a plugin of the test's own at the end of a list.
func metaLast(kind string) metaChange {
	return func(list map[string]any, plugins []map[string]any) {
		list["plugins"] = append(plugins, map[string]any{"type": kind})
	}
}

// TestMetaChainedFails is B004: a plugin behind xveth-chain fails ADD, or ADD and DEL, so that
// xveth-chain's own DEL may never be called. When the pod is gone nothing of ours is left, and
// the next pod is fast.
func TestMetaChainedFails(t *testing.T) {
	t.Parallel()
	bed := newMetaBed(t, metaList(t, "ptp-portmap-xveth-chain.conflist", metaIPv4))
	good := bed.list
	bed.cni = runtimeOn(t, bed.r, failing(t, "fails-add", "ADD"), failing(t, "fails", "ADD", "DEL"))
	for kind, clean := range map[string]bool{"fails-add": true, "fails": false} {
		t.Run(kind, func(t *testing.T) {
			list := metaList(t, "ptp-portmap-xveth-chain.conflist", metaIPv4, metaLast(kind))
			for i := range 2 {
				p, err := bed.r.NewNetns(fmt.Sprintf("%s%d", kind, i))
				if err != nil {
					t.Fatal(err)
				}
				defer p.Destroy()
				rt := runtimeConf(p, nil)
				if _, err := bed.cni.AddNetworkList(ctxOf(t), list, rt); err == nil || !strings.Contains(err.Error(), "as always") {
					t.Errorf("add: %v", err)
				}
				if err := bed.cni.DelNetworkList(ctxOf(t), list, rt); (err == nil) != clean {
					t.Errorf("del: %v", err)
				}
				if !clean { // what no DEL reached: the address is ptp's to free
					if err := bed.cni.DelNetworkList(ctxOf(t), good, rt); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	checkMaps(t, bed.r)
	b := bed.add(t, "good", nil)
	for _, p := range metaPodPaths(bed, b, b, 4, 1500)[:2] {
		connect(t, p, "udp", 41000).warmUp(t, bed.datapath(t))
	}
}

// TestMetaChainedLock is B018: somebody holds the lock of iptables while a chain with
// portmap and xveth-chain makes and removes a pod, in both orders.
func TestMetaChainedLock(t *testing.T) {
	t.Parallel()
	bed := newMetaBed(t, nil)
	letGo := holdXtables(t, bed.r)
	for _, file := range []string{"ptp-portmap-xveth-chain.conflist", "ptp-xveth-chain-portmap.conflist"} {
		bed.list = metaList(t, file, metaIPv4)
		p := bed.add(t, "a", metaPorts(metaHostPort))
		if err := bed.cni.CheckNetworkList(ctxOf(t), bed.list, bed.asked[p]); err != nil {
			t.Errorf("%s: check: %v", file, err)
		}
		if err := bed.cni.DelNetworkList(ctxOf(t), bed.list, bed.asked[p]); err != nil {
			t.Errorf("%s: del: %v", file, err)
		}
		delete(bed.asked, p)
		p.Destroy()
	}
	letGo()
}

// metaResult is a result of ADD with all that a version of the spec has.
func metaResult(t *testing.T, p *rig.Pod, version string, whole bool) types.Result {
	t.Helper()
	res := *p.Result
	if whole {
		table, scope := 100, 253
		res.Interfaces = append(res.Interfaces, &current.Interface{
			Name: "vhost0", Sandbox: p.Netns, Mtu: 1400, SocketPath: "/run/vhost.sock", PciID: "0000:00:04.0",
		})
		res.Routes = append(res.Routes, &types.Route{
			Dst: p.Result.IPs[0].Address, GW: p.Result.IPs[0].Gateway, MTU: 1300, AdvMSS: 1200, Priority: 7, Table: &table, Scope: &scope,
		})
		res.DNS = types.DNS{Nameservers: []string{"10.96.0.10"}, Search: []string{"example.com"}}
	}
	as, err := res.GetAsVersion(version)
	if err != nil {
		t.Fatal(err)
	}
	return as
}

// metaJSON is what a result looks like, key by key.
func metaJSON(t *testing.T, r any) (all map[string]any) {
	t.Helper()
	text, ok := r.([]byte)
	if !ok {
		var err error
		if text, err = json.Marshal(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return all
}

// TestMetaPrevResult is B023 and B026: xveth-chain reads a result of any version whatever
// version its configuration has, and passes on the whole of it, in order, in the
// configuration's version.
func TestMetaPrevResult(t *testing.T) {
	t.Parallel()
	bed := newMetaBed(t, metaList(t, "ptp-portmap-xveth-chain.conflist", metaIPv4))
	p := bed.add(t, "a", nil)
	versions := []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}
	for _, conf := range versions {
		for _, prev := range versions {
			for _, whole := range []bool{false, true} {
				if !whole && conf != prev {
					continue
				}
				t.Run(fmt.Sprintf("%s behind %s, whole %v", conf, prev, whole), func(t *testing.T) {
					given := metaResult(t, p, prev, whole)
					text, err := json.Marshal(map[string]any{
						"type": "xveth-chain", "name": bed.list.Name, "cniVersion": conf, "prevResult": given,
					})
					if err != nil {
						t.Fatal(err)
					}
					out, err := callPlugin(t, bed.r, filepath.Join(plugins, "xveth-chain"), "ADD", text, p.Env())
					if err != nil {
						t.Fatal(err)
					}
					raw, _ := json.Marshal(given)
					read, err := create.Create(prev, raw)
					if err != nil {
						t.Fatal(err)
					}
					want, err := read.GetAsVersion(conf)
					if err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(metaJSON(t, want), metaJSON(t, out.Stdout)); diff != "" {
						t.Errorf("passed on is (-want +got)\n%s", diff)
					}
				})
			}
		}
	}
}
