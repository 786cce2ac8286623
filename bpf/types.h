/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Structures shared with user space; the Go side is generated from them. */
#pragma once

#include <linux/types.h>

#include "reason.h"

/* A flow as its packets look when they come in. */
struct xv_key4 {
	__be32 saddr;
	__be32 daddr;
	__be16 sport;
	__be16 dport;
	__u32 ifindex; /* of the ingress interface */
	__u32 proto;
};

struct xv_key6 {
	__be32 saddr[4];
	__be32 daddr[4];
	__be16 sport;
	__be16 dport;
	__u32 ifindex;
	__u32 proto;
};

/*
 * What the kernel did with the flow's packets. The tag stands first: an LRU map
 * gives an evicted element to another flow at once and fills it from the front,
 * so a reader that still sees its own tag after it has copied the rest has read
 * its own entry.
 */
struct xv_flow {
	__u32 tag; /* hash of the key */
	__u32 oif; /* egress interface */
	__u64 deadline; /* coarse monotonic ns; the flow is repeated until then */
	__u16 flags; /* XV_F_* */
	__u16 max_len; /* longest IP packet forwarded since the last renewal, bytes */
	__be16 sport; /* as the packets leave */
	__be16 dport;
	__u8 dst_mac[6]; /* of the frames that leave */
	__u8 src_mac[6];
	__u8 in_mac[6]; /* of the frames that come in: destination (XDP), or both (XV_F_MEMBER) */
	__u8 pad[2];
	__u64 slow_poll; /* poll in which the flow's packets go to the kernel */
	__u64 fast_poll; /* poll in which they have taken the fast path near its end */
	__u64 born; /* coarse monotonic ns */
	__u64 packets; /* on the fast path */
	__u64 bytes; /* IP bytes on the fast path */
};

struct xv_flow4 {
	struct xv_flow f;
	__be32 saddr; /* as the packets leave */
	__be32 daddr;
};

struct xv_flow6 {
	struct xv_flow f;
	__be32 saddr[4];
	__be32 daddr[4];
};

/*
 * What is known of all flows whose keys have one hash, so that a packet which is the only
 * one of its flow costs one cache line.
 */
struct xv_slot {
	__u64 live_until; /* coarse monotonic ns; there is no flow to be repeated after that */
	__u32 hash; /* of the flow that is on its way to be learned */
	__u16 since; /* ticks; when its first packet came */
	__u16 packets; /* of it; 0: there is none */
};

/* Settings that hold for the node. */
struct xv_settings {
	__u64 revalidate_ns;
	__u64 blocked_until; /* no entry of xv_blocked counts after this time */
	__u64 netns_cookie; /* of the node's network namespace */
	__u64 build; /* identifies the object that the pinned programs came from */
	__u32 exclude_mark;
	__u32 devmap_id; /* id of xv_devs */
	__u32 seed; /* what xv_seed was set to */
	__u32 pad;
};

/* What was lost on its way out of an interface. */
struct xv_loss_key {
	__u32 ifindex;
	__s32 err; /* negative errno; 0 means that the ring was full */
};

/* In the kernel's words, why XDP was refused on an interface. */
struct xv_refusal {
	char text[128]; /* ends with a 0 */
};

/* MAC address of an interface on which XDP runs. */
struct xv_port {
	__u8 mac[6];
	__u8 pad[2];
};

/* A pod's host end that is the port of a bridge. */
struct xv_member {
	__u8 mac[6]; /* of the pod */
	__u8 pad[2];
	__u32 bridge; /* ifindex */
};

/* The packet of a bridge port that a CPU works on, as it came in. */
struct xv_origin {
	__u32 port; /* ifindex */
	__u32 bridge; /* ifindex */
	__u16 note;
	__u8 macs[6]; /* both MAC addresses, mixed */
};
