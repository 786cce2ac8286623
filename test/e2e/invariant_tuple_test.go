// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// warmTuple is a learned flow whose deadline is far away and that nobody uses.
type warmTuple struct {
	name     string
	proto    uint8
	src, dst netip.AddrPort
}

// delayedAck is longer than TCP waits with an acknowledgement (TCP_DELACK_MAX, 200 ms).
const delayedAck = 250 * time.Millisecond

// quiet is an interval in which nothing has to be renewed while frames are tried.
const quiet = 60 * time.Second

// warmTuples warms a flow of each family and protocol and lets it rest.
func warmTuples(t *testing.T, r *rig.Rig, from, to *rig.Host, addrs map[int]netip.Addr, port uint16) (all []warmTuple) {
	t.Helper()
	d := open(t, r)
	for _, fam := range families {
		for proto, number := range protos {
			port++
			dst := netip.AddrPortFrom(addrs[fam], port)
			echo(t, to, proto, dst)
			conn := dial(t, from, proto, dst)
			w := warmTuple{fmt.Sprintf("v%d %s", fam, proto), number, localOf(conn), dst}
			for range 8 {
				if _, err := rig.RoundTrip(conn, make([]byte, 64), time.Second); err != nil {
					t.Fatal(err)
				}
			}
			if f, ok := flow(t, d, number, w.src, w.dst); !ok || f.Packets == 0 {
				t.Fatalf("%s is not fast: %+v", w.name, f)
			}
			all = append(all, w)
		}
	}
	time.Sleep(delayedAck)
	return all
}

// packetsOf is how many packets of a flow have taken the fast path; it must be live.
func packetsOf(t *testing.T, d *datapath.Datapath, w warmTuple) uint64 {
	t.Helper()
	f, ok := flow(t, d, w.proto, w.src, w.dst)
	if !ok {
		t.Fatalf("%s is not live", w.name)
	}
	return f.Packets
}

func addrsOf(p *rig.Pod) map[int]netip.Addr { return map[int]netip.Addr{4: p.Addr4, 6: p.Addr6} }

// addUplink gives the node a second uplink, eth1, whose other end at the remote host is
// ext1.
func addUplink(t *testing.T, r *rig.Rig) {
	t.Helper()
	err := r.Ext.Do(func() error {
		la := netlink.NewLinkAttrs()
		la.Name = "ext1"
		v := netlink.NewVeth(la)
		v.PeerName, v.PeerNamespace = "eth1", netlink.NsFd(r.Node.NetnsFD())
		return netlink.LinkAdd(v)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { on(t, r.Ext, "ip link del ext1") })
	on(t, r.Ext, "ip link set ext1 up; ethtool -K ext1 gro on tx off >/dev/null")
	node(t, r, "ip link set eth1 up; ethtool -K eth1 gro on tx off >/dev/null")
}

// TestInvariantOtherInterface spoofs the tuples of warm flows from another pod and from
// a second uplink, where the kernel drops them: the entries belong to the interface
// that the kernel saw them come in on.
func TestInvariantOtherInterface(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"xdp", "tcx"} {
		t.Run("uplink "+mode, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, map[string]any{
				"fastPath": map[string]any{"revalidate": quiet.String()},
				"uplinks": []any{
					map[string]any{"name": rig.Uplink, "mode": mode},
					map[string]any{"name": "eth1", "mode": mode},
				},
			})
			addUplink(t, r)
			a, b, c := addPod(t, r, "a", nil), addPod(t, r, "b", nil), addPod(t, r, "c", nil)
			toPod := warmTuples(t, r, r.Ext, a.Host, addrsOf(a), 7100)
			podPod := warmTuples(t, r, b.Host, a.Host, addrsOf(a), 7200)
			podExt := warmTuples(t, r, b.Host, r.Ext, map[int]netip.Addr{4: rig.ExtAddr4, 6: rig.ExtAddr6}, 7300)
			node(t, r, fmt.Sprintf("nft 'table inet spoof { chain f { type filter hook forward priority 0; "+
				"iifname { %s, %s, %s } drop; }; }'", c.HostDev, a.HostDev, "eth1"))
			t.Cleanup(func() { node(t, r, "nft delete table inet spoof") })
			at := map[string]*ear{"a": newEar(t, a.Host), "ext": newEar(t, r.Ext)}
			for _, s := range []struct {
				name   string
				flows  []warmTuple
				from   *rig.Host
				dev    string
				toDev  string
				hears  string
				uplink bool
			}{
				{"ext to pod from eth1", toPod, r.Ext, "ext1", "eth1", "a", true},
				{"ext to pod from another pod", toPod, c.Host, rig.PodDev, c.HostDev, "a", false},
				{"pod to pod from another pod", podPod, c.Host, rig.PodDev, c.HostDev, "a", false},
				{"pod to pod from eth1", podPod, r.Ext, "ext1", "eth1", "a", true},
				{"pod to ext from another pod", podExt, c.Host, rig.PodDev, c.HostDev, "ext", false},
				{"pod to ext from eth1", podExt, r.Ext, "ext1", "eth1", "ext", true},
			} {
				t.Run(s.name, func(t *testing.T) {
					spoof(t, r, s.flows, s.from, s.dev, s.toDev, at[s.hears])
				})
			}
		})
	}
}

