// SPDX-License-Identifier: Apache-2.0

package veth

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// podNS is a pod's network namespace with the sockets to work in it. Sockets
// stay in the namespace that they were opened in, so that only opening them
// and writing sysctls need a thread in there.
type podNS struct {
	ns       ns.NetNS
	nl       *netlink.Handle
	offloads *offloads
}

// openPod opens the namespace of a pod.
func openPod(path string) (*podNS, error) {
	n, err := ns.GetNS(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %q: %w: %w", path, ErrNetns, err)
	}
	pod := &podNS{ns: n}
	if err := pod.checkKind(path); err != nil {
		pod.close()
		return nil, err
	}
	if err := pod.openSockets(); err != nil {
		pod.close()
		return nil, fmt.Errorf("enter network namespace %q: %w", path, err)
	}
	return pod, nil
}

// checkKind refuses a file that is no network namespace, and the caller's own.
func (p *podNS) checkKind(path string) error {
	kind, err := unix.IoctlRetInt(int(p.ns.Fd()), unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		return fmt.Errorf("open network namespace %q: %w: it is a file of another kind", path, ErrNetns)
	}
	own, err := ns.GetCurrentNS()
	if err != nil {
		return fmt.Errorf("open the host's network namespace: %w", err)
	}
	defer own.Close()
	var a, b unix.Stat_t
	if err := errors.Join(unix.Fstat(int(p.ns.Fd()), &a), unix.Fstat(int(own.Fd()), &b)); err != nil {
		return fmt.Errorf("compare network namespace %q with the host's: %w", path, err)
	}
	if a.Dev == b.Dev && a.Ino == b.Ino {
		return fmt.Errorf("open network namespace %q: %w: it is the host's own", path, ErrNetns)
	}
	return nil
}

func (p *podNS) openSockets() error {
	return p.ns.Do(func(ns.NetNS) error {
		nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open netlink: %w", err)
		}
		p.nl = nl
		p.offloads, err = newOffloads()
		return err
	})
}

func (p *podNS) close() {
	p.offloads.close()
	if p.nl != nil {
		p.nl.Close()
	}
	p.ns.Close()
}

// setSysctl writes a sysctl of the calling thread's namespace unless it has
// the value already.
func setSysctl(value string, path ...string) error {
	if old, err := getSysctl(path...); err == nil && old == value {
		return nil
	}
	return writeSysctl(value, path...)
}

// writeSysctl writes a sysctl of the calling thread's namespace.
func writeSysctl(value string, path ...string) error {
	if err := os.WriteFile(sysctlFile(path...), []byte(value), 0); err != nil {
		return fmt.Errorf("set %s to %s: %w", strings.Join(path, "."), value, err)
	}
	return nil
}

func getSysctl(path ...string) (string, error) {
	b, err := os.ReadFile(sysctlFile(path...))
	return strings.TrimSpace(string(b)), err
}

// sysctlFile takes parts, not a dotted name: interface names may hold dots.
func sysctlFile(path ...string) string { return "/proc/sys/" + strings.Join(path, "/") }
