//go:build ignore

/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * The programs of xveth. Ingress programs repeat what egress programs saw the
 * kernel do; nothing here decides where a packet goes.
 */
#include <linux/bpf.h>
#include <stdbool.h>

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "ingress.h"
#include "learn.h"

/* Frames that come in by an uplink, or from a pod that sends frames. */
SEC("xdp.frags")
int xv_xdp_in(struct xdp_md *ctx)
{
	return xv_xdp(ctx);
}

/* Skbs from a pod, or from an uplink that XDP does not drive. */
SEC("tcx/ingress")
int xv_tc_in(struct __sk_buff *skb)
{
	return xv_tc_ingress(skb, true);
}

/* Skbs that XDP has passed on. */
SEC("tcx/ingress")
int xv_tc_note(struct __sk_buff *skb)
{
	return xv_tc_ingress(skb, false);
}

/* Skbs that the kernel sends to a pod. */
SEC("tcx/egress")
int xv_learn_pod(struct __sk_buff *skb)
{
	return xv_learn(skb, XV_F_PEER);
}

/* Skbs that the kernel sends out by an uplink. */
SEC("tcx/egress")
int xv_learn_uplink(struct __sk_buff *skb)
{
	return xv_learn(skb, 0);
}

/* The end of a NAPI poll. */
SEC("tp_btf/napi_poll")
int BPF_PROG(xv_on_poll)
{
	__u64 *poll = xv_this_poll();

	if (poll)
		(*poll)++;
	return 0;
}

static __always_inline bool xv_in_node(const struct net_device *dev, const struct xv_settings *cfg)
{
	return dev->nd_net.net->net_cookie == cfg->netns_cookie;
}

static __always_inline void xv_count_loss(__u32 ifindex, __s32 err, __u64 frames)
{
	struct xv_loss_key key = { .ifindex = ifindex, .err = err };
	__u64 *have = bpf_map_lookup_elem(&xv_losses, &key);

	if (have)
		__sync_fetch_and_add(have, frames);
	else
		bpf_map_update_elem(&xv_losses, &key, &frames, BPF_ANY);
}

/*
 * Sends the flows of an interface that refuses frames to the kernel. Tracing programs
 * have no coarse clock; the fine one is ahead of it by at most a tick.
 */
static __always_inline void xv_block(struct xv_settings *cfg, __u32 ifindex)
{
	__u64 until = bpf_ktime_get_ns() + cfg->revalidate_ns;

	bpf_map_update_elem(&xv_blocked, &ifindex, &until, BPF_ANY);
	cfg->blocked_until = until;
}

/* A frame that could not be queued for its way out. */
SEC("tp_btf/xdp_redirect_err")
int BPF_PROG(xv_on_redirect_err, const struct net_device *dev, const void *prog, const void *target,
	     int err, int map_type, __u32 map_id, __u32 index)
{
	struct xv_settings *cfg = xv_get_settings();

	if (!cfg || map_id != cfg->devmap_id || !xv_in_node(dev, cfg))
		return 0;
	xv_count_loss(index, err, 1);
	xv_block(cfg, index);
	return 0;
}

/* A batch of frames that left, or did not: err is an error of the device. */
SEC("tp_btf/xdp_devmap_xmit")
int BPF_PROG(xv_on_devmap_xmit, const struct net_device *from, const struct net_device *to,
	     int sent, int drops, int err)
{
	struct xv_settings *cfg;
	__u32 ifindex;

	if (!drops)
		return 0;
	cfg = xv_get_settings();
	ifindex = to->ifindex;
	if (!cfg || !xv_in_node(to, cfg) || !bpf_map_lookup_elem(&xv_devs, &ifindex))
		return 0;
	xv_count_loss(ifindex, err, drops);
	if (err)
		xv_block(cfg, ifindex);
	return 0;
}

char xv_license[] SEC("license") = "Dual BSD/GPL";
