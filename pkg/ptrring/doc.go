// SPDX-License-Identifier: Apache-2.0

// Package ptrring is a bounded first-in first-out ring of pointers whose
// operations work on whole batches. It is not a general queue: it never grows
// by itself, and nil cannot be stored, because nil marks a free slot.
//
// # Where it comes from
//
// The idea is the Linux kernel's ptr_ring (include/linux/ptr_ring.h): slots
// that are nil when free, producers and consumers that share as few cache lines
// as possible, and a consumer that hands slots back some cache lines at a time
// (__ptr_ring_discard_one with consumer_head and consumer_tail). Produce,
// Consume, ConsumeBatch, Peek, Full, Resize and Unconsume mean what
// ptr_ring_produce, _consume, _consume_batched, __ptr_ring_peek, _full, _resize
// and _unconsume mean there. Taking several entries at once is the part of
// "veth: allocate skbs in bulk for XDP_PASS" (January 2021) that its review kept:
// the caller's budget counts entries, never batches.
//
// One thing differs. In C the nil in the slot is itself the message between the
// two sides. In Go a plain load of a slot that another goroutine may be storing
// is a data race, and an atomic store is a locked instruction for each slot, which
// would eat what batching gains (BenchmarkAtomicSlots shows it). So a slot still is
// nil if and only if it is free, but what is announced is a position: the producer
// publishes how far it has filled, the consumer how far it has handed back,
// with one atomic store for a batch of any length. Builds with the tag
// xveth_debug check the nil of every slot before it is filled.
//
// # What orders what
//
// Atomic operations of Go are sequentially consistent, and an atomic load that
// sees a store happens after it (the Go memory model, "synchronized before").
// There are two such pairs:
//
//   - published: the producer fills slots with plain stores, then stores
//     published. A consumer loads published before it reads a slot below it. So
//     the slot, and whatever the producer wrote into the pointee before it called
//     Produce, is seen complete.
//   - given: the consumer reads slots and sets them to nil with plain stores, then
//     stores given. A producer loads given before it fills a slot below
//     given+Cap. So it never overwrites an entry that has not been read: there
//     cannot be more than Cap entries, whatever the processor reorders.
//
// Each side keeps a private copy of the other's last seen position, and loads the
// real one before it says "full" or "empty": a stale copy costs a load and never a
// wrong answer. Producers among themselves, and consumers among themselves, are
// ordered by a mutex, which SingleProducer and SingleConsumer leave out. Resize
// and Unconsume move both positions and hold both mutexes, the consumer's first,
// as in the kernel.
//
// Every operation on a ring without SingleProducer or SingleConsumer is
// linearizable. A batch is one step: its entries appear, or disappear, together.
// A batch that was cut short means that the ring was full (or empty) at one moment
// of the call.
//
// # Handing back
//
// A consumed slot is set to nil at once, so the ring keeps nothing alive that was
// consumed. What waits is the announcement: slots are handed back to the producer
// when [HandBack] of them have been consumed (two cache lines of pointers, as in the
// kernel), when the end of the ring is reached, and when a consumer finds the ring
// empty. Until then the producer does not come near the cache lines in which the
// consumer still works. The price is that Produce may say "full" while up to
// HandBack-1 slots are consumed but not handed back. Where every slot counts, for
// example a ring as large as the pool whose frames it recycles, use Exact. Rings
// smaller than 2*HandBack, and rings with Wait, are always exact.
//
// # Waiting
//
// With Wait, ProduceWait and ConsumeWait sleep. A sleeper first says that it waits,
// then looks at the ring again, then sleeps; the other side first publishes, then
// looks whether somebody waits. Both are sequentially consistent, so one of the two
// sees the other, and no wake-up is lost. A wake-up is a token in a channel of one
// place: it stays until somebody takes it. Whoever was woken and leaves something
// for others passes the token on.
//
// # Cost and units
//
// Sizes and lengths count entries. Produce, Consume, Peek, Len, Full and Empty are
// O(1); batches are O(n) moves with O(1) atomic operations; Resize and Unconsume are
// O(n). After New nothing allocates but Resize. A ring takes 8 bytes an entry and
// 700 bytes.
//
// CPU time for an entry that goes in and out on one processor (AMD EPYC Turin virtual
// machine, Linux 6.18, Go 1.26, BenchmarkOneCore, median of three on a busy machine), in
// nanoseconds:
//
//	                                one at a time   batches of 16
//	SingleProducer, SingleConsumer             20             3.9
//	the same, Exact                            20             4.7
//	SingleConsumer (a veth's ring)             32             4.8
//	SingleProducer                             28             4.0
//	neither                                    42             5.4
//	neither, Wait                              52             5.2
//	atomic slots (BenchmarkAtomicSlots)        22              23
//	channel                                    43               -
//
// So leaving out a lock pays when entries move one at a time, and hardly in batches.
package ptrring
