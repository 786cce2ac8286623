// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// threadTime is the processor time of the calling thread, with what interrupts it had to
// serve meanwhile.
func threadTime() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0, fmt.Errorf("read the clock of a thread: %w", err)
	}
	return time.Duration(t.Nano()), nil
}

// softirqTime is the processor time of the kernel's thread that goes on with network work
// of the calling thread's processor, where it became too much to be done at once; 0 where
// the kernel does not tell. The calling thread has to be pinned.
func softirqTime() time.Duration {
	var on unix.CPUSet
	if unix.SchedGetaffinity(0, &on) != nil || on.Count() != 1 {
		return 0
	}
	cpu := 0
	for !on.IsSet(cpu) {
		cpu++
	}
	text, _ := os.ReadFile(softirqThreads()[fmt.Sprintf("ksoftirqd/%d", cpu)])
	ns, _, _ := strings.Cut(string(text), " ")
	n, _ := strconv.ParseInt(ns, 10, 64)
	return time.Duration(n)
}

// softirqThreads finds the file that tells the time of each of those threads.
var softirqThreads = sync.OnceValue(func() map[string]string {
	comms, _ := filepath.Glob("/proc/[0-9]*/comm")
	all := map[string]string{}
	for _, c := range comms {
		name, _ := os.ReadFile(c)
		if strings.HasPrefix(string(name), "ksoftirqd/") {
			all[strings.TrimSpace(string(name))] = filepath.Join(filepath.Dir(c), "schedstat")
		}
	}
	return all
})
