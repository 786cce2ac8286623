/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* What conntrack knows of a packet that is about to leave. */
#pragma once

#include "device.h"
#include "parse.h"

/*
 * Whether conntrack entries are read through the skb. User space sets it where the
 * kernel's own BTF describes struct nf_conn; elsewhere they are looked up.
 */
const volatile bool xv_ct_from_skb;

/* Size of the conntrack helpers' options: 16 bytes, 12 before Linux 6.10. */
const volatile __u32 xv_ct_opts_len = 16;

/* A flow's two sides as conntrack has them, and what stands against learning it. */
struct xv_ct_view {
	bool tracked;
	bool reply; /* the packet goes the way of the answer */
	bool replied; /* there has been an answer */
	enum xv_reason reason; /* XV_OK, or why its packets are not learned from */
	union xv_key in; /* as this packet came in */
	union xv_key back; /* as packets the other way come in */
};

static __always_inline void xv_ct_tuple4(const struct nf_conntrack_tuple *t, struct xv_key4 *k)
{
	k->saddr = t->src.u3.ip;
	k->daddr = t->dst.u3.ip;
	k->sport = t->src.u.all;
	k->dport = t->dst.u.all;
}

static __always_inline void xv_ct_tuple6(const struct nf_conntrack_tuple *t, struct xv_key6 *k)
{
	k->saddr[0] = t->src.u3.ip6[0];
	k->saddr[1] = t->src.u3.ip6[1];
	k->saddr[2] = t->src.u3.ip6[2];
	k->saddr[3] = t->src.u3.ip6[3];
	k->daddr[0] = t->dst.u3.ip6[0];
	k->daddr[1] = t->dst.u3.ip6[1];
	k->daddr[2] = t->dst.u3.ip6[2];
	k->daddr[3] = t->dst.u3.ip6[3];
	k->sport = t->src.u.all;
	k->dport = t->dst.u.all;
}

static __always_inline void xv_ct_tuple(const struct nf_conntrack_tuple *t, int family,
					union xv_key *k)
{
	if (family == 4)
		xv_ct_tuple4(t, &k->v4);
	else
		xv_ct_tuple6(t, &k->v6);
}

/* Whether conntrack rewrites payload or sequence numbers (FTP, SIP, SYNPROXY). */
static __always_inline bool xv_ct_has_helper(const struct nf_conn *ct)
{
	struct nf_ct_ext *ext = ct->ext;

	if (ct->status & XV_CT_SEQ_ADJUST)
		return true;
	if (!ext)
		return false;
	if (bpf_core_enum_value_exists(enum nf_ct_ext_id___xv, NF_CT_EXT_HELPER___xv) &&
	    ext->offset[bpf_core_enum_value(enum nf_ct_ext_id___xv, NF_CT_EXT_HELPER___xv)])
		return true;
	if (bpf_core_enum_value_exists(enum nf_ct_ext_id___xv, NF_CT_EXT_SEQADJ___xv) &&
	    ext->offset[bpf_core_enum_value(enum nf_ct_ext_id___xv, NF_CT_EXT_SEQADJ___xv)])
		return true;
	return bpf_core_enum_value_exists(enum nf_ct_ext_id___xv, NF_CT_EXT_SYNPROXY___xv) &&
	       ext->offset[bpf_core_enum_value(enum nf_ct_ext_id___xv, NF_CT_EXT_SYNPROXY___xv)];
}

/*
 * Whether conntrack lets packets outside the TCP window pass. It sees few packets
 * of a fast flow, so a strict check would take the next one for an attack.
 */
static __always_inline bool xv_ct_is_liberal(const struct net *net)
{
	return net && net->ct.nf_ct_proto.tcp.tcp_be_liberal;
}

static __always_inline enum xv_reason xv_ct_objection(const struct nf_conn *ct, __u8 proto)
{
	if (ct->status & XV_CT_DYING)
		return XV_LEARN_CT_STATE;
	if (xv_ct_has_helper(ct))
		return XV_LEARN_CT_HELPER;
	if (proto != XV_IPPROTO_TCP)
		return XV_OK;
	if (ct->proto.tcp.state != XV_CT_TCP_ESTABLISHED)
		return XV_LEARN_CT_STATE;
	return xv_ct_is_liberal(ct->ct_net.net) ? XV_OK : XV_LEARN_CT_STRICT;
}

