/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Learning, on the egress of the interface that the kernel chose. */
#pragma once

#include "ct.h"
#include "flow.h"

/* The flow entry that a packet would write, in the form of its family's map. */
union xv_value {
	struct xv_flow f;
	struct xv_flow4 f4;
	struct xv_flow6 f6;
};

static __always_inline long xv_store(const union xv_key *k, const union xv_value *v, int family)
{
	return family == 4 ? bpf_map_update_elem(&xv_flows4, &k->v4, &v->f4, BPF_ANY) :
			     bpf_map_update_elem(&xv_flows6, &k->v6, &v->f6, BPF_ANY);
}

static __always_inline void xv_forget(const union xv_key *k, int family)
{
	if (family == 4)
		bpf_map_delete_elem(&xv_flows4, &k->v4);
	else
		bpf_map_delete_elem(&xv_flows6, &k->v6);
}

static __always_inline void xv_set_origin(union xv_key *k, int family, __u32 ifindex, __u8 proto)
{
	if (family == 4) {
		k->v4.ifindex = ifindex;
		k->v4.proto = proto;
	} else {
		k->v6.ifindex = ifindex;
		k->v6.proto = proto;
	}
}

static __always_inline bool xv_same_tuple(const union xv_key *a, const union xv_key *b, int family)
{
	if (family == 4)
		return a->v4.saddr == b->v4.saddr && a->v4.daddr == b->v4.daddr &&
		       a->v4.sport == b->v4.sport && a->v4.dport == b->v4.dport;
	for (int i = 0; i < 4; i++)
		if (a->v6.saddr[i] != b->v6.saddr[i] || a->v6.daddr[i] != b->v6.daddr[i])
			return false;
	return a->v6.sport == b->v6.sport && a->v6.dport == b->v6.dport;
}

/*
 * Whether the packet left the note of the key that it would write. The TTL is
 * tried as one more (routed) and as it is (bridged); the answer goes into flags.
 */
static __always_inline bool xv_note_matches(__u16 note, __u32 hash, const struct xv_packet *p,
					    __u16 *flags)
{
	if (p->ttl < 255 && note == xv_note(hash, p->tos, p->ttl + 1)) {
		*flags |= XV_F_ROUTED;
		return true;
	}
	return note == xv_note(hash, p->tos, p->ttl);
}

/*
 * Whether the flow has shown enough packets. The first flow in a slot keeps it for
 * a quarter of the interval, so that a flood cannot keep everybody from learning.
 */
static __always_inline bool xv_seen_enough(__u32 hash, bool replied, __u64 now, __u64 interval)
{
	__u32 slot = hash & (XV_CANDIDATES - 1);
	struct xv_candidate *c = bpf_map_lookup_elem(&xv_candidates, &slot);

	if (!c)
		return false;
	if (now - c->since > interval / 4) {
		c->hash = hash;
		c->packets = 0;
		c->since = now;
	}
	if (c->hash != hash)
		return false;
	c->packets++;
	if (c->packets < (replied ? XV_LEARN_AFTER_REPLY : XV_LEARN_AFTER))
		return false;
	c->since = 0;
	return true;
}

/* Fills in what the packet shows; true when XDP runs where the packet came in. */
static __always_inline bool xv_fill_value(const struct __sk_buff *skb, const void *data,
					  const struct xv_packet *p, int family, __u16 flags,
					  union xv_value *v)
{
	const struct xv_eth *eth = data;
	__u32 iif = skb->ingress_ifindex;
	struct xv_port *port = bpf_map_lookup_elem(&xv_ports, &iif);

	v->f.oif = skb->ifindex;
	v->f.flags = flags;
	__builtin_memcpy(v->f.dst_mac, eth->dst, 6);
	__builtin_memcpy(v->f.src_mac, eth->src, 6);
	if (port)
		__builtin_memcpy(v->f.in_mac, port->mac, 6);
	if (family == 4) {
		v->f.sport = p->key.v4.sport;
		v->f.dport = p->key.v4.dport;
		v->f4.saddr = p->key.v4.saddr;
		v->f4.daddr = p->key.v4.daddr;
	} else {
		v->f.sport = p->key.v6.sport;
		v->f.dport = p->key.v6.dport;
		__builtin_memcpy(v->f6.saddr, p->key.v6.saddr, sizeof(v->f6.saddr));
		__builtin_memcpy(v->f6.daddr, p->key.v6.daddr, sizeof(v->f6.daddr));
	}
	return port;
}

/* Whether an entry does to packets what the kernel has just done. */
static __always_inline bool xv_same_action(const struct xv_flow *have, const union xv_value *want,
					   int family)
{
	const struct xv_flow4 *have4 = (const void *)have;
	const struct xv_flow6 *have6 = (const void *)have;

	if (have->tag != want->f.tag || have->oif != want->f.oif || have->flags != want->f.flags ||
	    have->sport != want->f.sport || have->dport != want->f.dport)
		return false;
	for (int i = 0; i < 6; i++)
		if (have->dst_mac[i] != want->f.dst_mac[i] ||
		    have->src_mac[i] != want->f.src_mac[i] || have->in_mac[i] != want->f.in_mac[i])
			return false;
	if (family == 4)
		return have4->saddr == want->f4.saddr && have4->daddr == want->f4.daddr;
	for (int i = 0; i < 4; i++)
		if (have6->saddr[i] != want->f6.saddr[i] || have6->daddr[i] != want->f6.daddr[i])
			return false;
	return true;
}

