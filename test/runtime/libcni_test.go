// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/xveth/xveth/test/rig"
)

// both are the attachments of a pod in two networks.
var both = []attachment{{network, "eth0"}, {second, "net1"}}

// twoNets is a driver with two networks of a version.
func twoNets(t *testing.T, version string) *driver {
	t.Helper()
	b := newBed(t)
	b.writeNet(t, version, nil)
	b.writeSecond(t, version)
	return newDriver(t, b)
}

// echo makes a pod echo at an address and returns where.
func echo(t *testing.T, p *rig.Pod, addr netip.Addr) netip.AddrPort {
	t.Helper()
	at := netip.AddrPortFrom(addr, servePort)
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	if err := errors.Join(p.EchoUDP(ctx, at), p.EchoTCP(ctx, at)); err != nil {
		t.Fatal(err)
	}
	return at
}

// wantFast makes the remote host talk to every address of a pod.
func (d *driver) wantFast(t *testing.T, p *rig.Pod) {
	t.Helper()
	addrs, err := d.addrs(p)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop() // sockets keep a namespace
	for _, addr := range addrs {
		at := netip.AddrPortFrom(addr, servePort)
		if err := errors.Join(p.EchoUDP(ctx, at), p.EchoTCP(ctx, at)); err != nil {
			t.Fatal(err)
		}
		d.wantFastIn(t, "udp", at, at)
		d.wantFastIn(t, "tcp", at, at)
	}
}

// TestCRIO goes through the life of pods with libcni as CRI-O's driver uses it, in every
// version of the specification that has CHECK: pods in parallel, each with two networks;
// CHECK and the cached results; and DEL from the cache, when the configuration has changed
// or is gone.
func TestCRIO(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"0.4.0", "1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			d := twoNets(t, version)
			empty := d.state(t)
			pods := d.newPods(t, "p", 10)
			ctx := ctxOf(t)
			atOnce(t, len(pods), func(i int) error { return d.setUp(ctx, pods[i], both...) })
			var addrs []netip.Addr
			for _, p := range pods {
				some, err := d.check(ctx, p)
				if err != nil || len(some) != 4 {
					t.Errorf("%s has %v: %v", p.ID, some, err)
				}
				addrs = append(addrs, some...)
			}
			wantDistinct(t, addrs)
			d.wantFast(t, pods[3])

			// Half of them go after the networks have got other addresses, half of them
			// after the networks are gone.
			d.writeNet(t, version, map[string]any{"ipMasq": false, "ipam": map[string]any{
				"type": "host-local", "ranges": [][]map[string]string{{{"subnet": "10.99.0.0/24"}}},
			}})
			d.load(t)
			atOnce(t, 5, func(i int) error { return d.tearDown(ctx, pods[i]) })
			if err := os.Remove(filepath.Join(d.confDir, netFile)); err != nil {
				t.Fatal(err)
			}
			d.load(t)
			atOnce(t, 5, func(i int) error { return d.tearDown(ctx, pods[5+i]) })
			destroyAll(pods)
			d.wantState(t, empty)
		})
	}
}

func destroyAll(pods []*rig.Pod) {
	for _, p := range pods {
		p.Destroy()
	}
}

// TestCRIOParallelNetworks attaches two networks to each pod at the same instant, as
// containerd does, and detaches them so.
func TestCRIOParallelNetworks(t *testing.T) {
	t.Parallel()
	d := twoNets(t, "1.1.0")
	empty := d.state(t)
	ctx := ctxOf(t)
	pods := d.newPods(t, "p", 8)
	each := func(f func(p *rig.Pod, a attachment) error) {
		atOnce(t, len(pods)*len(both), func(i int) error { return f(pods[i/len(both)], both[i%len(both)]) })
	}
	each(func(p *rig.Pod, a attachment) error { return d.attach(ctx, p, a) })
	var addrs []netip.Addr
	for _, p := range pods {
		some, err := d.check(ctx, p)
		if err != nil {
			t.Error(err)
		}
		addrs = append(addrs, some...)
	}
	wantDistinct(t, addrs)
	d.wantFast(t, pods[0])
	each(func(p *rig.Pod, a attachment) error {
		return d.cni.DelNetworkList(ctx, d.nets[a.network], runtimeConf(p, a))
	})
	destroyAll(pods)
	d.wantState(t, empty)
}

