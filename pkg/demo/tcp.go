// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"net/netip"
	"slices"
	"time"

	"github.com/xveth/xveth/pkg/netbench/traffic"
	"github.com/xveth/xveth/test/rig"
)

// transfer sends as much as it can for some time and returns Gbit/s as the receiver saw
// them. All of it runs on one processor.
func (b *bed) transfer(from, to *rig.Host, at netip.Addr, for_ time.Duration) (float64, error) {
	p, err := traffic.NewPair(from, to, at, "")
	if err != nil {
		return 0, err
	}
	defer p.Close()
	m, err := traffic.Transfer([]*traffic.Pair{p}, for_, 0)
	if err != nil {
		return 0, err
	}
	return m.Gbit() / m.Took.Seconds(), nil
}

// roundTrips bounces one byte for some time and returns the median round trip in
// microseconds.
func (b *bed) roundTrips(from, to *rig.Host, at netip.Addr, for_ time.Duration) (float64, error) {
	p, err := traffic.NewPair(from, to, at, "")
	if err != nil {
		return 0, err
	}
	defer p.Close()
	trips, err := p.RoundTrips(for_, 0)
	if err != nil {
		return 0, err
	}
	all := slices.Sorted(slices.Values(trips.Times))
	return float64(all[len(all)/2].Nanoseconds()) / 1e3, nil
}
