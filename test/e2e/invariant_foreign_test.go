// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// victimLen is the length of the frames that foreign programs drop, and of nobody
// else's frames.
const victimLen = 342

// dropVictims is a tcx program that drops frames of victimLen bytes.
func dropVictims() asm.Instructions {
	const drop, next = 2, -1
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), // skb->len
		asm.Mov.Imm(asm.R0, next),
		asm.JNE.Imm(asm.R2, victimLen, "out"),
		asm.Mov.Imm(asm.R0, drop),
		asm.Return().WithSymbol("out"),
	}
}

// clsactDrop is the same as a classic filter in a clsact qdisc.
func clsactDrop(dev, hook string) (on, off string) {
	return fmt.Sprintf("tc qdisc replace dev %s clsact && tc filter add dev %s %s bpf bytecode "+
			"'4,128 0 0 0,21 0 1 %d,6 0 0 2,6 0 0 4294967295' da", dev, dev, hook, victimLen),
		fmt.Sprintf("tc qdisc del dev %s clsact", dev)
}

// victim is a UDP flow whose frames have one length.
type victim struct {
	name string
	conn net.Conn
	at   *ear
	warmTuple
}

// victims starts for each family a flow whose frames are to be dropped and one whose
// frames are not.
func victims(t *testing.T, from, to *rig.Host, at *ear, addrs map[int]netip.Addr, port *uint16) (hit, spared []victim) {
	t.Helper()
	for _, fam := range families {
		payload := victimLen - 14 - 8 - map[int]int{4: 20, 6: 40}[fam]
		for _, size := range []int{payload, payload + 2} {
			*port++
			dst := netip.AddrPortFrom(addrs[fam], *port)
			swallow(t, to, "udp", dst)
			conn := dial(t, from, "udp", dst)
			drip(t, conn, size)
			name := fmt.Sprintf("v%d flow of %d bytes", fam, size)
			v := victim{name, conn, at, warmTuple{name, unix.IPPROTO_UDP, localOf(conn), dst}}
			if size == payload {
				hit = append(hit, v)
			} else {
				spared = append(spared, v)
			}
		}
	}
	return hit, spared
}

func waitFast(t *testing.T, d *datapath.Datapath, flows ...victim) {
	t.Helper()
	for _, v := range flows {
		eventually(t, 8*time.Second, v.name+" is fast", func() bool {
			f, ok := flow(t, d, v.proto, v.src, v.dst)
			if !ok {
				return false
			}
			time.Sleep(10 * time.Millisecond)
			later, ok := flow(t, d, v.proto, v.src, v.dst)
			return ok && later.Packets > f.Packets
		})
	}
}

// foreignCase is a drop program of somebody else's on one hook.
type foreignCase struct {
	dev    string // "uplink" or "pod"
	hook   string // "ingress" or "egress"
	kind   string // "clsact" or "tcx"
	reason string
	said   string // by STATUS
}

func foreignCases() (all []foreignCase) {
	for _, dev := range []string{"uplink", "pod"} {
		for _, kind := range []string{"clsact", "tcx"} {
			all = append(all,
				foreignCase{dev: dev, hook: "ingress", kind: kind, reason: "pass_foreign_ingress"},
				foreignCase{dev: dev, hook: "egress", kind: kind, reason: "learn_foreign_egress"})
		}
	}
	return all
}

// TestInvariantForeignAfter adds programs and filters of somebody else's to armed
// interfaces. Flows that are fast obey them within the interval, nothing more is
// learned there, and all is as before when they are gone. // B103
func TestInvariantForeignAfter(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"xdp", "tcx"} {
		t.Run("uplink "+mode, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, driven(revalidating(cutInterval, nil), mode))
			a := addPod(t, r, "a", nil)
			inPod, inExt := newEar(t, a.Host), newEar(t, r.Ext)
			port := uint16(7000)
			in, inSpared := victims(t, r.Ext, a.Host, inPod, addrsOf(a), &port)
			out, outSpared := victims(t, a.Host, r.Ext, inExt, map[int]netip.Addr{4: rig.ExtAddr4, 6: rig.ExtAddr6}, &port)
			for _, c := range foreignCases() {
				// The host veth is the same in both modes but for what leads to it.
				t.Run(c.dev+" "+c.hook+" "+c.kind, func(t *testing.T) {
					hit, spared := in, inSpared
					if (c.dev == "pod") == (c.hook == "ingress") {
						hit, spared = out, outSpared
					}
					if mode == "xdp" && c.dev == "uplink" && c.hook == "ingress" {
						c.said = "nothing is learned"
					}
					c.run(t, r, a, hit, spared)
				})
			}
		})
	}
}