// TestCRIOFirstAtOnce is B016: the first pods of a node come at the same instant, to xveth
// and to a bridge with xveth-chain behind it. None fails, and the bridge has its gateway
// address once.
func TestCRIOFirstAtOnce(t *testing.T) {
	t.Parallel()
	conf := rig.DefaultConf()
	t.Run("xveth", func(t *testing.T) {
		t.Parallel()
		firstAtOnce(t, []map[string]any{{"type": "xveth", "ipam": conf["ipam"], "uplinks": conf["uplinks"]}}, func(*driver) {})
	})
	t.Run("bridge", func(t *testing.T) {
		t.Parallel()
		firstAtOnce(t, []map[string]any{
			{"type": "bridge", "bridge": "br-cni", "isGateway": true, "ipam": conf["ipam"]},
			{"type": "xveth-chain", "required": true, "uplinks": conf["uplinks"]},
		}, func(d *driver) {
			if out := d.sh(t, "ip -o -4 addr show dev br-cni"); strings.Count(out, "10.88.0.1/24") != 1 {
				t.Errorf("the bridge's addresses are %s", out)
			}
			d.sh(t, "ip link del br-cni") // the bridge plugin leaves it by design
		})
	})
}

// firstAtOnce attaches 20 pods to a node on which nothing is yet, and detaches them. There
// is no CHECK in between: the bridge plugin's own wants the bridge to have the MAC address
// that it had before other pods joined it.
func firstAtOnce(t *testing.T, plugins []map[string]any, after func(*driver)) {
	t.Helper()
	b := newBed(t)
	b.writeList(t, netFile, network, "1.1.0", plugins...)
	d := newDriver(t, b)
	empty := d.state(t)
	pods := d.newPods(t, "p", 20)
	ctx := ctxOf(t)
	atOnce(t, len(pods), func(i int) error { return d.setUp(ctx, pods[i], both[0]) })
	var addrs []netip.Addr
	for _, p := range pods {
		some, err := d.addrs(p)
		if err != nil {
			t.Error(err)
		}
		addrs = append(addrs, some...)
	}
	wantDistinct(t, addrs)
	d.wantFast(t, pods[len(pods)-1])
	atOnce(t, len(pods), func(i int) error { return d.tearDown(ctx, pods[i]) })
	destroyAll(pods)
	after(d)
	d.wantState(t, empty)
}

// TestCRIOGC has pods that die without DEL: some that the cache knows, and some that only
// the plugin can find. GC with the pods that live removes what the others have left, and
// the live ones do not notice.
func TestCRIOGC(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			d := twoNets(t, version)
			empty := d.state(t)
			ctx := ctxOf(t)
			live, dead := d.newPods(t, "live", 2), d.newPods(t, "dead", 4)
			pods := append(live, dead...)
			atOnce(t, len(pods), func(i int) error { return d.setUp(ctx, pods[i], both...) })
			addrs, err := d.check(ctx, live[0])
			if err != nil {
				t.Fatal(err)
			}
			at := echo(t, live[0], addrs[0])
			conn, err := d.Ext.DialTCP(netip.AddrPort{}, at)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			roundTrip(t, conn)

			dead[0].Destroy()
			dead[2].Destroy()
			// Before version 1.1 there is no GC, and libcni deletes what it knows of.
			if version == "1.1.0" {
				d.forget(t, dead[2])
				d.forget(t, dead[3])
			}
			if err := d.gc(ctx, live, both...); err != nil {
				t.Error(err)
			}
			roundTrip(t, conn)
			d.wantFastIn(t, "udp", at, at)
			for _, name := range []string{network, second} {
				if got := d.reserved(t, name); len(got) != 4 {
					t.Errorf("in network %s reserved are %v, want the addresses of 2 pods", name, got)
				}
			}
			for _, p := range live {
				if _, err := d.check(ctx, p); err != nil {
					t.Error(err)
				}
			}
			if err := d.gc(ctx, nil); err != nil {
				t.Error(err)
			}
			destroyAll(pods)
			eventually(t, startWait, "nothing is left", func() bool { return d.state(t) == empty })
		})
	}
}

