// SPDX-License-Identifier: Apache-2.0

// Package lock makes the processes of a node take turns. The locks are on files that only
// root can open, and end with the process that holds them; it is not a lock between
// goroutines.
package lock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	dir = "/run/xveth"
	// patience is how long a lock is waited for. None is held for more than moments,
	// so whoever holds it longer is stuck.
	patience = 30 * time.Second
	again    = 2 * time.Millisecond
)

// ErrBusy says that a lock was not to be had in time.
var ErrBusy = errors.New("another process holds the lock")

// Exclusive takes a lock that nobody else has, and returns what gives it back.
func Exclusive(name string) (func(), error) { return take(name, unix.LOCK_EX) }

// Shared takes a lock that others may share, but not have for themselves.
func Shared(name string) (func(), error) { return take(name, unix.LOCK_SH) }

func take(name string, how int) (func(), error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make lock directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(again) {
		err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		switch {
		case err == nil:
			return func() { _ = f.Close() }, nil
		case errors.Is(err, unix.EINTR):
		case !errors.Is(err, unix.EWOULDBLOCK):
			_ = f.Close()
			return nil, fmt.Errorf("lock %q: %w", f.Name(), err)
		case time.Now().After(end):
			_ = f.Close()
			return nil, fmt.Errorf("lock %q: %w for %v", f.Name(), ErrBusy, patience)
		}
	}
}
