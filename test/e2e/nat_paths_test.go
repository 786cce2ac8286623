// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// uplinkMode is the configuration of an uplink that is driven in one way.
func uplinkMode(mode string) map[string]any {
	return map[string]any{"uplinks": []any{map[string]any{"name": rig.Uplink, "mode": mode}}}
}

// checksumErrors sums up what a host's sockets found to be wrong.
func checksumErrors(t *testing.T, h *rig.Host) (sum int) {
	t.Helper()
	lines := strings.Split(on(t, h, "cat /proc/net/snmp /proc/net/snmp6"), "\n")
	for i, line := range lines {
		fields := strings.Fields(line)
		if len(fields) == 2 && strings.HasSuffix(fields[0], "InCsumErrors") {
			n, _ := strconv.Atoi(fields[1])
			sum += n
		}
		at := slices.Index(fields, "InCsumErrors")
		if at < 0 || i+1 == len(lines) {
			continue
		}
		n, err := strconv.Atoi(strings.Fields(lines[i+1])[at])
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// offloadsOff makes senders finish checksums and receiving sockets verify them.
func (bed *natBed) offloadsOff(t *testing.T) {
	t.Helper()
	for h, dev := range map[*rig.Host]string{
		bed.r.Ext: rig.ExtDev, bed.a.Host: rig.PodDev, bed.b.Host: rig.PodDev, bed.r.Node: rig.Uplink,
	} {
		err := h.Do(func() error {
			return rig.Offload(dev, map[string]bool{"rx-checksum": false, "tx-checksum-ip-generic": false})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// exercise sends datagrams of many sizes, or streams, both ways.
func (s *session) exercise(rnd *rand.ChaCha8) error {
	if s.proto == "tcp" {
		const bulk = 1 << 20
		if err := stream(s.client, s.server, bulk, rnd); err != nil {
			return fmt.Errorf("to server: %w", err)
		}
		if err := stream(s.server, s.client, bulk, rnd); err != nil {
			return fmt.Errorf("to client: %w", err)
		}
	}
	most := s.path.mtu - 28
	if s.path.client.Is6() {
		most = s.path.mtu - 48
	}
	sizes := []int{most, most - 1, 1, 2, 3, 17, 18, 19, 511, 1000, most}
	for range 20 {
		sizes = append(sizes, 1+int(rnd.Uint64()%uint64(most)))
	}
	for _, size := range sizes {
		msg := make([]byte, size)
		_, _ = rnd.Read(msg)
		if _, err := s.roundTrip(msg); err != nil {
			return fmt.Errorf("%d bytes: %w", size, err)
		}
	}
	return nil
}

// warmUp makes round trips until both directions have taken the fast path.
func (s *session) warmUp(t *testing.T, d *datapath.Datapath) {
	t.Helper()
	eventually(t, 5*time.Second, "both directions take the fast path: "+s.tuples(), func() bool {
		if _, err := s.roundTrip([]byte("0123456789abcdef")); err != nil {
			t.Fatal(err)
		}
		out, okOut := s.datapathFlow(t, d, true)
		back, okBack := s.datapathFlow(t, d, false)
		return okOut && okBack && out.Packets > 0 && back.Packets > 0
	})
}

// runNATPaths makes a session for every path, and returns what its ends saw. With a
// datapath, both directions must have been fast.
func runNATPaths(t *testing.T, bed *natBed, d *datapath.Datapath) map[string]string {
	seen := map[string]string{}
	rnd := rand.NewChaCha8([32]byte{1})
	port := uint16(40000)
	for _, fam := range families {
		for _, p := range bed.paths(fam) {
			for _, proto := range slices.Sorted(maps.Keys(protos)) {
				port++
				name := fmt.Sprintf("%s v%d %s", p.name, fam, proto)
				t.Run(name, func(t *testing.T) {
					s := connect(t, p, proto, port)
					seen[name] = s.tuples()
					if d == nil {
						return
					}
					s.warmUp(t, d)
					if err := s.exercise(rnd); err != nil {
						t.Fatal(err)
					}
					s.checkFast(t, d)
				})
			}
		}
	}
	return seen
}

// checkFast compares the fast packets of both directions with what was sent.
func (s *session) checkFast(t *testing.T, d *datapath.Datapath) {
	t.Helper()
	const atLeast = 15 // of more than 30 packets: each renewal and each longer packet is the kernel's
	for _, forward := range []bool{true, false} {
		f, ok := s.datapathFlow(t, d, forward)
		if !ok || f.Packets < atLeast {
			t.Errorf("forward %v: learned %v, %d fast packets, want %d or more", forward, ok, f.Packets, atLeast)
		}
	}
}

// compareSeen runs all paths and wants both ends to see what they see without the fast
// path. Sessions are new ones, from other ports than those of an earlier run.
func compareSeen(t *testing.T, bed *natBed, want map[string]string) {
	for name, got := range runNATPaths(t, bed, open(t, bed.r)) {
		if got != want[name] {
			t.Errorf("%s: ends saw\n%s\nwithout the fast path\n%s", name, got, want[name])
		}
	}
	for _, h := range []*rig.Host{bed.r.Ext, bed.a.Host, bed.b.Host} {
		if n := checksumErrors(t, h); n != 0 {
			t.Errorf("%s: %d packets with a wrong checksum", h.Name, n)
		}
	}
}

// TestNATPaths covers DNAT, SNAT, both and hairpin: payloads arrive, the receiving
// sockets find every checksum right, and both ends see the addresses that they see
// without the fast path. Covers B041 and B062.
func TestNATPaths(t *testing.T) {
	t.Parallel()
	off := newNATBed(t, rig.Options{Conf: map[string]any{"fastPath": map[string]any{"mode": "off"}}})
	var want map[string]string
	t.Run("off", func(t *testing.T) { want = runNATPaths(t, off, nil) })
	for _, c := range []struct {
		name string
		opts rig.Options
	}{
		{"xdp", rig.Options{Conf: uplinkMode("xdp")}},
		{"tcx", rig.Options{Conf: uplinkMode("tcx")}},
		{"tcx partial checksums", rig.Options{Conf: uplinkMode("tcx"), TxChecksum: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bed := newNATBed(t, c.opts)
			t.Run("default offloads", func(t *testing.T) { compareSeen(t, bed, want) })
			if c.opts.TxChecksum {
				return
			}
			bed.offloadsOff(t)
			// The same tuples again: the kernel has to take them for new ones.
			on(t, bed.r.Node, "conntrack -F 2>/dev/null")
			t.Run("offloads off", func(t *testing.T) { compareSeen(t, bed, want) })
			t.Run("wrong checksums", func(t *testing.T) { bed.checkVerified(t) })
		})
	}
}

// checkVerified shows that a wrong checksum would have been noticed: the receivers count
// frames that carry one, by the fast path.
func (bed *natBed) checkVerified(t *testing.T) {
	d := open(t, bed.r)
	port := uint16(47000)
	for _, fam := range families {
		for _, p := range bed.paths(fam)[:3] {
			port++
			s := connect(t, p, "udp", port)
			s.warmUp(t, d)
			dst, src := bed.hop(t, p.from)
			g := generator{rnd: rand.New(rand.NewChaCha8([32]byte{})), dst: dst, src: src, mtu: 1500}
			g.in = tuple{protos["udp"], s.clientLocal, s.clientRemote}
			frame := g.packetOf(g.headers() + 16) // no longer than what warmed the flow up
			check := ethLen + g.ipLen() + 6
			frame[check], frame[check+1] = 0x12, 0x34
			before, fast := checksumErrors(t, p.to), counters(t, d).Fast()
			bed.inject(t, p.from, frame)
			eventually(t, patience, p.name+": the receiver counts a wrong checksum", func() bool {
				return checksumErrors(t, p.to) > before
			})
			if counters(t, d).Fast() == fast {
				t.Errorf("%s: the frame did not take the fast path", p.name)
			}
		}
	}
}

// TestNATHairpinMany connects a pod to itself through its service address many times,
// some connections short and some long. B062
func TestNATHairpinMany(t *testing.T) {
	t.Parallel()
	bed := newNATBed(t, rig.Options{})
	d := open(t, bed.r)
	for _, fam := range families {
		paths := bed.paths(fam)
		hairpin := paths[len(paths)-1]
		start := counters(t, d).Fast()
		for i := range uint16(200) {
			s := connect(t, hairpin, "tcp", 20000+i)
			rounds := 1
			if i%20 == 0 {
				rounds = 50
			}
			for range rounds {
				if _, err := s.roundTrip([]byte("a short message")); err != nil {
					t.Fatalf("connection %d: %v", i, err)
				}
			}
			s.close()
		}
		if fast := counters(t, d).Fast() - start; fast < 500 {
			t.Errorf("v%d: %d fast packets, want 500 or more", fam, fast)
		}
	}
}