// attach puts the case's program behind ours.
func (c *foreignCase) attach(t *testing.T, r *rig.Rig, dev string) (lift func()) {
	t.Helper()
	if c.kind == "clsact" {
		on, off := clsactDrop(dev, c.hook)
		return impose(t, r, on, off)
	}
	hook := ebpf.AttachTCXIngress
	if c.hook == "egress" {
		hook = ebpf.AttachTCXEgress
	}
	return attachForeign(t, r, foreignProg(t, ebpf.SchedCLS, dropVictims()), dev, hook, link.Tail())
}

func (c *foreignCase) run(t *testing.T, r *rig.Rig, pod *rig.Pod, hit, spared []victim) {
	t.Helper()
	d := open(t, r)
	dev := rig.Uplink
	if c.dev == "pod" {
		dev = pod.HostDev
	}
	waitFast(t, d, append(hit[:len(hit):len(hit)], spared...)...)
	before := counters(t, d)
	lift := c.attach(t, r, dev)
	since := time.Now()
	time.Sleep(cutInterval + 2*grace)
	stopped := map[string]int{}
	for _, v := range hit {
		a := v.at.of(v.proto, v.dst)
		stopped[v.name] = a.packets
		if took := a.last.Sub(since); took > cutInterval+grace {
			t.Errorf("%s went on for %v", v.name, took)
		}
	}
	for _, v := range spared {
		heard := v.at.of(v.proto, v.dst).packets
		eventually(t, 3*time.Second, v.name+" is delivered by the kernel", func() bool {
			return v.at.of(v.proto, v.dst).packets > heard+20
		})
		if f, ok := flow(t, d, v.proto, v.src, v.dst); ok {
			t.Errorf("%s is still fast: %+v", v.name, f)
		}
	}
	if n := rose(t, d, before, c.reason); n < 40 {
		t.Errorf("%s rose by %d", c.reason, n)
	}
	for _, v := range hit {
		if n := v.at.of(v.proto, v.dst).packets - stopped[v.name]; n != 0 {
			t.Errorf("%s: %d more packets arrived", v.name, n)
		}
	}
	if said := toldByStatus(t, r); !strings.Contains(said, c.said) {
		t.Errorf("status says %q", said)
	}
	lift()
	waitFast(t, d, append(hit[:len(hit):len(hit)], spared...)...)
}

// TestInvariantForeignBefore finds filters and programs of somebody else's on the
// uplink before xveth is armed: what they drop stays dropped from the first packet, and
// STATUS says why XDP is not used. // B103
func TestInvariantForeignBefore(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind string
		fast bool // whether what is not dropped may be learned
	}{{"clsact", false}, {"tcx", true}} {
		t.Run(c.kind, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, revalidating(cutInterval, nil))
			f := foreignCase{dev: "uplink", hook: "ingress", kind: c.kind}
			lift := f.attach(t, r, rig.Uplink)
			a := addPod(t, r, "a", nil)
			d, port := open(t, r), uint16(7000)
			if said := toldByStatus(t, r); !strings.Contains(said, "uplink eth0: tcx") || !strings.Contains(said, "skipped by xdp") {
				t.Errorf("status says %q", said)
			}
			at := newEar(t, a.Host)
			hit, spared := victims(t, r.Ext, a.Host, at, addrsOf(a), &port)
			for _, v := range spared {
				eventually(t, 3*time.Second, v.name+" is delivered", func() bool {
					return at.of(v.proto, v.dst).packets > 200
				})
				if _, ok := flow(t, d, v.proto, v.src, v.dst); ok != c.fast {
					t.Errorf("%s is fast: %v", v.name, ok)
				}
			}
			for _, v := range hit {
				if n := at.of(v.proto, v.dst).packets; n != 0 {
					t.Errorf("%s: %d packets arrived", v.name, n)
				}
			}
			lift()
			waitFast(t, d, append(hit, spared...)...)
		})
	}
}

