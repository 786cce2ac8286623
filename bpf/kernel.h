/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * The few kernel structures that the programs read, reduced to the fields in
 * use; their offsets are relocated against the running kernel's BTF.
 */
#pragma once

#include <bpf/bpf_core_read.h>
#include <linux/types.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct nf_tcp_net {
	__u8 tcp_be_liberal;
};

struct nf_ip_net {
	struct nf_tcp_net tcp;
};

struct netns_ct {
	struct nf_ip_net nf_ct_proto;
};

struct net {
	struct netns_ct ct;
	__u64 net_cookie;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct bpf_prog_aux {
	char name[16];
};

struct bpf_prog {
	struct bpf_prog_aux *aux;
};

struct bpf_mprog_fp {
	struct bpf_prog *prog;
};

struct bpf_mprog_bundle {
	__u32 count;
};

struct bpf_mprog_entry {
	struct bpf_mprog_fp fp_items[64];
	struct bpf_mprog_bundle *parent;
};

struct tcf_proto;

struct mini_Qdisc {
	struct tcf_proto *filter_list;
};

struct tcx_entry {
	struct mini_Qdisc *miniq;
	struct bpf_mprog_bundle bundle;
};

struct Qdisc_ops {
	char id[16];
};

struct Qdisc {
	void *enqueue;
	const struct Qdisc_ops *ops;
};

struct list_head {
	struct list_head *next;
};

struct netdev_adjacent {
	struct net_device *dev;
	bool master;
	struct list_head list;
};

struct net_device {
	__u32 priv_flags;
	__u64 hw_features;
	struct {
		struct list_head upper;
	} adj_list;
	struct bpf_mprog_entry *tcx_ingress;
	struct bpf_mprog_entry *tcx_egress;
	struct Qdisc *qdisc;
	int ifindex;
	__u32 xdp_features;
	possible_net_t nd_net;
};

struct sk_buff {
	struct net_device *dev;
	unsigned long _nfct;
	__u8 ip_summed : 2;
};

union nf_inet_addr {
	__be32 ip;
	__be32 ip6[4];
};

union nf_conntrack_man_proto {
	__be16 all;
};

struct nf_conntrack_man {
	union nf_inet_addr u3;
	union nf_conntrack_man_proto u;
};

struct nf_conntrack_tuple {
	struct nf_conntrack_man src;
	struct {
		union nf_inet_addr u3;
		union {
			__be16 all;
		} u;
	} dst;
};

struct nf_conntrack_tuple_hash {
	struct nf_conntrack_tuple tuple;
};

struct nf_ct_ext {
	__u8 offset[9];
};

struct ip_ct_tcp_state {
	__u8 flags;
};

struct ip_ct_tcp {
	struct ip_ct_tcp_state seen[2];
	__u8 state;
};

union nf_conntrack_proto {
	struct ip_ct_tcp tcp;
};

struct nf_conn {
	struct nf_conntrack_tuple_hash tuplehash[2];
	unsigned long status;
	possible_net_t ct_net;
	struct nf_ct_ext *ext;
	union nf_conntrack_proto proto;
};

#pragma clang attribute pop

enum nf_ct_ext_id___xv {
	NF_CT_EXT_HELPER___xv,
	NF_CT_EXT_SEQADJ___xv,
	NF_CT_EXT_SYNPROXY___xv,
};

/* The helpers of net/netfilter/nf_conntrack_bpf.c accept no other size. */
struct xv_ct_opts {
	__s32 netns_id;
	__s32 error;
	__u8 l4proto;
	__u8 dir;
	__u16 zone;
	__u8 zone_dir;
	__u8 reserved[3];
};

#define xv_ksym_exists(sym) (!!(sym))

extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym __weak;
extern void *bpf_rdonly_cast(const void *obj, __u32 btf_id) __ksym __weak;
extern struct nf_conn *bpf_skb_ct_lookup(struct __sk_buff *skb, struct bpf_sock_tuple *tuple,
					 __u32 tuple_len, struct xv_ct_opts *opts,
					 __u32 opts_len) __ksym __weak;
extern void bpf_ct_release(struct nf_conn *ct) __ksym __weak;
extern int bpf_ct_change_timeout(struct nf_conn *ct, __u32 timeout_ms) __ksym __weak;
