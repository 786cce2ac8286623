// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/xveth/xveth/test/rig"
)

// TestNATIdle keeps masqueraded and translated flows busy on the fast path, at a rate at
// which the kernel hardly sees them, for more than three times the life of their
// conntrack entries. No packet is lost, the remote host sees the same port throughout,
// and the entries live on. B067
func TestNATIdle(t *testing.T) {
	t.Parallel()
	const (
		timeout = 2 * time.Second
		gap     = 50 * time.Millisecond
	)
	bed := newNATBed(t, rig.Options{})
	d := open(t, bed.r)
	for _, s := range []string{"udp_timeout", "udp_timeout_stream", "tcp_timeout_established"} {
		if err := bed.r.Node.Sysctl("net.netfilter.nf_conntrack_"+s, fmt.Sprint(timeout.Seconds())); err != nil {
			t.Fatal(err)
		}
	}
	sessions := idleSessions(t, bed)
	before := counters(t, d)
	var all sync.WaitGroup
	failed := make(chan error, len(sessions))
	var sent atomic.Uint64
	end := time.Now().Add(3*timeout + 2*gap)
	for _, s := range sessions {
		all.Go(func() {
			for time.Now().Before(end) {
				if _, err := s.roundTrip([]byte("still here")); err != nil {
					failed <- err
					return
				}
				sent.Add(2)
				time.Sleep(gap) // the pace of a quiet application
			}
		})
	}
	all.Wait()
	close(failed)
	for err := range failed {
		t.Error(err)
	}
	after := counters(t, d)
	want := sent.Load() * 8 / 10
	if fast := after.Fast() - before.Fast(); fast < want {
		t.Errorf("%d fast packets, want %d or more: the kernel was not idle", fast, want)
	}
	for _, s := range sessions {
		if err := bed.tracked(t, s); err != nil {
			t.Error(err)
		}
	}
}

// idleSessions are sessions of all paths that translate, with replies fast as well.
func idleSessions(t *testing.T, bed *natBed) []*session {
	t.Helper()
	var all []*session
	port := uint16(42000)
	for _, fam := range families {
		for _, p := range bed.paths(fam) {
			if p.name != "snat" && p.name != "dnat and snat service" && p.name != "dnat node port" {
				continue
			}
			for _, proto := range slices.Sorted(maps.Keys(protos)) {
				port++
				all = append(all, connect(t, p, proto, port))
			}
		}
	}
	return all
}

// tracked looks for the conntrack entry of a session, which must have seen both
// directions.
func (bed *natBed) tracked(t *testing.T, s *session) error {
	t.Helper()
	family := "ipv4"
	if s.clientLocal.Addr().Is6() {
		family = "ipv6"
	}
	out := on(t, bed.r.Node, fmt.Sprintf("conntrack -L -f %s -p %s -s %s -d %s --sport %d --dport %d 2>/dev/null", family, s.proto,
		s.clientLocal.Addr(), s.clientRemote.Addr(), s.clientLocal.Port(), s.clientRemote.Port()))
	if !strings.Contains(out, "ASSURED") {
		return fmt.Errorf("%s: conntrack entry %q is not assured", s.tuples(), out)
	}
	// The reply that conntrack expects is what the server sends.
	reply := fmt.Sprintf("src=%s dst=%s sport=%d dport=%d", s.serverLocal.Addr(), s.serverRemote.Addr(),
		s.serverLocal.Port(), s.serverRemote.Port())
	if !strings.Contains(out, reply) {
		return fmt.Errorf("%s: conntrack entry %q, want reply %q", s.tuples(), out, reply)
	}
	return nil
}
