// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/xveth/xveth/test/rig"
)

// logConf makes the plugin log to a file on the node.
var logConf = map[string]any{"logFile": "/var/lib/xveth.log", "logLevel": "debug"}

func logText(t *testing.T, r *rig.Rig) string {
	t.Helper()
	b, err := os.ReadFile(r.Node.Path("/var/lib/xveth.log"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(b)
}

// hasNetwork checks that a pod talks both ways with the remote host.
func hasNetwork(t *testing.T, r *rig.Rig, p *rig.Pod) {
	t.Helper()
	for _, fam := range families {
		addr, _ := p.Addr(fam)
		on(t, p.Host, fmt.Sprintf("ping -n -c 2 -i 0.01 -W 2 %s", extAddr(fam)))
		on(t, r.Ext, fmt.Sprintf("ping -n -c 2 -i 0.01 -W 2 %s", addr))
	}
	echoOnce(t, r, p)
}

// plainPod checks that ADD made a working pod without the fast path, and that the log and
// STATUS give the cause.
func plainPod(t *testing.T, r *rig.Rig, cause string) {
	t.Helper()
	p := addPod(t, r, "plain", logConf)
	hasNetwork(t, r, p)
	if have := hooksOf(t, r.Node, p.HostDev); len(have["ingress"])+len(have["egress"]) > 0 {
		t.Errorf("programs on the host's end: %v", have)
	}
	if text := logText(t, r); !strings.Contains(text, cause) {
		t.Errorf("the log does not contain %q:\n%s", cause, text)
	}
	wantStatus(t, r, nil, "not armed", cause)
	if err := p.Check(ctxOf(t)); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if err := p.Remove(ctxOf(t)); err != nil {
		t.Fatal(err)
	}
}

// TestNoBPFFS runs the plugin on a node whose BPF file system is missing, read-only, or
// cannot be mounted. B115.
func TestNoBPFFS(t *testing.T) {
	t.Parallel()
	t.Run("not mounted", func(t *testing.T) {
		r := newRig(t, logConf)
		node(t, r, "while umount -l /sys/fs/bpf; do :; done")
		a := addPod(t, r, "a", nil)
		hasNetwork(t, r, a)
		// The plugin mounts one, as ip and tc do.
		echo(t, a.Host, "udp", netip.AddrPortFrom(a.Addr4, 7))
		worksByXDP(t, r, a)
		wantStatus(t, r, nil, "fast path armed")
	})
	t.Run("read-only", func(t *testing.T) {
		r := newRig(t, nil)
		node(t, r, "mount -o remount,ro /sys/fs/bpf")
		plainPod(t, r, "read-only file system")
		node(t, r, "mount -o remount,rw /sys/fs/bpf")
		a := addPod(t, r, "a", nil)
		echo(t, a.Host, "udp", netip.AddrPortFrom(a.Addr4, 7))
		worksByXDP(t, r, a)
	})
	t.Run("read-only later", func(t *testing.T) {
		r := newRig(t, nil)
		a := addPod(t, r, "a", nil)
		echo(t, a.Host, "udp", netip.AddrPortFrom(a.Addr4, 7))
		node(t, r, "mount -o remount,ro /sys/fs/bpf")
		b := addPod(t, r, "b", logConf)
		hasNetwork(t, r, b)
		hasNetwork(t, r, a)
		wantStatus(t, r, nil, "read-only file system")
		node(t, r, "mount -o remount,rw /sys/fs/bpf")
		worksByXDP(t, r, a)
	})
	t.Run("nowhere to mount", func(t *testing.T) {
		r := newRig(t, nil)
		node(t, r, "umount -l /sys/fs/bpf; mount -t tmpfs tmpfs /sys/fs")
		plainPod(t, r, "/sys/fs/bpf")
	})
}

// runAs runs a verb of the plugin on the node behind a wrapper, such as setpriv.
func runAs(t *testing.T, r *rig.Rig, wrapper, verb string, p *rig.Pod, conf []byte) error {
	t.Helper()
	bin, err := filepath.Abs(filepath.Join(filepath.SplitList(plugins)[0], "xveth"))
	if err != nil {
		t.Fatal(err)
	}
	out, err := r.Node.Run(ctxOf(t), "sh", "-c", fmt.Sprintf(`export CNI_COMMAND=%s CNI_CONTAINERID=%s CNI_NETNS=%s CNI_IFNAME=eth0 CNI_PATH=%s
%s %s <<'E'
%s
E`, verb, p.ID, p.Netns, filepath.Dir(bin), wrapper, bin, conf))
	var said types.Error
	if err != nil && json.Unmarshal([]byte(out), &said) == nil && said.Msg != "" {
		return &said
	}
	return err
}

// TestFewRights runs ADD with little locked memory and without capabilities. What does not
// concern the pod's network leaves a plain pod; what does ends in a clean error. B114.
func TestFewRights(t *testing.T) {
	t.Parallel()
	r := newRig(t, logConf)
	for _, c := range []struct {
		name, wrapper string
		fails         string // what the error says; empty: armed
	}{
		{"memlock", "ulimit -l 64; exec", ""},
		{"memlock without right to raise it", "ulimit -l 64; exec setpriv --bounding-set=-sys_resource --inh-caps=-sys_resource", ""},
		{"without CAP_BPF", "exec setpriv --bounding-set=-bpf --inh-caps=-bpf", ""},
		{"without CAP_SYS_ADMIN", "exec setpriv --bounding-set=-bpf,-sys_admin --inh-caps=-bpf,-sys_admin", "operation not permitted"},
		{"without CAP_NET_ADMIN", "exec setpriv --bounding-set=-net_admin --inh-caps=-net_admin", "operation not permitted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := r.NewNetns("few")
			if err != nil {
				t.Fatal(err)
			}
			defer p.Destroy()
			before := nodeState(t, r)
			err = runAs(t, r, c.wrapper, "ADD", p, r.Conf(nil))
			if c.fails != "" {
				var said *types.Error
				if !errors.As(err, &said) || !strings.Contains(said.Error(), c.fails) {
					t.Errorf("ADD ends with %v, want a CNI error that says %q", err, c.fails)
				}
				if after := nodeState(t, r); after != before {
					t.Errorf("left on the node:\n%s\nbefore:\n%s", after, before)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			on(t, p.Host, fmt.Sprintf("ping -n -c 1 -W 2 %s", rig.ExtAddr4))
			wantStatus(t, r, nil, "fast path armed")
			if err := runAs(t, r, c.wrapper, "DEL", p, r.Conf(nil)); err != nil {
				t.Error(err)
			}
		})
	}
}
