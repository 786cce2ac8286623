// SPDX-License-Identifier: Apache-2.0

package afxdp

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// drainTime is how long Close waits for frames in flight: until then the kernel may
	// still read them.
	drainTime = 200 * time.Millisecond
	// settleTime is how long a driver may take to give up a zero-copy queue, and a
	// kernel that has no membarrier to leave the receive path.
	settleTime = 100 * time.Millisecond
	// membarrierGlobal is MEMBARRIER_CMD_GLOBAL, which is synchronize_rcu() in the
	// kernel: whoever was in the receive path has left it.
	membarrierGlobal = 1 << 0
)

// Close ends the socket: whoever waits in Poll, SendAll or Drain returns ErrClosed, what
// can be sent is sent, and all frames that the kernel has go back to the pool. Stats stays
// usable and is exact: what a Program still gave to the socket is received, counted as lost, or
// unread.
func (s *Socket) Close() error {
	s.once.Do(func() { s.closeErr = s.close() })
	return s.closeErr
}

func (s *Socket) close() error {
	s.closed.Store(true)
	close(s.closing)
	_ = s.file.SetDeadline(past)
	// The turns before the locks, as a sleeper does, and for ever: nobody may be in the
	// poller when the file is closed.
	s.tx.turn <- struct{}{}
	s.rx.turn <- struct{}{}
	s.rx.watch.clear()
	if p := s.program.Load(); p != nil {
		p.drop(s)
	}
	s.umem.forget(s)
	s.tx.mu.Lock()
	defer s.tx.mu.Unlock()
	s.rx.mu.Lock()
	defer s.rx.mu.Unlock()
	if !s.rx.off {
		settle()
	}
	s.drain()
	last, err := s.stats()
	closeErr := s.destroy()
	s.final, _ = s.stats()
	s.final.Kernel = last.Kernel
	if err == nil && closeErr != nil {
		err = fmt.Errorf("close %s: %w", s.name, closeErr)
	}
	return err
}

// settle waits until no receive path uses what was just taken out of the XSKMAP.
func settle() {
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0); errno != 0 {
		time.Sleep(settleTime)
	}
}

// drain sends what is in the ring and waits for it.
func (s *Socket) drain() {
	t := &s.tx
	if t.off {
		return
	}
	end := time.Now().Add(drainTime)
	for {
		err := t.kick()
		t.reap()
		if t.inFlight == 0 || err != nil || time.Now().After(end) {
			return
		}
		time.Sleep(shortWait / 10)
	}
}

// destroy closes the kernel's socket and takes all frames back. It needs both locks, and
// works on a socket that was never opened to the end.
func (s *Socket) destroy() error {
	var err error
	switch {
	case s.file != nil:
		err = s.file.Close()
	case s.fd >= 0:
		err = unix.Close(s.fd)
	}
	// The kernel waits in close until nobody uses the socket. Rings that are mapped
	// stay readable.
	s.fd = -1
	if s.zeroCopy {
		time.Sleep(settleTime)
	}
	s.rx.reclaim()
	s.tx.reclaim()
	return err
}
