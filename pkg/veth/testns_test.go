// SPDX-License-Identifier: Apache-2.0

package veth

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The main thread cannot die when a test leaves it in another namespace, so
// nothing but the main goroutine may use it.
func init() { runtime.LockOSThread() }

// testNS is a network namespace that a test made.
type testNS struct {
	t    testing.TB
	path string
	ns   ns.NetNS
}

// newNS makes a network namespace with loopback up, removed after the test.
func newNS(t testing.TB) *testNS {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("making network namespaces takes root")
	}
	n := &testNS{t: t, path: filepath.Join(t.TempDir(), "netns")}
	if err := os.WriteFile(n.path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		// The thread is never unlocked: it dies with this goroutine, and
		// nothing else can run in the new namespace by mistake.
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = unix.Mount("/proc/thread-self/ns/net", n.path, "", unix.MS_BIND, "")
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatalf("make network namespace: %v", err)
	}
	var err error
	if n.ns, err = ns.GetNS(n.path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.close)
	n.do(func() {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			t.Errorf("set lo up: %v", err)
		}
	})
	return n
}

func (n *testNS) close() {
	n.ns.Close()
	if err := unix.Unmount(n.path, unix.MNT_DETACH); err != nil && !os.IsNotExist(err) && err != unix.EINVAL {
		n.t.Errorf("unmount %s: %v", n.path, err)
	}
}

// do runs f on a thread in the namespace.
func (n *testNS) do(f func()) {
	n.t.Helper()
	if err := n.ns.Do(func(ns.NetNS) error { f(); return nil }); err != nil {
		n.t.Fatalf("enter namespace: %v", err)
	}
}

// try is do for a function that returns an error.
func (n *testNS) try(f func() error) error {
	n.t.Helper()
	var err error
	n.do(func() { err = f() })
	return err
}
