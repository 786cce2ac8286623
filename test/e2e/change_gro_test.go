// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

const (
	changeInterval = 200 * time.Millisecond
	veryLong       = 10 * time.Second
	// inFlight is what an interface holds at most: the ring of a veth and a bulk of
	// the devmap.
	inFlight = 256 + 16
)

func shortInterval(conf map[string]any) map[string]any {
	return withFast(conf, map[string]any{"revalidate": changeInterval.String()})
}

// lostAt sums what was lost behind redirects to an interface of the node.
func lostAt(t *testing.T, r *rig.Rig, d *datapath.Datapath, dev string) (frames uint64, why []datapath.Loss) {
	t.Helper()
	var index int
	if err := r.Node.Do(func() error {
		l, err := netlink.LinkByName(dev)
		if err == nil {
			index = l.Attrs().Index
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	all, err := d.Losses()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		if l.Ifindex == index {
			frames += l.Frames
			why = append(why, l)
		}
	}
	return frames, why
}

// isFast waits until the fast path is taken by at least some more packets.
func isFast(t *testing.T, d *datapath.Datapath) {
	t.Helper()
	start := counters(t, d).Fast()
	eventually(t, veryLong, "the fast path is taken", func() bool { return counters(t, d).Fast() > start+100 })
}

// goesOn waits until packets have arrived in each of some intervals.
func goesOn(t *testing.T, n *dgramStream) {
	t.Helper()
	for end := time.Now().Add(3 * changeInterval); time.Now().Before(end); {
		heard := n.heard.Load()
		eventually(t, veryLong, "datagrams arrive", func() bool { return n.heard.Load() > heard+100 })
	}
}

// TestGROOffUDP switches GRO off in a pod under a warm flow (B043): the pod's end then
// takes no frames. Traffic goes on by the kernel, and what was under way and is lost is
// counted.
func TestGROOffUDP(t *testing.T) {
	r := newRig(t, shortInterval(nil))
	pod := addPod(t, r, "a", nil)
	d := open(t, r)
	at := netip.AddrPortFrom(pod.Addr4, 9200)
	n := startStream(t, r.Ext, pod.Host, at, at, 20_000)
	isFast(t, d)

	before := counters(t, d)
	on(t, pod.Host, "ethtool -K eth0 gro off")
	goesOn(t, n)
	slow := counters(t, d)
	if slow["learn_no_xmit"] == before["learn_no_xmit"] {
		t.Error("learn_no_xmit has not risen")
	}
	goesOn(t, n)
	if after := counters(t, d); after.Fast() != slow.Fast() {
		t.Errorf("%d packets took the fast path while the pod takes no frames", after.Fast()-slow.Fast())
	}

	on(t, pod.Host, "ethtool -K eth0 gro on")
	isFast(t, d)
	n.stop()
	counted, why := lostAt(t, r, d, pod.HostDev)
	lost := n.sent - n.arrived
	t.Logf("%d of %d datagrams lost; counted %d: %+v", lost, n.sent, counted, why)
	if lost > inFlight {
		t.Errorf("%d datagrams lost", lost)
	}
	if counted == 0 || counted > lost {
		t.Errorf("%d losses counted, %d datagrams lost", counted, lost)
	}
	for _, l := range why {
		if l.Err == nil {
			t.Errorf("a loss without a reason: %+v", l)
		}
	}
}

// pumpTCP sends bulk until stop is called, which reports what went wrong.
func pumpTCP(p tcpPair) (stop func() error) {
	halt, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-halt:
				done <- nil
				return
			default:
			}
			if err := tcpTransfer(p.client, p.server, 1<<16, veryLong); err != nil {
				done <- err
				return
			}
		}
	}()
	return func() error {
		close(halt)
		return <-done
	}
}

// TestGROOffTCP is the same for bulk TCP.
func TestGROOffTCP(t *testing.T) {
	r := newRig(t, shortInterval(nil))
	pod := addPod(t, r, "a", nil)
	d := open(t, r)
	for _, c := range crossings(t, r, pod, 4)[:1] {
		p := tcpConnect(t, c)
		stop := pumpTCP(p)
		isFast(t, d)
		before := counters(t, d)
		on(t, pod.Host, "ethtool -K eth0 gro off")
		eventually(t, veryLong, "nothing more is learned", func() bool {
			return counters(t, d)["learn_no_xmit"] > before["learn_no_xmit"]+1000
		})
		on(t, pod.Host, "ethtool -K eth0 gro on")
		isFast(t, d)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		counted, why := lostAt(t, r, d, pod.HostDev)
		info := tcpInfo(t, p.client)
		t.Logf("%d losses counted: %+v; %d segments sent again", counted, why, info.Total_retrans)
		if counted == 0 {
			t.Error("no loss is counted")
		}
	}
}

// TestPodLinkRestart restarts the link in the pod with GRO off, and again with GRO on,
// under a warm flow (B043).
func TestPodLinkRestart(t *testing.T) {
	for name, conf := range drives {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, shortInterval(conf))
			pod := addPod(t, r, "a", nil)
			d := open(t, r)
			at := netip.AddrPortFrom(pod.Addr4, 9200)
			n := startStream(t, r.Ext, pod.Host, at, at, 20_000)
			isFast(t, d)

			restartLink(t, pod, "off")
			goesOn(t, n)
			restartLink(t, pod, "on")
			goesOn(t, n)
			isFast(t, d)
			n.stop()
			counted, why := lostAt(t, r, d, pod.HostDev)
			t.Logf("%d of %d datagrams lost; counted %d: %+v", n.sent-n.arrived, n.sent, counted, why)
			// The kernel drops what tcx redirects into a link that is down, and has no
			// counter for it (skb_do_redirect); docs/datapath.md says so.
			if counted == 0 && name == "xdp" {
				t.Error("what was lost while the link was down is not counted")
			}
		})
	}
}

// restartLink sets the pod's link down and up with GRO switched, and puts its routes
// back, which the kernel has removed.
func restartLink(t *testing.T, pod *rig.Pod, gro string) {
	t.Helper()
	on(t, pod.Host, "f=$(mktemp) && ip route save > $f && ip link set eth0 down && ethtool -K eth0 gro "+gro+
		" && ip link set eth0 up && ip route restore < $f; rm $f")
}
