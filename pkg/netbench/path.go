// SPDX-License-Identifier: Apache-2.0

package netbench

import (
	"context"
	"fmt"
	"strings"

	"github.com/xveth/xveth/test/rig"
)

// Paths of packets.
const (
	pathPTP          = "ptp"
	pathBridge       = "bridge"
	pathXveth        = "xveth"
	pathXvethTCX     = "xveth-tcx"
	pathXvethXDP     = "xveth-xdp"
	pathXvethOff     = "xveth-off"
	pathRedirect     = "redirect"
	pathRedirectDst  = "redirect-dst"
	pathRedirectPeer = "redirect-peer"
	pathLimit        = "limit"
	pathVeth         = "veth"
)

// podNet holds the pods. The rig's own network is too small for the largest node.
const podNet = "10.88.0.0/16"

// plugin is the configuration of a plugin of a conflist.
type plugin map[string]any

// path is a way from one end to the other.
type path struct {
	name, about string
	// before, if set, prepares the node.
	before func(ctx context.Context, node *rig.Host, o *Options) error
	// plugins make the pods' network.
	plugins func(o *Options) []plugin
	// after, if set, changes a bed that is otherwise complete.
	after func(b *bed) error
	// blind says that the kernel of the node sees no packet on this path.
	blind bool
}

var paths = named(map[string]path{
	pathPTP:      {about: "the reference plugin ptp", plugins: ptp},
	pathBridge:   {about: "the reference plugin bridge", plugins: bridge},
	pathXveth:    {about: "xveth, the uplink driven by XDP", plugins: xveth("auto", "xdp")},
	pathXvethTCX: {about: "xveth, the uplink driven by tcx", plugins: xveth("tcx", "tcx")},
	pathXvethXDP: {about: "xveth, XDP on host veths too", plugins: xveth("xdp", "xdp")},
	pathXvethOff: {about: "xveth's plain veth: the fast path is off", plugins: xveth("off", "off")},
	pathVeth:     {about: "a plain veth", plugins: plainVeth, blind: true},
	pathRedirect: {
		about:   "a redirect by XDP that checks nothing",
		plugins: plainVeth, blind: true,
		after: func(b *bed) error { return b.redirect(rig.RedirectXDP) },
	},
	pathRedirectDst: {
		about:   "a redirect by XDP that looks the destination up and checks nothing",
		plugins: plainVeth, blind: true,
		after: func(b *bed) error { return b.redirect(rig.RedirectXDPByDst) },
	},
	pathRedirectPeer: {
		about:   "tc redirect_peer that checks nothing",
		plugins: plainVeth, blind: true,
		after: func(b *bed) error { return b.redirect(rig.RedirectPeer) },
	},
	pathLimit: {
		about:   "generator, and drop by XDP on the uplink",
		plugins: plainVeth, blind: true,
		after: func(b *bed) error { return b.verdict(b.rig.Node, rig.Uplink, rig.Verdict{Action: rig.XDPDrop}) },
	},
})

// named tells each path the name that it is known by.
func named(all map[string]path) map[string]path {
	for name, p := range all {
		p.name = name
		all[name] = p
	}
	return all
}

func ipam() map[string]any {
	return map[string]any{
		"type":   "host-local",
		"ranges": [][]map[string]string{{{"subnet": podNet}}},
		"routes": []map[string]string{{"dst": "0.0.0.0/0"}},
	}
}

func ptp(o *Options) []plugin {
	return []plugin{{"type": "ptp", "ipMasq": o.rules.Masquerade, "ipam": ipam()}}
}

func bridge(o *Options) []plugin {
	return []plugin{{
		"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": o.rules.Masquerade, "ipam": ipam(),
	}}
}

// xveth is the plugin with one mode for pods and another for the uplink.
func xveth(pods, uplink string) func(o *Options) []plugin {
	return func(o *Options) []plugin {
		return []plugin{{
			"type": "xveth", "ipMasq": o.rules.Masquerade, "ipam": ipam(), "fastPath": fastPath(pods, o),
			"uplinks": []any{map[string]any{"name": rig.Uplink, "mode": uplink}},
		}}
	}
}

// plainVeth is a pair as other plugins make it, on which XDP of any kind can be attached.
func plainVeth(o *Options) []plugin {
	all := xveth("off", "off")(o)
	all[0]["localMTU"] = "off"
	return all
}

func fastPath(mode string, o *Options) map[string]any {
	fast := map[string]any{"mode": mode, "maxFlows": maxFlows(o.Flows)}
	if o.Revalidate > 0 {
		fast["revalidate"] = o.Revalidate.String()
	}
	return fast
}

// Limits of fastPath.maxFlows: the plugin's default and its maximum.
const (
	defaultMaxFlows = 65536
	mostMaxFlows    = 16_777_216
)

// maxFlows makes room for all flows twice: the kernel's LRU evicts before a map is full.
func maxFlows(flows int) int {
	return min(max(defaultMaxFlows, 2*flows), mostMaxFlows)
}

// unknownPath is said of a name that is not in paths: a scenario that names one is wrong.
func unknownPath(name string) error {
	return fmt.Errorf("path %q: %w", strings.TrimSpace(name), ErrOptions)
}
