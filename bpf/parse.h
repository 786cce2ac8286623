/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * Reading a packet. Only packets without IPv4 options and IPv6 extension
 * headers get through, so every header stands at a fixed place.
 */
#pragma once

#include <bpf/bpf_endian.h>

#include "const.h"
#include "types.h"

struct xv_eth {
	__u8 dst[6];
	__u8 src[6];
	__be16 proto;
} __attribute__((packed));

struct xv_ip4 {
	__u8 version_ihl;
	__u8 tos;
	__be16 tot_len;
	__be16 id;
	__be16 frag_off;
	__u8 ttl;
	__u8 proto;
	__u16 check;
	__be32 saddr;
	__be32 daddr;
};

struct xv_ip6 {
	__be32 version_class_label;
	__be16 payload_len;
	__u8 next_header;
	__u8 hop_limit;
	__be32 saddr[4];
	__be32 daddr[4];
};

/* The first bytes of TCP and UDP headers. */
struct xv_ports16 {
	__be16 sport;
	__be16 dport;
};

union xv_key {
	struct xv_key4 v4;
	struct xv_key6 v6;
};

/* What is known of a packet after parsing. */
struct xv_packet {
	union xv_key key;
	__u32 hash; /* of the key */
	__u32 len; /* of the IP packet, bytes, as its header says */
	__u16 headers; /* of the IP and TCP or UDP headers, bytes */
	__u8 proto;
	__u8 tos; /* TOS or traffic class */
	__u8 ttl; /* TTL or hop limit */
	__u8 tcp_flags; /* 0 for UDP */
	__u8 type; /* skb->pkt_type; not of frames */
};

static __always_inline __u32 xv_hash4(const struct xv_key4 *k)
{
	__u32 h = xv_seed;

	h = (h ^ k->saddr) * 0x9e3779b1;
	h = (h ^ (h >> 15) ^ k->daddr) * 0x85ebca6b;
	h = (h ^ (h >> 13) ^ ((__u32)k->sport << 16 | k->dport)) * 0xc2b2ae35;
	h = (h ^ (h >> 16) ^ (k->ifindex << 1) ^ (k->proto << 24)) * 0x27d4eb2f;
	return h ^ (h >> 15);
}

static __always_inline __u32 xv_hash6(const struct xv_key6 *k)
{
	struct xv_key4 folded = {
		.sport = k->sport,
		.dport = k->dport,
		.ifindex = k->ifindex,
		.proto = k->proto,
	};
	__u32 h = xv_seed;

	for (int i = 0; i < 4; i++)
		h = (h ^ (h >> 15) ^ k->saddr[i]) * 0x9e3779b1;
	folded.saddr = h;
	for (int i = 0; i < 4; i++)
		h = (h ^ (h >> 13) ^ k->daddr[i]) * 0x85ebca6b;
	folded.daddr = h;
	return xv_hash4(&folded);
}

static __always_inline __u32 xv_hash(const union xv_key *k, int family)
{
	return family == 4 ? xv_hash4(&k->v4) : xv_hash6(&k->v6);
}

/*
 * The ingress note of a packet: a hash of everything that the fast path assumes
 * to leave the node as it came in, or to change as conntrack says.
 */
static __always_inline __u16 xv_note(__u32 hash, __u8 tos, __u8 ttl)
{
	__u32 h = (hash ^ ((__u32)tos << 8 | ttl)) * 0x2c1b3c6d;

	h ^= h >> 13;
	h *= 0x297a2d39;
	h ^= h >> 15;
	return XV_NOTE_SET | (h & XV_NOTE_MASK);
}

/* The family of a frame, 4 or 6; 0 when it is neither. */
static __always_inline int xv_family(const void *data, const void *data_end)
{
	const struct xv_eth *eth = data;

	if ((const void *)(eth + 1) > data_end)
		return 0;
	if (eth->proto == bpf_htons(XV_ETH_P_IP))
		return 4;
	if (eth->proto == bpf_htons(XV_ETH_P_IPV6))
		return 6;
	return 0;
}

/* Why a frame that is neither is passed on. */
static __always_inline enum xv_reason xv_pass_frame(const void *data, const void *data_end)
{
	const struct xv_eth *eth = data;

	if ((const void *)(eth + 1) > data_end)
		return XV_PASS_SHORT;
	if (eth->proto == bpf_htons(XV_ETH_P_8021Q) || eth->proto == bpf_htons(XV_ETH_P_8021AD))
		return XV_PASS_VLAN;
	return XV_PASS_NOT_IP;
}

static __always_inline enum xv_reason xv_parse_l4(const void *l4, const void *data_end,
						  struct xv_packet *p, __be16 *sport, __be16 *dport)
{
	const struct xv_ports16 *ports = l4;
	const __u8 *tcp = l4;

