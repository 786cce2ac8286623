/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * What the kernel knows of an interface and user space would have to poll for:
 * whose programs are on it, whether it is shaped, whether it takes frames. Read on
 * slow paths only. On a kernel where something cannot be read, user space decides
 * at attach time, and these functions find no fault.
 */
#pragma once

#include "const.h"
#include "kernel.h"
#include "reason.h"

/* The skb as the kernel sees it; NULL before Linux 6.2. */
static __always_inline struct sk_buff *xv_kernel_skb(struct __sk_buff *skb)
{
	if (!xv_ksym_exists(bpf_cast_to_kern_ctx))
		return 0;
	return bpf_cast_to_kern_ctx(skb);
}

static __always_inline bool xv_has_filters(struct bpf_mprog_bundle *bundle)
{
	struct mini_Qdisc *miniq = 0;
	const void *entry = (const void *)bundle - bpf_core_field_offset(struct tcx_entry, bundle);
	struct tcf_proto *filters = 0;

	bpf_probe_read_kernel(&miniq, sizeof(miniq),
			      entry + bpf_core_field_offset(struct tcx_entry, miniq));
	if (!miniq)
		return false;
	bpf_core_read(&filters, sizeof(filters), &miniq->filter_list);
	return filters;
}

/* Whether the program that runs last is one of ours: xv_... */
static __always_inline bool xv_last_is_ours(struct bpf_mprog_entry *entry, __u32 count)
{
	const void *slot = entry;
	struct bpf_prog *prog = 0;
	struct bpf_prog_aux *aux = 0;
	char name[4] = {};

	slot += (count - 1) * bpf_core_type_size(struct bpf_mprog_fp);
	bpf_probe_read_kernel(&prog, sizeof(prog), slot);
	bpf_core_read(&aux, sizeof(aux), &prog->aux);
	bpf_core_read(&name, 3, &aux->name);
	return name[0] == 'x' && name[1] == 'v' && name[2] == '_';
}

/*
 * Whether a program or filter of somebody else's would run behind ours, or, when
 * ours has to be alone, anywhere on this hook.
 */
static __always_inline bool xv_foreign_behind(struct bpf_mprog_entry *entry, bool alone)
{
	struct bpf_mprog_bundle *bundle;
	__u32 count;

	if (!entry)
		return false;
	bundle = entry->parent;
	if (!bundle)
		return false;
	count = bundle->count;
	if (count > 1 && (alone || count > 64 || !xv_last_is_ours(entry, count)))
		return true;
	return xv_has_filters(bundle);
}

static __always_inline bool xv_foreign_ingress(struct sk_buff *skb, bool alone)
{
	if (!skb || !bpf_core_field_exists(struct net_device, tcx_ingress))
		return false;
	return xv_foreign_behind(skb->dev->tcx_ingress, alone);
}

static __always_inline bool xv_foreign_egress(struct sk_buff *skb)
{
	if (!skb || !bpf_core_field_exists(struct net_device, tcx_egress))
		return false;
	return xv_foreign_behind(skb->dev->tcx_egress, false);
}

/*
 * Whether packets wait in a queue on their way out (TBF, HTB, ...). A veth has none
 * unless somebody put it there.
 */
static __always_inline bool xv_is_shaped(struct sk_buff *skb)
{
	return skb && skb->dev->qdisc && skb->dev->qdisc->enqueue;
}

/*
 * Whether an uplink's queue is there to shape. A NIC has one by default: mq,
 * pfifo_fast, fq_codel, fq, or none; those that shape are tbf, htb, hfsc, cake, ...
 */
static __always_inline bool xv_uplink_is_shaped(struct sk_buff *skb)
{
	char id[2] = {};

	if (!skb || !skb->dev->qdisc)
		return false;
	bpf_core_read(&id, sizeof(id), &skb->dev->qdisc->ops->id);
	return !((id[0] == 'm' && id[1] == 'q') || (id[0] == 'p' && id[1] == 'f') ||
		 (id[0] == 'f' && id[1] == 'q') || (id[0] == 'n' && id[1] == 'o'));
}

static __always_inline bool xv_takes_frames(struct sk_buff *skb)
{
	if (!skb || !bpf_core_field_exists(struct net_device, xdp_features))
		return true;
	return skb->dev->xdp_features & XV_XDP_ACT_NDO_XMIT;
}

/*
 * Whether the pod runs XDP on its end: veth then takes segmentation from the host's
 * (veth_xdp_set() in drivers/net/veth.c).
 */
static __always_inline bool xv_pod_runs_xdp(struct sk_buff *skb)
{
	return skb && !(skb->dev->hw_features & XV_NETIF_F_TSO);
}

static __always_inline bool xv_is_bridge_port(struct sk_buff *skb)
{
	return skb && BPF_CORE_READ_BITFIELD(skb->dev, priv_flags) & XV_IFF_BRIDGE_PORT;
}

/* The bridge of a port, which may have other devices on top; NULL if it is not found. */
static __always_inline struct net_device *xv_bridge_of(struct net_device *port)
{
	const struct list_head *at = &port->adj_list.upper;
	struct netdev_adjacent *adj;
	struct net_device *dev = 0;
	bool master = false;

	for (int i = 0; i < 4; i++) {
		bpf_core_read(&at, sizeof(at), &at->next);
		adj = (void *)at - bpf_core_field_offset(struct netdev_adjacent, list);
		bpf_core_read(&master, sizeof(master), &adj->master);
		if (!master)
			continue;
		bpf_core_read(&dev, sizeof(dev), &adj->dev);
		return dev;
	}
	return 0;
}

/* Whether the bridge itself shapes what it sends, or runs programs or filters on it. */
static __always_inline enum xv_reason xv_bridge_objection(struct sk_buff *skb)
{
	struct net_device *bridge = xv_bridge_of(skb->dev);
	struct bpf_mprog_entry *egress = 0;
	struct Qdisc *qdisc = 0;
	void *enqueue = 0;

	if (!bridge)
		return XV_LEARN_FLOODED;
	if (bpf_core_field_exists(struct net_device, tcx_egress))
		bpf_core_read(&egress, sizeof(egress), &bridge->tcx_egress);
	if (egress)
		return XV_LEARN_FOREIGN_EGRESS;
	bpf_core_read(&qdisc, sizeof(qdisc), &bridge->qdisc);
	bpf_core_read(&enqueue, sizeof(enqueue), &qdisc->enqueue);
	return enqueue ? XV_LEARN_QDISC : XV_OK;
}

/* Whether programs or filters run on what the bridge hands to the node. */
static __always_inline bool xv_bridge_has_ingress(struct sk_buff *skb)
{
	struct net_device *bridge = xv_bridge_of(skb->dev);
	struct bpf_mprog_entry *ingress = 0;

	if (!bridge)
		return true;
	if (bpf_core_field_exists(struct net_device, tcx_ingress))
		bpf_core_read(&ingress, sizeof(ingress), &bridge->tcx_ingress);
	return ingress;
}