/* Writes or renews the flow's entry; len is the longest segment of the packet. */
static __always_inline enum xv_reason xv_remember(const union xv_key *k, union xv_value *v,
						  int family, __u16 len, bool replied,
						  const struct xv_settings *cfg)
{
	__u64 now = bpf_ktime_get_coarse_ns();
	struct xv_flow *have = xv_lookup(k, family);
	enum xv_reason reason = XV_LEARN_CHANGED;

	if (have && xv_same_action(have, v, family)) {
		if (now <= have->deadline) {
			if (len > have->max_len)
				have->max_len = len;
			return XV_OK;
		}
		have->max_len = len;
		barrier();
		have->deadline = now + cfg->revalidate_ns;
		return XV_LEARN_RENEWED;
	}
	v->f.born = now;
	if (have) {
		v->f.born = have->born;
		v->f.packets = have->packets;
		v->f.bytes = have->bytes;
	} else {
		reason = XV_LEARN_NEW;
		if (!xv_seen_enough(v->f.tag, replied, now, cfg->revalidate_ns))
			return XV_LEARN_WAIT;
	}
	v->f.max_len = len;
	v->f.deadline = now + cfg->revalidate_ns;
	return xv_store(k, v, family) ? XV_LEARN_FULL : reason;
}

/*
 * Why nothing is learned on the interface that the packet leaves by. A redirect into a
 * pod passes the queue of the host's end; one by XDP passes every queue, and needs a
 * device that takes frames.
 */
static __always_inline enum xv_reason xv_device_objection(struct sk_buff *kskb, __u16 flags,
							  bool by_xdp)
{
	if (xv_foreign_egress(kskb))
		return XV_LEARN_FOREIGN_EGRESS;
	if (flags & XV_F_PEER ? xv_is_shaped(kskb) : by_xdp && xv_uplink_is_shaped(kskb))
		return XV_LEARN_QDISC;
	if (by_xdp && !(flags & XV_F_BOUNCE) && !xv_takes_frames(kskb))
		return XV_LEARN_NO_XMIT;
	return XV_OK;
}

/* The longest IP packet that the skb becomes on the wire, in bytes. */
static __always_inline __u16 xv_segment_len(const struct __sk_buff *skb, const struct xv_packet *p)
{
	__u32 len = p->headers + skb->gso_size;

	return skb->gso_size && len < p->len ? len : p->len;
}

/* The packet as it leaves, and its conntrack entry, become a flow entry. */
static __always_inline enum xv_reason xv_learn_family(struct __sk_buff *skb, int family,
						      __u16 flags)
{
	const void *data = (void *)(long)skb->data, *data_end = (void *)(long)skb->data_end;
	struct sk_buff *kskb = xv_kernel_skb(skb);
	struct xv_settings *cfg = xv_get_settings();
	struct xv_ct_view ct = {};
	struct xv_packet p = {};
	union xv_value v = {};
	enum xv_reason reason;
	bool by_xdp;

	if (!cfg || xv_parse(data, data_end, family, 0, &p))
		return XV_OK;
	if (skb->mark & cfg->exclude_mark)
		return XV_LEARN_EXCLUDED;
	if (((const __u8 *)data)[0] & 1)
		return XV_LEARN_GROUP;
	by_xdp = xv_fill_value(skb, data, &p, family, flags, &v);

	xv_ct_find(skb, kskb, &p, family, &ct);
	if (!ct.tracked) {
		ct.in = p.key;
		xv_reverse(&p.key, family, &ct.back);
	}
	xv_set_origin(&ct.in, family, skb->ingress_ifindex, p.proto);
	xv_set_origin(&ct.back, family, skb->ifindex, p.proto);
	if (p.proto == XV_IPPROTO_TCP && (p.tcp_flags & (XV_TCP_FIN | XV_TCP_RST))) {
		xv_forget(&ct.in, family);
		xv_forget(&ct.back, family);
		if (ct.tracked && (p.tcp_flags & XV_TCP_RST))
			xv_ct_reset(skb, &ct.in, p.proto, family);
		return XV_LEARN_CLOSED;
	}
	if (xv_eligible(&p) == XV_PASS_TCP_FLAGS)
		return XV_OK;
	if (ct.reason)
		return ct.reason;
	if (!ct.tracked && p.proto == XV_IPPROTO_TCP && kskb &&
	    !xv_ct_is_liberal(kskb->dev->nd_net.net))
		return XV_LEARN_CT_STRICT;
	v.f.tag = xv_hash(&ct.in, family);
	if (!xv_note_matches(skb->tc_index, v.f.tag, &p, &v.f.flags))
		return XV_LEARN_NOTE_DIFFERS;
	if (!xv_same_tuple(&ct.in, &p.key, family))
		v.f.flags |= XV_F_NAT;
	if (skb->ingress_ifindex == skb->ifindex && !(flags & XV_F_PEER))
		v.f.flags |= XV_F_BOUNCE;
	reason = xv_device_objection(kskb, v.f.flags, by_xdp);
	if (reason)
		return reason;
	return xv_remember(&ct.in, &v, family, xv_segment_len(skb, &p), ct.replied, cfg);
}

static __always_inline int xv_learn(struct __sk_buff *skb, __u16 flags)
{
	int family = xv_family((void *)(long)skb->data, (void *)(long)skb->data_end);
	enum xv_reason reason = XV_OK;

	if (!(skb->tc_index & XV_NOTE_SET) || !skb->ingress_ifindex)
		reason = XV_LEARN_NO_NOTE;
	else if (family == 4)
		reason = xv_learn_family(skb, 4, flags);
	else if (family == 6)
		reason = xv_learn_family(skb, 6, flags);
	if (reason)
		xv_count(reason);
	return XV_TC_NEXT;
}
