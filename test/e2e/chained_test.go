// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

const (
	chainBridge = "cnibr0"
	// chainNet4 and chainNet6 are the pods' subnets behind other plugins.
	chainNet4 = "10.90.0.0/24"
	chainNet6 = "2001:db8:90::/64"
)

// chainedMains are plugins that make interfaces, as people configure them.
var chainedMains = map[string]map[string]any{
	"ptp":    {"type": "ptp", "ipMasq": true},
	"bridge": {"type": "bridge", "bridge": chainBridge, "isGateway": true, "ipMasq": true, "hairpinMode": true},
}

// chainedList is a network of a main plugin with xveth-chain behind it, and keys for that.
// IPv6 takes a bridge some seconds: it waits until no other has the address.
func chainedList(t *testing.T, main string, v6 bool, keys map[string]any) *libcni.NetworkConfigList {
	t.Helper()
	ranges := [][]map[string]string{{{"subnet": chainNet4}}}
	if v6 {
		ranges = append(ranges, []map[string]string{{"subnet": chainNet6}})
	}
	first := map[string]any{"ipam": map[string]any{
		"type":   "host-local",
		"ranges": ranges,
		"routes": []map[string]string{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}},
	}}
	for k, v := range chainedMains[main] {
		first[k] = v
	}
	last := map[string]any{"type": "xveth-chain", "uplinks": []any{map[string]string{"name": rig.Uplink, "mode": "xdp"}}}
	for k, v := range keys {
		last[k] = v
	}
	text, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "chained", "plugins": []any{first, last}})
	if err != nil {
		t.Fatal(err)
	}
	list, err := libcni.ConfListFromBytes(text)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// chained is a rig whose pods other plugins make.
type chained struct {
	*rig.Rig
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
}

// newChained builds a rig. What another plugin leaves on the node when its last pod has
// gone is removed, so that the rest is compared.
func newChained(t *testing.T, main string, v6 bool, keys map[string]any) *chained {
	t.Helper()
	r := newRig(t, nil)
	c := &chained{r, runtimeOn(t, r), chainedList(t, main, v6, keys)}
	t.Cleanup(func() {
		node(t, r, "ip link del "+chainBridge+" 2>/dev/null; nft list tables | sed 's/^/delete /' | nft -f -")
	})
	return c
}

// pod makes a pod; it is removed at the end.
func (c *chained) pod(t *testing.T, id string, args ...[2]string) *rig.Pod {
	t.Helper()
	p, err := c.NewNetns(id)
	if err != nil {
		t.Fatal(err)
	}
	conf := &libcni.RuntimeConf{ContainerID: id, NetNS: p.Netns, IfName: rig.PodDev, Args: args}
	t.Cleanup(func() {
		if err := c.cni.DelNetworkList(context.Background(), c.list, conf); err != nil {
			t.Error(err)
		}
		p.Destroy()
	})
	got, err := c.cni.AddNetworkList(ctxOf(t), c.list, conf)
	if err != nil {
		t.Fatal(err)
	}
	if p.Result, err = current.NewResultFromResult(got); err != nil {
		t.Fatal(err)
	}
	addrsUsable(t, c.Node, p.Host)
	if err := c.cni.CheckNetworkList(ctxOf(t), c.list, conf); err != nil {
		t.Error(err)
	}
	p.TakeAddrs()
	return p
}

// TestChained sends every way between pods that other plugins made, with a fast path
// behind them, and the remote host.
func TestChained(t *testing.T) {
	t.Parallel()
	for main := range chainedMains {
		t.Run(main, func(t *testing.T) {
			t.Parallel()
			c := newChained(t, main, true, nil)
			a, b := c.pod(t, "a"), c.pod(t, "b")
			for _, fam := range families {
				addRoute(t, c.Ext, map[int]string{4: chainNet4, 6: chainNet6}[fam])
				for _, w := range podWays(c.Rig, a, b, fam) {
					for proto := range protos {
						t.Run(fmt.Sprintf("%s %s v%d", w.name, proto, fam), func(t *testing.T) {
							at := netip.AddrPortFrom(w.dst, 7)
							echo(t, w.to, proto, at)
							conn := dial(t, w.from, proto, at)
							warm(t, c.Rig, conn)
							f := anyFlow(t, open(t, c.Rig), protos[proto], at)
							if bridged := main == "bridge" && w.name == "pod to pod"; f.Bridged != bridged || f.Routed == bridged {
								t.Errorf("bridged %v, routed %v: %+v", f.Bridged, f.Routed, f)
							}
						})
					}
				}
			}
		})
	}
}

