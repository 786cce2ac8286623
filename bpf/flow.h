/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Finding a packet's flow and repeating what the kernel did with it. */
#pragma once

#include "csum.h"
#include "maps.h"
#include "parse.h"

/* What to do with a packet: a copy of the flow entry that cannot change. */
struct xv_action {
	__u32 oif;
	__u16 flags;
	__be16 sport;
	__be16 dport;
	__u8 dst_mac[6];
	__u8 src_mac[6];
	__u8 in_mac[6];
	__be32 saddr[4];
	__be32 daddr[4];
};

static __always_inline struct xv_flow *xv_lookup(const union xv_key *k, int family)
{
	return family == 4 ? bpf_map_lookup_elem(&xv_flows4, &k->v4) :
			     bpf_map_lookup_elem(&xv_flows6, &k->v6);
}

static __always_inline void xv_forget(const union xv_key *k, int family)
{
	if (family == 4)
		bpf_map_delete_elem(&xv_flows4, &k->v4);
	else
		bpf_map_delete_elem(&xv_flows6, &k->v6);
}

static __always_inline struct xv_slot *xv_slot_of(__u32 hash)
{
	__u32 i = hash & (XV_SLOTS - 1);

	return bpf_map_lookup_elem(&xv_slots, &i);
}

/* Whether a flow of the slot may be fast, or has been of late. */
static __always_inline bool xv_may_live(const struct xv_slot *slot, __u64 now)
{
	return slot && now <= slot->live_until;
}

/* Has packets look for their flows until that time, in coarse ns. */
static __always_inline void xv_keep_live(struct xv_slot *slot, __u64 until)
{
	if (slot && until > slot->live_until)
		slot->live_until = until;
}

/* Packets that the fast path never takes, whatever has been learned. */
static __always_inline enum xv_reason xv_eligible(const struct xv_packet *p)
{
	if (p->ttl <= 1)
		return XV_PASS_TTL;
	if (p->proto == XV_IPPROTO_TCP &&
	    (p->tcp_flags & (XV_TCP_SYN | XV_TCP_FIN | XV_TCP_RST | XV_TCP_ACK)) != XV_TCP_ACK)
		return XV_PASS_TCP_FLAGS;
	return XV_OK;
}

static __always_inline bool xv_is_blocked(const struct xv_settings *cfg, __u32 ifindex, __u64 now)
{
	__u64 *until;

	if (now > cfg->blocked_until)
		return false;
	until = bpf_map_lookup_elem(&xv_blocked, &ifindex);
	return until && now <= *until;
}

/*
 * Whether an entry may be used now. All packets of a flow that come in by one NAPI
 * poll go one way, or those on the faster way would overtake the others: frames wait
 * for the end of the poll in the devmap's queue, skbs in the GRO list and in the pod's
 * ring. So an entry that runs out serves the poll to its end if it has served it so
 * far, and one that has just been confirmed waits for the next.
 */
static __always_inline enum xv_reason xv_check_deadline(struct xv_flow *f, __u64 interval,
							__u64 now)
{
	__s64 left = f->deadline - now;
	__u64 *poll;

	if (left > XV_POLL_MAX_NS && left < (__s64)interval - XV_POLL_MAX_NS)
		return XV_OK;
	poll = xv_this_poll();
	if (!poll)
		return XV_PASS_EXPIRED;
	/* Learned under a longer interval than the one that holds now. */
	if (left > (__s64)interval + XV_GRACE_NS)
		return XV_PASS_EXPIRED;
	if (left < 0) {
		if (left >= -XV_POLL_MAX_NS && f->fast_poll == *poll)
			return XV_OK;
		f->slow_poll = *poll;
		return XV_PASS_EXPIRED;
	}
	if (f->slow_poll == *poll && left >= (__s64)interval - XV_POLL_MAX_NS)
		return XV_PASS_POLL;
	f->fast_poll = *poll;
	return XV_OK;
}

/* Ends an entry; the flow's packets go to the kernel from here to the next poll. */
static __always_inline void xv_expire(struct xv_flow *f, __u64 now)
{
	__u64 *poll = xv_this_poll();

	f->deadline = now - 1;
	f->fast_poll = 0;
	if (poll)
		f->slow_poll = *poll;
}

static __always_inline void xv_copy_action(const struct xv_flow *f, int family, struct xv_action *a)
{
	a->oif = f->oif;
	a->flags = f->flags;
	a->sport = f->sport;
	a->dport = f->dport;
	__builtin_memcpy(a->dst_mac, f->dst_mac, 6);
	__builtin_memcpy(a->src_mac, f->src_mac, 6);
	__builtin_memcpy(a->in_mac, f->in_mac, 6);
	if (family == 4) {
		const struct xv_flow4 *f4 = (const void *)f;

		a->saddr[0] = f4->saddr;
		a->daddr[0] = f4->daddr;
	} else {
		const struct xv_flow6 *f6 = (const void *)f;

		__builtin_memcpy(a->saddr, f6->saddr, sizeof(a->saddr));
		__builtin_memcpy(a->daddr, f6->daddr, sizeof(a->daddr));
	}
}

static __always_inline bool xv_same_mac(const __u8 *a, const __u8 *b)
{
	return *(const __u32 *)a == *(const __u32 *)b &&
	       *(const __u16 *)(a + 4) == *(const __u16 *)(b + 4);
}

