// SPDX-License-Identifier: Apache-2.0

// Package afxdp sends and receives frames of pkg/bulk through AF_XDP sockets: the pool's memory
// is the UMEM, and no packet is copied in user space. It is no network stack: it knows
// neither addresses nor protocols.
//
// # Parts
//
// A [UMEM] says how the kernel may use the memory of a pool. [UMEM.Open] makes a [Socket] on one
// queue of an interface; sockets of one UMEM on several queues and interfaces share the
// memory, so a frame received on one can be sent on another. A [Program] gives the sockets
// what arrives at the interface. [Generator] and [Sink] are the two ends of a benchmark.
//
// # Where it comes from
//
//   - The rings: struct xdp_ring and the ordering table at the top of net/xdp/xsk_queue.h; the
//     set-up as in xsk_socket__create_shared of libxdp (lib/libxdp/xsk.c of xdp-tools).
//   - Wake-ups: xsk_poll, xsk_sendmsg and xsk_recvmsg in net/xdp/xsk.c, XDP_USE_NEED_WAKEUP
//     (August 2019).
//   - Multi-buffer: XDP_USE_SG and XDP_PKT_CONTD ("xsk: multi-buffer support", July 2023):
//     one descriptor for each buffer, all but the last with the flag, become one bulk.Frame
//     with fragments, and the other way round.
//   - Busy polling: SO_PREFER_BUSY_POLL (November 2020) and napi_busy_loop.
//   - The default program: xsk_def_prog of libxdp, here in assembler.
//
// # Who owns a frame
//
// A frame is the caller's, or the kernel's. [Socket.Receive] hands it to the caller,
// [Socket.Send] to the kernel, and from there it goes back to its pool by itself when it
// has been sent. The socket notes every frame that it lent to the kernel, and takes
// only those back: a frame that is sent twice, or an address that was never lent, is
// found. [Socket.Close] returns everything that the kernel still has. So allocated and free
// frames of the pool always add up, and after Close nothing is missing.
//
// A socket never has more than [Config].FillRing frames of the pool for receiving and TxRing
// for sending. A pool for n sockets should have n times that and what the callers hold.
//
// # What orders what
//
// A ring has one producer and one consumer, one of which is the kernel; they share the two
// positions and the entries. Go's atomic operations are sequentially consistent, which is
// stronger than the acquire and release that the kernel uses on its side:
//
//   - We produce (fill, TX): entries, and the frame's bytes, are written with plain stores,
//     then the producer position is stored atomically. The kernel loads it with acquire
//     before it reads them. Before we write an entry we load the consumer position, which
//     the kernel stores with release after it has read what lay there.
//   - We consume (RX, completion): the producer position is loaded atomically before
//     entries and bytes are read, and the kernel stored it with release after writing them.
//     We store the consumer position after reading; the kernel loads it before it writes there
//     again.
//   - A wake-up: we store the TX producer position, then load the ring's flags. The kernel
//     sets NEED_WAKEUP, then looks at the position once more. Sequential consistency on our
//     side, a full barrier on its: one of the two sees the other.
//
// Each side of a socket keeps the position that it last saw of the kernel's and loads the
// real one before it says "full" or "empty". The position of the fill ring may come later
// than that of the RX ring: what did not fit is put there by the next call, nothing spins.
//
// Receiving and sending have a mutex each, so a socket may be used by many goroutines, and
// one that receives does not hinder one that sends. It costs nothing against a system call,
// and it is what lets Close unmap the rings safely.
//
// # Waiting
//
// Receive and Send never sleep. [Socket.Poll] and [Socket.SendAll] do, in the runtime's poller and
// not on a thread of their own. The poller reports edges: a frame that arrives between the
// look at the ring and the sleep is an edge and ends the sleep at once. On top of that no
// sleep lasts longer than a tenth of a second, and a millisecond where the kernel does not report
// what we wait for: a frame that comes back to the pool, or a completion. Close and the
// context end all of them.
//
// # Loss
//
// What the kernel could not deliver is in [Stats].Kernel; every frame that reached the
// socket is counted once: received, in RxDropped or RxRingFull of the kernel, TooManyFrags, or
// Unread at the end. FillRingEmpty is a cause of RxDropped and no further loss. What the
// device's own queue drops on the way out is a completed frame for a socket and counted in
// the interface's tx_dropped.
//
// # Cost and units
//
// Sizes and lengths are bytes, rings and batches count entries (a fragment is one), times
// are time.Duration. Receive, Send and the return of completed frames are O(n) for n
// buffers with a constant number of atomic operations and one lock of the pool a batch, and at most
// one system call for every 32 frames sent (the kernel's TX_BATCH_SIZE in copy mode). Nothing is
// allocated after Open but when Poll sleeps with another context than the last time, or a
// Generator's Run ends. A socket takes 6 bytes for each frame of the pool, besides the rings of
// 16 and 8 bytes an entry.
//
// # Limits
//
// Chunks are aligned: a frame is a power of two from 2048 bytes to a page. Larger packets
// need MultiBuffer (kernel 6.6). Two sockets on one queue of one UMEM, TX metadata and
// unaligned chunks are left out. A closed zero-copy socket keeps its frames for
// another tenth of a second, because the driver takes its queue down later.
package afxdp
