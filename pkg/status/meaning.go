// SPDX-License-Identifier: Apache-2.0

package status

import "strings"

// Path is what became of a packet, or with Learning of an attempt to learn from one.
type Path string

// The paths. Fast, Kernel and Lost are of packets that came in: each counts once.
const (
	Fast     Path = "fast"
	Kernel   Path = "kernel"
	Lost     Path = "lost"
	Learning Path = "learning"
)

// PathOf says what a reason is the reason for; "" for one that is not known.
func PathOf(reason string) Path {
	kind, _, _ := strings.Cut(reason, "_")
	return map[string]Path{"fast": Fast, "pass": Kernel, "drop": Lost, "learn": Learning}[kind]
}

// Meaning says in a line what a counter counts; "" for a reason that is not known. A
// test finds the reasons of bpf/reason.h that have none.
func Meaning(reason string) string { return meanings[reason] }

var meanings = map[string]string{
	"fast_xdp":    "fast: redirected by XDP",
	"fast_xdp_tx": "fast: sent back by XDP through the device it came from",
	"fast_tcx":    "fast: redirected by tcx",

	"pass_no_flow":         "to the kernel: not learned",
	"pass_expired":         "to the kernel: learned, the kernel has to confirm it",
	"pass_poll":            "to the kernel: kept behind earlier packets of its flow that went there",
	"pass_too_long":        "to the kernel: longer than what the kernel has forwarded",
	"pass_not_ip":          "to the kernel: neither IPv4 nor IPv6",
	"pass_vlan":            "to the kernel: carries a VLAN tag",
	"pass_short":           "to the kernel: cut off, or longer than its buffer",
	"pass_fragment":        "to the kernel: a fragment",
	"pass_options":         "to the kernel: IPv4 options or IPv6 extension headers",
	"pass_proto":           "to the kernel: neither TCP nor UDP",
	"pass_tcp_flags":       "to the kernel: SYN, FIN, RST, or no ACK",
	"pass_ttl":             "to the kernel: its TTL or hop limit is at its end",
	"pass_not_for_us":      "to the kernel: addressed to another MAC address",
	"pass_device":          "to the kernel: the way out is gone, or takes no frames",
	"pass_race":            "to the kernel: its entry was replaced while it was read",
	"pass_foreign_ingress": "to the kernel: somebody else's ingress program would be skipped",

	"drop_ct_strict": "lost: conntrack checks TCP windows strictly again and would mangle it",

	"learn_new":            "learned",
	"learn_renewed":        "confirmed by the kernel",
	"learn_changed":        "relearned: the kernel does something else with the flow now",
	"learn_closed":         "forgotten: a FIN or RST ended the flow",
	"learn_wait":           "not learned: too few packets so far",
	"learn_no_note":        "not learned: the node's own, or not in by an armed interface",
	"learn_note_differs":   "not learned: rewritten by something other than conntrack",
	"learn_excluded":       "not learned: carries the exclusion mark",
	"learn_vlan":           "not learned: leaves with a VLAN tag",
	"learn_group":          "not learned: multicast or broadcast",
	"learn_ct_state":       "not learned: not an established connection",
	"learn_ct_helper":      "not learned: conntrack rewrites its payload or sequence numbers",
	"learn_ct_strict":      "not learned: conntrack checks TCP windows strictly",
	"learn_qdisc":          "not learned: the way out is shaped",
	"learn_no_xmit":        "not learned: the way out takes no frames (a pod with GRO off)",
	"learn_foreign_egress": "not learned: somebody else's egress program runs behind ours",
	"learn_pod_xdp":        "not learned: the pod runs XDP on its end, which tcx would skip",
	"learn_flooded":        "not learned: a bridge floods it, or it is not for the pod behind the port",
	"learn_full":           "not learned: the flow map refused it",
}
