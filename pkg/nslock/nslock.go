// SPDX-License-Identifier: Apache-2.0

// Package nslock makes the processes of one network namespace take turns. It is not a
// lock between goroutines.
package nslock

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Lock waits for the calling thread's network namespace and returns what gives it back.
// The lock is on the namespace itself, so it needs no file, and it ends with the process.
func Lock() (func(), error) {
	f, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open the network namespace: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock the network namespace: %w", err)
	}
	return func() { _ = f.Close() }, nil
}