// addRoute leads the remote host to pods of the node.
func addRoute(t *testing.T, h *rig.Host, subnet string) {
	t.Helper()
	dst := netip.MustParsePrefix(subnet)
	gw := rig.NodeAddr4
	if dst.Addr().Is6() {
		gw = rig.NodeAddr6
	}
	if err := h.Do(func() error { return rig.AddRoute(dst, gw) }); err != nil {
		t.Fatal(err)
	}
}

// anyFlow finds the live flow to an address that has taken the fast path.
func anyFlow(t *testing.T, d *datapath.Datapath, proto uint8, dst netip.AddrPort) datapath.Flow {
	t.Helper()
	for f, err := range d.Flows() {
		if err != nil {
			t.Fatal(err)
		}
		if f.Proto == proto && f.Dst == dst && f.Live() && f.Packets > 0 {
			return f
		}
	}
	t.Fatalf("no flow to %v is fast", dst)
	return datapath.Flow{}
}

// TestChainedFrames compares what arrives when a bridge forwards from pod to pod with what
// arrives on the fast path: the same MAC addresses, the same TTL.
func TestChainedFrames(t *testing.T) {
	t.Parallel()
	c := newChained(t, "bridge", false, nil)
	a, b := c.pod(t, "a"), c.pod(t, "b")
	at := netip.AddrPortFrom(b.Addr4, 7)
	echo(t, b.Host, "udp", at)
	in := newTap(t, b.Host, rig.PodDev)
	conn := dial(t, a.Host, "udp", at)
	const header = 14 + 9 // MAC addresses, type, IP up to the TTL
	frame := func() []byte {
		for f := in.next(time.Second); f != nil; f = in.next(time.Second) {
			if proto, _, dst, ok := portsAt(f[14:]); ok && proto == protoUDP && dst == at {
				return f[:header]
			}
		}
		t.Fatal("no frame")
		return nil
	}
	roundTrip := func() {
		if _, err := rig.RoundTrip(conn, []byte("0123456789abcdef"), time.Second); err != nil {
			t.Fatal(err)
		}
	}
	roundTrip()
	cold := frame()
	warm(t, c.Rig, conn)
	for in.next(0) != nil {
	}
	before := counters(t, open(t, c.Rig)).Fast()
	roundTrip()
	if counters(t, open(t, c.Rig)).Fast() != before+2 {
		t.Fatal("they were not fast")
	}
	hot := frame()
	for _, at := range []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 22} {
		if cold[at] != hot[at] {
			t.Errorf("byte %d is %#x on the kernel's path and %#x on the fast one", at, cold[at], hot[at])
		}
	}
}

// TestChainedFlood has a bridge send every frame to all its ports: only the pod that it is
// for learns, and gets all of them.
func TestChainedFlood(t *testing.T) {
	t.Parallel()
	c := newChained(t, "bridge", false, map[string]any{"fastPath": map[string]any{"revalidate": "50ms"}})
	a, b := c.pod(t, "a"), c.pod(t, "b")
	c.pod(t, "other")
	addRoute(t, c.Ext, chainNet4)
	node(t, c.Rig, "echo 0 > /sys/class/net/"+chainBridge+"/bridge/ageing_time")
	at := netip.AddrPortFrom(a.Addr4, 7)
	echo(t, a.Host, "udp", at)
	for _, from := range []*rig.Host{c.Ext, b.Host} {
		conn := dial(t, from, "udp", at)
		warm(t, c.Rig, conn)
		for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); {
			if _, err := rig.RoundTrip(conn, []byte("0123456789abcdef"), time.Second); err != nil {
				t.Fatalf("from %s: %v", from.Name, err)
			}
		}
		fast := uint64(0)
		for f, err := range open(t, c.Rig).Flows() {
			if err != nil {
				t.Fatal(err)
			}
			if f.Src == localOf(conn) && f.Dst == at {
				fast += f.Packets
			}
		}
		if fast < 20 {
			t.Errorf("from %s only %d packets were fast", from.Name, fast)
		}
	}
	if counters(t, open(t, c.Rig))["learn_flooded"] == 0 {
		t.Error("nothing was flooded: the test tests nothing")
	}
}

