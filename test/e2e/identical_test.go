// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// Each of the ways (see ways) gets this many random packets, in this many sessions.
const (
	identicalPackets  = 60
	identicalSessions = 3
	// identicalBurst is how many packets are under way at a time: a veth's ring
	// holds 256.
	identicalBurst = 32
	// identicalAtLeast is how many packets have to be compared for one uplink.
	identicalAtLeast = 10000
)

// rawWay is one direction of a session, as a stream of raw frames.
type rawWay struct {
	s       *session
	forward bool
	from    *rig.Host
	// in and out are the tuples of its packets as they enter and as they leave.
	in, out tuple
	frames  [][]byte
	// longest is a frame of the size of the path's MTU.
	longest []byte
}

func (w *rawWay) String() string {
	return fmt.Sprintf("%s %s %v to %v", w.s.path.name, w.s.proto, w.in, w.out)
}

// TestIdentical sends random packets of every kind of translation twice, the first time
// with no program of ours on the node and the second time on the fast path, and compares
// what leaves the node byte by byte.
func TestIdentical(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"xdp", "tcx"} {
		t.Run(mode, func(t *testing.T) {
			conf := uplinkMode(mode)
			// One learning must do for the whole comparison.
			conf["fastPath"] = map[string]any{"revalidate": "50s"}
			bed := newNATBed(t, rig.Options{Conf: conf})
			d := open(t, bed.r)
			all := ways(t, bed)
			w := newWorkbench(t, bed)

			disarm(t, bed, d)
			start := counters(t, d).Fast()
			kernel := w.send(t, all, (*rawWay).stream)
			if n := counters(t, d).Fast() - start; n != 0 {
				t.Fatalf("%d of the kernel's packets took the fast path", n)
			}
			arm(t, bed, d, mode)
			w.learn(t, d, all)
			mid := counters(t, d)
			fast := w.send(t, all, (*rawWay).stream)
			end := counters(t, d)

			n := compareFrames(t, all, kernel, fast)
			t.Logf("%d packets compared, %d of them by xdp", n, end["fast_xdp"]-mid["fast_xdp"])
			if n < identicalAtLeast {
				t.Errorf("%d packets compared, want %d", n, identicalAtLeast)
			}
			if got := end.Fast() - mid.Fast(); got != uint64(n) {
				t.Errorf("%d of %d packets took the fast path; counters %v", got, n, end)
			}
		})
	}
}

// ways opens the sessions of all paths and fills in both directions of each.
func ways(t *testing.T, bed *natBed) []*rawWay {
	t.Helper()
	var all []*rawWay
	rnd := rand.New(rand.NewChaCha8([32]byte{7}))
	port := uint16(41000)
	for _, fam := range families {
		for _, p := range bed.paths(fam) {
			p.mtu = min(p.mtu, 4000)
			for _, proto := range slices.Sorted(maps.Keys(protos)) {
				for range identicalSessions {
					port++
					s := connect(t, p, proto, port)
					all = append(all,
						&rawWay{s: s, forward: true, from: p.from, in: tuple{protos[proto], s.clientLocal, s.clientRemote}, out: tuple{protos[proto], s.serverRemote, s.serverLocal}},
						&rawWay{s: s, from: p.to, in: tuple{protos[proto], s.serverLocal, s.serverRemote}, out: tuple{protos[proto], s.clientRemote, s.clientLocal}})
				}
			}
		}
	}
	for _, w := range all {
		w.fill(t, bed, rnd)
	}
	return all
}

// fill makes the random packets.
func (w *rawWay) fill(t *testing.T, bed *natBed, rnd *rand.Rand) {
	t.Helper()
	dst, src := bed.hop(t, w.from)
	for i := range identicalPackets {
		g := generator{rnd: rnd, dst: dst, src: src, in: w.in, out: w.out, mtu: w.s.path.mtu, seq: uint32(i) << 20}
		w.frames = append(w.frames, g.packet())
	}
	g := generator{rnd: rnd, dst: dst, src: src, in: w.in, out: w.out, mtu: w.s.path.mtu}
	w.longest = g.packetOf(w.s.path.mtu)
}

