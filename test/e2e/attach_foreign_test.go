// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/test/rig"
)

// worksByTCX checks that traffic with the remote host takes the fast path, but not by XDP.
func worksByTCX(t *testing.T, r *rig.Rig, a *rig.Pod) {
	t.Helper()
	before := counters(t, open(t, r))
	at := netip.AddrPortFrom(a.Addr4, 7)
	warm(t, r, dial(t, r.Ext, "udp", at))
	after := counters(t, open(t, r))
	if after["fast_tcx"] == before["fast_tcx"] || after["fast_xdp"] != before["fast_xdp"] {
		t.Errorf("tcx took %d packets, xdp %d", after["fast_tcx"]-before["fast_tcx"], after["fast_xdp"]-before["fast_xdp"])
	}
}

// worksByXDP checks that traffic from the remote host is redirected by XDP.
func worksByXDP(t *testing.T, r *rig.Rig, a *rig.Pod) {
	t.Helper()
	d := open(t, r)
	before := counters(t, d)["fast_xdp"]
	conn := dial(t, r.Ext, "udp", netip.AddrPortFrom(a.Addr4, 7))
	eventually(t, 5*time.Second, "xdp redirects packets; STATUS: "+statusText(t, r, nil), func() bool {
		if _, err := rig.RoundTrip(conn, numbered(100), rigPatience); err != nil {
			t.Fatal(err)
		}
		return counters(t, d)["fast_xdp"] > before+2
	})
}

// TestForeignXDP finds somebody else's XDP program on the uplink, attached in every slowWay:
// it is left alone, tcx does the work, STATUS says so, and when it has gone XDP is armed
// by the next ADD. B094, B096, B098.
func TestForeignXDP(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for _, c := range []struct {
		name, prog string
		flags      int
		byLink     bool
	}{
		{"netlink", "stranger", unix.XDP_FLAGS_DRV_MODE, false},
		{"bpf link", "stranger", 0, true},
		{"generic", "stranger", unix.XDP_FLAGS_SKB_MODE, false},
		{"dispatcher", "xdp_dispatcher", unix.XDP_FLAGS_DRV_MODE, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := stranger(t, c.prog)
			leave := func() { setXDP(t, r.Node, rig.Uplink, nil, c.flags) }
			if c.byLink {
				leave = linkXDP(t, r.Node, rig.Uplink, p)
			} else {
				setXDP(t, r.Node, rig.Uplink, p, c.flags)
			}
			a := addPod(t, r, "a", nil)
			echo(t, a.Host, "udp", netip.AddrPortFrom(a.Addr4, 7))
			worksByTCX(t, r, a)
			wantStatus(t, r, nil, "uplink "+rig.Uplink+": tcx", c.prog)
			// "off" and the end of the last pod are ours to clean up after, not theirs.
			churn(t, r, map[string]any{"uplinks": []any{map[string]any{"name": rig.Uplink, "mode": "off"}}})
			if have := hooksOf(t, r.Node, rig.Uplink)["xdp"]; len(have) != 1 || have[0] != idOf(t, p) {
				t.Errorf("the stranger's program %v was replaced by %v", idOf(t, p), have)
			}
			leave()
			churn(t, r, nil)
			worksByXDP(t, r, a)
			wantStatus(t, r, nil, "uplink "+rig.Uplink+": xdp")
			if err := a.Remove(ctxOf(t)); err != nil {
				t.Fatal(err)
			}
			setXDP(t, r.Node, rig.Uplink, nil, unix.XDP_FLAGS_DRV_MODE)
		})
	}
}

// linkXDP puts a program on an interface by a bpf_link and returns how to take it off.
func linkXDP(t *testing.T, h *rig.Host, dev string, p *ebpf.Program) func() {
	t.Helper()
	var l link.Link
	err := h.Do(func() error {
		ifi, err := net.InterfaceByName(dev)
		if err != nil {
			return err
		}
		l, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: ifi.Index, Flags: link.XDPDriverMode})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return func() { l.Close() }
}

// TestXDPDispatcher shares the uplink with a program behind a libxdp dispatcher, loaded
// before ours and after it. B097.
func TestXDPDispatcher(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("xdp-filter"); err != nil {
		t.Skip("needs xdp-filter (package xdp-tools)")
	}
	r := newRig(t, nil)
	node(t, r, "xdp-filter load -m native -p allow "+rig.Uplink)
	theirs := hooksOf(t, r.Node, rig.Uplink)["xdp"]
	a := addPod(t, r, "a", nil)
	echo(t, a.Host, "udp", netip.AddrPortFrom(a.Addr4, 7))
	worksByTCX(t, r, a)
	// On kernels that refuse the dispatcher libxdp attaches the program itself.
	wantStatus(t, r, nil, "uplink eth0: tcx", "somebody else's")
	if have := hooksOf(t, r.Node, rig.Uplink)["xdp"]; len(have) != 1 || have[0] != theirs[0] {
		t.Errorf("the dispatcher %v was replaced by %v", theirs, have)
	}
	if out := node(t, r, "xdp-loader status "+rig.Uplink); !strings.Contains(out, "xdpfilt") {
		t.Errorf("xdp-loader no longer sees its program:\n%s", out)
	}
	node(t, r, "xdp-filter unload "+rig.Uplink)
	churn(t, r, nil)
	worksByXDP(t, r, a)
	// The other way round the loader is refused and nothing of ours is lost.
	if out, err := r.Node.Run(ctxOf(t), "xdp-filter", "load", "-m", "native", rig.Uplink); err == nil {
		t.Errorf("xdp-filter loaded over our program: %s", out)
	}
	worksByXDP(t, r, a)
}

// TestStripped takes our programs off by the usual tools while a connection is warm: it
// goes on by the kernel, and the next ADD arms the uplink again. B099.
func TestStripped(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	a := addPod(t, r, "a", nil)
	for _, fam := range families {
		addr, _ := a.Addr(fam)
		at := netip.AddrPortFrom(addr, 7)
		echo(t, a.Host, "tcp", at)
		echo(t, a.Host, "udp", at)
		for _, strip := range []string{
			"ip link set eth0 xdp off", "ip link set eth0 xdpdrv off", "bpftool net detach xdpdrv dev eth0",
		} {
			t.Run(fmt.Sprintf("%s v%d", strip, fam), func(t *testing.T) {
				conn := dial(t, r.Ext, "tcp", at)
				warm(t, r, conn)
				traffic := startCounted(t, r.Ext, at)
				traffic.progress(t, 100)
				node(t, r, strip)
				if have := hooksOf(t, r.Node, rig.Uplink); len(have["xdp"]) != 0 {
					t.Skipf("the tool takes off nothing: %v", have)
				}
				traffic.progress(t, 100)
				for range 50 {
					if _, err := rig.RoundTrip(conn, numbered(1000), rigPatience); err != nil {
						t.Fatal(err)
					}
				}
				if text := statusText(t, r, nil); strings.Contains(text, "uplink eth0: xdp") {
					t.Errorf("STATUS says %q", text)
				}
				churn(t, r, nil)
				wantStatus(t, r, nil, "uplink eth0: xdp")
				worksByXDP(t, r, a)
				traffic.finish(t)
			})
		}
	}
}
