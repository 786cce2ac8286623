// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/xveth/xveth/test/rig"
)

// TestSecondAdd is B019: a second ADD of the same interface is refused and changes
// nothing; one DEL takes all away.
func TestSecondAdd(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	empty := nodeState(t, r)
	p := addPod(t, r, "a", nil)
	before, inside := nodeState(t, r), on(t, p.Host, "ip addr; ip route; ip -6 route")
	for range 2 {
		_, err := r.Plugin(ctxOf(t), "ADD", r.Conf(nil), p.Env())
		wantCode(t, err, types.ErrInternal, "DEL")
	}
	// Without a reservation it is the interface that is in the way.
	node(t, r, "mkdir /run/keep && mv "+storeDir+"/[12]* /run/keep/")
	_, err := r.Plugin(ctxOf(t), "ADD", r.Conf(nil), p.Env())
	wantCode(t, err, types.ErrInternal, "interface exists already in the pod", "DEL")
	node(t, r, "mv /run/keep/* "+storeDir+" && rmdir /run/keep")
	wantState(t, r, before)
	if now := on(t, p.Host, "ip addr; ip route; ip -6 route"); now != inside {
		t.Errorf("the pod was\n%s\nand is\n%s", inside, now)
	}
	if err := p.Check(ctxOf(t)); err != nil {
		t.Error(err)
	}
	if err := p.Remove(ctxOf(t)); err != nil {
		t.Error(err)
	}
	wantState(t, r, empty)
}

// TestAsked is B031: the MAC and the addresses that the runtime asks for, by
// runtimeConfig and by CNI_ARGS.
func TestAsked(t *testing.T) {
	t.Parallel()
	const mac = "02:00:00:00:00:99"
	runtimeConfig := func(m string, ips ...string) map[string]any {
		return map[string]any{"runtimeConfig": map[string]any{"mac": m, "ips": ips}}
	}
	r := newRig(t, nil)
	for _, c := range []struct {
		name string
		conf map[string]any
		args string
		code uint
		want []string
	}{
		{"runtimeConfig", runtimeConfig(mac, "10.88.0.50", "2001:db8:88::50"), "", 0, []string{"10.88.0.50/24", "2001:db8:88::50/64"}},
		{"with length", runtimeConfig(mac, "10.88.0.50/24"), "", 0, []string{"10.88.0.50/24"}},
		{"args", nil, "MAC=" + mac + ";IP=10.88.0.51", 0, []string{"10.88.0.51/24"}},
		{"args and others", nil, "IgnoreUnknown=1;MAC=" + mac + ";IP=10.88.0.51;COLOUR=red", 0, []string{"10.88.0.51/24"}},
		{"unknown args", nil, "MAC=" + mac + ";COLOUR=red", types.ErrInvalidEnvironmentVariables, []string{"COLOUR"}},
		{"multicast mac", runtimeConfig("01:00:5e:00:00:01"), "", types.ErrInvalidNetworkConfig, []string{"runtimeConfig.mac"}},
		{"odd mac", runtimeConfig("02:00:00"), "", types.ErrInvalidNetworkConfig, []string{"runtimeConfig.mac"}},
		{"multicast mac by args", nil, "MAC=ff:ff:ff:ff:ff:ff", types.ErrInvalidEnvironmentVariables, []string{"MAC"}},
		{"address of nobody's range", runtimeConfig(mac, "203.0.113.5"), "", types.ErrInvalidNetworkConfig, []string{"203.0.113.5"}},
		{"the gateway", runtimeConfig(mac, "10.88.0.1"), "", types.ErrInvalidNetworkConfig, []string{"10.88.0.1"}},
		{"one twice", runtimeConfig(mac, "10.88.0.7", "10.88.0.8"), "", types.ErrInvalidNetworkConfig, []string{"10.88.0.7", "10.88.0.8"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := r.NewNetns("a")
			if err != nil {
				t.Fatal(err)
			}
			defer p.Destroy()
			before := nodeState(t, r)
			env := p.Env()
			env["CNI_ARGS"] = c.args
			out, err := r.Plugin(ctxOf(t), "ADD", r.Conf(c.conf), env)
			if c.code != 0 {
				wantCode(t, err, c.code, c.want...)
				wantState(t, r, before)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			wantAsked(t, p, out.Stdout, mac, c.want)
			conf := withKeys(t, r.Conf(c.conf), map[string]any{"prevResult": resultOf(t, out.Stdout)})
			for _, verb := range []string{"CHECK", "DEL"} {
				if _, err := r.Plugin(ctxOf(t), verb, conf, env); err != nil {
					t.Errorf("%s: %v", verb, err)
				}
			}
			wantState(t, r, before)
		})
	}
}

// wantAsked looks for a MAC and addresses in a result and in the pod.
func wantAsked(t *testing.T, p *rig.Pod, stdout []byte, mac string, addrs []string) {
	t.Helper()
	res := resultOf(t, stdout)
	if got := res.Interfaces[1].Mac; got != mac {
		t.Errorf("result has mac %s, want %s", got, mac)
	}
	inside := on(t, p.Host, "ip -o link show eth0; ip -o addr show eth0")
	if !strings.Contains(inside, mac) {
		t.Errorf("pod has not %s: %s", mac, inside)
	}
	var got []string
	for _, ip := range res.IPs {
		got = append(got, ip.Address.String())
	}
	for _, a := range addrs {
		if !slices.Contains(got, a) {
			t.Errorf("result has %v, want %s", got, a)
		}
		if !strings.Contains(inside, " "+a+" ") {
			t.Errorf("pod has not %s: %s", a, inside)
		}
	}
}

// TestHostMAC is B035: somebody gives the host's end a new MAC. The pod reaches its
// gateway and the world, cold and warm, and CHECK does not mind.
func TestHostMAC(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := addPod(t, r, "a", nil)
	mac := 0
	change := func() {
		mac++
		node(t, r, fmt.Sprintf("ip link set %s address 02:aa:00:00:00:%02x", p.HostDev, mac))
	}
	change()
	for _, fam := range families {
		gw := netip.MustParseAddr("10.88.0.1")
		if fam == 6 {
			gw = netip.MustParseAddr("2001:db8:88::1")
		}
		canPing(t, p.Host, gw)
		canPing(t, p.Host, extAddr(fam))
		addr, err := p.Addr(fam)
		if err != nil {
			t.Fatal(err)
		}
		for proto := range protos {
			there, here := netip.AddrPortFrom(extAddr(fam), 7), netip.AddrPortFrom(addr, 7)
			echo(t, r.Ext, proto, there)
			echo(t, p.Host, proto, here)
			out, in := dial(t, p.Host, proto, there), dial(t, r.Ext, proto, here)
			warm(t, r, out)
			warm(t, r, in)
			change()
			canPing(t, p.Host, gw)
			for range 3 {
				if _, err := rig.RoundTrip(out, []byte("still there"), 3*time.Second); err != nil {
					t.Errorf("v%d %s from the pod: %v", fam, proto, err)
				}
				if _, err := rig.RoundTrip(in, []byte("still there"), 3*time.Second); err != nil {
					t.Errorf("v%d %s to the pod: %v", fam, proto, err)
				}
			}
		}
	}
	if err := p.Check(ctxOf(t)); err != nil {
		t.Error(err)
	}
}

// TestOddDel is B038: DEL with input that no runtime should give. It answers with a CNI
// error or does nothing; the pod is removed by the next proper DEL.
func TestOddDel(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	empty := nodeState(t, r)
	p := addPod(t, r, "a", nil)
	before := nodeState(t, r)
	noID := p.Env()
	delete(noID, "CNI_CONTAINERID")
	noise := make([]byte, 1<<20)
	for i := range noise {
		noise[i] = byte(i*7 + i>>8)
	}
	for _, c := range []struct {
		name  string
		stdin []byte
		env   map[string]string
		code  uint // 0: succeeds and does nothing
	}{
		{"empty", nil, p.Env(), types.ErrDecodingFailure},
		{"cut", r.Conf(nil)[:40], p.Env(), types.ErrDecodingFailure},
		{"noise", noise, p.Env(), types.ErrDecodingFailure},
		{"unknown network", r.Conf(map[string]any{"name": "nosuch"}), p.Env(), 0},
		{"unknown container", r.Conf(nil), podEnv("nosuch", "eth0"), 0},
		{"unknown interface", r.Conf(nil), podEnv("a", "net7"), 0},
		{"no container id", r.Conf(nil), noID, types.ErrInvalidEnvironmentVariables},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := r.Plugin(ctxOf(t), "DEL", c.stdin, c.env)
			if c.code == 0 && err != nil {
				t.Error(err)
			}
			if c.code != 0 {
				wantCode(t, err, c.code)
			}
			wantState(t, r, before)
		})
	}
	if _, err := r.Plugin(ctxOf(t), "DEL", r.Conf(map[string]any{"prevResult": nil}), p.Env()); err != nil {
		t.Error(err)
	}
	p.Destroy()
	wantState(t, r, empty)
}

