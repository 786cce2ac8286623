// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// damage is one thing that is removed or changed behind the back of a pod, and what
// CHECK has to say about it.
type damage struct {
	name string
	// conf changes the configuration that the pod is made with.
	conf map[string]any
	do   func(*testing.T, *rig.Rig, *rig.Pod)
	says func(*rig.Pod) string
}

// inPod and onNode run a command in which POD, HOST, A4 and A6 stand for names and
// addresses.
func inPod(command string) func(*testing.T, *rig.Rig, *rig.Pod) {
	return func(t *testing.T, _ *rig.Rig, p *rig.Pod) { on(t, p.Host, fillIn(command, p)) }
}

func onNode(command string) func(*testing.T, *rig.Rig, *rig.Pod) {
	return func(t *testing.T, r *rig.Rig, p *rig.Pod) { node(t, r, fillIn(command, p)) }
}

func says(text string) func(*rig.Pod) string {
	return func(p *rig.Pod) string { return fillIn(text, p) }
}

func fillIn(text string, p *rig.Pod) string {
	return strings.NewReplacer("POD", rig.PodDev, "HOST", p.HostDev,
		"A4", p.Addr4.String(), "A6", p.Addr6.String()).Replace(text)
}

// linkDamages has what can happen to the pair and its addresses.
func linkDamages() []damage {
	return []damage{
		{"pod link down", nil, inPod("ip link set POD down"), says(`"POD" in the pod is down`)},
		{"host link down", nil, onNode("ip link set HOST down"), says(`"HOST" is down`)},
		{"pair gone", nil, onNode("ip link del HOST"), says(`no interface "POD"`)},
		{"pod mtu", nil, inPod("ip link set POD mtu 1400"), says(`"POD" in the pod has mtu 1400`)},
		{"host mtu", nil, onNode("ip link set HOST mtu 1400"), says(`"HOST" has mtu 1400`)},
		{
			"pod mac",
			map[string]any{"runtimeConfig": map[string]any{"mac": "02:00:00:00:00:11"}},
			inPod("ip link set POD address 02:00:00:00:00:12"), says("02:00:00:00:00:11"),
		},
		{"gro off", nil, inPod("ethtool -K POD gro off"), says("gro")},
		{
			"tx checksum on",
			map[string]any{"fastPath": map[string]any{"mode": "xdp"}},
			inPod("ethtool -K POD tx on"), says("checksum"),
		},
		{"pod address v4", nil, inPod("ip addr del A4/24 dev POD"), says("A4/24")},
		{"pod address v6", nil, inPod("ip addr del A6/64 dev POD"), says("A6/64")},
		{"pod address length", nil, inPod("ip addr del A4/24 dev POD; ip addr add A4/32 dev POD"), says("A4/24")},
		{"gateway address v4", nil, onNode("ip addr del 10.88.0.1/32 dev HOST"), says(`"HOST" has no gateway address 10.88.0.1`)},
		{"gateway address v6", nil, onNode("ip addr del 2001:db8:88::1/128 dev HOST"), says(`"HOST" has no gateway address 2001:db8:88::1`)},
		{"host route v4", nil, onNode("ip route del A4"), says("route to A4")},
		{"host route v6", nil, onNode("ip -6 route del A6"), says("route to A6")},
		{"reservation v4", nil, onNode("rm " + storeDir + "/A4"), says("reservation of A4")},
		{"reservation v6", nil, onNode("rm " + storeDir + "/A6"), says("reservation of A6")},
		{"reservation of another", nil, func(t *testing.T, r *rig.Rig, p *rig.Pod) {
			file := fillIn(storeDir+"/A4", p)
			node(t, r, "echo other > "+file)
			t.Cleanup(func() { node(t, r, "rm "+file) }) // DEL must leave it
		}, says("reservation of A4")},
	}
}