// spoof sends frames with the tuples of warm flows in by another interface.
func spoof(t *testing.T, r *rig.Rig, flows []warmTuple, from *rig.Host, dev, toDev string, at *ear) {
	t.Helper()
	const times = 20
	d := open(t, r)
	mac, to := etherOf(t, from, dev), etherOf(t, r.Node, toDev)
	for _, w := range flows {
		before, had, heard := packetsOf(t, d, w), counters(t, d), at.of(w.proto, w.dst).packets
		rawFrames(t, from, dev, l4Frame(w.proto, to, mac, w.src, w.dst, 104), times)
		// On an IPv6 hit the answer would be counted as well; so would a drop's.
		eventually(t, 3*time.Second, w.name+": the frames have come in", func() bool {
			return rose(t, d, had, "pass_no_flow") >= times
		})
		if fast := counters(t, d).Fast() - had.Fast(); fast != 0 {
			t.Errorf("%s: %d packets took the fast path", w.name, fast)
		}
		if n := packetsOf(t, d, w) - before; n != 0 {
			t.Errorf("%s: %d packets counted on the flow", w.name, n)
		}
		if n := at.of(w.proto, w.dst).packets - heard; n != 0 {
			t.Errorf("%s: %d packets arrived", w.name, n)
		}
	}
}

// withTags puts VLAN tags into a frame, the outer one first.
func withTags(frame []byte, tags ...uint32) []byte {
	out := slices.Clone(frame[:12])
	for _, tag := range tags {
		out = binary.BigEndian.AppendUint32(out, tag)
	}
	return append(out, frame[12:]...)
}

// withHeader puts an extension header between the IPv6 header and what follows.
func withHeader(frame []byte, kind uint8, header ...byte) []byte {
	out := slices.Clone(frame[:54])
	header[0] = out[20]
	out[20] = kind
	out = append(append(out, header...), frame[54:]...)
	binary.BigEndian.PutUint16(out[18:], uint16(len(out)-54))
	return out
}

// oddFrame is a frame with the tuple of a warm flow that is not one of its packets.
type oddFrame struct {
	name   string
	make   func(frame []byte) []byte
	reason string
	// heard is the protocol under which the kernel delivers it: 0 means not at all, UDP
	// that of the flow itself (tag 0 is taken off; so is the header of a fragment that is
	// the whole packet).
	heard uint8
	v6    bool // IPv6 only
}

// oddFrames are the frames of B059, B061, B057 and B158.
func oddFrames() []oddFrame {
	const vlan, opts, frag = "pass_vlan", "pass_options", "pass_fragment"
	tags := func(tags ...uint32) func([]byte) []byte {
		return func(f []byte) []byte { return withTags(f, tags...) }
	}
	ext := func(kind uint8, header ...byte) func([]byte) []byte {
		return func(f []byte) []byte { return withHeader(f, kind, slices.Clone(header)...) }
	}
	foreignMAC := func(f []byte) []byte {
		f = slices.Clone(f)
		copy(f, net.HardwareAddr{2, 0, 0, 0, 0, 99})
		return f
	}
	pad := []byte{0, 0, 1, 4, 0, 0, 0, 0}
	return []oddFrame{
		{name: "B059 VLAN 100", make: tags(0x81000064), reason: vlan},
		{name: "B059 QinQ", make: tags(0x88a80064, 0x810000c8), reason: vlan},
		{name: "B059 QinQ with 802.1Q outside", make: tags(0x81000064, 0x810000c8), reason: vlan},
		{name: "B061 VLAN 0", make: tags(0x81000000), reason: vlan, heard: unix.IPPROTO_UDP},
		{name: "B061 VLAN 0 priority 5", make: tags(0x8100a000), reason: vlan, heard: unix.IPPROTO_UDP},
		{name: "B158 foreign MAC", make: foreignMAC, reason: "pass_not_for_us"},
		{name: "B057 hop by hop", make: ext(0, pad...), reason: opts, heard: unix.IPPROTO_HOPOPTS, v6: true},
		{name: "B057 destination", make: ext(60, pad...), reason: opts, heard: unix.IPPROTO_DSTOPTS, v6: true},
		{name: "B057 routing", make: ext(43, 0, 0, 4, 0, 0, 0, 0, 0), reason: opts, heard: unix.IPPROTO_ROUTING, v6: true},
		{name: "B057 fragment", make: ext(44, 0, 0, 0, 0, 1, 2, 3, 4), reason: frag, heard: unix.IPPROTO_UDP, v6: true},
		{name: "B057 authentication", make: ext(51, 0, 4, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), reason: opts, heard: unix.IPPROTO_AH, v6: true},
		{name: "B057 payload security", make: ext(50, 0, 0, 0, 1, 0, 0, 0, 1), reason: opts, heard: unix.IPPROTO_ESP, v6: true},
	}
}

