/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Learning, on the egress of the interface that the kernel chose. */
#pragma once

#include "ct.h"
#include "flow.h"

/* What learning works on; it would not fit on the stack. */
struct xv_learning {
	struct xv_ct_view ct;
	struct xv_flow6 entry;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct xv_learning);
} xv_scratch SEC(".maps");

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

/* Whether packets of one tuple are answered by those of the other. */
static __always_inline bool xv_answers(const union xv_key *a, const union xv_key *b, int family)
{
	if (family == 4)
		return a->v4.saddr == b->v4.daddr && a->v4.daddr == b->v4.saddr &&
		       a->v4.sport == b->v4.dport && a->v4.dport == b->v4.sport;
	for (int i = 0; i < 4; i++)
		if (a->v6.saddr[i] != b->v6.daddr[i] || a->v6.daddr[i] != b->v6.saddr[i])
			return false;
	return a->v6.sport == b->v6.dport && a->v6.dport == b->v6.sport;
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

/* What the kernel did, as the packet shows it; true when XDP runs where it came in. */
static __always_inline bool xv_fill_action(const struct __sk_buff *skb, const void *data,
					   const struct xv_packet *p, int family,
					   struct xv_action *a)
{
	const struct xv_eth *eth = data;
	__u32 iif = skb->ingress_ifindex;
	struct xv_port *port = bpf_map_lookup_elem(&xv_ports, &iif);

	a->oif = skb->ifindex;
	__builtin_memcpy(a->dst_mac, eth->dst, 6);
	__builtin_memcpy(a->src_mac, eth->src, 6);
	if (port && !(a->flags & XV_F_MEMBER))
		__builtin_memcpy(a->in_mac, port->mac, 6);
	if (family == 4) {
		a->sport = p->key.v4.sport;
		a->dport = p->key.v4.dport;
		a->saddr[0] = p->key.v4.saddr;
		a->daddr[0] = p->key.v4.daddr;
	} else {
		a->sport = p->key.v6.sport;
		a->dport = p->key.v6.dport;
		__builtin_memcpy(a->saddr, p->key.v6.saddr, sizeof(a->saddr));
		__builtin_memcpy(a->daddr, p->key.v6.daddr, sizeof(a->daddr));
	}
	return port;
}

/* Whether an entry does to packets what the kernel has just done. */
static __always_inline bool xv_same_action(const struct xv_flow *f, const struct xv_action *a,
					   int family)
{
	const struct xv_flow4 *f4 = (const void *)f;
	const struct xv_flow6 *f6 = (const void *)f;

	if (f->oif != a->oif || f->flags != a->flags || f->sport != a->sport ||
	    f->dport != a->dport)
		return false;
	for (int i = 0; i < 6; i++)
		if (f->dst_mac[i] != a->dst_mac[i] || f->src_mac[i] != a->src_mac[i] ||
		    f->in_mac[i] != a->in_mac[i])
			return false;
	if (family == 4)
		return f4->saddr == a->saddr[0] && f4->daddr == a->daddr[0];
	for (int i = 0; i < 4; i++)
		if (f6->saddr[i] != a->saddr[i] || f6->daddr[i] != a->daddr[i])
			return false;
	return true;
}

static __always_inline void xv_set_action(struct xv_flow *f, const struct xv_action *a, int family)
{
	struct xv_flow4 *f4 = (void *)f;
	struct xv_flow6 *f6 = (void *)f;

	f->oif = a->oif;
	f->flags = a->flags;
	f->sport = a->sport;
	f->dport = a->dport;
	__builtin_memcpy(f->dst_mac, a->dst_mac, 6);
	__builtin_memcpy(f->src_mac, a->src_mac, 6);
	__builtin_memcpy(f->in_mac, a->in_mac, 6);
	if (family == 4) {
		f4->saddr = a->saddr[0];
		f4->daddr = a->daddr[0];
	} else {
		__builtin_memcpy(f6->saddr, a->saddr, sizeof(f6->saddr));
		__builtin_memcpy(f6->daddr, a->daddr, sizeof(f6->daddr));
	}
}

/* The packet that is about to leave, as learning sees it. */
struct xv_lesson {
	struct xv_action action;
	struct xv_slot *slot;
	__u64 now;
	__u64 interval;
	__u32 hash; /* of the key that its flow has at ingress */
	__u16 len; /* of its longest segment, bytes */
	bool replied;
	bool enough; /* its flow may be learned; else it may be known, and is counted if not */
};

/*
 * Whether the flow has shown enough packets within an interval; a slower one would
 * hardly ever be fast. The first flow in a slot keeps it for as long, so that a flood
 * cannot keep everybody from learning.
 */
static __always_inline bool xv_seen_enough(const struct xv_lesson *l)
{
	struct xv_slot *slot = l->slot;
	__u16 tick = l->now >> XV_TICK_SHIFT;

	if (!slot->packets || (__u16)(tick - slot->since) > l->interval >> XV_TICK_SHIFT) {
		slot->hash = l->hash;
		slot->since = tick;
		slot->packets = 0;
	}
	if (slot->hash != l->hash)
		return false;
	if (slot->packets < XV_LEARN_AFTER)
		slot->packets++;
	return slot->packets >= (l->replied ? XV_LEARN_AFTER_REPLY : XV_LEARN_AFTER);
}

/* Puts a new entry in the place of what there was. */
static __always_inline enum xv_reason xv_store(struct xv_flow6 *v, const union xv_key *k,
					       int family, const struct xv_flow *have,
					       const struct xv_lesson *l, __u64 poll)
{
	long err;

	v->f.tag = l->hash;
	v->f.deadline = l->now + l->interval;
	v->f.max_len = l->len;
	v->f.slow_poll = poll;
	v->f.fast_poll = 0;
	v->f.born = have ? have->born : l->now;
	v->f.packets = have ? have->packets : 0;
	v->f.bytes = have ? have->bytes : 0;
	xv_set_action(&v->f, &l->action, family);
	err = family == 4 ? bpf_map_update_elem(&xv_flows4, &k->v4, v, BPF_ANY) :
			    bpf_map_update_elem(&xv_flows6, &k->v6, v, BPF_ANY);
	if (err)
		return XV_LEARN_FULL;
	return have ? XV_LEARN_CHANGED : XV_LEARN_NEW;
}

/* Renews, replaces or makes the flow's entry. */
static __always_inline enum xv_reason xv_remember(struct xv_flow6 *entry, const union xv_key *k,
						  int family, const struct xv_lesson *l)
{
	struct xv_flow *have = xv_lookup(k, family);
	__u64 *poll = xv_this_poll();

	if (!poll)
		return XV_OK;
	if (have && have->tag == l->hash && xv_same_action(have, &l->action, family)) {
		if (l->now <= have->deadline &&
		    have->deadline - l->now <= l->interval + XV_GRACE_NS) {
			if (l->len > have->max_len)
				have->max_len = l->len;
			return XV_OK;
		}
		have->max_len = l->len;
		/* The packets in front of this one may not have met the entry. */
		have->slow_poll = *poll;
		barrier();
		have->deadline = l->now + l->interval;
		xv_keep_live(l->slot, l->now + 2 * l->interval);
		return XV_LEARN_RENEWED;
	}
	if (!have && !l->enough && !xv_seen_enough(l))
		return XV_LEARN_WAIT;
	l->slot->packets = 0;
	xv_keep_live(l->slot, l->now + 2 * l->interval);
	return xv_store(entry, k, family, have, l, *poll);
}

/*
 * The interface that the packet came in on. A bridge that hands a packet to the node puts
 * itself in the place of the port; the port's program has noted what it was, and the
 * packet's note proves that it was this packet.
 */
static __always_inline __u32 xv_way_in(const struct __sk_buff *skb, struct xv_action *a)
{
	struct xv_origin *o = xv_this_origin();
	__u32 iif = skb->ingress_ifindex;

	if (!o || !o->note || o->note != skb->tc_index || (o->port != iif && o->bridge != iif))
		return iif;
	a->flags |= XV_F_MEMBER;
	__builtin_memcpy(a->in_mac, o->macs, 6);
	return o->port;
}

/*
 * Why nothing is learned on a bridge port. A bridge that does not know a MAC address sends
 * the frame to all ports, and only one of them is the pod's; so user space says which MAC
 * address is behind a port. Behind that of an uplink there are many.
 */
static __always_inline enum xv_reason xv_port_objection(struct sk_buff *kskb,
							const struct xv_action *a)
{
	__u32 oif = a->oif;
	struct xv_member *member = bpf_map_lookup_elem(&xv_members, &oif);

	if (!member || !xv_same_mac(member->mac, a->dst_mac))
		return XV_LEARN_FLOODED;
	return a->flags & XV_F_BRIDGED ? XV_OK : xv_bridge_objection(kskb);
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
	/* tcx redirects to the pod's end behind its XDP, XDP in front of it. */
	if (flags & XV_F_PEER && !by_xdp && xv_pod_runs_xdp(kskb))
		return XV_LEARN_POD_XDP;
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
	struct xv_learning *work;
	struct xv_ct_view *ct;
	__u32 zero = 0;
	struct xv_packet p = {};
	struct xv_lesson l = {};
	enum xv_reason reason;
	bool by_xdp;

	work = bpf_map_lookup_elem(&xv_scratch, &zero);
	if (!work || !cfg || xv_parse(data, data_end, family, 0, xv_gso_len(skb), &p))
		return XV_OK;
	ct = &work->ct;
	__builtin_memset(ct, 0, sizeof(*ct));
	if (skb->mark & cfg->exclude_mark)
		return XV_LEARN_EXCLUDED;
	if (((const __u8 *)data)[0] & 1)
		return XV_LEARN_GROUP;
	l.action.flags = flags;
	xv_ct_find(skb, kskb, &p, family, ct);
	if (!ct->tracked) {
		ct->in = p.key;
		xv_reverse(&p.key, family, &ct->back);
	}
	xv_set_origin(&ct->in, family, xv_way_in(skb, &l.action), p.proto);
	xv_set_origin(&ct->back, family, skb->ifindex, p.proto);
	/* A SYN starts anew what a FIN or RST ends: the old flow says nothing of it. */
	if (p.proto == XV_IPPROTO_TCP && (p.tcp_flags & (XV_TCP_SYN | XV_TCP_FIN | XV_TCP_RST))) {
		xv_forget(&ct->in, family);
		xv_forget(&ct->back, family);
		if (p.tcp_flags & XV_TCP_SYN)
			return XV_OK;
		if (ct->tracked && (p.tcp_flags & XV_TCP_RST))
			xv_ct_reset(skb, &ct->in, p.proto, family);
		return XV_LEARN_CLOSED;
	}
	if (xv_eligible(&p) == XV_PASS_TCP_FLAGS)
		return XV_OK;
	if (ct->reason)
		return ct->reason;
	if (!ct->tracked && p.proto == XV_IPPROTO_TCP && kskb &&
	    !xv_ct_is_liberal(kskb->dev->nd_net.net))
		return XV_LEARN_CT_STRICT;
	l.hash = xv_hash(&ct->in, family);
	if (!xv_note_matches(skb->tc_index, l.hash, &p, &l.action.flags) ||
	    !xv_answers(&p.key, &ct->back, family))
		return XV_LEARN_NOTE_DIFFERS;
	if (skb->pkt_type == XV_PACKET_OTHERHOST) {
		if ((l.action.flags & (XV_F_ROUTED | XV_F_MEMBER)) != XV_F_MEMBER)
			return XV_LEARN_NOTE_DIFFERS;
		l.action.flags |= XV_F_BRIDGED;
	}
	l.now = bpf_ktime_get_coarse_ns();
	l.interval = cfg->revalidate_ns;
	l.replied = ct->replied;
	l.slot = xv_slot_of(l.hash);
	if (!l.slot)
		return XV_OK;
	if (!xv_may_live(l.slot, l.now)) {
		if (!xv_seen_enough(&l))
			return XV_LEARN_WAIT;
		l.enough = true;
	}
	if (!xv_same_tuple(&ct->in, &p.key, family))
		l.action.flags |= XV_F_NAT;
	if (ct->reply)
		l.action.flags |= XV_F_REPLY;
	if (skb->ingress_ifindex == skb->ifindex && !(flags & XV_F_PEER))
		l.action.flags |= XV_F_BOUNCE;
	by_xdp = xv_fill_action(skb, data, &p, family, &l.action);
	reason = xv_device_objection(kskb, l.action.flags, by_xdp);
	if (!reason && xv_is_bridge_port(kskb))
		reason = xv_port_objection(kskb, &l.action);
	if (reason)
		return reason;
	l.len = xv_segment_len(skb, &p);
	return xv_remember(&work->entry, &ct->in, family, &l);
}

/* One function for each family: both at once would not fit on the stack. */
static __noinline int xv_learn4(struct __sk_buff *skb, __u16 flags)
{
	return xv_learn_family(skb, 4, flags);
}

static __noinline int xv_learn6(struct __sk_buff *skb, __u16 flags)
{
	return xv_learn_family(skb, 6, flags);
}

static __always_inline int xv_learn(struct __sk_buff *skb, __u16 flags)
{
	int family = xv_family((void *)(long)skb->data, (void *)(long)skb->data_end);
	enum xv_reason reason = XV_OK;

	if (skb->tc_index == XV_NOTE_FAST)
		return XV_TC_NEXT;
	if (!(skb->tc_index & XV_NOTE_SET) || !skb->ingress_ifindex)
		reason = XV_LEARN_NO_NOTE;
	else if (skb->vlan_present)
		reason = XV_LEARN_VLAN;
	else if (family == 4)
		reason = xv_learn4(skb, flags);
	else if (family == 6)
		reason = xv_learn6(skb, flags);
	if (reason)
		xv_count(reason);
	return XV_TC_NEXT;
}
