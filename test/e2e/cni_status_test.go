// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/xveth/xveth/test/rig"
)

// statusOf runs STATUS, which must not change anything, and returns what it says on
// standard error.
func statusOf(t *testing.T, r *rig.Rig, changes map[string]any) (string, error) {
	t.Helper()
	before := nodeState(t, r) + node(t, r, "find /var/lib /sys/fs/bpf | sort")
	out, err := r.Plugin(ctxOf(t), "STATUS", r.Conf(changes), nil)
	if after := nodeState(t, r) + node(t, r, "find /var/lib /sys/fs/bpf | sort"); after != before {
		t.Errorf("STATUS has changed the node: %s", rig.StateDiff(before, after))
	}
	if err == nil && len(out.Stdout) > 0 {
		t.Errorf("STATUS prints %s", out.Stdout)
	}
	return string(out.Stderr), err
}

// TestStatus is B014: zero when the next ADD can succeed, with the state of the fast path
// on standard error.
func TestStatus(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	mode := func(m string) map[string]any { return map[string]any{"fastPath": map[string]any{"mode": m}} }
	uplink := func(m string) map[string]any {
		return map[string]any{"uplinks": []any{map[string]any{"name": rig.Uplink, "mode": m}}}
	}
	for _, c := range []struct {
		name    string
		add     map[string]any // nil makes no pod before
		changes map[string]any
		says    []string
	}{
		{"nothing loaded", nil, nil, []string{"not armed yet"}},
		{"off", nil, mode("off"), []string{"not armed", "fastPath.mode is off"}},
		{"xdp", uplink("xdp"), uplink("xdp"), []string{"fast path armed", rig.Uplink + ": xdp"}},
		{"tcx", uplink("tcx"), uplink("tcx"), []string{"fast path armed", rig.Uplink + ": tcx"}},
		{"auto", uplink("auto"), uplink("auto"), []string{"fast path armed", rig.Uplink + ": tcx (", "checksums"}},
		{"off though loaded", nil, mode("off"), []string{"not armed", "fastPath.mode is off"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.add != nil {
				addPod(t, r, "a", c.add)
				defer func() {
					if err := r.Pods()[0].Remove(ctxOf(t)); err != nil {
						t.Error(err)
					}
				}()
			}
			said, err := statusOf(t, r, c.changes)
			if err != nil {
				t.Error(err)
			}
			for _, want := range c.says {
				if !strings.Contains(said, want) {
					t.Errorf("got %q, want it to say %q", said, want)
				}
			}
			if len(c.says) > 0 && c.says[0] != "fast path armed" && strings.Contains(said, "fast path armed") {
				t.Errorf("got %q, but nothing is armed", said)
			}
		})
	}
}

// TestStatusNotLiberal tells why no TCP is learned.
func TestStatusNotLiberal(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	addPod(t, r, "a", nil)
	if err := r.Node.Sysctl("net.netfilter.nf_conntrack_tcp_be_liberal", "0"); err != nil {
		t.Fatal(err)
	}
	said, err := statusOf(t, r, nil)
	if err != nil || !strings.Contains(said, "nf_conntrack_tcp_be_liberal") {
		t.Errorf("got %q, %v", said, err)
	}
}

// TestUplinkMissing configures an uplink that is not there: pods get their network, and
// STATUS says what is wrong with the fast path.
func TestUplinkMissing(t *testing.T) {
	t.Parallel()
	conf := map[string]any{"uplinks": []any{"nosuch0"}}
	r := newRig(t, conf)
	p := addPod(t, r, "a", nil)
	if err := p.Check(ctxOf(t)); err != nil {
		t.Error(err)
	}
	canPing(t, p.Host, rig.ExtAddr4)
	said, err := statusOf(t, r, conf)
	if err != nil || !strings.Contains(said, "nosuch0") {
		t.Errorf("got %q, %v", said, err)
	}
}

// TestStatusNotReady is B014: code 50 with a short reason when the next ADD would fail.
func TestStatusNotReady(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	small := map[string]any{"ipam": ipamConf("10.88.0.0/30")}
	addPod(t, r, "a", small)
	_, err := statusOf(t, r, small)
	wantCode(t, err, types.ErrPluginNotAvailable, "no free address", "10.88.0.1-10.88.0.2")
	_, err = statusOf(t, r, map[string]any{"ipam": map[string]any{"type": "no-such-ipam"}})
	wantCode(t, err, types.ErrPluginNotAvailable, "no-such-ipam")
	node(t, r, "mkdir -p /run/x && : > /run/x/file")
	bad := ipamOf(4)
	bad["dataDir"] = "/run/x/file"
	_, err = statusOf(t, r, map[string]any{"ipam": bad})
	wantCode(t, err, types.ErrPluginNotAvailable, "not a directory")
	node(t, r, "rm -r /run/x")
}
