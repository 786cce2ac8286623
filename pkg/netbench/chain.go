// SPDX-License-Identifier: Apache-2.0

package netbench

import (
	"context"
	"fmt"

	"github.com/xveth/xveth/pkg/netbench/ruleset"
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

// chainOf compares a network of other plugins with the same network and xveth-chain behind
// them.
func chainOf(base string) *scenario {
	return &scenario{
		name:  "chain-" + base,
		about: fmt.Sprintf("UDP packets from the wire into a pod of %s, with and without xveth-chain", base),
		uses:  []string{"size", "flows", "rules", "sink", "revalidate"},
		paths: []string{pathPlain, pathChain},
		flows: 1000,
		open: func(ctx context.Context, name string, o *Options) (runner, error) {
			p, ok := chainBases[base]
			if !ok {
				return nil, unknownPath(base)
			}
			want := bedOptions{pods: 1}
			if name == pathChain {
				want.more = []plugin{xvethChain(o)}
			}
			return openUplinkOn(ctx, p, o, want, toPod)
		},
		prepare: roomForFlows,
	}
}

// chainBases are the networks that xveth-chain is put behind.
var chainBases = map[string]path{
	pathPTP:     paths[pathPTP],
	pathBridge:  paths[pathBridge],
	pathFlannel: {name: pathFlannel, plugins: flannel, before: flannelRules},
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
