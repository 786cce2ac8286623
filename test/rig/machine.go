// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// cgroupRoot is where every distribution mounts control groups, of either version.
	cgroupRoot = "/sys/fs/cgroup"
	// cgroupName has the process and the thread that a machine belongs to.
	cgroupName = "xveth-%d-%d"
	// Ready is the line by which a machine's process 1 says that it has set up.
	Ready = "ready"
	// downWait bounds the wait for the kernel to end a machine's processes.
	downWait = 10 * time.Second
)

// Machine is a host whose commands run in a process namespace of their own, so that
// daemons which leave their parents can be run on it: all of them end when it closes, or
// when this process ends in whatever way.
type Machine struct {
	*Host
	// Cgroup is a name for a control group of this machine's. Whatever has that name is
	// removed with the machine.
	Cgroup string

	init *exec.Cmd
}

// Boot starts a machine that has the network and the files of a host. The command becomes
// process 1: it must mount /proc, print Ready, reap what its children leave and never end.
func (h *Host) Boot(init *exec.Cmd) (*Machine, error) {
	m := &Machine{
		Host:   &Host{Name: h.Name, calls: make(chan func())},
		Cgroup: fmt.Sprintf(cgroupName, os.Getpid(), h.tid),
		init:   init,
	}
	removeStale()
	// The host's thread has mounted a sysfs over the control groups, so they are taken
	// from here.
	groups, err := unix.OpenTree(unix.AT_FDCWD, cgroupRoot,
		unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return nil, fmt.Errorf("boot %q: open %s: %w", h.Name, cgroupRoot, err)
	}
	defer unix.Close(groups)
	if err := m.startInit(h); err != nil {
		return nil, fmt.Errorf("boot %q: %w", h.Name, err)
	}
	ready := make(chan error)
	go m.serveInside(groups, ready)
	if err := <-ready; err != nil {
		m.kill()
		return nil, fmt.Errorf("boot %q: %w", h.Name, err)
	}
	return m, nil
}

// startInit starts process 1 and waits until it is ready.
func (m *Machine) startInit(h *Host) error {
	m.init.SysProcAttr = &unix.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS,
		// The host's thread lives as long as the host, and no longer than this process.
		Pdeathsig: unix.SIGKILL,
	}
	out, err := m.init.StdoutPipe()
	if err != nil {
		return err
	}
	if err := h.Start(m.init); err != nil {
		return fmt.Errorf("start process 1: %w", err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if strings.TrimSpace(line) != Ready {
		m.kill()
		return fmt.Errorf("process 1 said %q: %w", line, err)
	}
	return nil
}

// serveInside is the machine's thread. Like a host's it is never unlocked.
func (m *Machine) serveInside(groups int, ready chan<- error) {
	runtime.LockOSThread()
	err := m.enterInit(groups)
	ready <- err
	if err != nil {
		return
	}
	for call := range m.calls {
		call()
	}
}

// enterInit moves the calling thread into the namespaces of process 1. Its own process
// number stays outside: only what it starts is inside.
func (m *Machine) enterInit(groups int) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	var spaces []int
	for _, name := range []string{"net", "pid", "mnt"} {
		// All are opened before the first is entered: after that /proc is another.
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/%s", m.init.Process.Pid, name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s namespace: %w", name, err)
		}
		defer unix.Close(fd)
		spaces = append(spaces, fd)
	}
	m.tid = unix.Gettid()
	var err error
	if m.netns, err = os.Open(fmt.Sprintf("/proc/%d/ns/net", m.init.Process.Pid)); err != nil {
		return err
	}
	for _, fd := range spaces {
		if err := unix.Setns(fd, 0); err != nil {
			return fmt.Errorf("enter a namespace: %w", err)
		}
	}
	if err := unix.MoveMount(groups, "", unix.AT_FDCWD, cgroupRoot, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount %s: %w", cgroupRoot, err)
	}
	return nil
}

// kill ends process 1, and by that all others.
func (m *Machine) kill() {
	_ = m.init.Process.Kill()
	_ = m.init.Wait()
}

// Close ends every process of the machine and removes its control groups.
func (m *Machine) Close() error {
	m.kill()
	m.Host.Close()
	return m.removeCgroups()
}

// removeCgroups removes the machine's control groups of every hierarchy, with those in
// them. A group can be removed a moment after its last process has ended.
func (m *Machine) removeCgroups() error {
	for end := time.Now().Add(downWait); ; time.Sleep(10 * time.Millisecond) {
		err := removeCgroups(m.Cgroup)
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

// removeStale removes what the machines of processes that were killed have left.
func removeStale() {
	for _, top := range cgroups("xveth-*") {
		var pid, tid int
		_, err := fmt.Sscanf(filepath.Base(top), cgroupName, &pid, &tid)
		if err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			_ = removeCgroups(filepath.Base(top))
		}
	}
}

func removeCgroups(name string) error {
	var dirs []string
	for _, top := range cgroups(name) {
		_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
	}
	var failed error
	for _, dir := range slices.Backward(dirs) { // the inner ones first
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// cgroups finds control groups by a pattern of their names, in one hierarchy or in many.
func cgroups(pattern string) (tops []string) {
	for _, root := range []string{cgroupRoot, cgroupRoot + "/*"} {
		found, _ := filepath.Glob(filepath.Join(root, pattern)) // fails only by a wrong pattern
		tops = append(tops, found...)
	}
	return tops
}
