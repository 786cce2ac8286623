// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/xveth/xveth/test/rig"
)

const liberal = "net.netfilter.nf_conntrack_tcp_be_liberal"

// strictRevalidate is the interval of the tests of this file; short, so that they see
// several.
const strictRevalidate = 100 * time.Millisecond

func setLiberal(t *testing.T, r *rig.Rig, value string) {
	t.Helper()
	if err := r.Node.Sysctl(liberal, value); err != nil {
		t.Fatal(err)
	}
}

// tcpChat exchanges short messages for some time.
func tcpChat(t *testing.T, p tcpPair, d time.Duration) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if err := pingPong(p); err != nil {
			t.Fatal(err)
		}
	}
}

// tcpStream sends from the client as fast as it goes, for some time.
func tcpStream(t *testing.T, p tcpPair, d time.Duration) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		if err := tcpTransfer(p.client, p.server, 1<<20, 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTCPStrict sets conntrack's window checks back to strict under a warm flow, and
// then to liberal again. The flow goes on in both cases.
func TestTCPStrict(t *testing.T) {
	t.Parallel()
	r := newRig(t, withFast(nil, map[string]any{"revalidate": strictRevalidate.String()}))
	pod := addPod(t, r, "a", nil)
	addDNAT(t, r, pod)
	for _, fam := range families {
		for _, c := range crossings(t, r, pod, fam) {
			for name, traffic := range map[string]func(*testing.T, tcpPair, time.Duration){
				"low rate": tcpChat, "high rate": tcpStream,
			} {
				t.Run(fmt.Sprintf("%s v%d %s", c.name, fam, name), func(t *testing.T) {
					checkStrict(t, r, c, traffic)
				})
			}
		}
	}
}

func checkStrict(t *testing.T, r *rig.Rig, c crossing, traffic func(*testing.T, tcpPair, time.Duration)) {
	d := open(t, r)
	setLiberal(t, r, "1")
	p := tcpConnect(t, c)
	eventually(t, 5*time.Second, "both directions are learned", func() bool {
		if err := pingPong(p); err != nil {
			t.Fatal(err)
		}
		live, _ := flowsOf(t, d, protos["tcp"], p.port)
		return live == 2
	})
	traffic(t, p, 2*strictRevalidate)

	setLiberal(t, r, "0")
	traffic(t, p, 4*strictRevalidate)
	if live, _ := flowsOf(t, d, protos["tcp"], p.port); live != 0 {
		t.Errorf("%d flows are on the fast path while checks are strict", live)
	}

	setLiberal(t, r, "1")
	eventually(t, 5*time.Second, "both directions are learned again", func() bool {
		if err := pingPong(p); err != nil {
			t.Fatal(err)
		}
		live, _ := flowsOf(t, d, protos["tcp"], p.port)
		return live == 2
	})
}

// TestStrictLearning finds that no TCP is learned while window checks are strict, and
// that UDP is.
func TestStrictLearning(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	pod := addPod(t, r, "a", nil)
	d := open(t, r)
	for _, fam := range families {
		for _, c := range crossings(t, r, pod, fam)[:2] {
			t.Run(fmt.Sprintf("%s v%d", c.name, fam), func(t *testing.T) {
				setLiberal(t, r, "0")
				p := tcpConnect(t, c)
				before := counters(t, d)
				for range 50 {
					if err := pingPong(p); err != nil {
						t.Fatal(err)
					}
				}
				after := counters(t, d)
				if n := after["learn_ct_strict"] - before["learn_ct_strict"]; n < 50 {
					t.Errorf("learn_ct_strict has risen by %d, want 50 or more", n)
				}
				if _, all := flowsOf(t, d, protos["tcp"], p.port); all != 0 {
					t.Errorf("%d flows have been learned", all)
				}
				echo(t, c.to, "udp", c.at)
				warm(t, r, dial(t, c.from, "udp", c.dial))

				setLiberal(t, r, "1")
				warmPair(t, d, p)
			})
		}
	}
}