/*
 * Finds what to do with a packet of segments of up to seg_len bytes. mac is the destination of a frame; NULL for an skb, of which the
 * kernel knows whether it is for the node. A packet that is longer than what the kernel has forwarded ends
 * the entry: the whole flow goes to the kernel until egress has confirmed it, so
 * that a shorter packet cannot overtake the long one.
 */
static __always_inline enum xv_reason xv_find(const struct xv_packet *p, int family, __u32 seg_len,
					      const __u8 *mac, struct xv_action *a,
					      struct xv_flow **flow)
{
	struct xv_settings *cfg = xv_get_settings();
	enum xv_reason reason;
	struct xv_flow *f;
	__u64 now;

	now = bpf_ktime_get_coarse_ns();
	if (!cfg || !xv_may_live(xv_slot_of(p->hash), now))
		return XV_PASS_NO_FLOW;
	f = xv_lookup(&p->key, family);
	if (!f)
		return XV_PASS_NO_FLOW;
	reason = xv_check_deadline(f, cfg->revalidate_ns, now);
	if (reason)
		return reason;
	if (mac && !xv_same_mac(mac, f->in_mac))
		return XV_PASS_NOT_FOR_US;
	if (seg_len > f->max_len) {
		xv_expire(f, now);
		return XV_PASS_TOO_LONG;
	}
	xv_copy_action(f, family, a);
	barrier();
	if (*(volatile __u32 *)&f->tag != p->hash)
		return XV_PASS_RACE;
	if (xv_is_blocked(cfg, a->oif, now))
		return XV_PASS_DEVICE;
	*flow = f;
	return XV_OK;
}

/* Counts packets on the flow that they have taken the fast path of. */
static __always_inline void xv_count_flow(struct xv_flow *f, __u32 packets, __u32 bytes)
{
	f->packets += packets;
	f->bytes += bytes;
}

/* How the addresses change the sum of a pseudo header. */
static __always_inline __u32 xv_diff_addrs(const struct xv_packet *p, const struct xv_action *a,
					   int family)
{
	__u32 diff = 0;

	if (family == 4) {
		diff = xv_csum_replace(diff, p->key.v4.saddr, a->saddr[0]);
		return xv_csum_replace(diff, p->key.v4.daddr, a->daddr[0]);
	}
	for (int i = 0; i < 4; i++) {
		diff = xv_csum_replace(diff, p->key.v6.saddr[i], a->saddr[i]);
		diff = xv_csum_replace(diff, p->key.v6.daddr[i], a->daddr[i]);
	}
	return diff;
}

/* How the ports change the sum of a TCP or UDP header. */
static __always_inline __u32 xv_diff_ports(const struct xv_packet *p, const struct xv_action *a,
					   int family)
{
	__be16 sport = family == 4 ? p->key.v4.sport : p->key.v6.sport;
	__be16 dport = family == 4 ? p->key.v4.dport : p->key.v6.dport;
	__u32 diff = 0;

	diff = xv_csum_replace(diff, sport, a->sport);
	return xv_csum_replace(diff, dport, a->dport);
}

/* Distance of the TCP or UDP header from the start of the frame. */
static __always_inline __u32 xv_l4_off(int family)
{
	return XV_ETH_HLEN + (family == 4 ? XV_IP4_HLEN : XV_IP6_HLEN);
}

static __always_inline __u32 xv_l4_csum_off(const struct xv_packet *p, int family)
{
	return xv_l4_off(family) + (p->proto == XV_IPPROTO_TCP ? XV_TCP_CSUM_OFF : XV_UDP_CSUM_OFF);
}

/* As ip_decrease_ttl() in include/net/ip.h. */
static __always_inline void xv_decrease_ttl(struct xv_ip4 *ip)
{
	__u32 check = ip->check;

	check += bpf_htons(0x0100);
	ip->check = (__u16)(check + (check >= 0xffff));
	ip->ttl--;
}

static __always_inline void xv_rewrite_ip4(struct xv_ip4 *ip, const struct xv_action *a, __u32 diff)
{
	if (a->flags & XV_F_NAT) {
		ip->saddr = a->saddr[0];
		ip->daddr = a->daddr[0];
		ip->check = xv_csum_apply(ip->check, diff);
	}
	if (a->flags & XV_F_ROUTED)
		xv_decrease_ttl(ip);
}

static __always_inline void xv_rewrite_ip6(struct xv_ip6 *ip, const struct xv_action *a)
{
	if (a->flags & XV_F_NAT) {
		__builtin_memcpy(ip->saddr, a->saddr, sizeof(ip->saddr));
		__builtin_memcpy(ip->daddr, a->daddr, sizeof(ip->daddr));
	}
	if (a->flags & XV_F_ROUTED)
		ip->hop_limit--;
}

/*
 * Writes everything but the TCP or UDP checksum. False when the frame is shorter
 * than its headers, which parsing has ruled out.
 */
static __always_inline bool xv_rewrite(void *data, const void *data_end, const struct xv_action *a,
				       int family, __u32 addr_diff)
{
	struct xv_ports16 *ports = data + xv_l4_off(family);
	struct xv_eth *eth = data;

	if ((void *)(ports + 1) > data_end)
		return false;
	__builtin_memcpy(eth->dst, a->dst_mac, 6);
	__builtin_memcpy(eth->src, a->src_mac, 6);
	if (family == 4)
		xv_rewrite_ip4(data + XV_ETH_HLEN, a, addr_diff);
	else
		xv_rewrite_ip6(data + XV_ETH_HLEN, a);
	if (a->flags & XV_F_NAT) {
		ports->sport = a->sport;
		ports->dport = a->dport;
	}
	return true;
}
