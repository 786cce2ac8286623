/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* The ingress hooks: XDP on frames, tcx on skbs. */
#pragma once

#include "device.h"
#include "flow.h"
#include "rescue.h"

/* Whether the frame holds the whole IP packet; surplus is its padding, in bytes. */
static __always_inline bool xv_xdp_is_whole(struct xdp_md *ctx, __u32 len, __u32 *surplus)
{
	__u32 linear = ctx->data_end - ctx->data;

	if (linear < len)
		linear = bpf_xdp_get_buff_len(ctx);
	*surplus = linear - len;
	return linear >= len;
}

/* The checksum of a frame's TCP or UDP header, which is always complete. */
static __always_inline void xv_frame_csum(void *data, const void *data_end,
					  const struct xv_packet *p, int family, __u32 diff)
{
	__u16 *check = data + xv_l4_csum_off(p, family);

	if ((void *)(check + 1) > data_end)
		return;
	if (p->proto == XV_IPPROTO_TCP) {
		*check = xv_csum_apply(*check, diff);
	} else if (*check) {
		__u16 c = xv_csum_apply(*check, diff);

		*check = c ? c : 0xffff;
	}
}

static __always_inline enum xv_reason xv_xdp_family(struct xdp_md *ctx, int family, int *verdict)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	struct xv_action a = {};
	struct xv_packet p = {};
	struct xv_flow *flow = 0;
	__u32 surplus, addrs = 0;
	enum xv_reason reason;

	reason = xv_parse(data, data_end, family, ctx->ingress_ifindex, 0, &p);
	if (reason)
		return reason;
	reason = xv_eligible(&p);
	if (reason)
		return reason;
	if (!xv_xdp_is_whole(ctx, XV_ETH_HLEN + p.len, &surplus))
		return XV_PASS_SHORT;
	reason = xv_find(&p, family, p.len, ((struct xv_eth *)data)->dst, &a, &flow);
	if (reason)
		return reason;
	/* Before the frame is touched: a device that is gone leaves it to the kernel. */
	if (a.flags & XV_F_BOUNCE)
		*verdict = XDP_TX;
	else
		*verdict = bpf_redirect_map(&xv_devs, a.oif, XDP_PASS);
	if (*verdict == XDP_PASS)
		return XV_PASS_DEVICE;
	if (surplus) {
		if (bpf_xdp_adjust_tail(ctx, -(int)surplus)) {
			*verdict = XDP_PASS;
			return XV_PASS_SHORT;
		}
		data = (void *)(long)ctx->data;
		data_end = (void *)(long)ctx->data_end;
	}
	if (a.flags & XV_F_NAT) {
		addrs = xv_diff_addrs(&p, &a, family);
		xv_frame_csum(data, data_end, &p, family,
			      xv_csum_add(addrs, xv_diff_ports(&p, &a, family)));
	}
	if (!xv_rewrite(data, data_end, &a, family, addrs)) {
		*verdict = XDP_PASS;
		return XV_PASS_SHORT;
	}
	xv_count_flow(flow, 1, p.len);
	return *verdict == XDP_TX ? XV_FAST_XDP_TX : XV_FAST_XDP;
}

static __always_inline int xv_xdp(struct xdp_md *ctx)
{
	int family = xv_family((void *)(long)ctx->data, (void *)(long)ctx->data_end);
	enum xv_reason reason;
	int verdict = XDP_PASS;

	if (family == 4)
		reason = xv_xdp_family(ctx, 4, &verdict);
	else if (family == 6)
		reason = xv_xdp_family(ctx, 6, &verdict);
	else
		reason = xv_pass_frame((void *)(long)ctx->data, (void *)(long)ctx->data_end);
	xv_count(reason);
	return verdict;
}

/* Parses an skb; headers that lie in its fragments are pulled to the front. */
static __always_inline enum xv_reason xv_parse_skb(struct __sk_buff *skb, int family,
						   struct xv_packet *p)
{
	enum xv_reason reason;
	__u32 want = xv_l4_off(family) + XV_TCP_HLEN;
	__u32 gso_len = xv_gso_len(skb);

