// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"
	"time"
)

// TestTCPResetFar resets a masqueraded connection that has gone further by the fast
// path than half of the sequence space since conntrack last took note of it. Compared
// with what conntrack remembers, the reset seems to be of the past; it must be
// translated all the same, or the other side never hears of it.
func TestTCPResetFar(t *testing.T) {
	const bytes = 1<<31 + 1<<26
	r := newRig(t, nil)
	pod := addPod(t, r, "a", nil)
	c := crossings(t, r, pod, 4)[1]
	p := tcpConnect(t, c)
	warmPair(t, open(t, r), p)
	if err := tcpTransfer(p.client, p.server, bytes, 30*time.Second); err != nil {
		t.Fatal(err)
	}
	closeByRST(t, p.client, p.server)
	if have := ctEntries(t, r, p.port); !ended(have, closings[1]) {
		t.Errorf("conntrack holds %+v, want an entry that ends within 10 s", have)
	}
}
