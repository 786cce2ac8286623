/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Numbers of the wire formats and of the design. */
#pragma once

#define XV_ETH_HLEN 14
#define XV_ETH_P_IP 0x0800
#define XV_ETH_P_IPV6 0x86DD
#define XV_ETH_P_8021Q 0x8100
#define XV_ETH_P_8021AD 0x88A8
#define XV_IPPROTO_TCP 6
#define XV_IPPROTO_UDP 17
#define XV_IP4_HLEN 20
#define XV_IP6_HLEN 40
#define XV_TCP_HLEN 20
#define XV_UDP_HLEN 8
#define XV_TCP_CSUM_OFF 16
#define XV_UDP_CSUM_OFF 6

#define XV_IP4_FRAG_MASK 0x3fff /* more fragments, or an offset */

#define XV_TCP_FIN 0x01
#define XV_TCP_SYN 0x02
#define XV_TCP_RST 0x04
#define XV_TCP_ACK 0x10

#define XV_PACKET_HOST 0 /* skb->pkt_type: the frame is addressed to the device */
#define XV_PACKET_OTHERHOST 3 /* to somebody else: a bridge may forward it */
#define XV_NETIF_F_TSO (1ULL << 16) /* net_device->hw_features */
#define XV_IFF_BRIDGE_PORT 0x200 /* net_device->priv_flags */
#define XV_CHECKSUM_PARTIAL 3 /* skb->ip_summed: the pseudo header alone is summed */

/* Verdicts of tcx; as those of a clsact filter they mean the same. */
#define XV_TC_NEXT (-1)
#define XV_TC_DROP 2

/* The ingress note: the top bit says that there is one, the others are a hash. */
#define XV_NOTE_SET 0x8000
#define XV_NOTE_MASK 0x7fff
#define XV_NOTE_FAST 1 /* no note: the fast path itself sends the packet */

/* What a flow entry says about its packets (struct xv_flow, flags). */
#define XV_F_NAT (1 << 0) /* addresses or ports change */
#define XV_F_ROUTED (1 << 1) /* the kernel routed it: TTL or hop limit falls by one */
#define XV_F_PEER (1 << 2) /* the way out is a pod: go to the veth's other end */
#define XV_F_BOUNCE (1 << 3) /* the way out is the way in */
#define XV_F_REPLY (1 << 4) /* to conntrack these packets are the answer */
#define XV_F_GRACE (1 << 5) /* its deadline was put off once (rescue.h) */
#define XV_F_BRIDGED (1 << 6) /* a bridge forwards it */
#define XV_F_MEMBER (1 << 7) /* the way in is the port of a bridge */

/* Conntrack (include/uapi/linux/netfilter/nf_conntrack_{common,tcp}.h). */
#define XV_CT_INFO_MASK 7
#define XV_CT_IS_REPLY 3
#define XV_CT_UNTRACKED 7
#define XV_CT_SEEN_REPLY (1 << 1)
#define XV_CT_SEQ_ADJUST (1 << 6)
#define XV_CT_DYING (1 << 9)
#define XV_CT_TCP_ESTABLISHED 3
#define XV_CT_TCP_BE_LIBERAL 0x08 /* ct->proto.tcp.seen[].flags */
#define XV_CT_RST_TIMEOUT_MS 10000 /* what conntrack gives a connection in state CLOSE */

/* How long a deadline is put off for a rescue, in ns (rescue.h). */
#define XV_GRACE_NS 50000000

/* How long after its deadline a flow may need a rescue, in ns; then it is an old one. */
#define XV_RESCUE_NS 60000000000ULL

/* enum netdev_xdp_act, NETDEV_XDP_ACT_NDO_XMIT: the device takes frames. */
#define XV_XDP_ACT_NDO_XMIT 4

/* Packets the kernel must have forwarded before a flow is learned. */
#define XV_LEARN_AFTER 4
#define XV_LEARN_AFTER_REPLY 2

/*
 * Longest time that one NAPI poll is assumed to take, in ns: twice the coarsest tick
 * of the clock that deadlines are compared with, or a flow would change its path
 * within a poll.
 */
#define XV_POLL_MAX_NS 20000000

#define XV_SLOTS 8192 /* a power of two */
#define XV_TICK_SHIFT 20 /* a tick of a slot is 2^20 ns */
