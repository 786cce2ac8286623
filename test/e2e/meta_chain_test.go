// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/xveth/xveth/test/rig"
)

// metaIPv4 leaves one family: nobody waits for duplicate addresses.
func metaIPv4(_ map[string]any, plugins []map[string]any) {
	ipam := plugins[0]["ipam"].(map[string]any)
	for _, key := range []string{"ranges", "routes"} {
		ipam[key] = ipam[key].([]any)[:1]
	}
}

func metaVersion(v string) metaChange {
	return func(list map[string]any, _ []map[string]any) { list["cniVersion"] = v }
}

// TestMetaVersions runs a chain of real plugins in versions of the spec that the other tests
// do not use. B024
func TestMetaVersions(t *testing.T) {
	t.Parallel()
	bed := newMetaBed(t, metaList(t, "xveth-bandwidth-portmap.conflist", metaIPv4))
	for _, v := range []string{"0.3.1", "0.4.0"} {
		bed.list = metaList(t, "xveth-bandwidth-portmap.conflist", metaIPv4, metaVersion(v))
		t.Run(v, func(t *testing.T) { bed.verbs(t, bed.add(t, "a", metaPorts(metaHostPort))) })
	}
}

// verbs calls everything that a runtime calls in the life of a pod: CHECK, STATUS, GC that
// keeps the pod, GC that does not.
func (bed *metaBed) verbs(t *testing.T, p *rig.Pod) {
	ctx, rt := ctxOf(t), bed.asked[p]
	mine := libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: rt.ContainerID, IfName: rt.IfName}}}
	check := func(ctx context.Context) error { return bed.cni.CheckNetworkList(ctx, bed.list, rt) }
	if !bed.checks() {
		check = func(context.Context) error { return nil }
	}
	for _, c := range []struct {
		verb string
		call func(context.Context) error
	}{
		{"CHECK", check},
		{"STATUS", func(ctx context.Context) error { return bed.cni.GetStatusNetworkList(ctx, bed.list) }},
		{"GC that keeps the pod", func(ctx context.Context) error { return bed.cni.GCNetworkList(ctx, bed.list, &mine) }},
		{"CHECK after GC", check},
	} {
		if err := c.call(ctx); err != nil {
			t.Errorf("%s: %v", c.verb, err)
		}
	}
	canPing(t, bed.r.Node, p.Addr4)
	clear(bed.asked) // GC deletes them all
	if err := bed.cni.GCNetworkList(ctx, bed.list, &libcni.GCArgs{}); err != nil {
		t.Errorf("GC: %v", err)
	}
	if out := on(t, p.Host, "ip -o link"); strings.Contains(out, rig.PodDev) {
		t.Errorf("GC left the interface: %s", out)
	}
}

// checks says whether CHECK can pass: there is none before version 0.4.0, and sbr takes
// away the routes that every main plugin looks for.
func (bed *metaBed) checks() bool {
	return bed.list.CNIVersion != "0.3.1" &&
		!slices.ContainsFunc(bed.list.Plugins, func(p *libcni.PluginConfig) bool { return p.Network.Type == "sbr" })
}

// metaSaid finds what the plugin at fault said.
var metaSaid = regexp.MustCompile(`failed \(add\): (.*)`)

// shaped is what a chain makes of some limits: qdiscs, or an error.
func (bed *metaBed) shaped(t *testing.T, id string, limits map[string]any) string {
	t.Helper()
	p, err := bed.r.NewNetns(id)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Destroy()
	rt := runtimeConf(p, map[string]any{"bandwidth": limits})
	_, err = bed.cni.AddNetworkList(ctxOf(t), bed.list, rt)
	shapes := node(t, bed.r, "tc qdisc show | grep -e tbf -e ingress || true")
	shapes = regexp.MustCompile(`dev \S+`).ReplaceAllString(shapes, "dev")
	if err != nil {
		said := metaSaid.FindStringSubmatch(err.Error())
		if said == nil || shapes != "" {
			t.Fatalf("%v, and %s", err, shapes)
		}
		shapes = said[1]
		// The plugin refuses the same limits at DEL, and nobody gets to the one before it.
		rt = runtimeConf(p, nil)
	}
	if err := bed.cni.DelNetworkList(ctxOf(t), bed.list, rt); err != nil {
		t.Error(err)
	}
	return shapes
}

// TestMetaBurst is B030: whatever a runtime asks for, a pod behind xveth and bandwidth is
// shaped, or refused, just as one behind ptp and bandwidth.
func TestMetaBurst(t *testing.T) {
	t.Parallel()
	const file = "xveth-bandwidth-portmap.conflist"
	alone := func(list map[string]any, plugins []map[string]any) { list["plugins"] = plugins[:2] }
	xveth := newMetaBed(t, metaList(t, file, metaIPv4, alone))
	ptp := newMetaBed(t, metaList(t, file, metaIPv4, alone, metaWithout))
	for i, limits := range []map[string]any{
		{"ingressRate": 1000000},
		{"egressRate": 1000000, "egressBurst": 0},
		{"ingressBurst": 1000000},
		{"ingressRate": -1, "ingressBurst": 1000000},
		{"ingressRate": int64(1) << 50, "ingressBurst": 1000000, "egressRate": int64(1) << 50, "egressBurst": 1000000},
	} {
		t.Run(fmt.Sprint(limits), func(t *testing.T) {
			id := fmt.Sprintf("p%d", i)
			with, without := xveth.shaped(t, id, limits), ptp.shaped(t, id, limits)
			if with != without {
				t.Errorf("with xveth\n%s\nwith ptp\n%s", with, without)
			}
			if with == "" {
				t.Error("neither shaped nor refused")
			}
		})
	}
}
