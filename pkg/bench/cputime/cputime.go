// SPDX-License-Identifier: Apache-2.0

// Package cputime reads the processor time of threads, which other work on the machine
// does not lengthen.
package cputime

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Thread is the processor time of the calling thread, with what interrupts it had to serve
// meanwhile.
func Thread() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0, fmt.Errorf("read the clock of a thread: %w", err)
	}
	return time.Duration(t.Nano()), nil
}