static __always_inline void xv_ct_fill(const struct nf_conn *ct, bool reply, __u8 proto, int family,
				       struct xv_ct_view *v)
{
	v->tracked = true;
	v->reply = reply;
	v->replied = ct->status & XV_CT_SEEN_REPLY;
	v->reason = xv_ct_objection(ct, proto);
	if (reply) {
		xv_ct_tuple(&ct->tuplehash[1].tuple, family, &v->in);
		xv_ct_tuple(&ct->tuplehash[0].tuple, family, &v->back);
	} else {
		xv_ct_tuple(&ct->tuplehash[0].tuple, family, &v->in);
		xv_ct_tuple(&ct->tuplehash[1].tuple, family, &v->back);
	}
}

/* A key as the conntrack helpers take it; returns the length for the family. */
static __always_inline __u32 xv_ct_sock_tuple(const union xv_key *k, int family,
					      struct bpf_sock_tuple *t)
{
	if (family == 4) {
		t->ipv4.saddr = k->v4.saddr;
		t->ipv4.daddr = k->v4.daddr;
		t->ipv4.sport = k->v4.sport;
		t->ipv4.dport = k->v4.dport;
		return sizeof(t->ipv4);
	}
	__builtin_memcpy(t->ipv6.saddr, k->v6.saddr, sizeof(t->ipv6.saddr));
	__builtin_memcpy(t->ipv6.daddr, k->v6.daddr, sizeof(t->ipv6.daddr));
	t->ipv6.sport = k->v6.sport;
	t->ipv6.dport = k->v6.dport;
	return sizeof(t->ipv6);
}

/* The key of packets that answer those of k. */
static __always_inline void xv_reverse(const union xv_key *k, int family, union xv_key *r)
{
	if (family == 4) {
		r->v4.saddr = k->v4.daddr;
		r->v4.daddr = k->v4.saddr;
		r->v4.sport = k->v4.dport;
		r->v4.dport = k->v4.sport;
	} else {
		__builtin_memcpy(r->v6.saddr, k->v6.daddr, sizeof(r->v6.saddr));
		__builtin_memcpy(r->v6.daddr, k->v6.saddr, sizeof(r->v6.daddr));
		r->v6.sport = k->v6.dport;
		r->v6.dport = k->v6.sport;
	}
}

static __always_inline struct nf_conn *xv_ct_lookup(struct __sk_buff *skb, const union xv_key *k,
						    __u8 proto, int family, struct xv_ct_opts *opts)
{
	struct bpf_sock_tuple t = {};
	__u32 len = xv_ct_sock_tuple(k, family, &t);

	opts->netns_id = -1;
	opts->l4proto = proto;
	if (xv_ct_opts_len == 12)
		return bpf_skb_ct_lookup(skb, &t, len, opts, 12);
	return bpf_skb_ct_lookup(skb, &t, len, opts, 16);
}

/*
 * Conntrack's view of a packet that leaves as p. The entry hangs on the skb; where
 * it cannot be read there it is looked up by the tuple of the answer, which is the
 * one that no translation has changed at this point.
 */
static __always_inline void xv_ct_find(struct __sk_buff *skb, struct sk_buff *kskb,
				       const struct xv_packet *p, int family, struct xv_ct_view *v)
{
	if (xv_ct_from_skb && kskb) {
		unsigned long nfct = kskb->_nfct;
		__u32 info = nfct & XV_CT_INFO_MASK;
		const struct nf_conn *ct;

		nfct &= ~(unsigned long)XV_CT_INFO_MASK;
		if (!nfct)
			return;
		ct = bpf_rdonly_cast((const void *)nfct, bpf_core_type_id_kernel(struct nf_conn));
		xv_ct_fill(ct, info >= XV_CT_IS_REPLY, p->proto, family, v);
	} else if (xv_ksym_exists(bpf_skb_ct_lookup)) {
		struct xv_ct_opts opts = {};
		struct nf_conn *ct;

		xv_reverse(&p->key, family, &v->back);
		ct = xv_ct_lookup(skb, &v->back, p->proto, family, &opts);
		if (!ct)
			return;
		xv_ct_fill(ct, opts.dir == 0, p->proto, family, v);
		bpf_ct_release(ct);
	}
}

/*
 * Ends the entry of a connection that a RST has closed. Conntrack compares a RST
 * with acknowledgements that went by the fast path and may hold it for a forgery,
 * which would keep the entry for days.
 */
static __always_inline void xv_ct_reset(struct __sk_buff *skb, const union xv_key *in, __u8 proto,
					int family)
{
	struct xv_ct_opts opts = {};
	struct nf_conn *ct;

	if (!xv_ksym_exists(bpf_skb_ct_lookup) || !xv_ksym_exists(bpf_ct_change_timeout))
		return;
	ct = xv_ct_lookup(skb, in, proto, family, &opts);
	if (!ct)
		return;
	bpf_ct_change_timeout(ct, XV_CT_RST_TIMEOUT_MS);
	bpf_ct_release(ct);
}
