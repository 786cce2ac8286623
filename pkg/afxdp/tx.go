// SPDX-License-Identifier: Apache-2.0

package afxdp

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/pkg/bulk"
)

// txSide is the half of a socket that sends.
type txSide struct {
	s    *Socket
	off  bool   // the socket only receives
	size uint32 // of the TX and of the completion ring

	turn  chan struct{}
	ready func(uintptr) bool

	mu   sync.Mutex
	ring ring[unix.XDPDesc]
	comp ring[uint64]
	// inFlight buffers were given to the kernel and have not come back.
	inFlight uint32
	// head is, for each buffer in flight, the number of its frame's first buffer plus
	// one; left is for each such frame how many buffers are in flight. Zero is none.
	head []uint32
	left []uint8

	frames, bytes, done, alien, lost uint64

	scratch [fillBatch]*bulk.Frame
	nDone   int
}

func (t *txSide) init(s *Socket, size uint32, off bool) {
	t.s, t.size, t.off = s, size, off
	t.head = make([]uint32, len(s.umem.frames))
	t.left = make([]uint8, len(s.umem.frames))
	t.turn = make(chan struct{}, 1)
	t.ready = t.isReady
}

// Send gives frames to the kernel, in order, and returns how many. Those go back to their pool
// when they have been sent; the others stay the caller's, and the error says why: ErrFull
// if the ring is. An error with all frames taken comes from the device, which may be down.
// Send does not wait. It is a bulk.SendFunc.
func (s *Socket) Send(frames []*bulk.Frame) (int, error) {
	t := &s.tx
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case s.closed.Load():
		return 0, ErrClosed
	case t.off:
		return 0, fmt.Errorf("send on %s: %w", s.name, ErrDirection)
	}
	t.reap()
	n := 0
	var err error
	for n < len(frames) {
		if err = t.push(frames[n]); err != nil {
			break
		}
		n++
	}
	if n > 0 {
		t.ring.publish()
	}
	if kickErr := t.kick(); kickErr != nil && (err == nil || errors.Is(err, ErrFull)) {
		err = kickErr
	}
	return n, err
}

// SendAll is Send, but waits until all frames are with the kernel. It returns how many
// are when the context ends, the socket is closed or the interface goes away.
func (s *Socket) SendAll(ctx context.Context, frames []*bulk.Frame) (int, error) {
	sent := 0
	for {
		n, err := s.Send(frames[sent:])
		sent += n
		if err != nil && !errors.Is(err, ErrFull) || sent == len(frames) {
			return sent, err
		}
		if n > 0 {
			continue
		}
		if err := s.waitTx(ctx); err != nil {
			return sent, err
		}
	}
}

// Reap returns frames that have been sent to their pool, wakes the kernel if frames
// wait, and returns how many buffers are still in flight. Send does this too.
func (s *Socket) Reap() (int, error) {
	t := &s.tx
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.closed.Load() {
		return 0, ErrClosed
	}
	err := t.kick()
	t.reap()
	return int(t.inFlight), err
}

// Drain waits until everything has been sent.
func (s *Socket) Drain(ctx context.Context) error {
	for {
		n, err := s.Reap()
		if n == 0 || err != nil {
			return err
		}
		if err := s.waitTx(ctx); err != nil {
			return err
		}
	}
}

