//go:build ignore

/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* The wire and the packet generator of the test rig; no part of the datapath. */
#include <linux/bpf.h>
#include <stdbool.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "csum.h"

/* Interface to send to. */
const volatile __u32 rig_ifindex;

/* Whatever comes in at one end of the wire leaves by the other, as a frame. */
SEC("xdp.frags")
int rig_wire(struct xdp_md *ctx)
{
	return bpf_redirect(rig_ifindex, 0);
}

/* Ethernet, IPv4 or IPv6, and UDP header of the packets that are generated. */
#define RIG_HDR_MAX 62
const volatile __u8 rig_hdr[RIG_HDR_MAX + 2] __attribute__((aligned(8)));
const volatile __u32 rig_hdr_len;
const volatile __u32 rig_flows = 1;

/* Writes a number into the first bytes of each payload, for rig_order to check. */
const volatile bool rig_numbered;

__u32 rig_next;

/* Source ports that an address has before the flows go on with the next address. */
const volatile __u32 rig_ports = 1;

/* Destination addresses that the packets go to in turn. */
const volatile __u32 rig_dsts = 1;

/* A word moves on, and the checksums that cover it with it. */
static __always_inline void rig_move(__be16 *word, __u32 by, __u16 *ip_check, __u16 *udp_check)
{
	__be16 next = bpf_htons(bpf_ntohs(*word) + by);
	__u32 diff = xv_csum_replace(0, *word, next);

	if (ip_check)
		*ip_check = xv_csum_apply(*ip_check, diff);
	if (*udp_check) {
		__u16 c = xv_csum_apply(*udp_check, diff);

		*udp_check = c ? c : 0xffff;
	}
	*word = next;
}

/* The source moves on with every packet, and the destination where there are several. */
static __always_inline void rig_vary(__u8 *data, bool six, __u32 n)
{
	__u16 *ip_check = six ? NULL : (__u16 *)(data + 24);
	__u16 *udp_check = (__u16 *)(data + (six ? 60 : 40));
	__u32 flow = n % rig_flows;

	rig_move((__be16 *)(data + (six ? 54 : 34)), flow % rig_ports, NULL, udp_check);
	if (rig_flows > rig_ports)
		rig_move((__be16 *)(data + (six ? 36 : 28)), flow / rig_ports, ip_check, udp_check);
	if (rig_dsts > 1)
		rig_move((__be16 *)(data + (six ? 52 : 32)), n % rig_dsts, ip_check, udp_check);
}

/*
 * Fills in one packet of one of rig_flows flows and sends it. A frame's page comes
 * back as the last program left it, so every header byte is written again.
 */
SEC("xdp")
int rig_generate(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;

	if ((void *)(data + RIG_HDR_MAX) > data_end)
		return XDP_ABORTED;
	for (int i = 0; i + 8 <= 40; i += 8)
		*(__u64 *)(data + i) = *(const volatile __u64 *)(rig_hdr + i);
	*(__u16 *)(data + 40) = *(const volatile __u16 *)(rig_hdr + 40);
	if (rig_hdr_len > 42)
		for (int i = 42; i < RIG_HDR_MAX; i += 2)
			*(__u16 *)(data + i) = *(const volatile __u16 *)(rig_hdr + i);
	if (rig_numbered && data + 66 <= (__u8 *)data_end)
		*(__u32 *)(data + (rig_hdr_len > 42 ? 62 : 42)) = ++rig_next;
	else if (rig_flows > 1 || rig_dsts > 1)
		rig_vary(data, rig_hdr_len > 42, rig_next++);
	return bpf_redirect(rig_ifindex, 0);
}

__u64 rig_arrived;
__u64 rig_late; /* arrived behind a packet with a higher number */
__u32 rig_last;

/* Counts and drops the numbered packets that a host receives. */
SEC("tcx/ingress")
int rig_order(struct __sk_buff *skb)
{
	__u8 *data = (void *)(long)skb->data;
	__u32 n;

	if (skb->protocol == bpf_htons(0x0800)) {
		if (data + 46 > (__u8 *)(long)skb->data_end || data[23] != 17)
			return -1;
		n = *(__u32 *)(data + 42);
	} else {
		if (data + 66 > (__u8 *)(long)skb->data_end || data[20] != 17)
			return -1;
		n = *(__u32 *)(data + 62);
	}
	rig_arrived++;
	if ((__s32)(n - rig_last) < 0)
		rig_late++;
	else
		rig_last = n;
	return 2;
}

/* Destination and source MAC address that rig_redirect and rig_redirect_peer write. */
const volatile __u8 rig_macs[12] __attribute__((aligned(8)));

static __always_inline bool rig_aim(void *start, void *data_end)
{
	__u8 *data = start;

	if (data + 14 > (__u8 *)data_end)
		return false;
	if (*(__be16 *)(data + 12) != bpf_htons(0x0800) &&
	    *(__be16 *)(data + 12) != bpf_htons(0x86dd))
		return false;
	*(__u64 *)data = *(const volatile __u64 *)rig_macs;
	*(__u32 *)(data + 8) = *(const volatile __u32 *)(rig_macs + 8);
	return true;
}

/*
 * Sends whatever is IP to rig_ifindex and checks nothing: what a redirect by XDP can
 * reach at most.
 */
SEC("xdp.frags")
int rig_redirect(struct xdp_md *ctx)
{
	if (!rig_aim((void *)(long)ctx->data, (void *)(long)ctx->data_end))
		return XDP_PASS;
	return bpf_redirect(rig_ifindex, 0);
}

/* Where the packets to an IPv4 address go. */
struct rig_pod {
	__u32 ifindex;
	__u8 macs[12]; /* destination and source */
};

/* Pods by their IPv4 address. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __be32);
	__type(value, struct rig_pod);
} rig_pods SEC(".maps");

/*
 * Sends IPv4 packets where their destination says, and checks nothing else: the least
 * that a node with several pods has to do.
 */
SEC("xdp.frags")
int rig_redirect_dst(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data;
	struct rig_pod *pod;

	if (data + 34 > (__u8 *)(long)ctx->data_end || *(__be16 *)(data + 12) != bpf_htons(0x0800))
		return XDP_PASS;
	pod = bpf_map_lookup_elem(&rig_pods, data + 30);
	if (!pod)
		return XDP_PASS;
	__builtin_memcpy(data, pod->macs, sizeof(pod->macs));
	return bpf_redirect(pod->ifindex, 0);
}

/* The same as rig_redirect for skbs, into the network namespace behind rig_ifindex. */
SEC("tcx/ingress")
int rig_redirect_peer(struct __sk_buff *skb)
{
	if (!rig_aim((void *)(long)skb->data, (void *)(long)skb->data_end))
		return -1;
	return bpf_redirect_peer(rig_ifindex, 0);
}

char rig_license[] SEC("license") = "Dual BSD/GPL";