// TestInvariantOddFrames sends frames that carry the tuple of a warm flow but are
// tagged, addressed to another station, or have extension headers. The kernel has its
// way with each, also while the uplink is promiscuous. // B057 B059 B061 B158
func TestInvariantOddFrames(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"xdp", "tcx"} {
		t.Run("uplink "+mode, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, driven(revalidating(quiet, nil), mode))
			a := addPod(t, r, "a", nil)
			flows := warmTuples(t, r, r.Ext, a.Host, addrsOf(a), 7100)
			o := &oddTest{r, open(t, r), newEar(t, a.Host), etherOf(t, r.Node, rig.Uplink), etherOf(t, r.Ext, rig.ExtDev)}
			for _, promisc := range []string{"off", "on"} {
				node(t, r, "ip link set eth0 promisc "+promisc)
				for _, odd := range oddFrames() {
					if promisc == "on" && odd.v6 {
						continue // no matter of layer 2
					}
					t.Run(odd.name+" promisc "+promisc, func(t *testing.T) {
						for _, w := range flows {
							if !odd.v6 || w.dst.Addr().Is6() {
								o.try(t, &odd, w)
							}
						}
					})
				}
			}
		})
	}
}

// oddTest is where odd frames are sent and heard.
type oddTest struct {
	r        *rig.Rig
	d        *datapath.Datapath
	at       *ear
	dst, src net.HardwareAddr
}

func (o *oddTest) try(t *testing.T, odd *oddFrame, w warmTuple) {
	t.Helper()
	const times = 10
	heardAs, dst := odd.heard, w.dst
	if odd.heard == unix.IPPROTO_UDP {
		heardAs = w.proto
	} else if odd.v6 {
		dst = netip.AddrPortFrom(dst.Addr(), 0)
	}
	before, had, heard := packetsOf(t, o.d, w), counters(t, o.d), o.at.of(heardAs, dst).packets
	wrong := o.at.of(w.proto, w.dst).packets
	rawFrames(t, o.r.Ext, rig.ExtDev, odd.make(l4Frame(w.proto, o.dst, o.src, w.src, w.dst, 104)), times)
	eventually(t, 3*time.Second, w.name+": counted as "+odd.reason, func() bool {
		return rose(t, o.d, had, odd.reason) >= times
	})
	if odd.heard != 0 {
		eventually(t, 3*time.Second, w.name+": the kernel delivers", func() bool {
			return o.at.of(heardAs, dst).packets >= heard+times
		})
	} else if n := o.at.of(w.proto, w.dst).packets - wrong; n != 0 {
		t.Errorf("%s: %d packets arrived", w.name, n)
	}
	if n := packetsOf(t, o.d, w) - before; n != 0 {
		t.Errorf("%s: %d packets counted on the flow", w.name, n)
	}
}

// TestInvariantTcpdump captures on the uplink, on the host veth and in the pod while flows
// are fast: they take the same way with and without. // B158
func TestInvariantTcpdump(t *testing.T) {
	t.Parallel()
	r := newRig(t, revalidating(quiet, nil))
	a := addPod(t, r, "a", nil)
	d := open(t, r)
	for i, fam := range families {
		addr, _ := a.Addr(fam)
		at := netip.AddrPortFrom(addr, uint16(7000+i))
		echo(t, a.Host, "udp", at)
		conn := dial(t, r.Ext, "udp", at)
		warm(t, r, conn)
		for _, c := range []struct {
			name string
			on   *rig.Host
			dev  string
		}{{"nobody", nil, ""}, {"uplink", r.Node, rig.Uplink}, {"host veth", r.Node, a.HostDev}, {"pod", a.Host, rig.PodDev}, {"nobody again", nil, ""}} {
			t.Run(fmt.Sprintf("v%d %s", fam, c.name), func(t *testing.T) {
				if c.on != nil {
					capture(t, c.on, c.dev)
				}
				before := counters(t, d)
				for range 20 {
					if _, err := rig.RoundTrip(conn, make([]byte, 16), time.Second); err != nil {
						t.Fatal(err)
					}
				}
				if xdp, tcx := rose(t, d, before, "fast_xdp"), rose(t, d, before, "fast_tcx"); xdp != 20 || tcx != 20 {
					t.Errorf("of 20 packets each way %d went by xdp and %d by tcx", xdp, tcx)
				}
			})
		}
	}
}

// capture runs tcpdump on an interface until the test ends.
func capture(t *testing.T, h *rig.Host, dev string) {
	t.Helper()
	cmd := exec.Command("tcpdump", "-i", dev, "-w", "/dev/null")
	if err := h.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	eventually(t, 5*time.Second, "tcpdump listens", func() bool {
		return strings.Contains(on(t, h, "ip -d link show "+dev), "promiscuity 1")
	})
}
