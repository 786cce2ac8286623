// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// breakConf is what xveth-chain reads on standard input.
func breakConf(t *testing.T, prev any, keys map[string]any) []byte {
	t.Helper()
	conf := map[string]any{"cniVersion": "1.0.0", "name": "chained", "type": "xveth-chain", "uplinks": []any{map[string]string{"name": rig.Uplink, "mode": "xdp"}}}
	if prev != nil {
		conf["prevResult"] = prev
	}
	for k, v := range keys {
		conf[k] = v
	}
	out, err := json.Marshal(conf)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func chainBin() string { return filepath.Join(plugins, "xveth-chain") }

// ourHooks lists our programs on an interface of the node.
func ourHooks(t *testing.T, r *rig.Rig, dev string) string {
	t.Helper()
	var names []string
	err := r.Node.Do(func() error {
		l, err := netlink.LinkByName(dev)
		if err != nil {
			return nil // gone, and its programs with it
		}
		h, err := datapath.HooksOf(l)
		for _, n := range append(h.Ingress, h.Egress...) {
			if datapath.IsOurs(n) {
				names = append(names, n)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(names, " ")
}

// takeOff takes every program off a hook.
func takeOff(t *testing.T, r *rig.Rig, dev string, hook ebpf.AttachType) {
	t.Helper()
	index := indexOf(t, r.Node, dev)
	err := r.Node.Do(func() error {
		have, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: hook})
		if err != nil {
			return err
		}
		for _, h := range have.Programs {
			p, err := ebpf.NewProgramFromID(h.ID)
			if err != nil {
				return err
			}
			defer p.Close()
			if err := link.RawDetachProgram(link.RawDetachProgramOptions{Target: index, Program: p, Attach: hook}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestBreakChainCheck takes away what ADD put in place, one thing at a time: CHECK finds it.
func TestBreakChainCheck(t *testing.T) {
	t.Parallel()
	for _, required := range []bool{false, true} {
		t.Run(fmt.Sprintf("required %v", required), func(t *testing.T) {
			t.Parallel()
			c := newChained(t, "bridge", false, map[string]any{"required": required})
			p := c.pod(t, "a")
			port := portOf(t, p)
			conf := breakConf(t, p.Result, map[string]any{"required": required})
			check := func() error {
				_, err := callPlugin(t, c.Rig, chainBin(), "CHECK", conf, podEnv("a", rig.PodDev))
				return err
			}
			rearm := func() {
				if _, err := callPlugin(t, c.Rig, chainBin(), "ADD", conf, podEnv("a", rig.PodDev)); err != nil {
					t.Fatal(err)
				}
				if err := check(); err != nil {
					t.Fatal(err)
				}
			}
			index := indexOf(t, c.Node, port)
			do := func(f func(d *datapath.Datapath) error) func() {
				return func() {
					d := open(t, c.Rig)
					if err := c.Node.Do(func() error { return f(d) }); err != nil {
						t.Fatal(err)
					}
				}
			}
			pin := "/sys/fs/bpf/xveth/v1/"
			for _, w := range []struct {
				name string
				take func()
				only bool // found only where it is required
			}{
				{"ingress", func() { takeOff(t, c.Rig, port, ebpf.AttachTCXIngress) }, false},
				{"egress", func() { takeOff(t, c.Rig, port, ebpf.AttachTCXEgress) }, false},
				{"member", func() {
					node(t, c.Rig, fmt.Sprintf("bpftool map delete pinned %sxv_members key %d %d 0 0", pin, index&255, index>>8))
				}, false},
				{"stale member", func() {
					node(t, c.Rig, fmt.Sprintf("bpftool map update pinned %sxv_members key %d %d 0 0 value 2 0 0 0 0 1 0 0 1 0 0 0", pin, index&255, index>>8))
				}, false},
				{"gro", func() { on(t, p.Host, "ethtool -K eth0 gro off") }, true},
				{"all", do(func(d *datapath.Datapath) error { return d.Detach(index) }), true},
				{"pins", func() { node(t, c.Rig, "rm -r /sys/fs/bpf/xveth") }, true},
			} {
				w.take()
				err := check()
				if want := required || !w.only; (err != nil) != want {
					t.Errorf("%s taken away, required %v: CHECK says %v", w.name, required, err)
				} else {
					t.Logf("%s: %v", w.name, err)
				}
				rearm()
			}
		})
	}
}

// TestBreakChainCalls calls the plugin as no runtime should.
func TestBreakChainCalls(t *testing.T) {
	t.Parallel()
	c := newChained(t, "bridge", false, nil)
	p := c.pod(t, "a")
	port := portOf(t, p)
	env := podEnv("a", rig.PodDev)
	with := func(k, v string) map[string]string {
		e := podEnv("a", rig.PodDev)
		e[k] = v
		return e
	}
	garbage := map[string]any{"cniVersion": "1.0.0", "ips": []any{map[string]any{"address": "not an address"}}}
	old := map[string]any{"cniVersion": "0.3.1", "interfaces": []any{map[string]any{"name": "eth0", "sandbox": p.Netns}}, "ips": []any{map[string]any{"version": "4", "address": p.Addr4.String() + "/24", "interface": 0}}}
	odd := map[string]any{"cniVersion": "1.0.0", "interfaces": []any{map[string]any{"name": "eth0", "sandbox": p.Netns}}, "ips": []any{map[string]any{"address": p.Addr4.String() + "/24", "interface": 9}}}
	for _, w := range []struct {
		name, verb string
		prev       any
		keys       map[string]any
		env        map[string]string
		fails      bool
		armed      bool
	}{
		{"del without add", "DEL", nil, nil, with("CNI_CONTAINERID", "nobody"), false, false},
		{"again", "ADD", p.Result, nil, env, false, true},
		{"twice", "ADD", p.Result, nil, env, false, true},
		{"no result", "ADD", nil, nil, env, true, true},
		{"garbage", "ADD", garbage, nil, env, true, true},
		{"old result", "ADD", old, map[string]any{"cniVersion": "0.3.1"}, env, false, true},
		{"old result in a new configuration", "ADD", old, nil, env, false, true},
		{"index out of range", "ADD", odd, nil, env, false, true},
		{"other interface", "ADD", p.Result, nil, with("CNI_IFNAME", "lo"), false, true},
		{"no such interface", "ADD", p.Result, nil, with("CNI_IFNAME", "nope0"), false, true},
		{"no such interface, required", "ADD", p.Result, map[string]any{"required": true}, with("CNI_IFNAME", "nope0"), true, true},
		{"no namespace", "ADD", p.Result, nil, with("CNI_NETNS", "/run/netns/gone"), false, true},
		{"namespace is a file", "ADD", p.Result, nil, with("CNI_NETNS", "/etc/passwd"), false, true},
		{"del of other interface", "DEL", p.Result, nil, with("CNI_IFNAME", "lo"), false, true},
		{"del garbage", "DEL", garbage, nil, env, false, false},
		{"again after", "ADD", p.Result, nil, env, false, true},
		{"del without netns", "DEL", p.Result, nil, with("CNI_NETNS", ""), false, false},
		{"again after that", "ADD", p.Result, nil, env, false, true},
		{"del without result", "DEL", nil, nil, env, false, false},
		{"del twice", "DEL", p.Result, nil, env, false, false},
		{"status", "STATUS", nil, map[string]any{"cniVersion": "1.1.0"}, env, false, false},
		{"gc", "GC", nil, map[string]any{"cniVersion": "1.1.0", "cni.dev/valid-attachments": []any{}}, env, false, false},
		{"gc without list", "GC", nil, map[string]any{"cniVersion": "1.1.0"}, env, false, false},
		{"last", "ADD", p.Result, nil, env, false, true},
	} {
		out, err := callPlugin(t, c.Rig, chainBin(), w.verb, breakConf(t, w.prev, w.keys), w.env)
		if (err != nil) != w.fails {
			t.Errorf("%s: %v", w.name, err)
		}
		t.Logf("%s: %v %s", w.name, err, strings.ReplaceAll(string(out.Stderr), "\n", " "))
		if w.name == "del without add" {
			continue
		}
		if on := ourHooks(t, c.Rig, port); (on != "") != w.armed {
			t.Errorf("%s: on the port: %q", w.name, on)
		}
	}
}

// TestBreakChainGone removes the namespace and calls DEL at once: nothing is left.
func TestBreakChainGone(t *testing.T) {
	t.Parallel()
	c := newChained(t, "bridge", false, nil)
	for i := range 10 {
		id := fmt.Sprintf("g%d", i)
		p, err := c.NewNetns(id)
		if err != nil {
			t.Fatal(err)
		}
		conf := &libcni.RuntimeConf{ContainerID: id, NetNS: p.Netns, IfName: rig.PodDev}
		if _, err := c.cni.AddNetworkList(ctxOf(t), c.list, conf); err != nil {
			t.Fatal(err)
		}
		p.Destroy()
		if err := c.cni.DelNetworkList(ctxOf(t), c.list, conf); err != nil {
			t.Error(err)
		}
		checkEntries(t, c.Rig)
	}
}

// members is how many ports of bridges are noted.
func members(t *testing.T, r *rig.Rig) string {
	t.Helper()
	return strings.TrimSpace(node(t, r, "bpftool map dump pinned /sys/fs/bpf/xveth/v1/xv_members 2>/dev/null | grep -c key; true"))
}

// TestBreakChainCrowd adds and removes thirty pods of one bridge at once.
func TestBreakChainCrowd(t *testing.T) {
	t.Parallel()
	c := newChained(t, "bridge", false, nil)
	keep := c.pod(t, "keep")
	pods := newPods(t, c.Rig, "p", 30)
	for _, p := range pods {
		t.Cleanup(p.Destroy)
	}
	conf := func(p *rig.Pod) *libcni.RuntimeConf {
		return &libcni.RuntimeConf{ContainerID: p.ID, NetNS: p.Netns, IfName: rig.PodDev}
	}
	for range 2 {
		atOnce(t, pods, func(p *rig.Pod) error {
			for range 2 {
				if _, err := c.cni.AddNetworkList(context.Background(), c.list, conf(p)); err != nil {
					return err
				}
				if err := c.cni.CheckNetworkList(context.Background(), c.list, conf(p)); err != nil {
					return err
				}
				if err := c.cni.DelNetworkList(context.Background(), c.list, conf(p)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := c.cni.CheckNetworkList(ctxOf(t), c.list, conf(keep)); err != nil {
		t.Error(err)
	}
	if n := members(t, c.Rig); n != "1" {
		t.Errorf("%s members, want 1", n)
	}
}

// TestBreakChainKilled kills the plugin at any moment of ADD and DEL; the next DEL leaves
// nothing.
func TestBreakChainKilled(t *testing.T) {
	t.Parallel()
	c := newChained(t, "bridge", false, nil)
	p := c.pod(t, "a")
	port := portOf(t, p)
	conf := breakConf(t, p.Result, nil)
	env := []string{"CNI_CONTAINERID=a", "CNI_NETNS=" + p.Netns, "CNI_IFNAME=eth0", "CNI_PATH=" + plugins}
	kill := func(verb string, after time.Duration) {
		ctx, cancel := context.WithTimeout(context.Background(), after)
		defer cancel()
		cmd := exec.CommandContext(ctx, chainBin())
		cmd.Env = append(env, "CNI_COMMAND="+verb)
		cmd.Stdin = strings.NewReader(string(conf))
		if err := c.Node.Start(cmd); err == nil {
			_ = cmd.Wait()
		}
	}
	for i := range 40 {
		after := time.Duration(5+rand.IntN(60)) * time.Millisecond
		verb := []string{"ADD", "DEL"}[i%2]
		kill(verb, after)
		if _, err := callPlugin(t, c.Rig, chainBin(), "DEL", conf, podEnv("a", rig.PodDev)); err != nil {
			t.Fatalf("after %s was killed: %v", verb, err)
		}
		if on := ourHooks(t, c.Rig, port) + ourHooks(t, c.Rig, chainBridge); on != "" {
			t.Fatalf("after %s was killed: %s", verb, on)
		}
		if n := members(t, c.Rig); n != "0" {
			t.Fatalf("%s members are left", n)
		}
		if _, err := callPlugin(t, c.Rig, chainBin(), "ADD", conf, podEnv("a", rig.PodDev)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestBreakChainThird arms an interface whose other end is in a third namespace: it is not
// armed, and nothing of the host with the same number is.
func TestBreakChainThird(t *testing.T) {
	t.Parallel()
	c := newChained(t, "bridge", false, nil)
	p := c.pod(t, "a")
	third, err := c.NewNetns("third")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(third.Destroy)
	on(t, p.Host, "ip link add third0 type veth peer name third1")
	moveLink(t, p.Host, "third1", third.Host)
	for _, required := range []bool{false, true} {
		env := podEnv("a", "third0")
		out, err := callPlugin(t, c.Rig, chainBin(), "ADD", breakConf(t, p.Result, map[string]any{"required": required}), env)
		if (err != nil) != required {
			t.Errorf("required %v: %v", required, err)
		}
		t.Log(err, string(out.Stderr))
	}
}

// TestBreakChainTwice has the plugin twice in one list, and behind xveth itself.
func TestBreakChainTwice(t *testing.T) {
	t.Parallel()
	for name, main := range map[string]map[string]any{
		"bridge": chainedMains["bridge"],
		"xveth":  {"type": "xveth", "ipMasq": true, "uplinks": []any{map[string]string{"name": rig.Uplink, "mode": "xdp"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newChained(t, "bridge", false, nil)
			first := map[string]any{"ipam": ipamConf(chainNet4)}
			for k, v := range main {
				first[k] = v
			}
			last := map[string]any{"type": "xveth-chain", "uplinks": []any{map[string]string{"name": rig.Uplink, "mode": "xdp"}}}
			text, _ := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "chained", "plugins": []any{first, last, last}})
			list, err := libcni.ConfListFromBytes(text)
			if err != nil {
				t.Fatal(err)
			}
			c.list = list
			a, b := c.pod(t, "a"), c.pod(t, "b")
			addRoute(t, c.Ext, chainNet4)
			at := netip.AddrPortFrom(b.Addr4, 7)
			echo(t, b.Host, "udp", at)
			warm(t, c.Rig, dial(t, a.Host, "udp", at))
			warm(t, c.Rig, dial(t, c.Ext, "udp", at))
		})
	}
}
