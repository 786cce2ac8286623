/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Why a packet went where it went. The value is the index of its counter. */
#pragma once

enum xv_reason {
	XV_OK,
	/* the fast path */
	XV_FAST_XDP, /* redirected by XDP */
	XV_FAST_XDP_TX, /* sent back by XDP through the device it came from */
	XV_FAST_TCX, /* redirected by tcx */
	/* to the kernel, decided at ingress */
	XV_PASS_NO_FLOW, /* not learned */
	XV_PASS_EXPIRED, /* learned, but the kernel has to confirm it */
	XV_PASS_POLL, /* learned, but earlier packets of this poll went to the kernel */
	XV_PASS_TOO_LONG, /* longer than what the kernel has forwarded */
	XV_PASS_NOT_IP, /* neither IPv4 nor IPv6 */
	XV_PASS_VLAN, /* carries a VLAN tag */
	XV_PASS_SHORT, /* cut off within its headers, or longer than its buffer */
	XV_PASS_FRAGMENT, /* an IPv4 fragment */
	XV_PASS_OPTIONS, /* IPv4 options or IPv6 extension headers */
	XV_PASS_PROTO, /* neither TCP nor UDP */
	XV_PASS_TCP_FLAGS, /* SYN, FIN, RST, or no ACK */
	XV_PASS_TTL, /* TTL or hop limit at its end */
	XV_PASS_NOT_FOR_US, /* addressed to another MAC address */
	XV_PASS_DEVICE, /* the way out is gone, or takes no frames */
	XV_PASS_RACE, /* the entry was replaced while it was read */
	XV_PASS_FOREIGN_INGRESS, /* somebody else's ingress program would be skipped */
	/* lost */
	XV_DROP_CT_STRICT, /* conntrack would not know it for an answer (rescue.h) */
	/* learning, decided at egress */
	XV_LEARN_NEW, /* learned */
	XV_LEARN_RENEWED, /* confirmed */
	XV_LEARN_CHANGED, /* the kernel now does something else with the flow */
	XV_LEARN_CLOSED, /* a FIN or RST ended the flow */
	XV_LEARN_WAIT, /* too few packets so far */
	XV_LEARN_NO_NOTE, /* did not come in through an armed interface */
	XV_LEARN_NOTE_DIFFERS, /* rewritten by something other than conntrack */
	XV_LEARN_EXCLUDED, /* carries the exclusion mark */
	XV_LEARN_GROUP, /* multicast or broadcast */
	XV_LEARN_VLAN, /* leaves with a VLAN tag */
	XV_LEARN_CT_STATE, /* conntrack does not hold it for established */
	XV_LEARN_CT_HELPER, /* conntrack rewrites its payload or sequence numbers */
	XV_LEARN_CT_STRICT, /* conntrack checks TCP windows strictly */
	XV_LEARN_QDISC, /* the way out is shaped */
	XV_LEARN_NO_XMIT, /* the way out takes no frames (a pod with GRO off) */
	XV_LEARN_FOREIGN_EGRESS, /* somebody else's egress program comes after ours */
	XV_LEARN_POD_XDP, /* the pod runs XDP on its end, which tcx would skip */
	XV_LEARN_FLOODED, /* a bridge sends it to more than the one it is for, or may */
	XV_LEARN_FULL, /* the flow map refused the entry */
	XV_REASON_MAX,
};