// routeDamages removes or changes each route in the pod.
func routeDamages() []damage {
	var all []damage
	for _, dst := range []string{
		"0.0.0.0/0", "10.88.0.0/24", "10.88.0.1/32", "::/0", "2001:db8:88::/64", "2001:db8:88::1/128",
	} {
		fam := "-4"
		if strings.Contains(dst, ":") {
			fam = "-6"
		}
		name := strings.TrimSuffix(strings.TrimSuffix(dst, "/32"), "/128")
		all = append(all, damage{"pod route " + dst, nil, inPod("ip " + fam + " route del " + dst + " dev POD"), says(name)})
	}
	return append(all,
		damage{"mtu of the default route", nil, inPod("ip route change default via 10.88.0.1 dev POD mtu 1400"), says("0.0.0.0/0")},
		damage{"mtu of the local route", nil, inPod("ip -6 route change 2001:db8:88::/64 via 2001:db8:88::1 dev POD mtu 1400"), says("2001:db8:88::/64")},
		damage{"gateway of a route", nil, inPod("ip route replace 10.88.0.0/24 via 10.88.0.9 dev POD onlink"), says("10.88.0.0/24")},
	)
}

// ruleDamages takes the masquerade apart.
func ruleDamages() []damage {
	rule := func(text string) func(*testing.T, *rig.Rig, *rig.Pod) {
		return onNode("nft -a list table " + masqTable + " | sed -n 's/.*" + text + ".*handle //p' | while read h; do " +
			"nft delete rule " + masqTable + " $(nft list table " + masqTable + " | sed -n 's/.*chain \\(.*\\) {/\\1/p') handle $h; done")
	}
	return []damage{
		{"masquerade rule v4", nil, rule("ip saddr"), says("ip saddr 10.88.0.0/24 masquerade")},
		{"masquerade rule v6", nil, rule("ip6 saddr"), says("ip6 saddr 2001:db8:88::/64 masquerade")},
		{"return rule v4", nil, rule("ip daddr 10"), says("ip daddr 10.88.0.0/24 return")},
		{"return rule v6", nil, rule("ip6 daddr 2001"), says("ip6 daddr 2001:db8:88::/64 return")},
		{"masquerade rules", nil, onNode("nft flush table " + masqTable), says("masq-rig")},
		{"masquerade chain", nil, onNode("nft delete chain " + masqTable + " $(nft list table " + masqTable + " | sed -n 's/.*chain \\(.*\\) {/\\1/p')"), says("masq-rig")},
		{"masquerade table", nil, onNode("nft delete table " + masqTable), says("table " + masqTable)},
		{"masquerade asleep", nil, onNode("nft add table " + masqTable + " '{ flags dormant; }'"), says("dormant")},
	}
}

// pathDamages takes the fast path apart.
func pathDamages() []damage {
	xdp := map[string]any{"fastPath": map[string]any{"mode": "xdp"}}
	return []damage{
		{"ingress program", nil, detachTCX(ebpf.AttachTCXIngress), says(`"HOST": program missing on TCXIngress`)},
		{"egress program", nil, detachTCX(ebpf.AttachTCXEgress), says(`"HOST": program missing on TCXEgress`)},
		{"devmap entry", nil, func(t *testing.T, r *rig.Rig, p *rig.Pod) {
			m := openMap(t, r, "xv_devs")
			if err := m.Delete(uint32(linkIndex(t, r.Node, p.HostDev))); err != nil {
				t.Fatal(err)
			}
		}, says("devmap")},
		{"xdp program", xdp, onNode("ip link set HOST xdp off"), says("xdp")},
	}
}

