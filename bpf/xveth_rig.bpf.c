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

/* The UDP source port moves on, and the checksum with it. */
static __always_inline void rig_vary(__u8 *udp, __u32 n)
{
	__be16 *port = (void *)udp;
	__u16 *check = (void *)(udp + 6);
	__be16 next = bpf_htons(bpf_ntohs(*port) + n);

	if (*check) {
		__u16 c = xv_csum_apply(*check, xv_csum_replace(0, *port, next));

		*check = c ? c : 0xffff;
	}
	*port = next;
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
	else if (rig_flows > 1)
		rig_vary(rig_hdr_len > 42 ? data + 54 : data + 34, rig_next++ % rig_flows);
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

char rig_license[] SEC("license") = "Dual BSD/GPL";