func (w *rawWay) stream() [][]byte { return w.frames }

// hop finds the MAC addresses of the frames that a host sends to the node.
func (bed *natBed) hop(t *testing.T, from *rig.Host) (dst, src []byte) {
	t.Helper()
	nodeDev, dev := rig.Uplink, rig.ExtDev
	for _, p := range []*rig.Pod{bed.a, bed.b} {
		if p.Host == from {
			nodeDev, dev = p.HostDev, rig.PodDev
		}
	}
	return linkOf(t, bed.r.Node, nodeDev).Attrs().HardwareAddr, linkOf(t, from, dev).Attrs().HardwareAddr
}

func linkOf(t *testing.T, h *rig.Host, dev string) (l netlink.Link) {
	t.Helper()
	err := h.Do(func() (err error) {
		l, err = netlinksafe.LinkByName(dev)
		return err
	})
	if err != nil {
		t.Fatalf("%s: find %q: %v", h.Name, dev, err)
	}
	return l
}

// disarm takes every program of ours off the node's interfaces.
func disarm(t *testing.T, bed *natBed, d *datapath.Datapath) {
	t.Helper()
	err := d.Flush()
	for _, dev := range []string{rig.Uplink, bed.a.HostDev, bed.b.HostDev} {
		index := linkOf(t, bed.r.Node, dev).Attrs().Index
		if err == nil {
			err = bed.r.Node.Do(func() error { return d.Detach(index) })
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// arm attaches the programs as the plugin does.
func arm(t *testing.T, bed *natBed, d *datapath.Datapath, mode string) {
	t.Helper()
	want := datapath.WantTCX
	if mode == "xdp" {
		want = datapath.WantXDP
	}
	err := bed.r.Node.Do(func() error {
		drive, reason, err := d.AttachUplink(rig.Uplink, want)
		if err == nil && string(drive) != mode {
			err = fmt.Errorf("the uplink is driven by %s: %s", drive, reason)
		}
		return err
	})
	for _, p := range []*rig.Pod{bed.a, bed.b} {
		index := linkOf(t, bed.r.Node, p.HostDev).Attrs().Index
		if err == nil {
			err = bed.r.Node.Do(func() error {
				return d.AttachPod(index, datapath.Pod{ToPod: true, FromPod: true})
			})
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// learn sends packets of full size until every way is on the fast path with them.
func (b *workbench) learn(t *testing.T, d *datapath.Datapath, all []*rawWay) {
	t.Helper()
	eventually(t, 20*time.Second, "every way is learned", func() bool {
		var cold []*rawWay
		for _, w := range all {
			f, ok := w.s.datapathFlow(t, d, w.forward)
			if !ok || !f.Live() || f.MaxLen < w.s.path.mtu {
				cold = append(cold, w)
			}
		}
		if len(cold) > 0 {
			b.send(t, cold, func(w *rawWay) [][]byte { return [][]byte{w.longest} })
		}
		return len(cold) == 0
	})
}

// compareFrames compares what left the node in the two runs and returns how many
// packets that were.
func compareFrames(t *testing.T, all []*rawWay, kernel, fast map[tuple][][]byte) (n int) {
	t.Helper()
	for _, w := range all {
		k, f := kernel[w.out], fast[w.out]
		if len(k) != len(w.frames) || len(f) != len(w.frames) {
			t.Errorf("%v: sent %d, %d by the kernel, %d by the fast path", w, len(w.frames), len(k), len(f))
			continue
		}
		for i := range k {
			n++
			if !bytes.Equal(k[i], f[i]) {
				t.Errorf("%v: packet %d\nsent\n%skernel\n%sfast path\n%s", w, i,
					dump(w.frames[i]), dump(k[i]), dump(f[i]))
				break // one of a way tells enough
			}
		}
	}
	return n
}

// dump shows the start of a frame.
func dump(frame []byte) string { return hex.Dump(frame[:min(len(frame), 96)]) }
