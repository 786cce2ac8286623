// SPDX-License-Identifier: Apache-2.0

package afxdp

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/pkg/bulk"
)

// fillBatch is how many frames are taken from the pool at once.
const fillBatch = 64

// rxSide is the half of a socket that receives.
type rxSide struct {
	s    *Socket
	off  bool   // the socket only sends
	size uint32 // of the RX ring
	// target is how many frames the kernel should have to receive into: the size of the
	// fill ring. When at least refillAt are missing, they are added.
	target, refillAt uint32

	turn  chan struct{} // who holds it may sleep
	watch watcher
	ready func(uintptr) bool // for the poller, made once

	mu   sync.Mutex
	ring ring[unix.XDPDesc]
	fill ring[uint64]
	// lent says of each frame whether the kernel has it, and n how many it has.
	lent []bool
	n    uint32
	// head is a frame of which not all fragments have come yet.
	head, tail *bulk.Frame
	frags      int
	over       bool

	frames, bytes, tooMany, alien, unread uint64

	scratch [fillBatch]*bulk.Frame
}

func (r *rxSide) init(s *Socket, size, target uint32, off bool) {
	r.s, r.size, r.target, r.off = s, size, target, off
	r.refillAt = max(1, min(target/2, bulk.TxBatch))
	r.lent = make([]bool, len(s.umem.frames))
	r.turn = make(chan struct{}, 1)
	r.ready = r.isReady
}

// Receive fills dst with frames that have arrived, in order, and returns how many. It does not
// wait. They belong to the caller.
func (s *Socket) Receive(dst []*bulk.Frame) (int, error) {
	r := &s.rx
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case s.closed.Load():
		return 0, ErrClosed
	case r.off:
		return 0, fmt.Errorf("receive on %s: %w", s.name, ErrDirection)
	}
	n := r.take(dst)
	r.refill()
	// A driver that found the fill ring empty may have said so after we filled it.
	if n == 0 && len(dst) > 0 && (s.busy > 0 || r.fill.needWakeup()) {
		s.poke()
		n = r.take(dst)
	}
	return n, nil
}

// Poll is Receive, but waits until there is at least one frame. It returns the context's error
// when that ends, ErrClosed when somebody closes the socket, and ErrDown when the interface goes
// away.
func (s *Socket) Poll(ctx context.Context, dst []*bulk.Frame) (int, error) {
	var spinning time.Time
	for {
		n, err := s.Receive(dst)
		if n > 0 || err != nil || len(dst) == 0 {
			return n, err
		}
		if s.busy > 0 {
			if spinning.IsZero() {
				spinning = time.Now()
			}
			if time.Since(spinning) < s.busy {
				continue
			}
			spinning = time.Time{}
		}
		if err := s.waitRx(ctx); err != nil {
			return 0, err
		}
	}
}

// take moves whole frames from the RX ring to dst.
func (r *rxSide) take(dst []*bulk.Frame) int {
	start, n := r.ring.own, 0
	for n < len(dst) && r.ring.available() > 0 {
		d := r.ring.next()
		f, i := r.s.umem.at(d.Addr)
		if f == nil || !r.lent[i] ||
			f.SetData(int(d.Addr&r.s.umem.mask), int(d.Len)) != nil {
			r.alien++
			continue
		}
		r.lent[i] = false
		r.n--
		r.bytes += uint64(d.Len)
		if d.Options&unix.XDP_PKT_CONTD != 0 || r.head != nil {
			if f = r.join(f, d.Options&unix.XDP_PKT_CONTD != 0); f == nil {
				continue
			}
		}
		dst[n] = f
		n++
	}
	if r.ring.own != start {
		r.ring.release()
	}
	r.frames += uint64(n)
	return n
}

// join adds a buffer to the frame that is being put together, and returns that when
// the buffer is its last. A packet in more buffers than a frame can have is freed, and counted.
func (r *rxSide) join(f *bulk.Frame, more bool) *bulk.Frame {
	switch {
	case r.head == nil:
		r.head, r.tail, r.frags, r.over = f, f, 0, false
	case r.frags == bulk.MaxFrags || r.tail.Append(f) != nil:
		// Appending to the last buffer spares a walk, so the count is ours.
		r.over = true
		r.bytes -= uint64(f.Len())
		f.Free()
	default:
		r.tail = f
		r.frags++
	}
	if more {
		return nil
	}
	f = r.head
	r.head, r.tail = nil, nil
	if r.over {
		r.tooMany++
		r.bytes -= uint64(f.TotalLen())
		f.Free()
		return nil
	}
	return f
}

// refill lends the kernel frames to receive into, as far as the pool has some. What does
// not fit now is tried again by the next call.
func (r *rxSide) refill() {
	missing := r.target - r.n
	if missing < r.refillAt {
		return
	}
	start := r.fill.own
	for missing > 0 {
		want := min(missing, fillBatch)
		want = min(want, r.fill.room(want))
		// Nothing is dropped yet if there are too few: the next call tries again.
		got := r.s.umem.pool.TryAllocBulk(r.scratch[:want])
		if got == 0 {
			break
		}
		for _, f := range r.scratch[:got] {
			*r.fill.next() = f.Addr() &^ r.s.umem.mask
			r.lent[r.s.umem.index(f)] = true
		}
		r.n += uint32(got)
		missing -= uint32(got)
	}
	if r.fill.own == start {
		return
	}
	r.fill.publish()
	if r.fill.needWakeup() {
		r.s.poke()
	}
}

// short tells whether the kernel lacks frames. Nobody reports when the pool has some again.
func (r *rxSide) short() bool { return r.target-r.n >= r.refillAt }

// poke makes the driver look at the fill ring, or the kernel poll the device. An error, as of
// an interface that is down, is reported by whoever waits.
func (s *Socket) poke() {
	_, _, _ = unix.Syscall6(unix.SYS_RECVFROM, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
}

// isReady tells the poller whether to stop waiting.
func (r *rxSide) isReady(uintptr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.s.closed.Load() || r.ring.available() > 0
}

// reclaim returns to the pool what the kernel had to receive into. The kernel does not use the
// socket any more.
func (r *rxSide) reclaim() {
	if r.ring.exists() {
		for r.ring.available() > 0 {
			if r.ring.next().Options&unix.XDP_PKT_CONTD == 0 {
				r.unread++
			}
		}
	}
	if r.head != nil {
		r.head.Free()
		r.head, r.tail = nil, nil
	}
	n := 0
	for i, out := range r.lent {
		if !out {
			continue
		}
		r.lent[i] = false
		r.scratch[n] = r.s.umem.frames[i]
		if n++; n == len(r.scratch) {
			bulk.FreeBulk(r.scratch[:n])
			n = 0
		}
	}
	bulk.FreeBulk(r.scratch[:n])
	r.n = 0
	r.ring.unmap()
	r.fill.unmap()
}
