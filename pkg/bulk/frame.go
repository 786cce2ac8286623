// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"errors"
	"fmt"
)

// MaxFrags is how many fragments a frame can have besides its first buffer, as in
// the kernel (MAX_SKB_FRAGS).
const MaxFrags = 17

var (
	// ErrNoRoom says that the data would leave the buffer.
	ErrNoRoom = errors.New("no room in the frame's buffer")
	// ErrTooManyFrags says that a frame has no place for another fragment.
	ErrTooManyFrags = errors.New("too many fragments")
)

// Frame is one buffer of a pool and what lies in it: headroom, then data, then
// tailroom, as in the kernel's xdp_frame. It carries a pointer to its pool, so
// whoever holds a frame can free it, from any goroutine. Its owner at a time is one
// goroutine.
//
// It is one cache line of 64 bytes.
type Frame struct {
	pool *Pool
	buf  []byte
	next *Frame // next fragment; nil in nearly all frames
	pkt  *Packet
	head uint32 // bytes in front of the data
	size uint32 // bytes of data in this buffer
	// The number of the frame in its pool, and of the pool in the process.
	index uint32
	id    uint32
}

// Pool returns the pool that the frame belongs to.
func (f *Frame) Pool() *Pool { return f.owner() }

// Data returns the bytes in the frame's first buffer.
func (f *Frame) Data() []byte { return f.buf[f.head : f.head+f.size : len(f.buf)] }

// Buffer returns the whole first buffer, headroom and tailroom included.
func (f *Frame) Buffer() []byte { return f.buf }

// Len returns the number of data bytes in the first buffer.
func (f *Frame) Len() int { return int(f.size) }

// Headroom returns the number of free bytes in front of the data.
func (f *Frame) Headroom() int { return int(f.head) }

// Tailroom returns the number of free bytes behind the data.
func (f *Frame) Tailroom() int { return len(f.buf) - int(f.head) - int(f.size) }

// Addr returns where the data starts, in bytes from the start of the pool's memory
// (an address in the UMEM, for AF_XDP).
func (f *Frame) Addr() uint64 {
	return uint64(f.index)*uint64(len(f.buf)) + uint64(f.head)
}

// SetData says where the data lies in the buffer: length bytes behind headroom ones.
func (f *Frame) SetData(headroom, length int) error {
	if headroom < 0 || length < 0 || headroom > len(f.buf) || length > len(f.buf)-headroom {
		return fmt.Errorf("set data of %d bytes behind %d in a buffer of %d: %w",
			length, headroom, len(f.buf), ErrNoRoom)
	}
	f.head, f.size = uint32(headroom), uint32(length)
	return nil
}

// AdjustHead moves the start of the data by delta bytes: forward removes bytes,
// backward takes from the headroom, as in bpf_xdp_adjust_head.
func (f *Frame) AdjustHead(delta int) error {
	if delta < -int(f.head) || delta > int(f.size) {
		return fmt.Errorf("move head by %d: %w", delta, ErrNoRoom)
	}
	f.head = uint32(int(f.head) + delta)
	f.size = uint32(int(f.size) - delta)
	return nil
}

// AdjustTail moves the end of the first buffer's data by delta bytes, as in
// bpf_xdp_adjust_tail.
func (f *Frame) AdjustTail(delta int) error {
	if delta < -int(f.size) || delta > f.Tailroom() {
		return fmt.Errorf("move tail by %d: %w", delta, ErrNoRoom)
	}
	f.size = uint32(int(f.size) + delta)
	return nil
}

// CopyFrom makes b the data of the frame's first buffer, behind its headroom.
func (f *Frame) CopyFrom(b []byte) error {
	if err := f.SetData(int(f.head), len(b)); err != nil {
		return err
	}
	copy(f.buf[f.head:], b)
	return nil
}

// Next returns the next fragment of the same frame, or nil.
func (f *Frame) Next() *Frame { return f.next }

// Frags returns the number of fragments besides the first buffer.
func (f *Frame) Frags() int {
	n := 0
	if fragments {
		for g := f.next; g != nil; g = g.next {
			n++
		}
	}
	return n
}

// TotalLen returns the number of data bytes in all buffers of the frame.
func (f *Frame) TotalLen() int {
	n := int(f.size)
	if fragments {
		for g := f.next; g != nil; g = g.next {
			n += int(g.size)
		}
	}
	return n
}

// Append makes frag, with the fragments that it has, the end of f. It may come from
// another pool. It belongs to f from then on and is freed with it.
func (f *Frame) Append(frag *Frame) error {
	if !fragments || f.Frags()+1+frag.Frags() > MaxFrags {
		return fmt.Errorf("append to a frame of %d: %w (%d)", f.Frags(), ErrTooManyFrags, MaxFrags)
	}
	last := f
	for last.next != nil {
		last = last.next
	}
	last.next = frag
	return nil
}

// CopyTo copies the data of all buffers to b and returns how many bytes it copied.
func (f *Frame) CopyTo(b []byte) int {
	n := copy(b, f.Data())
	if fragments {
		for g := f.next; g != nil; g = g.next {
			n += copy(b[n:], g.Data())
		}
	}
	return n
}

// Packet returns the packet that was built around the frame, or nil if it still is a
// plain frame.
func (f *Frame) Packet() *Packet { return f.pkt }

// Free returns the frame, with its fragments, to the pools they belong to.
func (f *Frame) Free() {
	// Through FreeBulk a slice of one would do the same, a little slower.
	if fragments && f.next != nil {
		freeChain(f)
		return
	}
	f.owner().put1(f)
}