// TestInvariantForeignXDP finds an XDP program of somebody else's on the uplink. It
// stays, also when the last pod goes, and xveth works by tcx. // B094
func TestInvariantForeignXDP(t *testing.T) {
	t.Parallel()
	pass := asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}
	for _, how := range []string{"netlink", "bpf_link"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			p := foreignProg(t, ebpf.XDP, pass)
			index := indexOf(t, r.Node, rig.Uplink)
			err := r.Node.Do(func() error {
				if how == "netlink" {
					l, err := netlinksafe.LinkByName(rig.Uplink)
					if err != nil {
						return err
					}
					return netlink.LinkSetXdpFdWithFlags(l, p.FD(), unix.XDP_FLAGS_DRV_MODE)
				}
				l, err := link.AttachXDP(link.XDPOptions{Program: p, Interface: index, Flags: link.XDPDriverMode})
				if err == nil {
					t.Cleanup(func() { l.Close() })
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			a := addPod(t, r, "a", nil)
			wantForeignXDP(t, r, p)
			if said := toldByStatus(t, r); !strings.Contains(said, "uplink eth0: tcx") || !strings.Contains(said, "somebody else") {
				t.Errorf("status says %q", said)
			}
			d, before := open(t, r), counters(t, open(t, r))
			warmTuples(t, r, r.Ext, a.Host, addrsOf(a), 7000)
			if n := rose(t, d, before, "fast_tcx"); n == 0 {
				t.Error("nothing is fast by tcx")
			}
			if n := rose(t, d, before, "fast_xdp"); n != 0 {
				t.Errorf("%d packets were fast by xdp", n)
			}
			addPod(t, r, "b", nil)
			if err := a.Remove(ctxOf(t)); err != nil {
				t.Error(err)
			}
			if _, err := r.Plugin(ctxOf(t), "GC", r.Conf(map[string]any{"cni.dev/valid-attachments": []any{}}), nil); err != nil {
				t.Error(err)
			}
			wantForeignXDP(t, r, p)
		})
	}
}

// wantForeignXDP fails unless a program is still on the uplink.
func wantForeignXDP(t *testing.T, r *rig.Rig, p *ebpf.Program) {
	t.Helper()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	err = r.Node.Do(func() error {
		l, err := netlinksafe.LinkByName(rig.Uplink)
		if err != nil {
			return err
		}
		if x := l.Attrs().Xdp; x == nil || x.ProgId != uint32(id) {
			return fmt.Errorf("on the uplink is %+v, want program %d", x, id)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestInvariantShapedByHand puts a TBF on a pod's host veth and on the uplink under
// warm flows: they are shaped within the interval. // B086
func TestInvariantShapedByHand(t *testing.T) {
	t.Parallel()
	r := newRig(t, revalidating(cutInterval, nil))
	a, b := addPod(t, r, "a", nil), addPod(t, r, "b", nil)
	d, port := open(t, r), uint16(7000)
	inPod, inExt := newEar(t, a.Host), newEar(t, r.Ext)
	for _, c := range []struct {
		name     string
		from, to *rig.Host
		at       *ear
		dst      netip.Addr
		dev      string
	}{
		{"ext to pod v4", r.Ext, a.Host, inPod, a.Addr4, a.HostDev},
		{"ext to pod v6", r.Ext, a.Host, inPod, a.Addr6, a.HostDev},
		{"pod to pod v4", b.Host, a.Host, inPod, a.Addr4, a.HostDev},
		{"pod to ext v4", b.Host, r.Ext, inExt, rig.ExtAddr4, rig.Uplink},
	} {
		t.Run(c.name, func(t *testing.T) {
			port++
			dst := netip.AddrPortFrom(c.dst, port)
			swallow(t, c.to, "udp", dst)
			conn := dial(t, c.from, "udp", dst)
			stop := drip(t, conn, 1200) // 10 Mbit/s
			defer stop()
			v := victim{c.name, conn, c.at, warmTuple{c.name, unix.IPPROTO_UDP, localOf(conn), dst}}
			waitFast(t, d, v)
			before := counters(t, d)
			lift := impose(t, r, "tc qdisc add dev "+c.dev+" root tbf rate 2mbit burst 4k latency 20ms",
				"tc qdisc del dev "+c.dev+" root")
			time.Sleep(cutInterval + grace)
			// A redirect to an uplink by tcx goes through its queue: that may stay fast.
			if f, ok := flow(t, d, v.proto, v.src, v.dst); ok && c.dev != rig.Uplink {
				t.Errorf("still fast: %+v", f)
			}
			if n := rose(t, d, before, "learn_qdisc"); n == 0 && c.dev != rig.Uplink {
				t.Error("learn_qdisc did not rise")
			}
			first := c.at.of(v.proto, v.dst)
			time.Sleep(time.Second)
			last := c.at.of(v.proto, v.dst)
			rate := float64(last.bytes-first.bytes) * 8 / last.last.Sub(first.last).Seconds()
			if rate < 1.8e6 || rate > 2.2e6 {
				t.Errorf("%.2f Mbit/s of 2", rate/1e6)
			}
			lift()
			waitFast(t, d, v)
		})
	}
}
