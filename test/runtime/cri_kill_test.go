// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// heldWait bounds the wait for a plugin to come to the point where it is held.
const heldWait = 90 * time.Second

// holder is the plugin behind xveth that can be made to wait.
type holder struct{ dir string }

// useHolder puts the plugin into the network.
func (c *containerd) useHolder(t *testing.T) *holder {
	t.Helper()
	c.link(t, bins.guest, "hold")
	h := &holder{t.TempDir()}
	c.writeNet(t, c.cni, nil, map[string]any{"type": "hold", "dir": h.dir})
	c.reload(t)
	return h
}

func (h *holder) hold(t *testing.T, verb string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(h.dir, verb), nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

func (h *holder) waitHeld(t *testing.T, verb string) {
	t.Helper()
	eventually(t, heldWait, "the plugin behind xveth waits in "+verb, func() bool {
		_, err := os.Stat(filepath.Join(h.dir, verb+".held"))
		return err == nil
	})
}

func (h *holder) letGo(t *testing.T, verb string) {
	t.Helper()
	if err := os.Remove(filepath.Join(h.dir, verb)); err != nil {
		t.Error(err)
	}
	_ = os.Remove(filepath.Join(h.dir, verb+".held"))
}

// reload makes containerd read the network anew.
func (c *containerd) reload(t *testing.T) {
	t.Helper()
	c.daemon.end(t, syscall.SIGTERM)
	c.start(t)
}

// holdStore keeps xveth waiting for the lock of its address store, until the function that
// it returns is called.
func (c *containerd) holdStore(t *testing.T) func() {
	t.Helper()
	dir := "/var/lib/cni/networks/" + network
	c.sh(t, "mkdir -p "+dir)
	f, err := os.OpenFile(c.Node.Path(dir+"/lock"), os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return func() { _ = f.Close() }
}

// plugins lists the process numbers of the running plugins of a name.
func (c *containerd) plugins(t *testing.T, name string) []string {
	t.Helper()
	return strings.Fields(c.sh(t, `for p in /proc/[0-9]*; do [ "$(cat $p/comm 2>/dev/null)" = `+name+` ] && basename $p; done; true`))
}

// waitEnd waits until no plugin of a name runs.
func (c *containerd) waitEnd(t *testing.T, name string) {
	t.Helper()
	eventually(t, heldWait, name+" has ended", func() bool { return len(c.plugins(t, name)) == 0 })
}

// isBlocked says whether xveth waits for a lock on this node. The machine's own /proc hides
// those who wait for somebody who is not on the machine.
func (c *containerd) isBlocked(t *testing.T) bool {
	t.Helper()
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.Readlink(c.Node.NetnsPath())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(locks)) {
		f := strings.Fields(line) // number, arrow, kind, mode, access, process
		if len(f) < 6 || f[1] != "->" {
			continue
		}
		comm, _ := os.ReadFile("/proc/" + f[5] + "/comm")
		netns, _ := os.Readlink("/proc/" + f[5] + "/ns/net")
		if strings.TrimSpace(string(comm)) == "xveth" && netns == own {
			return true
		}
	}
	return false
}

// point is a moment at which containerd is killed.
type point struct {
	name string
	// until holds the plugins up there until its result is called.
	until func(t *testing.T, c *containerd, h *holder, verb string) (letGo func())
}

// points within a verb. A plugin outlives the containerd that has called it.
var points = []point{
	{"in xveth, which goes on", func(t *testing.T, c *containerd, _ *holder, _ string) func() {
		open := c.holdStore(t)
		return func() {
			open()
			c.waitEnd(t, "xveth")
		}
	}},
	{"in xveth, which is killed too", func(t *testing.T, c *containerd, _ *holder, _ string) func() {
		open := c.holdStore(t)
		return func() {
			c.sh(t, "kill -9 "+strings.Join(c.plugins(t, "xveth"), " "))
			c.waitEnd(t, "xveth")
			open()
		}
	}},
	{"in the next plugin", func(t *testing.T, c *containerd, h *holder, verb string) func() {
		h.hold(t, verb)
		return func() {
			h.letGo(t, verb)
			c.waitEnd(t, "hold")
		}
	}},
}

// TestCRIKilledInAdd kills containerd within an ADD and lets it recover. Nothing is left of
// the pod, and a new one gets its addresses.
func TestCRIKilledInAdd(t *testing.T) {
	eachContainerd(t, func(t *testing.T, c *containerd) {
		h := c.useHolder(t)
		empty := c.state(t)
		for i, at := range points {
			t.Run(at.name, func(t *testing.T) {
				letGo := at.until(t, c, h, "ADD")
				ended := c.background(t, "runp", c.sandboxConf(t, fmt.Sprintf("killed%d", i), nil))
				c.waitAt(t, h, i, "ADD")
				c.daemon.end(t, syscall.SIGKILL)
				<-ended
				letGo()
				c.recover(t, empty)
			})
		}
	})
}

// TestCRIKilledInDel kills containerd within a DEL and lets it recover. Nothing is left of
// the pod, and a new one gets its addresses.
func TestCRIKilledInDel(t *testing.T) {
	eachContainerd(t, func(t *testing.T, c *containerd) {
		h := c.useHolder(t)
		empty := c.state(t)
		for i, at := range points {
			t.Run(at.name, func(t *testing.T) {
				p := c.addPod(t, fmt.Sprintf("killed%d", i), nil)
				c.wantFastIn(t, "udp", p.inBoth()[0], p.inBoth()[0])
				letGo := at.until(t, c, h, "DEL")
				ended := c.background(t, "stopp", p.id)
				c.waitAt(t, h, i, "DEL")
				c.daemon.end(t, syscall.SIGKILL)
				<-ended
				letGo()
				c.recover(t, empty)
			})
		}
	})
}

// background runs crictl, which fails when containerd is killed.
func (c *containerd) background(t *testing.T, args ...string) <-chan struct{} {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if out, err := c.tryCrictl(t, args...); err == nil {
			t.Errorf("crictl %v ended before containerd was killed: %s", args, out)
		}
	}()
	return ended
}

// waitAt waits until the plugins have come to a point.
func (c *containerd) waitAt(t *testing.T, h *holder, i int, verb string) {
	t.Helper()
	if i == len(points)-1 {
		h.waitHeld(t, verb)
	} else {
		eventually(t, heldWait, "xveth waits for the lock in "+verb, func() bool { return c.isBlocked(t) })
	}
}

// recover starts containerd and removes the pods that it finds unready, as the kubelet does.
func (c *containerd) recover(t *testing.T, empty string) {
	t.Helper()
	c.start(t)
	if c.state(t) == empty {
		t.Error("nothing of the pod was left to recover from")
	}
	for _, id := range c.pods(t) {
		c.crictl(t, "stopp", id)
		c.crictl(t, "rmp", id)
	}
	c.wantState(t, empty)
	p := c.addPod(t, "next", nil)
	c.wantFastIn(t, "udp", p.inBoth()[0], p.inBoth()[0])
	c.remove(t, p)
}
