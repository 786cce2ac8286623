// SPDX-License-Identifier: Apache-2.0

// Package bench measures the host-side library, pkg/ptrring, pkg/bulk and pkg/afxdp, against what it
// replaces, in alternate runs in one process. It is no general benchmark framework: go test
// -bench in the packages shows single operations, this package shows ratios.
//
// # How it measures
//
// The paths of a scenario take turns (A B C A B C ...), each turn lasts [Options.Duration],
// and there are [Options.Rounds] turns each. A ratio is taken turn by turn, between
// neighbours, and its median, minimum and maximum are reported: a machine that is slow for a
// while is slow for both. Every second round goes backwards, so that no path always
// follows the same other.
//
// What runs on one goroutine is measured in CPU time of its thread: other work on the
// machine takes time, but it is not counted. What runs on two goroutines, which wait for each
// other, is measured by the clock, in turns five times as long, and needs two idle processors
// for a result: the row "disturbed" says which share of a turn other work took part in. A turn
// that was disturbed is made again, some times. Rates are items per second (of CPU or of the
// clock), times nanoseconds per item. "saved" is what a ratio is in nanoseconds per item.
//
// # Scenarios
//
//   - ring: a ring of 256 pointers, one at a time and in batches of 1 to 64, and a Go channel of
//     the same size, filled and emptied on one processor by one producer and one consumer, as
//     a veth's ring is when frames are redirected to it. Paths "locked/..." are the same with a
//     ring for any number of producers and consumers, paths "pair/..." with producer and
//     consumer on two goroutines.
//   - pool: 16 frames allocated and freed in bulk, one at a time (each under the pool's
//     mutex), from a plain mutex-guarded free list, from sync.Pool, and through a worker's
//     cache. And the redirect-and-drop pipeline with the owner pointer against the same
//     source with a look-up for each frame, as it was in the kernel: in a map of 16 pools
//     that readers take without a lock.
//   - txqueue: frames collected 16 at a time and sent into the ring of the peer, or a lock for
//     each. bulk and lock are all that happens to a frame on one processor, the peer's end
//     included. bulk2 and lock2 are two producers at the same time, up to the ring; it is emptied
//     while the clock stands, because who does that is a third processor. whole/bulk2 and
//     whole/lock2 are two that do all, each empties the ring as much as it fills it.
//   - poll: the whole pipeline from receive to delivered packet: packets allocated in bulk or
//     one by one; the same source built with or without support of fragments; batches of 1 to
//     64.
//   - afxdp: frames of 60 bytes over a veth between two network namespaces, as fast as they go: a
//     Generator and a Sink on AF_XDP sockets in copy mode, against packet sockets with sendmmsg
//     and recvmmsg. The rate is that of frames received; a frame that was sent is received
//     or counted in the row "lost", or the run fails. It needs root.
//
// # One lock and several producers
//
// The review of the kernel's patch for transmit asked whether it is the contended lock that has to be
// mended. On an AMD EPYC (Turin) virtual machine with two processors, Linux 6.18, Go 1.26, with one
// producer and nothing contended, 16 frames a lock make the whole way 2.6 times as fast. Up to the
// ring, two producers get 3.5 times as much into it, contended or not: 18 and 65 ns a frame with
// processors that are far apart, 8 and 28 with near ones, 6 and 21 with one for both. So the
// lock has to be taken less often, whoever else wants it. In the whole way it is 3 times with near
// processors and 1.5 to 2 with far ones: there most of the time goes into frames and slots that move from
// one processor to the other, which a queue does not change. (How far apart they are
// changes on a virtual machine while it runs.)
//
// # Eight or sixteen
//
// The review of the kernel's patch asked which batch is better. On an AMD EPYC (Turin) virtual
// machine, Linux 6.18, Go 1.26, the ring gives 1.5 times the items a second in batches of 16
// compared with 8, and the whole poll pipeline 1.2 times; 32 adds another tenth to the pipeline
// and 64 next to nothing. That is why 16 is the default. The reason is not the cache line of
// eight pointers but that what is paid for each batch, two atomic stores and up to four
// locked instructions of mutexes, still shows at 8.
package bench
