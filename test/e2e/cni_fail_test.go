// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"os"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/xveth/xveth/test/rig"
)

// TestMalformedThroughBinary gives every row of the table of malformed configurations to
// the real binary: an error with its code and message, and no change.
func TestMalformedThroughBinary(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../pkg/netconf/testdata/malformed.json")
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct {
		Name, Conf, Args, Msg string
		Code                  uint
	}
	if err := json.Unmarshal(text, &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) < 60 {
		t.Errorf("the table has %d rows, want at least 60", len(rows))
	}
	r := newRig(t, nil)
	p, err := r.NewNetns("a")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Destroy()
	before, inside := nodeState(t, r), on(t, p.Host, "ip addr; ip route")
	for i, row := range rows {
		t.Run(row.Name, func(t *testing.T) {
			env := p.Env()
			env["CNI_ARGS"] = row.Args
			_, err := r.Plugin(ctxOf(t), "ADD", []byte(row.Conf), env)
			wantCode(t, err, row.Code, row.Msg)
			if i%40 == 0 {
				wantState(t, r, before)
			}
		})
	}
	wantState(t, r, before)
	if now := on(t, p.Host, "ip addr; ip route"); now != inside {
		t.Errorf("the pod was\n%s\nand is\n%s", inside, now)
	}
}

// TestAddFails puts faults into ADD: the right code, and nothing left.
func TestAddFails(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	keep := addPod(t, r, "keep", map[string]any{"ipam": ipamConf("10.88.0.0/30")})
	for _, c := range []struct {
		name    string
		arrange string // on the node
		inPod   string
		changes map[string]any
		env     map[string]string
		code    uint
		says    string
	}{
		{"name exists", "", "ip link add eth0 type bridge", nil, nil, types.ErrInternal, "exists already in the pod"},
		{"a file", "", "", nil, map[string]string{"CNI_NETNS": "/etc/hostname"}, types.ErrInvalidNetNS, "/etc/hostname"},
		{"no such file", "", "", nil, map[string]string{"CNI_NETNS": "/run/netns/nosuch"}, types.ErrInvalidNetNS, "nosuch"},
		{"the host's own", "", "", nil, map[string]string{"CNI_NETNS": "/proc/self/ns/net"}, types.ErrInvalidNetNS, "/proc/self/ns/net"},
		{"another kind", "", "", nil, map[string]string{"CNI_NETNS": "/proc/self/ns/uts"}, types.ErrInvalidNetNS, "/proc/self/ns/uts"},
		{"no netns", "", "", nil, map[string]string{"CNI_NETNS": ""}, types.ErrInvalidEnvironmentVariables, "CNI_NETNS"},
		{"range full", "", "", map[string]any{"ipam": ipamConf("10.88.0.0/30")}, nil, types.ErrTryAgainLater, "no IP addresses available"},
		{"second range full", "", "", map[string]any{"ipam": ipamConf("2001:db8:88::/64", "10.88.0.0/30")}, nil, types.ErrTryAgainLater, "no IP addresses available"},
		{
			"address of the host", "ip addr add 10.88.0.60/32 dev lo", "",
			map[string]any{"runtimeConfig": map[string]any{"ips": []string{"10.88.0.60"}}},
			nil, types.ErrInternal, "10.88.0.60",
		},
		{
			"route in the way", "ip route add 10.88.0.61/32 dev eth0", "",
			map[string]any{"runtimeConfig": map[string]any{"ips": []string{"10.88.0.61"}}},
			nil, types.ErrInternal, "10.88.0.61",
		},
		{"no such ipam", "", "", map[string]any{"ipam": map[string]any{"type": "no-such-ipam"}}, nil, types.ErrInvalidNetworkConfig, "no-such-ipam"},
		{"mtu too small for ipv6", "", "", map[string]any{"mtu": 1000, "localMTU": "off"}, nil, types.ErrInvalidNetworkConfig, "1000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := r.NewNetns("a")
			if err != nil {
				t.Fatal(err)
			}
			defer p.Destroy()
			on(t, r.Node, c.arrange)
			on(t, p.Host, c.inPod)
			before := nodeState(t, r)
			env := p.Env()
			for k, v := range c.env {
				env[k] = v
			}
			_, err = r.Plugin(ctxOf(t), "ADD", r.Conf(c.changes), env)
			wantCode(t, err, c.code, c.says)
			wantState(t, r, before)
		})
	}
	node(t, r, "ip addr del 10.88.0.60/32 dev lo; ip route del 10.88.0.61/32")
	if err := keep.Check(ctxOf(t)); err != nil {
		t.Error(err)
	}
}

// TestNodeWithoutIPv6 is B032: IPv6 is switched off on the node, or its kernel has none.
// IPv4 works; a request for IPv6 is a clear error that leaves nothing.
func TestNodeWithoutIPv6(t *testing.T) {
	t.Parallel()
	for name, command := range map[string]string{
		"switched off":      "sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1",
		"not in the kernel": "sysctl -qw net.ipv6.conf.all.disable_ipv6=1 && mount -t tmpfs none /proc/sys/net/ipv6",
	} {
		t.Run(name, func(t *testing.T) {
			r, err := rig.New(rig.Options{Plugins: plugins})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(r.Close)
			node(t, r, command)
			before := nodeState(t, r)
			p := addPod(t, r, "a", map[string]any{"ipam": ipamOf(4)})
			if err := p.Check(ctxOf(t)); err != nil {
				t.Error(err)
			}
			canPing(t, p.Host, rig.ExtAddr4)
			if err := p.Remove(context.Background()); err != nil {
				t.Error(err)
			}
			if p, err = r.NewNetns("b"); err != nil {
				t.Fatal(err)
			}
			_, err = r.Plugin(ctxOf(t), "ADD", r.Conf(nil), p.Env())
			wantCode(t, err, types.ErrInvalidNetworkConfig, "ipv6 is not available")
			p.Destroy()
			wantState(t, r, before)
		})
	}
}