	p->type = skb->pkt_type;
	reason = xv_parse((void *)(long)skb->data, (void *)(long)skb->data_end, family,
			  skb->ifindex, gso_len, p);
	if (reason != XV_PASS_SHORT || skb->len <= skb->data_end - skb->data)
		return reason;
	if (bpf_skb_pull_data(skb, skb->len < want ? skb->len : want))
		return reason;
	return xv_parse((void *)(long)skb->data, (void *)(long)skb->data_end, family, skb->ifindex,
			gso_len, p);
}

/*
 * The checksum of an skb's TCP or UDP header: complete, or of the pseudo header
 * alone when a device is to finish it. The helper knows which. It also keeps a
 * checksum over the whole packet (CHECKSUM_COMPLETE) right, where a change of IPv6
 * addresses must not count: no header checksum makes up for it.
 */
static __always_inline void xv_skb_csum(struct __sk_buff *skb, const struct xv_packet *p,
					int family, __u32 addrs, __u32 ports)
{
	__u64 flags = p->proto == XV_IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	struct sk_buff *kskb = xv_kernel_skb(skb);
	__u64 pseudo = BPF_F_PSEUDO_HDR;
	__u32 off = xv_l4_csum_off(p, family);

	if (family == 6 && kskb && BPF_CORE_READ_BITFIELD(kskb, ip_summed) != XV_CHECKSUM_PARTIAL)
		pseudo = 0;
	bpf_l4_csum_replace(skb, off, 0, addrs, flags | pseudo);
	bpf_l4_csum_replace(skb, off, 0, ports, flags);
}

/* Whether the kernel may forward the frame: it is for the node, or a bridge takes it. */
static __always_inline bool xv_may_forward(const struct xv_packet *p, struct sk_buff *kskb)
{
	if (p->type == XV_PACKET_OTHERHOST)
		return xv_is_bridge_port(kskb);
	return p->type == XV_PACKET_HOST;
}

/* Both MAC addresses of a frame in the space of one. */
static __always_inline void xv_mix_macs(const struct xv_eth *eth, __u8 *macs)
{
	for (int i = 0; i < 6; i++)
		macs[i] = eth->dst[i] ^ eth->src[i < 3 ? i + 3 : i - 3];
}

/*
 * Whether the frame is addressed as those that the flow was learned from. A bridge decides
 * by the MAC addresses, so a frame of one of its ports must have the same.
 */
static __always_inline bool xv_same_address(struct __sk_buff *skb, const struct xv_packet *p,
					    const struct xv_action *a)
{
	const struct xv_eth *eth = (void *)(long)skb->data;
	__u8 macs[6];

	if (!(a->flags & XV_F_MEMBER))
		return p->type == XV_PACKET_HOST && !xv_is_bridge_port(xv_kernel_skb(skb));
	if ((void *)(eth + 1) > (void *)(long)skb->data_end)
		return false;
	xv_mix_macs(eth, macs);
	return xv_same_mac(macs, a->in_mac);
}

static __always_inline enum xv_reason xv_tc_hit(struct __sk_buff *skb, const struct xv_packet *p,
						int family, int *verdict)
{
	__u32 whole = XV_ETH_HLEN + p->len;
	__u32 segs = skb->gso_segs ? skb->gso_segs : 1;
	__u32 seg_len = p->headers + skb->gso_size;
	struct xv_flow *flow = 0;
	struct xv_action a = {};
	enum xv_reason reason;
	__u32 addrs = 0;

	reason = xv_eligible(p);
	if (reason)
		return reason;
	if (skb->len < whole)
		return XV_PASS_SHORT;
	if (!xv_may_forward(p, xv_kernel_skb(skb)))
		return XV_PASS_NOT_FOR_US;
	if (!skb->gso_size || seg_len > p->len)
		seg_len = p->len;
	reason = xv_find(p, family, seg_len, 0, &a, &flow);
	if (reason)
		return reason;
	if (!xv_same_address(skb, p, &a))
		return XV_PASS_NOT_FOR_US;
	if (skb->len > whole && bpf_skb_change_tail(skb, whole, 0))
		return XV_PASS_SHORT;
	if (a.flags & XV_F_NAT) {
		addrs = xv_diff_addrs(p, &a, family);
		xv_skb_csum(skb, p, family, addrs, xv_diff_ports(p, &a, family));
	}
	if (!xv_rewrite((void *)(long)skb->data, (void *)(long)skb->data_end, &a, family, addrs))
		return XV_PASS_SHORT;
	/* The pod's stack drops what a bridge would have sent to it; new kernels see to that. */
	if (p->type != XV_PACKET_HOST && bpf_skb_change_type(skb, XV_PACKET_HOST))
		return XV_PASS_SHORT;
	xv_count_flow(flow, segs, p->len);
	skb->tc_index = XV_NOTE_FAST;
	*verdict = a.flags & XV_F_PEER ? bpf_redirect_peer(a.oif, 0) : bpf_redirect(a.oif, 0);
	return XV_FAST_TCX;
}

