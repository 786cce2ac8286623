// SPDX-License-Identifier: Apache-2.0

// Package rig builds what tests, the demo and benchmarks run on: a remote host, a
// wire that delivers real xdp_frames, a node and its pods, each in a network
// namespace of its own. Nothing of it is visible outside this process, and all of it
// ends with the process.
package rig

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Host is a thread of this process in a network namespace of its own. It runs
// functions and starts commands there.
type Host struct {
	// Name for messages.
	Name string

	tid   int
	netns *os.File
	calls chan func()
	once  sync.Once
}

// NewHost starts a host. One that is private also has its own /run, /var/lib and BPF
// file system, as a node has.
func NewHost(name string, private bool) (*Host, error) {
	h := &Host{Name: name, calls: make(chan func())}
	ready := make(chan error)
	go h.serve(private, ready)
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("start host %q: %w", name, err)
	}
	return h, nil
}

// serve is the host's thread. It never unlocks the thread, so the runtime destroys it
// and with it the namespaces.
func (h *Host) serve(private bool, ready chan<- error) {
	runtime.LockOSThread()
	err := h.enter(private)
	ready <- err
	if err != nil {
		return
	}
	for call := range h.calls {
		call()
	}
}

func (h *Host) enter(private bool) error {
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return fmt.Errorf("mount sysfs: %w", err)
	}
	if private {
		for dir, kind := range map[string]string{"/run": "tmpfs", "/var/lib": "tmpfs", "/sys/fs/bpf": "bpf"} {
			if err := unix.Mount(kind, dir, kind, 0, ""); err != nil {
				return fmt.Errorf("mount %s on %q: %w", kind, dir, err)
			}
		}
		if err := os.MkdirAll("/run/netns", 0o755); err != nil {
			return err
		}
	}
	h.tid = unix.Gettid()
	var err error
	if h.netns, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return err
	}
	return LinkUp("lo")
}

// Do runs f on the host's thread and returns what it returns.
func (h *Host) Do(f func() error) error {
	done := make(chan error)
	h.calls <- func() { done <- f() }
	return <-done
}

// Close ends the host. Interfaces in its namespace go with it.
func (h *Host) Close() {
	h.once.Do(func() {
		close(h.calls)
		_ = h.netns.Close()
	})
}

// NetnsFD is the host's network namespace as a file descriptor.
func (h *Host) NetnsFD() int { return int(h.netns.Fd()) }

// NetnsPath is the host's network namespace as a path, while the host lives.
func (h *Host) NetnsPath() string {
	return fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), h.tid)
}

// Path is where other threads find a path of the host's file systems.
func (h *Host) Path(path string) string {
	return fmt.Sprintf("/proc/%d/task/%d/root%s", os.Getpid(), h.tid, path)
}

// Start starts a command on the host.
func (h *Host) Start(cmd *exec.Cmd) error {
	return h.Do(cmd.Start)
}

// Run runs a command on the host to its end and returns what it printed.
func (h *Host) Run(ctx context.Context, name string, args ...string) (string, error) {
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := h.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		said := strings.TrimSpace(errOut.String() + out.String())
		return out.String(), fmt.Errorf("%s: %s %s: %w: %s", h.Name, name, strings.Join(args, " "), err, said)
	}
	return out.String(), nil
}

// WriteFile writes a file on the host, such as a sysctl.
func (h *Host) WriteFile(path, text string) error {
	return h.Do(func() error { return os.WriteFile(path, []byte(text), 0o644) })
}

// Sysctl sets a kernel parameter of the host, such as "net.ipv4.ip_forward".
func (h *Host) Sysctl(name, value string) error {
	path := "/proc/sys/" + strings.ReplaceAll(name, ".", "/")
	// /proc/sys/net shows the namespace of the thread that opens it.
	if err := h.WriteFile(path, value); err != nil {
		return fmt.Errorf("%s: set %s: %w", h.Name, name, err)
	}
	return nil
}