// detachTCX strips our programs from a hook of the host veth.
func detachTCX(hook ebpf.AttachType) func(*testing.T, *rig.Rig, *rig.Pod) {
	return func(t *testing.T, r *rig.Rig, p *rig.Pod) {
		t.Helper()
		index := linkIndex(t, r.Node, p.HostDev)
		err := r.Node.Do(func() error {
			have, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: hook})
			if err != nil {
				return err
			}
			for _, h := range have.Programs {
				prog, err := ebpf.NewProgramFromID(h.ID)
				if err != nil {
					return err
				}
				err = link.RawDetachProgram(link.RawDetachProgramOptions{Target: index, Program: prog, Attach: hook})
				if err = errors.Join(err, prog.Close()); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// openMap opens a pinned map of the node.
func openMap(t *testing.T, r *rig.Rig, name string) *ebpf.Map {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(r.Node.Path(datapath.DefaultDir)+"/v1/"+name, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// linkIndex is the index of an interface of a host.
func linkIndex(t *testing.T, h *rig.Host, name string) (index int) {
	t.Helper()
	err := h.Do(func() error {
		l, err := netlink.LinkByName(name)
		if err == nil {
			index = l.Attrs().Index
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return index
}

// TestCheck removes or changes each single thing that ADD made: CHECK names it, and DEL
// still cleans up.
func TestCheck(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	before := nodeState(t, r)
	all := append(linkDamages(), routeDamages()...)
	all = append(all, ruleDamages()...)
	all = append(all, pathDamages()...)
	for _, d := range all {
		t.Run(d.name, func(t *testing.T) {
			p := addPod(t, r, "a", d.conf)
			defer p.Destroy()
			if err := p.Check(ctxOf(t)); err != nil {
				t.Errorf("check right after add: %v", err)
			}
			d.do(t, r, p)
			err := p.Check(ctxOf(t))
			var said *types.Error
			if !errors.As(err, &said) || !strings.Contains(said.Msg, d.says(p)) {
				t.Errorf("check says %v, want %q", err, d.says(p))
			}
			if err := p.Del(ctxOf(t)); err != nil {
				t.Error(err)
			}
		})
	}
	wantState(t, r, before)
}

// TestCheckRoutes is B008: routes of the address manager with and without a gateway pass
// CHECK at once and later, in every version, and one that goes is named.
func TestCheckRoutes(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	ipam := ipamOf(4, 6)
	ipam["routes"] = []any{
		map[string]any{"dst": "0.0.0.0/0"},
		map[string]any{"dst": "::/0", "gw": "2001:db8:88::1"},
		map[string]any{"dst": "203.0.113.0/24", "gw": "10.88.0.1"},
		map[string]any{"dst": "198.51.100.0/24"},
		map[string]any{"dst": "2001:db8:99::/64"},
		map[string]any{"dst": "2001:db8:98::/64", "gw": "2001:db8:88::1", "mtu": 1400, "priority": 7},
	}
	pods := map[string]*rig.Pod{}
	for _, v := range []string{"0.4.0", "1.0.0", "1.1.0"} {
		p := addPod(t, r, "v"+strings.ReplaceAll(v, ".", "-"), map[string]any{"ipam": ipam})
		pods[v] = p
	}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		for v, p := range pods {
			checkAs(t, r, p, v, ipam, "")
		}
	}
	for v, p := range pods {
		for _, dst := range []string{"198.51.100.0/24", "2001:db8:99::/64"} {
			fam := map[bool]string{true: "-4", false: "-6"}[netip.MustParsePrefix(dst).Addr().Is4()]
			on(t, p.Host, fmt.Sprintf("ip %s route del %s", fam, dst))
			checkAs(t, r, p, v, ipam, dst)
			on(t, p.Host, fmt.Sprintf("ip %s route add %s via %s dev eth0 mtu 1500", fam, dst,
				map[string]string{"-4": "10.88.0.1", "-6": "2001:db8:88::1"}[fam]))
		}
	}
}

// checkAs runs CHECK with the result as a runtime of that version keeps it; it has to
// fail with a text, or to pass when the text is empty.
func checkAs(t *testing.T, r *rig.Rig, p *rig.Pod, version string, ipam map[string]any, text string) {
	t.Helper()
	prev, err := p.Result.GetAsVersion(version)
	if err != nil {
		t.Fatal(err)
	}
	conf := r.Conf(map[string]any{"cniVersion": version, "ipam": ipam, "prevResult": prev})
	_, err = r.Plugin(ctxOf(t), "CHECK", conf, p.Env())
	switch {
	case text == "" && err != nil:
		t.Errorf("check with version %s: %v", version, err)
	case text != "" && (err == nil || !strings.Contains(err.Error(), text)):
		t.Errorf("check with version %s says %v, want %q", version, err, text)
	}
}
