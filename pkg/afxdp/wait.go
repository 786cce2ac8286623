// SPDX-License-Identifier: Apache-2.0

package afxdp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// longWait is how long a sleep lasts at most. The kernel reports no edge when the
	// interface goes away.
	longWait = 100 * time.Millisecond
	// shortWait is for what is never reported: frames in the pool, and completions.
	shortWait = time.Millisecond
)

// past is a deadline that ends a wait at once.
var past = time.Unix(1, 0)

// watcher ends a wait when a context ends. It stays with a context from one wait to the
// next, so that a loop of waits allocates nothing.
type watcher struct {
	done <-chan struct{}
	stop func() bool
}

func (w *watcher) set(ctx context.Context, f *os.File) {
	if w.done == ctx.Done() {
		return
	}
	w.clear()
	if w.done = ctx.Done(); w.done != nil {
		// An old context may set the deadline of a later wait. That one looks at its own
		// context then and sleeps again.
		w.stop = context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(past) })
	}
}

func (w *watcher) clear() {
	if w.stop != nil {
		w.stop()
	}
	*w = watcher{}
}

// enter waits for the caller's turn to sleep: the poller can have one sleeper a direction.
func (s *Socket) enter(ctx context.Context, turn chan struct{}) error {
	select {
	case turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.closing:
		return ErrClosed
	}
}

// waitRx sleeps until a frame may have arrived. It may return too early.
func (s *Socket) waitRx(ctx context.Context) error {
	r := &s.rx
	if err := s.enter(ctx, r.turn); err != nil {
		return err
	}
	defer func() { <-r.turn }()
	r.mu.Lock()
	d := longWait
	if r.short() {
		d = shortWait
	}
	r.mu.Unlock()
	r.watch.set(ctx, s.file)
	if err := s.file.SetReadDeadline(time.Now().Add(d)); err != nil {
		return s.waitError(err)
	}
	// After the deadline was set: Close and the context first say that they ended, then
	// set theirs. Either it is the later one, or what they said is seen here.
	if err := s.ended(ctx); err != nil {
		return err
	}
	if err := s.raw.Read(r.ready); err != nil {
		return s.waitError(err)
	}
	return nil
}

// waitTx sleeps until a frame may have been sent, at most a moment.
func (s *Socket) waitTx(ctx context.Context) error {
	t := &s.tx
	if err := s.enter(ctx, t.turn); err != nil {
		return err
	}
	defer func() { <-t.turn }()
	if err := s.file.SetWriteDeadline(time.Now().Add(shortWait)); err != nil {
		return s.waitError(err)
	}
	if err := s.ended(ctx); err != nil {
		return err
	}
	if err := s.raw.Write(t.ready); err != nil {
		return s.waitError(err)
	}
	return nil
}

func (s *Socket) ended(ctx context.Context) error {
	switch {
	case s.closed.Load():
		return ErrClosed
	case s.gone.Load():
		return fmt.Errorf("wait on %s: %w", s.name, ErrDown)
	}
	return ctx.Err()
}

// waitError says what the end of a sleep means; nothing, mostly.
func (s *Socket) waitError(err error) error {
	if s.closed.Load() {
		return ErrClosed
	}
	// The kernel keeps the error of a lost interface until it is asked.
	if v, _ := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR); v != 0 {
		s.gone.Store(true)
		return fmt.Errorf("wait on %s: %w (%w)", s.name, ErrDown, unix.Errno(v))
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return fmt.Errorf("wait on %s: %w", s.name, err)
}
