// SPDX-License-Identifier: Apache-2.0

package netbench

import (
	"context"
	"net/netip"

	"github.com/xveth/xveth/pkg/netbench/ruleset"
	"github.com/xveth/xveth/test/rig"
)

// hostPortNumber is a port of the node that leads to a pod.
const hostPortNumber = 8080

// serviceAddr is a Service.
var serviceAddr = netip.MustParseAddrPort("10.96.0.10:53")

// portMapping asks portmap for it.
var portMapping = map[string]any{"portMappings": []map[string]any{
	{"hostPort": hostPortNumber, "containerPort": sinkPort, "protocol": "udp"},
}}

var hostPort = &scenario{
	name:  "hostport",
	about: "UDP packets from the wire to a port of the node, which portmap leads to a pod",
	uses:  []string{"size", "flows", "rules", "sink", "revalidate"},
	paths: networks,
	flows: 1000,
	open: func(ctx context.Context, path string, o *Options) (runner, error) {
		return openUplink(ctx, path, o, bedOptions{
			pods: 1,
			more: []plugin{{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}}},
			caps: portMapping,
		}, func(context.Context, *bed) (netip.AddrPort, error) {
			return netip.AddrPortFrom(rig.NodeAddr4, hostPortNumber), nil
		})
	},
	prepare: roomForFlows,
}

var clusterIP = &scenario{
	name:  "clusterip",
	about: "UDP packets from the wire to a Service, which iptables leads to a pod",
	uses:  []string{"size", "flows", "rules", "sink", "revalidate"},
	paths: networks,
	flows: 1000,
	open: func(ctx context.Context, path string, o *Options) (runner, error) {
		return openUplink(ctx, path, o, bedOptions{pods: 1}, func(ctx context.Context, b *bed) (netip.AddrPort, error) {
			to := netip.AddrPortFrom(b.pod().Addr4, sinkPort)
			return serviceAddr, ruleset.Service(ctx, b.rig.Node, serviceAddr, to)
		})
	},
	prepare: roomForFlows,
}
