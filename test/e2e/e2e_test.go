// SPDX-License-Identifier: Apache-2.0

// Package e2e tests the plugin and the datapath on the rig: real binaries, the real
// kernel, real packets.
package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// plugins is the folder of the plugin binaries under test.
var plugins string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

// run builds the plugin when the caller has not done so, so that a plain "go test"
// tests what is in the tree.
func run(m *testing.M) int {
	if plugins = os.Getenv("XVETH_BIN"); plugins == "" {
		dir, err := os.MkdirTemp("", "xveth-bin-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		build := exec.Command("go", "build", "-o", dir+"/", "../../plugins/...", "../../cmd/...")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return 1
		}
		plugins = dir
	}
	return m.Run()
}

// ctxOf is a context that ends before the test's patience does.
func ctxOf(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// newRig builds a rig with some keys of the default configuration changed. When the
// test ends, its pods are removed and what is left on the node must be what was there
// before.
func newRig(t *testing.T, conf map[string]any) *rig.Rig {
	t.Helper()
	return newRigWith(t, rig.Options{Conf: conf})
}

func newRigWith(t *testing.T, opts rig.Options) *rig.Rig {
	t.Helper()
	if testing.Short() {
		t.Skip("needs root and network namespaces; not in short mode")
	}
	opts.Plugins = plugins
	r, err := rig.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	before := nodeState(t, r)
	t.Cleanup(func() {
		for _, p := range r.Pods() {
			if err := p.Remove(context.Background()); err != nil {
				t.Error(err)
			}
		}
		if after := nodeState(t, r); after != before {
			t.Errorf("left on the node:\n%s\nbefore:\n%s", after, before)
		}
		checkMaps(t, r)
	})
	return r
}

// nodeState lists everything on the node that an attachment could leave behind.
func nodeState(t *testing.T, r *rig.Rig) string {
	t.Helper()
	return r.Node.State("find /var/lib/cni /run -type f -not -path '/run/xveth/*' -not -name last_reserved_ip.* -not -name lock | sort")
}

// checkMaps looks for map entries of interfaces that are gone.
func checkMaps(t *testing.T, r *rig.Rig) {
	t.Helper()
	d, err := datapath.Open(r.Node.Path(datapath.DefaultDir))
	if err != nil {
		return // never loaded
	}
	defer d.Close()
	for f, err := range d.Flows() {
		if err != nil {
			t.Fatal(err)
		}
		t.Errorf("a flow is left: %+v", f)
	}
	checkEntries(t, r)
	checkPrograms(t, r)
}

// open gives access to the node's datapath.
func open(t *testing.T, r *rig.Rig) *datapath.Datapath {
	t.Helper()
	d, err := datapath.Open(r.Node.Path(datapath.DefaultDir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// addPod connects a pod, with some keys of the configuration changed.
func addPod(t *testing.T, r *rig.Rig, id string, changes map[string]any) *rig.Pod {
	t.Helper()
	p, err := r.AddPod(ctxOf(t), id, changes)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// counters reads the packet counters.
func counters(t *testing.T, d *datapath.Datapath) datapath.Counters {
	t.Helper()
	c, err := d.Counters()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// flow finds the learned flow from src to dst as its packets come in; ok is false when
// there is none or it is not live.
func flow(t *testing.T, d *datapath.Datapath, proto uint8, src, dst netip.AddrPort) (datapath.Flow, bool) {
	t.Helper()
	for f, err := range d.Flows() {
		if err != nil {
			t.Fatal(err)
		}
		if f.Proto == proto && f.Src == src && f.Dst == dst && f.Live() {
			return f, true
		}
	}
	return datapath.Flow{}, false
}

// eventually waits up to some time for a condition.
func eventually(t *testing.T, within time.Duration, what string, cond func() bool) {
	t.Helper()
	if !rig.Within(within, cond) {
		t.Fatalf("not within %v: %s", within, what)
	}
}

// answerUDP answers every datagram until the test ends, or the connection is closed.
func answerUDP(t *testing.T, h *rig.Host, at netip.AddrPort, answer func(from netip.AddrPort, message []byte) []byte) *net.UDPConn {
	t.Helper()
	conn, err := h.AnswerUDP(at, answer)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// moveLink puts an interface of a host into another one's namespace.
func moveLink(t *testing.T, from *rig.Host, dev string, to *rig.Host) {
	t.Helper()
	move := exec.Command("ip", "link", "set", dev, "netns", to.NetnsPath())
	err := from.Start(move)
	if err == nil {
		err = move.Wait()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// addrsUsable waits for duplicate address detection, which other plugins do not wait for.
func addrsUsable(t *testing.T, hosts ...*rig.Host) {
	t.Helper()
	for _, h := range hosts {
		eventually(t, ctxWait, "the addresses are usable", func() bool {
			return !strings.Contains(on(t, h, "ip -6 addr"), "tentative")
		})
	}
}

// node runs a shell command on the node.
func node(t *testing.T, r *rig.Rig, command string) string {
	t.Helper()
	return on(t, r.Node, command)
}

// on runs a shell command on a host.
func on(t *testing.T, h *rig.Host, command string) string {
	t.Helper()
	out, err := h.Run(ctxOf(t), "sh", "-c", command)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// testBin is the folder of the reference binaries: cnitool and the reference plugins.
func testBin(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("XVETH_TEST_BIN")
	if dir == "" {
		dir = filepath.Join("..", "..", ".cache", "bin")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(abs, "cnitool")); err != nil {
		t.Fatalf("the reference binaries are missing (make tools): %v", err)
	}
	return abs
}
