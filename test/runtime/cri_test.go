// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/xveth/xveth/test/rig"
)

// exec runs a command in a pod's container.
func (c *containerd) exec(p *pod) client {
	return func(t *testing.T, args ...string) string {
		t.Helper()
		return c.crictl(t, append([]string{"exec", "--sync", p.container}, args...)...)
	}
}

// inBoth gives the echo server's address in both families.
func (p *pod) inBoth() []netip.AddrPort {
	return []netip.AddrPort{netip.AddrPortFrom(p.addr4, servePort), netip.AddrPortFrom(p.addr6, servePort)}
}

// wantFast checks that a pod is fast in both families, with both protocols, from and to
// the remote host.
func (c *containerd) wantFast(t *testing.T, p *pod) {
	t.Helper()
	for _, network := range []string{"udp", "tcp"} {
		for _, at := range p.inBoth() {
			c.wantFastIn(t, network, at, at)
		}
		c.wantFastOut(t, c.exec(p), network, p.addr4, rig.ExtAddr4)
		c.wantFastOut(t, c.exec(p), network, p.addr6, rig.ExtAddr6)
	}
}

// TestCRI goes through the life of a pod with containerd: its sandbox, a container and the
// next one in the same sandbox, commands in it, another pod, and removal. The runtime finds
// both addresses on the interface that it has asked for (B026).
func TestCRI(t *testing.T) {
	eachContainerd(t, func(t *testing.T, c *containerd) {
		empty := c.state(t)
		p := c.addPod(t, "first", nil)
		out := c.exec(p)(t, "/bin/ip", "-o", "addr", "show", "dev", rig.PodDev)
		for _, addr := range []netip.Addr{p.addr4, p.addr6} {
			if !strings.Contains(out, " "+addr.String()+"/") {
				t.Errorf("%s is not on %s: %s", addr, rig.PodDev, out)
			}
		}
		c.wantFast(t, p)
		// A terminal's way, by the streaming server.
		if out := c.crictl(t, "exec", p.container, "/bin/cat", "/proc/net/if_inet6"); !strings.Contains(out, rig.PodDev) {
			t.Errorf("exec printed %q", out)
		}
		c.nextContainer(t, p)
		c.twoPods(t, p)

		// The addresses are free as soon as the sandbox is stopped.
		c.crictl(t, "stopp", p.id)
		if got := c.reserved(t, network); len(got) != 0 {
			t.Errorf("still reserved: %v", got)
		}
		c.crictl(t, "rmp", p.id)
		c.wantState(t, empty)
	})
}

// nextContainer replaces the container of a sandbox, whose addresses stay.
func (c *containerd) nextContainer(t *testing.T, p *pod) {
	t.Helper()
	old := *p
	c.crictl(t, "stop", "--timeout", "5", p.container)
	c.crictl(t, "rm", p.container)
	if err := c.addContainer(t, p); err != nil {
		t.Fatal(err)
	}
	if p.addr4 != old.addr4 || p.addr6 != old.addr6 || p.container == old.container {
		t.Errorf("the next container has %+v, the first one had %+v", p, old)
	}
	c.wantFastIn(t, "udp", p.inBoth()[0], p.inBoth()[0])
}

// twoPods makes pods talk to each other.
func (c *containerd) twoPods(t *testing.T, p *pod) {
	t.Helper()
	second := c.addPod(t, "second", nil)
	c.wantFastDial(t, c.exec(second), "tcp", second.addr4, p.inBoth()[0])
	c.wantFastDial(t, c.exec(second), "udp", second.addr6, p.inBoth()[1])
	c.remove(t, second)
	c.wantFastIn(t, "tcp", p.inBoth()[1], p.inBoth()[1])
}

// TestCRIRestart restarts containerd, by its signal and by SIGKILL, while pods run: their
// connections and their fast path go on, and containerd knows them afterwards.
func TestCRIRestart(t *testing.T) {
	eachContainerd(t, func(t *testing.T, c *containerd) {
		p := c.addPod(t, "lives", nil)
		conn, err := c.Ext.DialTCP(netip.AddrPort{}, p.inBoth()[0])
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for i, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			roundTrip(t, conn)
			c.daemon.end(t, sig)
			roundTrip(t, conn)
			c.wantFastIn(t, "udp", p.inBoth()[1], p.inBoth()[1])
			c.start(t)
			roundTrip(t, conn)
			if s, err := c.inspect(t, p.id); err != nil || s.Status.State != "SANDBOX_READY" {
				t.Errorf("after %v the pod is %+v: %v", sig, s, err)
			}
			old := *p
			if err := c.readStatus(t, p); err != nil || p.addr4 != old.addr4 || p.addr6 != old.addr6 {
				t.Errorf("after %v the pod has %+v, before it had %+v: %v", sig, p, old, err)
			}
			c.wantFast(t, p)
			c.remove(t, c.addPod(t, fmt.Sprintf("new%d", i), nil))
		}
		c.remove(t, p)
	})
}

// TestCRIParallel starts 30 pods at once and removes them at once. Each is fast, none shares
// an address with another, and nothing is left of them.
func TestCRIParallel(t *testing.T) {
	eachContainerd(t, func(t *testing.T, c *containerd) {
		const n = 30
		empty := c.state(t)
		pods := make([]*pod, n)
		atOnce(t, n, func(i int) (err error) {
			pods[i], err = c.tryPod(t, fmt.Sprintf("p%d", i), nil)
			return err
		})
		if t.Failed() {
			return
		}
		owner := map[netip.Addr]int{}
		for i, p := range pods {
			for _, addr := range []netip.Addr{p.addr4, p.addr6} {
				if other, taken := owner[addr]; taken {
					t.Errorf("pods %d and %d both have %s", other, i, addr)
				}
				owner[addr] = i
			}
			at := p.inBoth()[i%2]
			c.wantFastIn(t, "udp", at, at)
		}
		atOnce(t, n, func(i int) error {
			if _, err := c.tryCrictl(t, "stopp", pods[i].id); err != nil {
				return err
			}
			_, err := c.tryCrictl(t, "rmp", pods[i].id)
			return err
		})
		c.wantState(t, empty)
	})
}

// atOnce calls f n times at the same instant and reports what fails.
func atOnce(t *testing.T, n int, f func(int) error) {
	t.Helper()
	if err := rig.AtOnce(n, f); err != nil {
		t.Error(err)
	}
}
