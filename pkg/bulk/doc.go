// SPDX-License-Identifier: Apache-2.0

// Package bulk is memory for packet pipelines: pools of frames whose buffers lie in one area,
// allocated and freed in batches, queues that send in batches, and the poll loop that joins
// them to a ring. It does no input or output of its own.
//
// # Where it comes from
//
//   - [Pool.AllocBulk], [FreeBulk] and [PacketPool]: "veth: allocate skbs in bulk for XDP_PASS"
//     (January 2021; kmem_cache_alloc_bulk in drivers/net/veth.c and kernel/bpf/cpumap.c, and
//     xdp_return_frame_bulk in net/core/xdp.c). One lock, or none, for a whole batch.
//   - [Frame] carries its pool: "xdp: page_pool return without look-up" (September 2022;
//     __xdp_return in net/core/xdp.c, page_pool_put_full_page). The pool outlives its frames:
//     [Pool.Close] refuses while one is out.
//   - [Frame.Append]: XDP multi-buffer (September 2020; struct skb_shared_info at the end of
//     an xdp_buff). As its review asked, a frame of one buffer pays nothing for it but a branch
//     that is not taken.
//   - [TxQueue]: "veth: transmit in bulk for XDP_TX" (May 2019; veth_xdp_flush_bq, and
//     bq_enqueue in kernel/bpf/devmap.c).
//   - [Poller]: veth_poll and veth_xdp_rcv, with what the review of the first changed: the
//     budget counts entries and not batches, and frames are collected apart from packets.
//     Unlike there, a packet that stood between frames keeps its place among them.
//
// # Frames
//
// A frame is headroom, data and tailroom in one buffer, in bytes, as in struct xdp_frame. It
// belongs to one goroutine at a time; handing it on through a ring or a channel hands over
// all of it. Anyone may free it, from anywhere.
//
// # Allocation
//
// A pool is a stack of pointers behind a mutex: O(1) for one frame and one lock with a copy of n
// pointers for a batch; the frame used last is used next. A [Cache] is a worker's own stack on
// top, without a lock, that moves a batch between itself and the pool when it is empty or full.
// AllocBulk may give fewer than it was asked for: it returns how many, and the rest counts in
// [Stats].Short. Allocated, cached and free frames always add up to the total. A pool takes
// FrameSize+72 bytes a frame; nothing is allocated after NewPool, NewCache and NewPoller.
//
// # Checks
//
// With [Config].Checked, or in a build with the tag xveth_debug, a pool knows of each frame
// whether it is out: a frame freed twice, to the wrong pool, or made by nobody, is reported and
// not put into the list. Without checks one comparison for a batch still finds a list that
// would become longer than the pool.
package bulk
