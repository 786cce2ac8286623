// SPDX-License-Identifier: Apache-2.0

package netbench

import (
	"context"
	"fmt"

	"github.com/xveth/xveth/pkg/netbench/ruleset"
	"github.com/xveth/xveth/pkg/netbench/traffic"
	"github.com/xveth/xveth/test/rig"
)

// Paths of the chains.
const (
	pathPlain   = "plain"
	pathChain   = "chain"
	pathFlannel = "flannel"
)

// flannelMTU is what VXLAN leaves of 1500 bytes.
const flannelMTU = 1450

// chain is a network of other plugins, and what it becomes with xveth.
type chain struct {
	name, about string
	plain       path
	fast        path
	// more plugins follow in both, with these capabilities.
	more []plugin
	caps map[string]any
}

var (
	chainPTP     = behind(paths[pathPTP])
	chainBridge  = behind(paths[pathBridge])
	chainFlannel = behind(path{name: pathFlannel, plugins: flannel, before: flannelRules})
	chainMeta    = (&chain{
		name:  "chain-meta",
		about: "the same into a pod of ptp, portmap, firewall and tuning, and of xveth in the place of ptp",
		plain: paths[pathPTP], fast: paths[pathXveth],
		more: []plugin{
			{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}},
			{"type": "firewall"},
			{"type": "tuning", "sysctl": map[string]string{"net.core.somaxconn": "500"}},
		},
		caps: portMapping,
	}).scenario()
)

// behind compares a network with the same and xveth-chain behind it.
func behind(plain path) *scenario {
	fast := plain
	fast.plugins = func(o *Options) []plugin { return append(plain.plugins(o), xvethChain(o)) }
	return (&chain{
		name:  "chain-" + plain.name,
		about: fmt.Sprintf("UDP packets from the wire into a pod of %s, and bulk TCP, with and without xveth-chain", plain.name),
		plain: plain, fast: fast,
	}).scenario()
}

func (c *chain) scenario() *scenario {
	return &scenario{
		name: c.name, about: c.about,
		uses:  []string{"size", "flows", "rules", "sink", "revalidate", "congestion"},
		paths: []string{pathPlain, pathChain},
		flows: 1000,
		open: func(ctx context.Context, name string, o *Options) (runner, error) {
			p := c.plain
			if name == pathChain {
				p = c.fast
			}
			r, err := openUplinkOn(ctx, p, o, bedOptions{pods: 2, more: c.more, caps: c.caps}, toPod)
			if err != nil {
				return nil, err
			}
			return &chainRun{r.(*uplinkRun), o}, nil
		},
		prepare: roomForFlows,
	}
}

// chainTCP names the directions of TCP.
var chainTCP = map[string]string{
	gbitUplinkToPod.name: "tcp-in", gbitPodToUplink.name: "tcp-out", gbitPodToPod.name: "tcp-local",
}

// chainRun sends packets from the wire into a pod, and then TCP every way, for half a turn each.
type chainRun struct {
	*uplinkRun
	o *Options
}

func (r *chainRun) turn(ctx context.Context, m *meter) ([]figure, error) {
	all, err := r.uplinkRun.turn(ctx, m)
	if err != nil {
		return nil, err
	}
	one := *r.o
	one.Flows, one.Cores = 1, 1
	err = r.everyWay(ctx, &one, r.o.Duration/2, func(way metric, moved traffic.Moved) {
		name := chainTCP[way.name]
		all = append(all,
			figure{metric{name: name, unit: throughput.unit, headline: true}, moved.Gbit() / moved.Took.Seconds()},
			figure{metric{name: name + " cost", unit: perGbit.unit, lower: true}, moved.CPU.Seconds() * 1e3 / moved.Gbit()})
	})
	return all, err
}

// flannel is what the plugin of that name delegates to.
func flannel(*Options) []plugin {
	return []plugin{{
		"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipMasq": false, "mtu": flannelMTU,
		"ipam": ipam(),
	}}
}

// flannelRules are what its daemon does besides.
func flannelRules(ctx context.Context, node *rig.Host, o *Options) error {
	if !o.rules.Masquerade {
		return nil
	}
	return ruleset.Masquerade(ctx, node, podNet)
}

func xvethChain(o *Options) plugin {
	return plugin{
		"type": "xveth-chain", "fastPath": fastPath("auto", o),
		"uplinks": []any{map[string]any{"name": rig.Uplink, "mode": "xdp"}},
	}
}
