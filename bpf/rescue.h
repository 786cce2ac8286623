/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * When somebody sets nf_conntrack_tcp_be_liberal back to 0, conntrack takes the next
 * packet of every fast TCP connection for invalid, since it has not seen those before.
 * A translated connection would be gone at once: its answers would be for the node
 * itself, which resets it.
 *
 * So the old entry is ended when a packet of the original direction comes by. With
 * nf_conntrack_tcp_loose (on by default) the kernel then picks the connection up from
 * the middle, by all its rules, and checks it liberally from there on (tcp_new() in
 * nf_conntrack_proto_tcp.c). An answer cannot start that: it would be tracked the wrong
 * way round. It gets one grace period on the fast path, which makes the other side
 * speak, and is dropped after that: a sender repeats what is lost, not what is reset.
 */
#pragma once

#include "ct.h"
#include "flow.h"

/* The entry of the flow that f answers comes to its end. */
static __always_inline void xv_expire_other(const struct xv_flow *f, int family, __u64 now)
{
	const struct xv_flow4 *f4 = (const void *)f;
	const struct xv_flow6 *f6 = (const void *)f;
	struct xv_flow *other;
	union xv_key k = {};

	if (family == 4) {
		k.v4.saddr = f4->daddr;
		k.v4.daddr = f4->saddr;
		k.v4.sport = f->dport;
		k.v4.dport = f->sport;
		k.v4.ifindex = f->oif;
		k.v4.proto = XV_IPPROTO_TCP;
	} else {
		__builtin_memcpy(k.v6.saddr, f6->daddr, sizeof(k.v6.saddr));
		__builtin_memcpy(k.v6.daddr, f6->saddr, sizeof(k.v6.daddr));
		k.v6.sport = f->dport;
		k.v6.dport = f->sport;
		k.v6.ifindex = f->oif;
		k.v6.proto = XV_IPPROTO_TCP;
	}
	other = xv_lookup(&k, family);
	if (other)
		xv_expire(other, now);
}

/*
 * Whether conntrack's entry translates the packet as the flow does. Another connection
 * may have the addresses and ports of an old one: of that the flow says nothing.
 */
static __always_inline bool xv_ct_is_of_flow(const struct nf_conn *ct, bool reply,
					     const struct xv_flow *f, int family)
{
	const struct xv_flow4 *f4 = (const void *)f;
	const struct xv_flow6 *f6 = (const void *)f;
	union xv_key k = {};

	/* What answers the packet as it leaves. */
	if (reply)
		xv_ct_tuple(&ct->tuplehash[0].tuple, family, &k);
	else
		xv_ct_tuple(&ct->tuplehash[1].tuple, family, &k);
	if (family == 4)
		return k.v4.saddr == f4->daddr && k.v4.daddr == f4->saddr &&
		       k.v4.sport == f->dport && k.v4.dport == f->sport;
	for (int i = 0; i < 4; i++)
		if (k.v6.saddr[i] != f6->daddr[i] || k.v6.daddr[i] != f6->saddr[i])
			return false;
	return k.v6.sport == f->dport && k.v6.dport == f->sport;
}

/* Whether the packet can go to the kernel: its connection is, or will be, known. */
static __always_inline bool xv_can_pass(struct __sk_buff *skb, const struct xv_packet *p,
					int family, const struct xv_flow *f)
{
	struct xv_ct_opts opts = {};
	struct nf_conn *ct;
	bool liberal, reply, known;

	ct = xv_ct_lookup(skb, &p->key, p->proto, family, &opts);
	if (!ct)
		return !(f->flags & XV_F_REPLY);
	liberal = ct->proto.tcp.seen[0].flags & XV_CT_TCP_BE_LIBERAL;
	reply = opts.dir;
	known = xv_ct_is_of_flow(ct, reply, f, family);
	if (!liberal && !reply && known)
		bpf_ct_change_timeout(ct, 0);
	bpf_ct_release(ct);
	return liberal || !reply || !known;
}

/*
 * What becomes of a TCP packet that the fast path leaves to a strict conntrack: XV_OK,
 * it goes there; XV_FAST_TCX, its entry is good for a moment longer; else it is lost.
 */
static __always_inline enum xv_reason xv_rescue(struct __sk_buff *skb, const struct xv_packet *p,
						int family)
{
	struct xv_flow *f = xv_lookup(&p->key, family);
	__u64 now = bpf_ktime_get_coarse_ns();

	if (!xv_ksym_exists(bpf_skb_ct_lookup) || !xv_ksym_exists(bpf_ct_change_timeout))
		return XV_OK;
	if (!f || !(f->flags & XV_F_NAT) || now > f->deadline + XV_RESCUE_NS)
		return XV_OK;
	if (xv_can_pass(skb, p, family, f))
		return XV_OK;
	if (!(f->flags & XV_F_GRACE) && now <= f->deadline + XV_GRACE_NS) {
		f->flags |= XV_F_GRACE;
		f->deadline = now + XV_GRACE_NS;
		f->slow_poll = 0;
		xv_keep_live(xv_slot_of(p->hash), f->deadline);
		xv_expire_other(f, family, now);
	}
	return now <= f->deadline ? XV_FAST_TCX : XV_DROP_CT_STRICT;
}

static __noinline int xv_rescue4(struct __sk_buff *skb, const struct xv_packet *p)
{
	return p ? xv_rescue(skb, p, 4) : XV_OK;
}

static __noinline int xv_rescue6(struct __sk_buff *skb, const struct xv_packet *p)
{
	return p ? xv_rescue(skb, p, 6) : XV_OK;
}

/* Whether conntrack is strict where the packet came in. */
static __always_inline bool xv_is_strict(struct sk_buff *kskb, const struct xv_packet *p)
{
	return kskb && p->proto == XV_IPPROTO_TCP && !xv_ct_is_liberal(kskb->dev->nd_net.net);
}

/* The same, for packets of every kind. */
static __always_inline enum xv_reason xv_rescue_any(struct __sk_buff *skb,
						    const struct xv_packet *p, int family)
{
	if (xv_eligible(p))
		return XV_OK;
	return family == 4 ? xv_rescue4(skb, p) : xv_rescue6(skb, p);
}
