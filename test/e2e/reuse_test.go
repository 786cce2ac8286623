// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/test/rig"
)

// reusedConf asks for an address that pods get one after the other.
func reusedConf() map[string]any {
	return map[string]any{
		"runtimeConfig": map[string]any{"ips": []string{"10.88.0.50/24", "2001:db8:88::50/64"}},
		"capabilities":  map[string]bool{"ips": true},
	}
}

// reuseCase is a way for a pod to go.
type reuseCase struct {
	name string
	// gone removes the pod.
	gone func(t *testing.T, p *rig.Pod)
}

func reuseCases() []reuseCase {
	return []reuseCase{
		{"DEL", func(t *testing.T, p *rig.Pod) {
			t.Helper()
			if err := p.Remove(ctxOf(t)); err != nil {
				t.Fatal(err)
			}
		}},
		// The kernel removes the pair with the namespace, before the plugin hears of it.
		{"namespace gone before DEL", func(t *testing.T, p *rig.Pod) {
			t.Helper()
			p.Destroy()
			if err := p.Del(context.Background()); err != nil {
				t.Fatal(err)
			}
		}},
	}
}

// TestReuse deletes a pod and gives its address to another pod at once, while the remote
// host and a neighbour go on sending on warm flows. The interval is so long that the old
// entries would live on; a rule drops the flows in the kernel, so whatever reaches the
// new pod came by the fast path: nothing must. Without the rule the flows then arrive by
// the kernel at once.
func TestReuse(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"xdp", "tcx"} {
		t.Run("uplink "+mode, func(t *testing.T) {
			t.Parallel()
			conf := reusedConf()
			conf["fastPath"] = map[string]any{"revalidate": quiet.String()}
			r := newRig(t, driven(conf, mode))
			side := addPod(t, r, "side", map[string]any{"runtimeConfig": nil})
			for _, c := range reuseCases() {
				t.Run(c.name, func(t *testing.T) { c.run(t, r, side) })
			}
		})
	}
}

func (c *reuseCase) run(t *testing.T, r *rig.Rig, side *rig.Pod) {
	t.Helper()
	old := addPod(t, r, "old", nil)
	d, heardOld, port := open(t, r), newEar(t, old.Host), uint16(7000)
	in, inSpared := victims(t, r.Ext, old.Host, heardOld, addrsOf(old), &port)
	near, nearSpared := victims(t, side.Host, old.Host, heardOld, addrsOf(old), &port)
	flows := append(append(append(in, inSpared...), near...), nearSpared...)
	waitFast(t, d, flows...)
	lift := impose(t, r, "nft -f - <<E\ntable inet reuse { chain f { type filter hook forward priority 0; th dport 7000-7999 counter drop; }; }\nE",
		"nft delete table inet reuse")

	fresh, err := r.NewNetns("new")
	if err != nil {
		t.Fatal(err)
	}
	heard := newEar(t, fresh.Host) // before there is an interface
	c.gone(t, old)
	if err := fresh.Add(ctxOf(t), r.Conf(nil)); err != nil {
		t.Fatal(err)
	}
	if fresh.Addr4 != old.Addr4 || fresh.Addr6 != old.Addr6 {
		t.Fatalf("the new pod has %s and %s, not the addresses of the old", fresh.Addr4, fresh.Addr6)
	}
	had := counters(t, d)
	time.Sleep(2 * grace)
	for _, v := range flows {
		if n := heard.of(v.proto, v.dst).packets; n != 0 {
			t.Errorf("%s from %s: %d packets of the old flow reached the new pod", v.name, v.src, n)
		}
	}
	if n := counters(t, d).Fast() - had.Fast(); n != 0 {
		t.Errorf("%d packets took the fast path", n)
	}
	lift()
	since := time.Now()
	for _, v := range flows {
		eventually(t, time.Second, fmt.Sprintf("%s from %s reaches the new pod", v.name, v.src), func() bool {
			return heard.of(v.proto, v.dst).packets > 20
		})
	}
	t.Logf("all flows reached the new pod %v after the rule was gone", time.Since(since).Round(time.Millisecond))
	waitFast(t, d, flows...)
	out := indexOf(t, r.Node, fresh.HostDev)
	for _, f := range everyFlow(t, d) {
		if f.Dst.Addr() == fresh.Addr4 && f.Out != out {
			t.Errorf("still leads to the old pod: %+v", f)
		}
	}
	for _, v := range flows {
		v.conn.Close() // else the node learns that its default route sends them back
	}
	if err := fresh.Remove(ctxOf(t)); err != nil {
		t.Error(err)
	}
}

// TestReuseLoss sends 10,000 packets a second on one flow while its pod is replaced.
// The new pod gets them as soon as it would by the kernel path alone.
func TestReuseLoss(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"off", "xdp", "tcx"} {
		t.Run("uplink "+mode, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, driven(reusedConf(), mode))
			old := addPod(t, r, "old", nil)
			dst := netip.AddrPortFrom(old.Addr4, 7000)
			src := netip.AddrPortFrom(rig.ExtAddr4, 5000)
			sent, stop := sendEvenly(t, r, rig.UDPFlows{Src: src, Dst: dst, Size: 80})
			defer stop()
			if mode != "off" {
				d := open(t, r)
				eventually(t, 5*time.Second, "the flow is fast", func() bool {
					f, ok := flow(t, d, unix.IPPROTO_UDP, src, dst)
					return ok && f.Packets > 1000
				})
			}
			for _, c := range reuseCases() {
				old = replaceUnderLoad(t, r, c, old, dst, sent)
			}
			stop()
			if mode != "off" {
				// Without a pod the node's default route sends the flow back: no leak.
				if err := open(t, r).Flush(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// replaceUnderLoad replaces a pod and looks for packets that the new one misses.
func replaceUnderLoad(t *testing.T, r *rig.Rig, c reuseCase, old *rig.Pod, dst netip.AddrPort, sent *atomic.Uint64) *rig.Pod {
	t.Helper()
	fresh, err := r.NewNetns("n" + old.ID)
	if err != nil {
		t.Fatal(err)
	}
	sink, err := rig.NewSink(fresh.Host, dst.Port())
	if err != nil {
		t.Fatal(err)
	}
	heard := newEar(t, fresh.Host)
	c.gone(t, old)
	if err := fresh.Add(ctxOf(t), r.Conf(nil)); err != nil {
		t.Fatal(err)
	}
	up := time.Now()
	eventually(t, 3*time.Second, "packets reach the new pod", func() bool {
		return heard.of(unix.IPPROTO_UDP, dst).packets > 0
	})
	late := heard.of(unix.IPPROTO_UDP, dst).first.Sub(up)
	t.Logf("%s: first packet %v after ADD", c.name, late.Round(time.Millisecond))
	if late > grace {
		t.Errorf("%s: the first packet came %v after ADD", c.name, late)
	}
	before, n0 := sent.Load(), packetsAt(t, sink)
	eventually(t, 5*time.Second, "2,000 packets are sent", func() bool { return sent.Load() >= before+2000 })
	want := sent.Load() - before
	// What is on its way when the counters are read is on its way at both ends.
	eventually(t, time.Second, c.name+": all packets reach the new pod", func() bool { return packetsAt(t, sink)-n0 >= want })
	return fresh
}

func packetsAt(t *testing.T, s *rig.Sink) uint64 {
	t.Helper()
	n, err := s.Packets()
	if err != nil {
		t.Fatal(err)
	}
	return n
}