	if (p->proto == XV_IPPROTO_UDP) {
		if (l4 + XV_UDP_HLEN > data_end)
			return XV_PASS_SHORT;
		p->tcp_flags = 0;
		p->headers += XV_UDP_HLEN;
	} else if (p->proto == XV_IPPROTO_TCP) {
		if (l4 + XV_TCP_HLEN > data_end || tcp[12] < 0x50)
			return XV_PASS_SHORT;
		p->tcp_flags = tcp[13];
		p->headers += (tcp[12] >> 4) * 4;
	} else {
		return XV_PASS_PROTO;
	}
	*sport = ports->sport;
	*dport = ports->dport;
	return p->len < p->headers ? XV_PASS_SHORT : XV_OK;
}

/*
 * The length of the IP packet, when its header cannot say it: a TCP packet of more than
 * 64 KiB that is to be cut into segments says 0 (skb_ip_totlen() in include/linux/skbuff.h).
 */
static __always_inline __u32 xv_long_len(__u8 proto, __u32 gso_len)
{
	return proto == XV_IPPROTO_TCP ? gso_len : 0;
}

static __always_inline enum xv_reason xv_parse4(const void *data, const void *data_end,
						__u32 ifindex, __u32 gso_len, struct xv_packet *p)
{
	const struct xv_ip4 *ip = data + XV_ETH_HLEN;
	struct xv_key4 *k = &p->key.v4;
	enum xv_reason reason;

	if ((const void *)(ip + 1) > data_end)
		return XV_PASS_SHORT;
	if (ip->version_ihl != 0x45)
		return XV_PASS_OPTIONS;
	if (ip->frag_off & bpf_htons(XV_IP4_FRAG_MASK))
		return XV_PASS_FRAGMENT;
	k->saddr = ip->saddr;
	k->daddr = ip->daddr;
	k->ifindex = ifindex;
	k->proto = ip->proto;
	p->proto = ip->proto;
	p->tos = ip->tos;
	p->ttl = ip->ttl;
	p->len = ip->tot_len ? bpf_ntohs(ip->tot_len) : xv_long_len(ip->proto, gso_len);
	p->headers = XV_IP4_HLEN;
	reason = xv_parse_l4(ip + 1, data_end, p, &k->sport, &k->dport);
	if (reason)
		return reason;
	p->hash = xv_hash4(k);
	return XV_OK;
}

/* Why an IPv6 packet whose next header is neither TCP nor UDP is passed on. */
static __always_inline enum xv_reason xv_pass_ip6(__u8 next_header)
{
	switch (next_header) {
	case 44: /* fragment */
		return XV_PASS_FRAGMENT;
	case 0: /* hop-by-hop options */
	case 43: /* routing */
	case 50: /* encapsulating security payload */
	case 51: /* authentication */
	case 60: /* destination options */
		return XV_PASS_OPTIONS;
	default:
		return XV_PASS_PROTO;
	}
}

static __always_inline enum xv_reason xv_parse6(const void *data, const void *data_end,
						__u32 ifindex, __u32 gso_len, struct xv_packet *p)
{
	const struct xv_ip6 *ip = data + XV_ETH_HLEN;
	struct xv_key6 *k = &p->key.v6;
	enum xv_reason reason;
	__u32 len;

	if ((const void *)(ip + 1) > data_end)
		return XV_PASS_SHORT;
	if ((bpf_ntohl(ip->version_class_label) >> 28) != 6)
		return XV_PASS_SHORT;
	if (ip->next_header != XV_IPPROTO_TCP && ip->next_header != XV_IPPROTO_UDP)
		return xv_pass_ip6(ip->next_header);
	len = bpf_ntohs(ip->payload_len) + XV_IP6_HLEN;
	if (len > 0xffff)
		return XV_PASS_TOO_LONG;
	if (!ip->payload_len)
		len = xv_long_len(ip->next_header, gso_len);
	__builtin_memcpy(k->saddr, ip->saddr, sizeof(k->saddr));
	__builtin_memcpy(k->daddr, ip->daddr, sizeof(k->daddr));
	k->ifindex = ifindex;
	k->proto = ip->next_header;
	p->proto = ip->next_header;
	p->tos = bpf_ntohl(ip->version_class_label) >> 20;
	p->ttl = ip->hop_limit;
	p->len = len;
	p->headers = XV_IP6_HLEN;
	reason = xv_parse_l4(ip + 1, data_end, p, &k->sport, &k->dport);
	if (reason)
		return reason;
	p->hash = xv_hash6(k);
	return XV_OK;
}

/* gso_len is the length of an skb that is to be cut into segments; 0 for what is not. */
static __always_inline enum xv_reason xv_parse(const void *data, const void *data_end, int family,
					       __u32 ifindex, __u32 gso_len, struct xv_packet *p)
{
	return family == 4 ? xv_parse4(data, data_end, ifindex, gso_len, p) :
			     xv_parse6(data, data_end, ifindex, gso_len, p);
}

/* What xv_parse has to know of an skb. */
static __always_inline __u32 xv_gso_len(const struct __sk_buff *skb)
{
	return skb->gso_size ? skb->len - XV_ETH_HLEN : 0;
}
