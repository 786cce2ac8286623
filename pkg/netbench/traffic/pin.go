// SPDX-License-Identifier: Apache-2.0

// Package traffic sends what the demo and the benchmarks measure, between hosts of a
// rig, and counts what arrives. It compares nothing.
package traffic

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long an answer is waited for.
const patience = 5 * time.Second

// Pin keeps the calling thread on the n-th of the processors that this process may use,
// or on the last one where there are fewer.
func Pin(n int) error {
	var have, want unix.CPUSet
	if err := unix.SchedGetaffinity(unix.Getpid(), &have); err != nil {
		return fmt.Errorf("list processors: %w", err)
	}
	n = min(n, have.Count()-1)
	for cpu, seen := 0, 0; seen <= n; cpu++ {
		if !have.IsSet(cpu) {
			continue
		}
		if seen == n {
			want.Set(cpu)
		}
		seen++
	}
	if err := unix.SchedSetaffinity(0, &want); err != nil {
		return fmt.Errorf("pin a thread: %w", err)
	}
	return nil
}

// OnThread runs f on a thread of its own, on one processor.
func OnThread(cpu int, f func() error) <-chan error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends, and with it the pinning
		if err := Pin(cpu); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return done
}

// retry repeats a system call that a signal interrupted; Go's scheduler sends some.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
