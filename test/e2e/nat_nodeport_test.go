// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/binary"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/xveth/xveth/test/rig"
)

// pathNamed picks one of the bed's paths.
func (bed *natBed) pathNamed(t *testing.T, fam int, name string) natPath {
	t.Helper()
	for _, p := range bed.paths(fam) {
		if p.name == name {
			return p
		}
	}
	t.Fatalf("no path %q", name)
	return natPath{}
}

// invalidPackets reads the counter of what conntrack held for invalid.
func invalidPackets(t *testing.T, r *rig.Rig) string {
	t.Helper()
	return node(t, r, `nft list counter inet strict invalid | sed -n 's/.*packets \([0-9]*\) .*/\1/p'`)
}

// TestNATNodePortInvalid sends 10,000 packets each way through a node port on a node that
// drops what conntrack holds for invalid, and masquerades. Every reply comes from the
// node port's address: a connected socket takes no other. B064
func TestNATNodePortInvalid(t *testing.T) {
	t.Parallel()
	const rounds = 10000
	bed := newNATBed(t, rig.Options{})
	d := open(t, bed.r)
	applyRules(t, bed.r.Node, "strict", `
	counter invalid { }
	chain forwarded { type filter hook forward priority filter; policy accept; ct state invalid counter name invalid drop; }`)
	var sessions []*session
	for _, fam := range families {
		for _, proto := range slices.Sorted(maps.Keys(protos)) {
			s := connect(t, bed.pathNamed(t, fam, "dnat node port"), proto, 43000+uint16(len(sessions)))
			sessions = append(sessions, s)
			t.Run(nftFamily(fam)+" "+proto, func(t *testing.T) {
				msg := make([]byte, 64)
				for i := range rounds {
					binary.BigEndian.PutUint64(msg, uint64(i))
					if _, err := s.roundTrip(msg); err != nil {
						t.Fatalf("round %d: %v", i, err)
					}
				}
				for _, forward := range []bool{true, false} {
					if f, ok := s.datapathFlow(t, d, forward); !ok || f.Packets < rounds*9/10 {
						t.Errorf("forward %v: %d fast packets of %d", forward, f.Packets, rounds)
					}
				}
			})
		}
	}
	// Conntrack calls a UDP flow assured when it is still used after two seconds.
	for _, s := range sessions {
		eventually(t, 5*time.Second, "the entry is assured: "+s.tuples(), func() bool {
			if _, err := s.roundTrip([]byte("and on")); err != nil {
				t.Fatal(err)
			}
			return bed.tracked(t, s) == nil
		})
	}
	if n := invalidPackets(t, bed.r); strings.TrimSpace(n) != "0" {
		t.Errorf("%s invalid packets", n)
	}
}

// TestNATStrictReversePath runs translated flows cold and warm where every host checks
// the reverse path strictly. B076
func TestNATStrictReversePath(t *testing.T) {
	t.Parallel()
	bed := newNATBed(t, rig.Options{})
	d := open(t, bed.r)
	hosts := []*rig.Host{bed.r.Node, bed.r.Ext, bed.a.Host, bed.b.Host}
	for _, h := range hosts {
		on(t, h, "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 1 > $f; done")
	}
	port := uint16(44000)
	for _, fam := range families {
		for _, p := range bed.paths(fam) {
			for _, proto := range slices.Sorted(maps.Keys(protos)) {
				port++
				s := connect(t, p, proto, port)
				s.warmUp(t, d)
			}
		}
	}
	for _, h := range hosts {
		if n := netstat(t, h, "IPReversePathFilter"); n != 0 {
			t.Errorf("%s: %d packets failed the reverse path check", h.Name, n)
		}
	}
}

// netstat reads a counter of /proc/net/netstat.
func netstat(t *testing.T, h *rig.Host, name string) int {
	t.Helper()
	lines := strings.Split(on(t, h, "cat /proc/net/netstat"), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		if at := slices.Index(strings.Fields(lines[i]), name); at >= 0 {
			n, err := strconv.Atoi(strings.Fields(lines[i+1])[at])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no counter %q", name)
	return 0
}