// TestTwoInterfaces is B040: eth0 and net1 of one container, on one network and on two.
// DEL of net1 leaves eth0, its address and its flows; net1 can come back.
func TestTwoInterfaces(t *testing.T) {
	t.Parallel()
	for name, second := range map[string]map[string]any{"same network": nil, "two networks": otherNet()} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			p := addPod(t, r, "a", nil)
			at := netip.AddrPortFrom(p.Addr4, 7)
			echo(t, p.Host, "udp", at)
			conn := dial(t, r.Ext, "udp", at)
			warm(t, r, conn)
			before, inside := nodeState(t, r), on(t, p.Host, "ip -o addr show dev eth0")
			net1 := podEnv("a", "net1")
			ipam := map[string]any{"type": "host-local", "ranges": []any{[]any{map[string]any{"subnet": "10.89.0.0/24"}}}}
			changes := map[string]any{"ipam": ipam}
			for k, v := range second {
				if k != "ipam" {
					changes[k] = v
				}
			}
			for range 2 {
				if _, err := r.Plugin(ctxOf(t), "ADD", r.Conf(changes), net1); err != nil {
					t.Fatal(err)
				}
				if _, err := r.Plugin(ctxOf(t), "DEL", r.Conf(changes), net1); err != nil {
					t.Error(err)
				}
				if !hasFlowTo(t, r, at) {
					t.Error("the flow of eth0 was forgotten with net1")
				}
			}
			warm(t, r, conn)
			if now := on(t, p.Host, "ip -o addr show dev eth0"); now != inside {
				t.Errorf("eth0 was %s and is %s", inside, now)
			}
			if err := p.Check(ctxOf(t)); err != nil {
				t.Error(err)
			}
			if second != nil {
				wantState(t, r, before)
			}
		})
	}
}

// hasFlowTo says whether a flow to an address is known, live or not.
func hasFlowTo(t *testing.T, r *rig.Rig, at netip.AddrPort) bool {
	t.Helper()
	for f, err := range open(t, r).Flows() {
		if err != nil {
			t.Fatal(err)
		}
		if f.Dst == at {
			return true
		}
	}
	return false
}
