// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/xveth/xveth/bpf"
	"github.com/xveth/xveth/test/rig"
)

// frameSender sends one frame from inside a pod as an xdp_frame, as a pod with XDP or
// AF_XDP of its own does.
type frameSender struct {
	pod   *rig.Pod
	objs  bpf.RigObjects
	frame []byte
}

func newFrameSender(t *testing.T, p *rig.Pod, gateway net.HardwareAddr, packet rawPacket) *frameSender {
	t.Helper()
	spec, err := bpf.LoadRig()
	if err != nil {
		t.Fatal(err)
	}
	s := &frameSender{pod: p}
	hdr := make([]byte, spec.Variables["rig_hdr"].Size())
	hdrLen, kind := uint32(42), []byte{8, 0}
	if packet.src.Addr().Is6() {
		hdrLen, kind = 62, []byte{0x86, 0xdd}
	}
	err = p.Do(func() error {
		ifi, err := net.InterfaceByName(rig.PodDev)
		if err != nil {
			return err
		}
		s.frame = append(append(append(bytes.Clone(gateway), ifi.HardwareAddr...), kind...), packet.bytes()...)
		copy(hdr[:hdrLen], s.frame)
		for name, v := range map[string]any{
			"rig_ifindex": uint32(ifi.Index), "rig_hdr": hdr, "rig_hdr_len": hdrLen, "rig_flows": uint32(1),
		} {
			if err := spec.Variables[name].Set(v); err != nil {
				return err
			}
		}
		return spec.LoadAndAssign(&s.objs, nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.objs.Close() })
	return s
}

// send sends the frame a number of times.
func (s *frameSender) send(t *testing.T, n int) {
	t.Helper()
	const liveFrames = 1 << 1 // BPF_F_TEST_XDP_LIVE_FRAMES
	err := s.pod.Do(func() error {
		_, err := s.objs.RigGenerate.Run(&ebpf.RunOptions{Data: s.frame, Repeat: uint32(n), Flags: liveFrames})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestModeXDP has pods that send xdp_frames: their flows are learned and redirected by XDP
// on the host's end, and what their sockets send has complete checksums.
func TestModeXDP(t *testing.T) {
	t.Parallel()
	r := newRig(t, map[string]any{"fastPath": map[string]any{"mode": "xdp", "revalidate": "20s"}})
	a, b := addPod(t, r, "a", nil), addPod(t, r, "b", nil)
	if have := hooksOf(t, r.Node, a.HostDev); len(have["xdp"]) != 1 {
		t.Fatalf("no XDP program on the host's end: %v", have)
	}
	if err := a.Check(ctxOf(t)); err != nil {
		t.Error(err)
	}
	if out := on(t, a.Host, "ethtool -k eth0"); !strings.Contains(out, "tx-checksum-ip-generic: off") {
		t.Errorf("the pod leaves checksums to its interface:\n%s", out)
	}
	for _, fam := range families {
		for _, w := range podWays(r, a, b, fam)[1:] {
			t.Run(fmt.Sprintf("frames %s v%d", w.name, fam), func(t *testing.T) { podFrames(t, r, a, w) })
		}
		for _, w := range podWays(r, a, b, fam) {
			for proto := range protos {
				t.Run(fmt.Sprintf("%s %s v%d", proto, w.name, fam), func(t *testing.T) { podSockets(t, r, w, proto) })
			}
		}
	}
}

// podFrames sends frames, cold and warm; each arrives at a socket as it was sent.
func podFrames(t *testing.T, r *rig.Rig, a *rig.Pod, w slowWay) {
	const burst, bursts = 32, 40
	at := netip.AddrPortFrom(w.dst, 9)
	conn, err := w.to.ListenUDP(at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	msg := numbered(1000)
	s := newFrameSender(t, a, hostMAC(t, r.Node, a.HostDev), rawPacket{
		src: netip.AddrPortFrom(w.src, 4000), dst: at, proto: protoUDP, payload: msg,
	})
	on(t, w.from, "ping -c 1 -W 2 "+w.dst.String()) // neighbours
	before := counters(t, open(t, r))["fast_xdp"]
	buf := make([]byte, 2000)
	for n := range bursts {
		s.send(t, burst)
		for i := range burst {
			_ = conn.SetReadDeadline(time.Now().Add(rigPatience))
			got, err := conn.Read(buf)
			if err != nil {
				t.Fatalf("burst %d, datagram %d: %v; %v", n, i, err, counters(t, open(t, r)))
			}
			if !bytes.Equal(buf[:got], msg) {
				t.Fatalf("burst %d, datagram %d differs", n, i)
			}
		}
	}
	if n := counters(t, open(t, r))["fast_xdp"] - before; n < (bursts-2)*burst {
		t.Errorf("xdp took %d packets of %d", n, bursts*burst)
	}
}

// podSockets moves data over sockets; the receiver finds no wrong checksum.
func podSockets(t *testing.T, r *rig.Rig, w slowWay, proto string) {
	at := netip.AddrPortFrom(w.dst, 5001)
	before := refusedSums(t, w.from) + refusedSums(t, w.to)
	if proto == "tcp" {
		upload(t, w.from, w.to, at, transferSize, func(c net.Conn) { warm(t, r, c) })
	} else {
		echo(t, w.to, proto, at)
		conn := dial(t, w.from, proto, at)
		warm(t, r, conn)
		for range 50 {
			if got, err := rig.RoundTrip(conn, numbered(1400), rigPatience); err != nil || !bytes.Equal(got, numbered(1400)) {
				t.Fatalf("a datagram differs: %v", err)
			}
		}
	}
	if n := refusedSums(t, w.from) + refusedSums(t, w.to) - before; n != 0 {
		t.Errorf("%d wrong checksums", n)
	}
}

// refusedSums is how many TCP and UDP packets a host has refused for their checksum.
func refusedSums(t *testing.T, h *rig.Host) int {
	t.Helper()
	sum := 0
	out := on(t, h, "nstat -asz TcpInCsumErrors UdpInCsumErrors Udp6InCsumErrors | awk '/Csum/ { n += $2 } END { print n+0 }'")
	if _, err := fmt.Sscan(out, &sum); err != nil {
		t.Fatal(err)
	}
	return sum
}