// TestChainedOptOut keeps a pod on the kernel's path while others of its bridge are fast.
func TestChainedOptOut(t *testing.T) {
	t.Parallel()
	c := newChained(t, "bridge", false, nil)
	a := c.pod(t, "a")
	out := c.pod(t, "out", [2]string{"IgnoreUnknown", "1"}, [2]string{"FAST_PATH", "off"})
	addRoute(t, c.Ext, chainNet4)
	at := netip.AddrPortFrom(rig.ExtAddr4, 7)
	echo(t, c.Ext, "udp", at)
	warm(t, c.Rig, dial(t, a.Host, "udp", at))
	before := counters(t, open(t, c.Rig)).Fast()
	conn := dial(t, out.Host, "udp", at)
	for range 50 {
		if _, err := rig.RoundTrip(conn, []byte("0123456789abcdef"), time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if now := counters(t, open(t, c.Rig)).Fast(); now != before {
		t.Errorf("%d packets of the pod that opted out were fast", now-before)
	}
}

// TestChainedShapedBridge learns nothing that a queue or program on the bridge itself
// would be skipped for.
func TestChainedShapedBridge(t *testing.T) {
	t.Parallel()
	for name, object := range map[string]struct{ command, reason string }{
		"queue":  {"tc qdisc add dev " + chainBridge + " root tbf rate 1gbit burst 1mb latency 50ms", "learn_qdisc"},
		"filter": {"tc qdisc add dev " + chainBridge + " clsact; tc filter add dev " + chainBridge + " egress bpf bytecode '1,6 0 0 4294967295' da", "learn_foreign_egress"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newChained(t, "bridge", false, nil)
			a := c.pod(t, "a")
			addRoute(t, c.Ext, chainNet4)
			node(t, c.Rig, object.command)
			at := netip.AddrPortFrom(a.Addr4, 7)
			echo(t, a.Host, "udp", at)
			conn := dial(t, c.Ext, "udp", at)
			for range 50 {
				if _, err := rig.RoundTrip(conn, []byte("0123456789abcdef"), time.Second); err != nil {
					t.Fatal(err)
				}
			}
			d := open(t, c.Rig)
			if f, ok := flow(t, d, protoUDP, localOf(conn), at); ok {
				t.Errorf("the way to the pod was learned: %+v", f)
			}
			if counters(t, d)[object.reason] == 0 {
				t.Errorf("%s was not counted: %v", object.reason, counters(t, d))
			}
		})
	}
}

// TestChainedRefuses lists what cannot be armed: a pod gets its network all the same, and
// an error where the configuration requires a fast path.
func TestChainedRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		main map[string]any
		keys map[string]any
		want string
	}{
		"no veth":  {map[string]any{"type": "macvlan", "master": rig.Uplink}, nil, "no veth pair"},
		"mode xdp": {map[string]any{"type": "ptp"}, map[string]any{"fastPath": map[string]any{"mode": "xdp"}}, "complete checksums"},
	} {
		for _, required := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, required %v", name, required), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, nil)
				keys := map[string]any{"type": "xveth-chain", "required": required}
				for k, v := range c.keys {
					keys[k] = v
				}
				first := map[string]any{"ipam": ipamConf(chainNet4)}
				for k, v := range c.main {
					first[k] = v
				}
				text, _ := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "chained", "plugins": []any{first, keys}})
				list, err := libcni.ConfListFromBytes(text)
				if err != nil {
					t.Fatal(err)
				}
				cni := runtimeOn(t, r)
				p, err := r.NewNetns("p")
				if err != nil {
					t.Fatal(err)
				}
				defer p.Destroy()
				_, err = cni.AddNetworkList(ctxOf(t), list, runtimeConf(p, nil))
				if !required && err != nil {
					t.Errorf("the pod has no network: %v", err)
				}
				if required && (err == nil || !strings.Contains(err.Error(), c.want)) {
					t.Errorf("got %v, want an error with %q", err, c.want)
				}
				if err := cni.DelNetworkList(ctxOf(t), list, runtimeConf(p, nil)); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestChainedReuse gives the address of a deleted pod to another one at once: nothing of
// the old flows reaches it on the fast path.
func TestChainedReuse(t *testing.T) {
	t.Parallel()
	for main := range chainedMains {
		t.Run(main, func(t *testing.T) {
			t.Parallel()
			c := newChained(t, main, false, nil)
			addRoute(t, c.Ext, chainNet4)
			a := c.pod(t, "a")
			at := netip.AddrPortFrom(a.Addr4, 7)
			echo(t, a.Host, "udp", at)
			conn := dial(t, c.Ext, "udp", at)
			warm(t, c.Rig, conn)
			conf := &libcni.RuntimeConf{ContainerID: "a", NetNS: a.Netns, IfName: rig.PodDev}
			if err := c.cni.DelNetworkList(ctxOf(t), c.list, conf); err != nil {
				t.Fatal(err)
			}
			for f, err := range open(t, c.Rig).Flows() {
				if err != nil {
					t.Fatal(err)
				}
				t.Errorf("a flow outlived its pod: %+v", f)
			}
			if _, err := conn.Write(make([]byte, 16)); err != nil && !isNetError(err) {
				t.Fatal(err)
			}
		})
	}
}

func isNetError(err error) bool {
	var of net.Error
	return errors.As(err, &of)
}