/* Keeps the MAC address that frames for this interface carry. */
static __always_inline void xv_keep_mac(const struct __sk_buff *skb)
{
	const struct xv_eth *eth = (void *)(long)skb->data;
	__u32 ifindex = skb->ifindex;
	struct xv_port *port;

	if ((void *)(eth + 1) > (void *)(long)skb->data_end)
		return;
	port = bpf_map_lookup_elem(&xv_ports, &ifindex);
	if (port && !xv_same_mac(port->mac, eth->dst))
		__builtin_memcpy(port->mac, eth->dst, 6);
}

/*
 * Notes where the packet of a bridge port came from. When programs or filters run on what
 * the bridge hands to the node, nothing is to be learned of that.
 */
static __always_inline void xv_keep_origin(const struct __sk_buff *skb, struct sk_buff *kskb,
					   __u16 note)
{
	const struct xv_eth *eth = (void *)(long)skb->data;
	struct xv_origin *o = xv_this_origin();
	__u32 ifindex = skb->ifindex;
	struct xv_member *member;

	if (!o || (void *)(eth + 1) > (void *)(long)skb->data_end)
		return;
	member = bpf_map_lookup_elem(&xv_members, &ifindex);
	o->note = member ? note : 0;
	if (!member)
		return;
	o->port = ifindex;
	o->bridge = xv_bridge_has_ingress(kskb) ? 0 : member->bridge;
	xv_mix_macs(eth, o->macs);
}

/*
 * One family's packet at tcx ingress. Where XDP runs in front, lookup is false:
 * this program then only leaves the note, and must be the only one on the hook,
 * because XDP would skip the others.
 */
static __always_inline enum xv_reason xv_tc_family(struct __sk_buff *skb, int family, bool lookup,
						   int *verdict)
{
	enum xv_reason reason, missed = XV_OK;
	struct sk_buff *kskb = xv_kernel_skb(skb);
	struct xv_packet p = {};

	reason = xv_parse_skb(skb, family, &p);
	if (reason)
		return lookup ? reason : XV_OK;
	if (lookup) {
		missed = xv_tc_hit(skb, &p, family, verdict);
		if (missed == XV_FAST_TCX)
			return missed;
	}
	/* XDP cannot tell what a bridge would do with a frame. */
	if (lookup ? !xv_may_forward(&p, kskb) : p.type != XV_PACKET_HOST)
		return missed;
	if (xv_foreign_ingress(kskb, !lookup))
		return XV_PASS_FOREIGN_INGRESS;
	if (xv_is_strict(kskb, &p)) {
		reason = xv_rescue_any(skb, &p, family);
		if (reason == XV_FAST_TCX)
			return xv_tc_hit(skb, &p, family, verdict);
		if (reason) {
			*verdict = XV_TC_DROP;
			return reason;
		}
	}
	if (!lookup)
		xv_keep_mac(skb);
	skb->tc_index = xv_note(p.hash, p.tos, p.ttl);
	if (lookup && xv_is_bridge_port(kskb))
		xv_keep_origin(skb, kskb, skb->tc_index);
	return missed;
}

static __always_inline int xv_tc_ingress(struct __sk_buff *skb, bool lookup)
{
	int family = xv_family((void *)(long)skb->data, (void *)(long)skb->data_end);
	enum xv_reason reason = XV_OK;
	int verdict = XV_TC_NEXT;

	skb->tc_index = 0;
	if (skb->vlan_present)
		reason = lookup ? XV_PASS_VLAN : XV_OK;
	else if (family == 4)
		reason = xv_tc_family(skb, 4, lookup, &verdict);
	else if (family == 6)
		reason = xv_tc_family(skb, 6, lookup, &verdict);
	else if (lookup)
		reason = xv_pass_frame((void *)(long)skb->data, (void *)(long)skb->data_end);
	if (reason)
		xv_count(reason);
	return verdict;
}
