// SPDX-License-Identifier: Apache-2.0

// Package traffic sends what the demo and the benchmarks measure, between hosts of a
// rig, and counts what arrives. It compares nothing.
package traffic

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/pkg/bench/cputime"
)

// patience is how long an answer is waited for.
const patience = 5 * time.Second

// processor returns the n-th of the processors that this process may use, or the last one
// where there are fewer.
func processor(n int) (int, error) {
	var have unix.CPUSet
	if err := unix.SchedGetaffinity(unix.Getpid(), &have); err != nil {
		return 0, fmt.Errorf("list processors: %w", err)
	}
	cpu, last := -1, -1
	for seen := 0; seen <= n && seen < have.Count(); seen++ {
		for cpu = last + 1; !have.IsSet(cpu); cpu++ {
		}
		last = cpu
	}
	return cpu, nil
}

// Pin keeps the calling thread on the n-th of the processors that this process may use,
// or on the last one where there are fewer.
func Pin(n int) error { return PinThread(0, n) }

// PinThread is Pin for another thread, by its id.
func PinThread(tid, n int) error {
	cpu, err := processor(n)
	if err != nil {
		return err
	}
	var want unix.CPUSet
	want.Set(cpu)
	if err := unix.SchedSetaffinity(tid, &want); err != nil {
		return fmt.Errorf("pin a thread: %w", err)
	}
	return nil
}

// thread runs a function on a processor.
type thread struct {
	done chan struct{}
	cpu  time.Duration
	err  error
}

// onThread runs f on a thread of its own, on one processor.
func onThread(n int, f func() error) *thread {
	t := &thread{done: make(chan struct{})}
	go func() {
		defer close(t.done)
		runtime.LockOSThread() // never unlocked: the thread ends, and with it the pinning
		if t.err = Pin(n); t.err != nil {
			return
		}
		before, err := cputime.Thread()
		if err == nil {
			err = f()
		}
		after, errAfter := cputime.Thread()
		t.cpu, t.err = after-before, errors.Join(err, errAfter)
	}()
	return t
}

// wait waits for the end of threads and returns their processor time.
func wait(all ...*thread) (cpu time.Duration, err error) {
	for _, t := range all {
		<-t.done
		cpu += t.cpu
		err = errors.Join(err, t.err)
	}
	return cpu, err
}

// softirqTime is the processor time of the kernel's threads that go on with network work of
// the first n processors, where it became too much to be done at once; 0 where the kernel
// does not tell.
func softirqTime(n int) (sum time.Duration) {
	for i := range n {
		if cpu, err := processor(i); err == nil {
			sum += schedTime(softirqThreads()[fmt.Sprintf("ksoftirqd/%d", cpu)])
		}
	}
	return sum
}

// schedTime is the processor time of a thread, from its folder in /proc.
func schedTime(dir string) time.Duration {
	text, _ := os.ReadFile(filepath.Join(dir, "schedstat"))
	ns, _, _ := strings.Cut(string(text), " ")
	n, _ := strconv.ParseInt(ns, 10, 64)
	return time.Duration(n)
}

// softirqThreads finds the folder of each of those threads.
var softirqThreads = sync.OnceValue(func() map[string]string {
	comms, _ := filepath.Glob("/proc/[0-9]*/comm")
	all := map[string]string{}
	for _, c := range comms {
		name, _ := os.ReadFile(c)
		if strings.HasPrefix(string(name), "ksoftirqd/") {
			all[strings.TrimSpace(string(name))] = filepath.Dir(c)
		}
	}
	return all
})

// retry repeats a system call that a signal interrupted; Go's scheduler sends some.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