// TestCRIOStatus is B014: STATUS tells a runtime when no pod can be attached, and changes
// nothing.
func TestCRIOStatus(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.writeNet(t, "1.1.0", map[string]any{"ipam": map[string]any{
		"type": "host-local", "ranges": [][]map[string]string{{{"subnet": "10.88.0.0/29"}}},
	}})
	d := newDriver(t, b)
	ctx := ctxOf(t)
	status := func() error { return d.cni.GetStatusNetworkList(ctx, d.nets[network]) }
	empty := d.state(t)
	if err := status(); err != nil {
		t.Error(err)
	}
	d.wantState(t, empty)
	pods := d.newPods(t, "p", 5)
	atOnce(t, len(pods), func(i int) error { return d.setUp(ctx, pods[i], both[0]) })
	wantRefused(t, status(), types.ErrPluginNotAvailable, "no free address")
	if err := d.tearDown(ctx, pods[0]); err != nil {
		t.Error(err)
	}
	if err := status(); err != nil {
		t.Error(err)
	}
	for _, p := range pods[1:] {
		if err := d.tearDown(ctx, p); err != nil {
			t.Error(err)
		}
	}
	destroyAll(pods)
}

// TestCNITool attaches a pod to two networks by the real cnitool, to one of them twice, with
// the addresses that its caller asks for, and detaches it by what was cached, when a network
// has changed.
func TestCNITool(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	ips := map[string]any{"ips": true}
	b.writeNet(t, "1.1.0", map[string]any{"capabilities": ips})
	b.writeSecond(t, "1.1.0")
	empty := b.state(t)
	p, err := b.NewNetns("tool")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Destroy()
	cnitool := func(verb string, a attachment, asked ...string) {
		t.Helper()
		caps, err := json.Marshal(map[string]any{"ips": asked})
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.Node.Run(ctxOf(t), "env", "NETCONFPATH="+b.confDir, "CNI_PATH="+b.binDir, "CNI_IFNAME="+a.ifname,
			"CAP_ARGS="+string(caps), tool(t, "cnitool"), verb, a.network, p.Netns)
		if err != nil {
			t.Error(err)
		}
	}
	const asked4, asked6 = "10.88.0.99", "2001:db8:88::99"
	cnitool("add", both[0], asked4, asked6)
	all := append(slices.Clone(both), attachment{network, "net2"})
	for _, a := range all[1:] {
		cnitool("add", a)
	}
	for _, a := range all {
		cnitool("check", a)
		cnitool("status", a)
	}
	for _, asked := range []string{asked4, asked6} {
		at := echo(t, p, netip.MustParseAddr(asked))
		b.wantFastIn(t, "udp", at, at)
		b.wantFastIn(t, "tcp", at, at)
	}
	b.writeNet(t, "1.1.0", map[string]any{"ipMasq": false, "capabilities": ips})
	for _, a := range all[1:] {
		cnitool("del", a)
	}
	at := netip.AddrPortFrom(netip.MustParseAddr(asked4), servePort)
	b.wantFastIn(t, "udp", at, at)
	if got := b.reserved(t, network); len(got) != 2 || len(b.reserved(t, second)) != 0 {
		t.Errorf("reserved are %v in the first network, and %v in the second", got, b.reserved(t, second))
	}
	cnitool("gc", both[0]) // knows of no attachment that is valid
	p.Destroy()
	b.wantState(t, empty)
}
