// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/xveth/xveth/test/rig"
)

// confDir writes a network list with the rig's configuration as its first plugin.
func confDir(t *testing.T, r *rig.Rig, changes map[string]any, more ...map[string]any) string {
	t.Helper()
	var plugin map[string]any
	if err := json.Unmarshal(r.Conf(changes), &plugin); err != nil {
		t.Fatal(err)
	}
	list := map[string]any{"cniVersion": plugin["cniVersion"], "name": plugin["name"]}
	delete(plugin, "cniVersion")
	delete(plugin, "name")
	all := []any{plugin}
	for _, m := range more {
		all = append(all, m)
	}
	list["plugins"] = all
	text, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "10-rig.conflist"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// cnitool runs the real cnitool on the node.
func cnitool(t *testing.T, r *rig.Rig, dir, verb, id string) (rig.Output, error) {
	t.Helper()
	env := []string{"NETCONFPATH=" + dir, "CNI_PATH=" + plugins + string(os.PathListSeparator) + testBin(t)}
	return runOn(ctxOf(t), r.Node, env, nil, filepath.Join(testBin(t), "cnitool"), verb, "rig", "/run/netns/"+id)
}

// mustTool runs cnitool with several verbs that have to succeed.
func mustTool(t *testing.T, r *rig.Rig, dir, id string, verbs ...string) {
	t.Helper()
	for _, v := range verbs {
		if _, err := cnitool(t, r, dir, v, id); err != nil {
			t.Error(err)
		}
	}
}

// TestCNITool goes through the life of a pod with the real cnitool: all verbs, and the
// DELs that come late, twice or for nothing (B001, B024).
func TestCNITool(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for _, c := range []struct {
		version string
		fams    []int
	}{
		{"1.1.0", []int{4}},
		{"1.1.0", []int{6}},
		{"1.1.0", []int{4, 6}},
		{"1.0.0", []int{4, 6}},
		{"0.4.0", []int{4, 6}},
		{"0.3.1", []int{4, 6}},
	} {
		t.Run(fmt.Sprintf("%s %v", c.version, c.fams), func(t *testing.T) {
			lifeByTool(t, r, c.version, c.fams)
		})
	}
}

func lifeByTool(t *testing.T, r *rig.Rig, version string, fams []int) {
	dir := confDir(t, r, map[string]any{"cniVersion": version, "ipam": ipamOf(fams...)})
	before := nodeState(t, r)
	p, err := r.NewNetns("tool")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Destroy()
	during := nodeState(t, r)
	mustTool(t, r, dir, p.ID, "del") // no ADD came before it
	add := func() *current.Result {
		out, err := cnitool(t, r, dir, "add", p.ID)
		if err != nil {
			t.Fatal(err)
		}
		wantVersion(t, out.Stdout, version)
		return resultOf(t, out.Stdout)
	}
	res := add()
	if len(res.IPs) != len(fams) {
		t.Errorf("got addresses %v for families %v", res.IPs, fams)
	}
	for _, fam := range fams {
		canPing(t, p.Host, extAddr(fam))
	}
	// Before 0.4.0 there is no CHECK, and libcni says so.
	if _, err := cnitool(t, r, dir, "check", p.ID); (err == nil) == (version == "0.3.1") {
		t.Errorf("check: %v", err)
	}
	mustTool(t, r, dir, p.ID, "status", "gc")
	wantState(t, r, during)
	add()
	mustTool(t, r, dir, p.ID, "del", "del")
	wantState(t, r, during)

	// B001: the path of the namespace is gone, but the namespace lives on.
	add()
	node(t, r, "umount "+p.Netns+" && rm "+p.Netns)
	mustTool(t, r, dir, p.ID, "del", "del")
	wantState(t, r, before)
}

func wantVersion(t *testing.T, stdout []byte, version string) {
	t.Helper()
	var v struct{ CNIVersion string }
	if err := json.Unmarshal(stdout, &v); err != nil || v.CNIVersion != version {
		t.Errorf("result is of version %q (%v), want %q", v.CNIVersion, err, version)
	}
}

// TestDelWithoutNetns is B001: the namespace died, and with it its path and the veth,
// or the runtime gives no path at all.
func TestDelWithoutNetns(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	before := nodeState(t, r)
	for _, path := range []string{"/run/netns/gone", ""} {
		t.Run(fmt.Sprintf("path %q", path), func(t *testing.T) {
			p := addPod(t, r, "gone", nil)
			conf := withKeys(t, r.Conf(nil), map[string]any{"prevResult": p.Result})
			p.Destroy()
			env := podEnv("gone", "eth0")
			env["CNI_NETNS"] = path
			for range 2 {
				if _, err := r.Plugin(ctxOf(t), "DEL", conf, env); err != nil {
					t.Error(err)
				}
			}
			eventually(t, ctxWait, "the dead namespace is gone", func() bool { return nodeState(t, r) == before })
		})
	}
}

// TestVersions is B024: the versions that are listed work, another one is refused with
// code 1 and leaves nothing.
func TestVersions(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	out, err := r.Plugin(ctxOf(t), "VERSION", []byte(`{"cniVersion":"1.1.0"}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	var said struct{ SupportedVersions []string }
	if err := json.Unmarshal(out.Stdout, &said); err != nil {
		t.Fatal(err)
	}
	for _, v := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		if !strings.Contains(fmt.Sprint(said.SupportedVersions), v) {
			t.Errorf("VERSION lists %v, without %s", said.SupportedVersions, v)
		}
	}
	p, err := r.NewNetns("v")
	if err != nil {
		t.Fatal(err)
	}
	before := nodeState(t, r)
	for _, verb := range []string{"ADD", "CHECK", "DEL", "GC", "STATUS"} {
		_, err := r.Plugin(ctxOf(t), verb, r.Conf(map[string]any{"cniVersion": "9.9.9"}), p.Env())
		wantCode(t, err, types.ErrIncompatibleCNIVersion)
	}
	wantState(t, r, before)
	p.Destroy()
}

// TestResultFields has what later plugins and runtimes look for in a result (B025, B026).
func TestResultFields(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	dns := map[string]any{"nameservers": []string{"192.0.2.53"}, "domain": "example", "search": []string{"a.example"}, "options": []string{"ndots:2"}}
	p := addPod(t, r, "a", map[string]any{"dns": dns})
	res := p.Result
	if len(res.Interfaces) != 2 {
		t.Fatalf("got %d interfaces, want the host's and the pod's", len(res.Interfaces))
	}
	host, pod := res.Interfaces[0], res.Interfaces[1]
	if host.Sandbox != "" || pod.Sandbox != p.Netns || pod.Name != rig.PodDev {
		t.Errorf("got interfaces %+v and %+v", host, pod)
	}
	wantLink(t, r.Node, host)
	wantLink(t, p.Host, pod)
	if len(res.IPs) != 2 {
		t.Errorf("got addresses %v", res.IPs)
	}
	for _, ip := range res.IPs {
		if ip.Interface == nil || *ip.Interface != 1 {
			t.Errorf("address %s is not on the pod's interface", ip.Address.String())
		}
		gw, _ := netip.AddrFromSlice(ip.Gateway)
		canPing(t, p.Host, gw.Unmap())
	}
	wantRoutes(t, res)
	if got := res.DNS; got.Domain != "example" || len(got.Nameservers) != 1 || len(got.Search) != 1 || len(got.Options) != 1 {
		t.Errorf("got dns %+v", got)
	}
}

// wantLink compares an interface of a result with the kernel.
func wantLink(t *testing.T, h *rig.Host, i *current.Interface) {
	t.Helper()
	if i.Mac == "" || i.Mtu == 0 {
		t.Errorf("interface %q has no mac or mtu: %+v", i.Name, i)
	}
	out := on(t, h, "ip -o link show dev "+i.Name)
	for _, want := range []string{"mtu " + fmt.Sprint(i.Mtu), i.Mac} {
		if !strings.Contains(out, want+" ") {
			t.Errorf("interface %q has no %q: %s", i.Name, want, out)
		}
	}
}

// routeMTULimit is the most that the kernel keeps for a route (IP_MAX_MTU and its IPv6 twin).
const routeMTULimit = 65520

// wantRoutes looks for the default routes with the uplink's MTU and the local ones with
// the largest.
func wantRoutes(t *testing.T, res *current.Result) {
	t.Helper()
	mtus := map[string]int{"0.0.0.0/0": 1500, "::/0": 1500, rig.PodNet4.String(): routeMTULimit, rig.PodNet6.String(): routeMTULimit}
	for _, rt := range res.Routes {
		want, ok := mtus[rt.Dst.String()]
		if !ok || rt.MTU != want {
			t.Errorf("got route %v with mtu %d, want mtu %d", rt, rt.MTU, want)
		}
		delete(mtus, rt.Dst.String())
	}
	for dst := range mtus {
		t.Errorf("no route to %s", dst)
	}
}