// push writes a frame into the ring, one entry for each buffer.
func (t *txSide) push(f *bulk.Frame) error {
	n := uint32(1)
	if f.Next() != nil {
		n += uint32(f.Frags())
	}
	if t.size-t.inFlight < n || t.ring.room(n) < n {
		if n > t.size {
			return fmt.Errorf("send on %s: %w: %d for a ring of %d", t.s.name, ErrTooLarge, n, t.size)
		}
		return ErrFull
	}
	for g := f; g != nil; g = g.Next() {
		if err := t.check(g); err != nil {
			return err
		}
	}
	if n > 1 && !t.s.umem.mode.MultiBuffer {
		return fmt.Errorf("send on %s: %w: %d in a umem without MultiBuffer", t.s.name, ErrTooLarge, n)
	}
	first := t.s.umem.index(f)
	t.left[first] = uint8(n)
	for g := f; g != nil; g = g.Next() {
		d := t.ring.next()
		*d = unix.XDPDesc{Addr: g.Addr(), Len: uint32(g.Len())}
		if g.Next() != nil {
			d.Options = unix.XDP_PKT_CONTD
		}
		t.head[t.s.umem.index(g)] = first + 1
		t.bytes += uint64(g.Len())
	}
	t.inFlight += n
	t.frames++
	return nil
}

// check refuses what the kernel would drop without ever giving it back.
func (t *txSide) check(f *bulk.Frame) error {
	switch {
	case f.Pool() != t.s.umem.pool:
		return fmt.Errorf("send on %s: %w: copy it into a frame of the socket's pool", t.s.name, ErrForeignFrame)
	case f.Len() == 0:
		return fmt.Errorf("send on %s: %w", t.s.name, ErrEmptyFrame)
	case t.head[t.s.umem.index(f)] != 0:
		return fmt.Errorf("send on %s: %w", t.s.name, ErrInFlight)
	}
	return nil
}

// reap takes buffers out of the completion ring. A frame goes back to its pool with the last of
// its buffers: the kernel may still read the others.
func (t *txSide) reap() {
	start := t.comp.own
	for t.comp.available() > 0 {
		f, i := t.s.umem.at(*t.comp.next())
		if f == nil || t.head[i] == 0 {
			t.alien++
			continue
		}
		first := t.head[i] - 1
		t.head[i] = 0
		t.inFlight--
		if t.left[first]--; t.left[first] > 0 {
			continue
		}
		t.done++
		t.scratch[t.nDone] = t.s.umem.frames[first]
		if t.nDone++; t.nDone == len(t.scratch) {
			t.flush()
		}
	}
	if t.comp.own != start {
		t.comp.release()
		t.flush()
	}
}

func (t *txSide) flush() {
	bulk.FreeBulk(t.scratch[:t.nDone])
	t.nDone = 0
}

// kick makes the kernel send what lies in the ring, if it waits to be told. In copy mode one
// call sends at most 32 buffers, so there may be several; they stop when the kernel
// takes no more, which the next call of anything tries again.
func (t *txSide) kick() error {
	for t.inFlight > 0 {
		before := t.ring.consumer.Load()
		// In copy mode there is nothing to do for an empty ring. A driver may need
		// to be woken for its completions.
		if before == t.ring.own && !t.s.zeroCopy {
			return nil
		}
		// Who polls the device himself has no interrupts that would send.
		if !t.s.umem.mode.AlwaysWake && t.s.busy == 0 && !t.ring.needWakeup() {
			return nil
		}
		_, _, errno := unix.Syscall6(unix.SYS_SENDTO, uintptr(t.s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			return nil
		case unix.EAGAIN:
			if t.ring.consumer.Load() == before {
				return nil
			}
		case unix.EBUSY, unix.ENOBUFS, unix.EINTR, unix.ENOMEM:
			// The device's queue is full: more now would only be dropped there.
			return nil
		default:
			return t.s.sendError(errno)
		}
	}
	return nil
}

// isReady tells the poller whether to stop waiting for room.
func (t *txSide) isReady(uintptr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.s.closed.Load() || t.comp.available() > 0
}

// reclaim returns to the pool what was not completed. The kernel does not use the socket
// any more.
func (t *txSide) reclaim() {
	if t.comp.exists() {
		t.reap()
	}
	for i, n := range t.left {
		if n > 0 {
			t.left[i] = 0
			t.lost++
			t.s.umem.frames[i].Free()
		}
	}
	t.inFlight = 0
	t.ring.unmap()
	t.comp.unmap()
}
