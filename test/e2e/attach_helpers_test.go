// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/test/rig"
)

// statusText is what STATUS says about the fast path.
func statusText(t *testing.T, r *rig.Rig, changes map[string]any) string {
	t.Helper()
	out, err := r.Plugin(ctxOf(t), "STATUS", r.Conf(changes), nil)
	if err != nil {
		t.Fatalf("STATUS: %v", err)
	}
	return string(out.Stderr)
}

// wantStatus looks for some text in the answer of STATUS.
func wantStatus(t *testing.T, r *rig.Rig, changes map[string]any, parts ...string) {
	t.Helper()
	got := statusText(t, r, changes)
	for _, p := range parts {
		if !strings.Contains(got, p) {
			t.Errorf("STATUS says %q, which does not contain %q", got, p)
		}
	}
}

// churn adds a pod and removes it, as a runtime does all day.
func churn(t *testing.T, r *rig.Rig, changes map[string]any) {
	t.Helper()
	p := addPod(t, r, "churn", changes)
	if err := p.Remove(ctxOf(t)); err != nil {
		t.Fatal(err)
	}
}

// counted is traffic of which every packet counts: datagrams that are echoed, never more
// on their way than the smallest queue holds.
type counted struct {
	conn           net.Conn
	stop           chan struct{}
	done           chan error
	sent, received atomic.Uint64
}

const countedWindow = 64

// startCounted sends to an echo service until finish is called.
func startCounted(t *testing.T, from *rig.Host, to netip.AddrPort) *counted {
	t.Helper()
	c := &counted{conn: dial(t, from, "udp", to), stop: make(chan struct{}), done: make(chan error, 1)}
	window := make(chan struct{}, countedWindow)
	go func() {
		for {
			select {
			case <-c.stop:
				return
			case window <- struct{}{}:
			}
			var msg [8]byte
			binary.BigEndian.PutUint64(msg[:], c.sent.Add(1))
			if _, err := c.conn.Write(msg[:]); err != nil {
				return
			}
		}
	}()
	go func() {
		buf := make([]byte, 100)
		for {
			_ = c.conn.SetReadDeadline(time.Now().Add(2 * time.Second))
			if _, err := c.conn.Read(buf); err != nil {
				c.done <- err
				return
			}
			c.received.Add(1)
			select {
			case <-window:
			default:
			}
		}
	}()
	return c
}

// finish stops and fails when a packet was lost.
func (c *counted) finish(t *testing.T) {
	t.Helper()
	close(c.stop)
	for end := time.Now().Add(2 * time.Second); c.received.Load() < c.sent.Load() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if s, g := c.sent.Load(), c.received.Load(); s != g || s < 100 {
		t.Errorf("%d packets were sent and %d came back", s, g)
	}
	c.conn.Close()
}

// progress waits until some more packets have come back.
func (c *counted) progress(t *testing.T, packets uint64) {
	t.Helper()
	from := c.received.Load()
	eventually(t, 5*time.Second, "traffic goes on", func() bool { return c.received.Load() >= from+packets })
}

// hooks lists our programs on an interface as "hook name" and their ids.
func hooks(ifindex int) (map[string][]ebpf.ProgramID, error) {
	all := map[string][]ebpf.ProgramID{}
	for name, at := range map[string]ebpf.AttachType{"ingress": ebpf.AttachTCXIngress, "egress": ebpf.AttachTCXEgress} {
		res, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: at})
		if err != nil {
			return nil, err
		}
		for _, p := range res.Programs {
			all[name] = append(all[name], p.ID)
		}
	}
	l, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return nil, err
	}
	if x := l.Attrs().Xdp; x != nil && x.Attached {
		all["xdp"] = []ebpf.ProgramID{ebpf.ProgramID(x.ProgId)}
	}
	return all, nil
}

// hooksOf is hooks for an interface of a host.
func hooksOf(t *testing.T, h *rig.Host, dev string) (all map[string][]ebpf.ProgramID) {
	t.Helper()
	err := h.Do(func() error {
		ifi, err := net.InterfaceByName(dev)
		if err == nil {
			all, err = hooks(ifi.Index)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// watchHooks looks at the hooks of interfaces all the time from a thread of its own and
// reports when there is not exactly one program on each. The function it returns ends it.
func watchHooks(t *testing.T, h *rig.Host, want map[string][]string) func() {
	t.Helper()
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		// The thread ends with the goroutine, because it stays locked.
		runtime.LockOSThread()
		if err := unix.Setns(h.NetnsFD(), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		for {
			for dev, names := range want {
				if err := oneEach(dev, names); err != nil {
					done <- err
					return
				}
			}
			select {
			case <-stop:
				done <- nil
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	return func() {
		t.Helper()
		close(stop)
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func oneEach(dev string, names []string) error {
	l, err := netlink.LinkByName(dev)
	if err != nil {
		return err
	}
	have, err := hooks(l.Attrs().Index)
	if err != nil {
		return err
	}
	for _, n := range names {
		if len(have[n]) != 1 {
			return fmt.Errorf("%q has programs %v on %s", dev, have[n], n)
		}
	}
	return nil
}

// stranger is somebody else's XDP program that lets everything pass.
func stranger(t *testing.T, name string) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: name, Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// setXDP puts a program on an interface by netlink; nil takes it off.
func setXDP(t *testing.T, h *rig.Host, dev string, p *ebpf.Program, flags int) {
	t.Helper()
	err := h.Do(func() error {
		l, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		fd := -1
		if p != nil {
			fd = p.FD()
		}
		return netlink.LinkSetXdpFdWithFlags(l, fd, flags)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func idOf(t *testing.T, p *ebpf.Program) ebpf.ProgramID {
	t.Helper()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return id
}

// withCancel is a context that the caller ends, at the latest when the test ends.
func withCancel(t *testing.T) (context.Context, func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctxOf(t))
	t.Cleanup(cancel)
	return ctx, cancel
}
