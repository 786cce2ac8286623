// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"fmt"
	"strings"
)

// Key documents a key of the plugin xveth, in Markdown.
type Key struct {
	Path, Type, Default, Range, Meaning string
}

// Keys documents the keys that people write, in the order in which a page shows them. A
// test compares them with those that are read.
func Keys() []Key {
	modes := code(ModeAuto, ModeXDP, ModeTCX, ModeOff)
	return []Key{
		{
			Path:    "cniVersion",
			Type:    "string",
			Default: "required",
			Range:   strings.Join(Versions(), ", "),
			Meaning: "Version of the spec. libcni copies it from the network list.",
		},
		{
			Path:    "name",
			Type:    "string",
			Default: "required",
			Range:   "1 to 255 letters, digits, `_` `.` `-`; a letter or digit first",
			Meaning: "Name of the network. libcni copies it from the network list.",
		},
		{
			Path:    "type",
			Type:    "string",
			Default: "required",
			Range:   "name of a binary",
			Meaning: "`xveth`.",
		},
		{
			Path:    "ipam",
			Type:    "object",
			Default: "required",
			Meaning: "Address management; its other keys are the address manager's own and are not checked here.",
		},
		{
			Path:    "ipam.type",
			Type:    "string",
			Default: "required",
			Range:   "name of a binary",
			Meaning: "`host-local` runs inside xveth, any other is called as a CNI plugin.",
		},
		{
			Path:    "mtu",
			Type:    "integer",
			Default: "0",
			Range:   fmt.Sprintf("0, %d to %d; at least %d where pods have IPv6", minMTU, maxMTU, minLocalMTU),
			Meaning: "MTU of all routes but those between pods of the node. 0 takes the uplink's.",
		},
		{
			Path:    "localMTU",
			Type:    "string or integer",
			Default: "`\"auto\"`",
			Range:   fmt.Sprintf("`\"auto\"`, `\"off\"`, %d to %d", minLocalMTU, maxMTU),
			Meaning: "MTU between pods of one node. `auto` is the largest that a veth can have, `off` leaves it at `mtu`. The pod's interface gets it; routes elsewhere carry `mtu`. Where it is at least twice `mtu`, IPv4 TCP between the pods also uses packets of up to 192 KiB (BIG TCP, Linux 6.3 and later; tcpdump and nftables' `ip length` see their IP length as 0), except in mode `xdp`. Use `off` where several nodes share one subnet, and in a chain with a `tuning` that sets `mtu` or with a `bandwidth` of its own: xveth cannot see what comes behind it, and such packets do not pass them.",
		},
		{
			Path:    "ipMasq",
			Type:    "boolean",
			Default: "false",
			Meaning: "Hide pods behind the node's address when they talk to anything outside their own subnets.",
		},
		{
			Path:    "uplinks",
			Type:    "list",
			Default: "devices of the default routes",
			Range:   "no name twice",
			Meaning: "Devices that lead out of the node. An item is a name or an object with the two keys below.",
		},
		{
			Path:    "uplinks[].name",
			Type:    "string",
			Default: "required",
			Range:   "1 to 15 bytes; no white space, control characters, `/` or `:`",
			Meaning: "Name of the device.",
		},
		{
			Path:    "uplinks[].mode",
			Type:    "string",
			Default: "`fastPath.mode`",
			Range:   "as `fastPath.mode`",
			Meaning: "How this uplink is driven.",
		},
		{
			Path:    "fastPath",
			Type:    "object",
			Meaning: "The learned fast path.",
		},
		{
			Path:    "fastPath.mode",
			Type:    "string",
			Default: "`\"" + string(defaults().FastPath.Mode) + "\"`",
			Range:   modes,
			Meaning: "`auto`: native XDP on uplinks whose frames carry complete checksums, tcx elsewhere. `xdp`: insist on native XDP, on host veths too. `tcx`: tcx everywhere. `off`: pods that are added keep to the kernel; what is armed already stays so (`xvethctl detach` takes it off).",
		},
		{
			Path:    "fastPath.revalidate",
			Type:    "string",
			Default: fmt.Sprintf("`\"%s\"`", defaultRevalidate),
			Range:   fmt.Sprintf("a Go duration, `%s` to `%s`", minRevalidate, strings.TrimSuffix(maxRevalidate.String(), "0s")),
			Meaning: "A flow is repeated for this long after the kernel last forwarded one of its packets; a new rule or route takes effect within it. One value for the node: that of the last ADD.",
		},
		{
			Path:    "fastPath.maxFlows",
			Type:    "integer",
			Default: fmt.Sprint(defaultMaxFlows),
			Range:   fmt.Sprintf("%d to %d", minMaxFlows, maxMaxFlows),
			Meaning: "Flows that can be learned in each address family. One value for the node: that of the ADD which made the maps; `xvethctl flush --maps` lets the next ADD make them anew.",
		},
		{
			Path:    "fastPath.excludeMark",
			Type:    "integer or string",
			Default: "0",
			Range:   "32 bits, as a number or as `\"0x...\"`",
			Meaning: "A packet whose mark has one of these bits is never learned from. 0 excludes nothing. One value for the node: that of the last ADD.",
		},
		{
			Path:    "dns",
			Type:    "object",
			Meaning: "Passed on in the result.",
		},
		{
			Path:    "dns.nameservers",
			Type:    "list of strings",
			Default: "none",
			Range:   "IP addresses",
		},
		{
			Path:    "dns.domain",
			Type:    "string",
			Default: "none",
			Range:   fmt.Sprintf("%d characters, no white space", maxDNSText),
		},
		{
			Path:    "dns.search",
			Type:    "list of strings",
			Default: "none",
			Range:   fmt.Sprintf("1 to %d characters each, no white space", maxDNSText),
		},
		{
			Path:    "dns.options",
			Type:    "list of strings",
			Default: "none",
			Range:   fmt.Sprintf("1 to %d characters each, no white space", maxDNSText),
		},
		{
			Path:    "logLevel",
			Type:    "string",
			Default: "`\"info\"`",
			Range:   "`debug`, `info`, `warn`, `error`",
		},
		{
			Path:    "logFile",
			Type:    "string",
			Default: "none",
			Range:   "an absolute path",
			Meaning: "The plugin logs nothing unless this is set.",
		},
		{
			Path:    "capabilities",
			Type:    "object of booleans",
			Default: "none",
			Meaning: "Which parts of `runtimeConfig` the runtime is asked for.",
		},
		{
			Path:    "args",
			Type:    "object",
			Default: "none",
			Meaning: "Not checked; passed on to the address manager.",
		},
	}
}

// code lists words as code.
func code(words ...Mode) string {
	all := make([]string, 0, len(words))
	for _, w := range words {
		all = append(all, "`"+string(w)+"`")
	}
	return strings.Join(all, ", ")
}
