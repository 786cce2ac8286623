// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/xveth/xveth/test/rig"
)

// metaIPv4 leaves one family: nobody waits for duplicate addresses.
func metaIPv4() metaChange {
	ipam := ipamConf(rig.PodNet4.String())
	return metaFirst(map[string]any{"ipam": ipam})
}

func metaVersion(v string) metaChange {
	return func(list map[string]any, _ []map[string]any) { list["cniVersion"] = v }
}

// metaFiles lists the network lists that begin with xveth.
func metaFiles(t *testing.T, pattern string) (names []string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(metaConflists, pattern))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no file %s in %s: %v", pattern, metaConflists, err)
	}
	for _, p := range paths {
		names = append(names, filepath.Base(p))
	}
	return names
}

// TestMetaVerbs runs all verbs of each chain: ADD, CHECK, STATUS, GC that keeps the pod, GC
// that does not, DEL once more; and one chain in each version of the spec. B024
func TestMetaVerbs(t *testing.T) {
	t.Parallel()
	for _, file := range metaFiles(t, "xveth-*.conflist") {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			newMetaBed(t, metaList(t, file, metaIPv4(), metaVersion("1.1.0"))).verbs(t)
		})
	}
	t.Run("versions", func(t *testing.T) {
		t.Parallel()
		bed := newMetaBed(t, nil)
		for _, v := range []string{"0.3.1", "0.4.0", "1.0.0"} {
			bed.list = metaList(t, "xveth-bandwidth-portmap.conflist", metaIPv4(), metaVersion(v))
			t.Run(v, bed.verbs)
		}
	})
}

// verbs calls everything that a runtime calls in the life of a pod.
func (bed *metaBed) verbs(t *testing.T) {
	ctx, caps := ctxOf(t), metaPorts(metaHostPort)
	p := bed.add(t, "a", caps)
	rt := runtimeConf(p, caps)
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
	canPing(t, bed.r.Ext, p.Addr4)
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
var metaSaid = regexp.MustCompile(`"msg": "(.*)"`)

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
	xveth := newMetaBed(t, metaList(t, file, metaIPv4()))
	ptp := newMetaBed(t, metaList(t, file, metaIPv4(), metaWithout))
	for i, limits := range []map[string]any{
		{"ingressRate": 1000000},
		{"egressRate": 1000000, "egressBurst": 0},
		{"ingressBurst": 1000000},
		{"ingressRate": -1, "ingressBurst": 1000000},
		{"ingressRate": 1000000, "ingressBurst": int64(1) << 40},
		{"ingressRate": int64(1) << 50, "ingressBurst": 1000000, "egressRate": int64(1) << 50, "egressBurst": 1000000},
		{"ingressRate": 0, "ingressBurst": 0},
	} {
		t.Run(fmt.Sprint(limits), func(t *testing.T) {
			id := fmt.Sprintf("p%d", i)
			with, without := xveth.shaped(t, id, limits), ptp.shaped(t, id, limits)
			if with != without {
				t.Errorf("with xveth\n%s\nwith ptp\n%s", with, without)
			}
			if asked := len(limits) > 0 && i < 6; asked && with == "" {
				t.Error("neither shaped nor refused")
			}
		})
	}
}
