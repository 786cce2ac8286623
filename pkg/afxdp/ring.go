// SPDX-License-Identifier: Apache-2.0

package afxdp

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxRing is the largest number of entries of a ring.
const MaxRing = 1 << 20

// ring is one of the four rings that a socket shares with the kernel, seen from our side. The
// other side is the kernel, and memory ordering is the package documentation's.
type ring[E any] struct {
	producer, consumer, flags *atomic.Uint32

	entries []E
	mask    uint32
	// own is our position, and other the kernel's as we last saw it.
	own, other uint32
	mem        []byte
}

// mapRing maps a ring of a socket. The kernel made it with size entries.
func mapRing[E any](fd int, page int64, off unix.XDPRingOffset, size uint32) (ring[E], error) {
	var e E
	length := int(off.Desc) + int(size)*int(unsafe.Sizeof(e))
	mem, err := unix.Mmap(fd, page, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return ring[E]{}, fmt.Errorf("map a ring of %d entries: %w", size, err)
	}
	return ring[E]{
		producer: (*atomic.Uint32)(unsafe.Pointer(&mem[off.Producer])),
		consumer: (*atomic.Uint32)(unsafe.Pointer(&mem[off.Consumer])),
		flags:    (*atomic.Uint32)(unsafe.Pointer(&mem[off.Flags])),
		entries:  unsafe.Slice((*E)(unsafe.Pointer(&mem[off.Desc])), size),
		mask:     size - 1,
		mem:      mem,
	}, nil
}

// exists tells whether the socket has this ring.
func (r *ring[E]) exists() bool { return r.mem != nil }

func (r *ring[E]) size() uint32 { return uint32(len(r.entries)) }

// next is the entry at our position, which moves on by one.
func (r *ring[E]) next() *E {
	e := &r.entries[r.own&r.mask]
	r.own++
	return e
}

// available returns how many entries there are to consume. It looks at the kernel's
// position only if it knows of none: what is seen is never too much.
func (r *ring[E]) available() uint32 {
	if r.other == r.own {
		r.other = r.producer.Load()
	}
	return r.other - r.own
}

// room returns how many entries can be produced. A stale position must not make the ring
// look full: it is loaded again before there is said to be less room than wanted.
func (r *ring[E]) room(want uint32) uint32 {
	n := r.size() - (r.own - r.other)
	if n < want {
		r.other = r.consumer.Load()
		n = r.size() - (r.own - r.other)
	}
	return n
}

// publish gives the kernel what was produced.
func (r *ring[E]) publish() { r.producer.Store(r.own) }

// release gives the kernel the places of what was consumed.
func (r *ring[E]) release() { r.consumer.Store(r.own) }

// needWakeup tells whether the kernel waits for a system call.
func (r *ring[E]) needWakeup() bool { return r.flags.Load()&unix.XDP_RING_NEED_WAKEUP != 0 }

func (r *ring[E]) unmap() {
	if r.mem != nil {
		// Nothing can be done about an error, and there is none for a mapping of ours.
		_ = unix.Munmap(r.mem)
	}
	*r = ring[E]{}
}

// ringSize checks a number of entries; 0 means the default.
func ringSize(what string, n, standard int) (uint32, error) {
	if n == 0 {
		n = standard
	}
	if n < 1 || n > MaxRing || n&(n-1) != 0 {
		return 0, fmt.Errorf("%w: %s of %d entries: take a power of two from 1 to %d", ErrConfig, what, n, MaxRing)
	}
	return uint32(n), nil
}

// setOption and getOption are for options of SOL_XDP whose value is a structure.
func setOption[T any](fd, option int, v *T) error {
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(option),
		uintptr(unsafe.Pointer(v)), unsafe.Sizeof(*v), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func getOption[T any](fd, option int, v *T) error {
	size := uint32(unsafe.Sizeof(*v))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(option),
		uintptr(unsafe.Pointer(v)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
