// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/xveth/xveth/test/rig"
)

// TestLargeTCP sends between pods in packets of more than 64 KiB, whose IP header cannot
// say how long they are, plain and translated, on the fast path and on the kernel's. What
// leaves the node, or goes to a pod that takes no large segments, is not larger than ever.
func TestLargeTCP(t *testing.T) {
	t.Parallel()
	for name, conf := range map[string]map[string]any{
		"fast":   nil,
		"kernel": {"fastPath": map[string]any{"mode": "off"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, conf)
			a, b := addPod(t, r, "a", nil), addPod(t, r, "b", nil)
			narrow := addPod(t, r, "narrow", map[string]any{"localMTU": "off"})
			service := netip.MustParseAddr("10.88.0.250") // in the subnet to which the local MTU leads
			node(t, r, fmt.Sprintf(`nft 'table ip large_test { chain prerouting {
				type nat hook prerouting priority dstnat
				ip daddr %s dnat to %s
			}
			}'`, service, b.Addr4))
			defer node(t, r, "nft delete table ip large_test")
			at := func(h netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(h, port) }
			for _, c := range []struct {
				crossing
				large bool
			}{
				{crossing{"plain", a.Host, b.Host, at(b.Addr4, 9000), at(b.Addr4, 9000)}, true},
				{crossing{"dnat", a.Host, b.Host, at(service, 9000), at(b.Addr4, 9000)}, true},
				{crossing{"v6", a.Host, b.Host, at(b.Addr6, 9000), at(b.Addr6, 9000)}, false},
				{crossing{"to a narrow pod", a.Host, narrow.Host, at(narrow.Addr4, 9000), at(narrow.Addr4, 9000)}, false},
				{crossing{"masqueraded", a.Host, r.Ext, at(rig.ExtAddr4, 9001), at(rig.ExtAddr4, 9001)}, false},
			} {
				t.Run(c.name, func(t *testing.T) {
					seen := largeTransfer(t, a, c.crossing, c.large)
					if seen != c.large {
						t.Errorf("a packet of more than 64 KiB was seen: %v, want %v", seen, c.large)
					}
					if conf == nil && counters(t, open(t, r))["fast_tcx"] == 0 {
						t.Error("nothing took the fast path")
					}
				})
			}
		})
	}
}

// largeTransfer sends some megabytes and returns whether the sender's interface saw a large
// packet: it waits some seconds for one that is wanted.
func largeTransfer(t *testing.T, from *rig.Pod, c crossing, wanted bool) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctxOf(t), 20*time.Second)
	defer cancel()
	seen := make(chan error, 1)
	go func() {
		_, err := from.Run(ctx, "tcpdump", "-n", "-i", rig.PodDev, "-c", "1", "greater", "65600")
		seen <- err
	}()
	p := tcpConnect(t, c)
	rnd := rand.NewChaCha8([32]byte{1})
	wait := time.Second
	if wanted {
		wait = 10 * time.Second
	}
	for end := time.Now().Add(wait); time.Now().Before(end); {
		if err := stream(p.client, p.server, 16<<20, rnd); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-seen:
			return err == nil
		default:
		}
	}
	return false
}
