// SPDX-License-Identifier: Apache-2.0

package netbench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/xveth/xveth/pkg/netbench/traffic"
	"github.com/xveth/xveth/test/rig"
)

var (
	throughput = metric{name: "throughput", unit: "Gbit/s"}
	perGbit    = metric{name: "cost", unit: "ms/Gbit", lower: true}
)

var podToPodTCP = &scenario{
	name:  "pod-to-pod-tcp",
	about: "bulk TCP between two pods of a node; flows are streams",
	uses:  []string{"flows", "rules", "cores", "revalidate", "congestion"},
	paths: networks,
	more:  []string{pathXvethXDP},
	open: func(ctx context.Context, path string, o *Options) (runner, error) {
		b, err := newBed(ctx, path, o, bedOptions{pods: 2})
		if err != nil {
			return nil, err
		}
		return &tcpRun{b, o}, nil
	},
}

// tcpRun transfers from the first pod to the second.
type tcpRun struct {
	*bed
	o *Options
}

func (r *tcpRun) on() *bed { return r.bed }

func (r *tcpRun) turn(_ context.Context, m *meter) ([]figure, error) {
	moved, err := transfer(r.pods[0].Host, r.pods[1].Host, r.pods[1].Addr4, r.o, r.o.Duration, m)
	if err != nil {
		return nil, err
	}
	return []figure{
		{throughput, moved.Gbit() / moved.Took.Seconds()},
		{perGbit, moved.CPU.Seconds() * 1e3 / moved.Gbit()},
	}, nil
}

// transfer opens connections, one a flow, and moves as much as goes.
func transfer(from, to *rig.Host, at netip.Addr, o *Options, d time.Duration, m *meter) (moved traffic.Moved, err error) {
	var pairs []*traffic.Pair
	defer func() {
		for _, p := range pairs {
			p.Close()
		}
	}()
	for range o.Flows {
		p, err := traffic.NewPair(from, to, at, o.Congestion)
		if err != nil {
			return moved, err
		}
		pairs = append(pairs, p)
	}
	if err := m.start(); err != nil {
		return moved, err
	}
	moved, err = traffic.Transfer(pairs, d, o.Cores-1)
	return moved, errors.Join(err, m.stop())
}

// directions of cpu-per-gbit.
var (
	gbitPodToPod    = metric{name: "pod-to-pod", unit: "ms/Gbit", lower: true}
	gbitPodToUplink = metric{name: "pod-to-uplink", unit: "ms/Gbit", lower: true, headline: true}
	gbitUplinkToPod = metric{name: "uplink-to-pod", unit: "ms/Gbit", lower: true, headline: true}
)

var cpuPerGbit = &scenario{
	name:  "cpu-per-gbit",
	about: "processor time that bulk TCP costs, between pods and to and from the remote host",
	uses:  []string{"flows", "rules", "cores", "revalidate", "congestion"},
	paths: networks,
	open: func(ctx context.Context, path string, o *Options) (runner, error) {
		b, err := newBed(ctx, path, o, bedOptions{pods: 2})
		if err != nil {
			return nil, err
		}
		return &gbitRun{b, o}, nil
	},
}

// gbitRun transfers in three directions, a third of the time each.
type gbitRun struct {
	*bed
	o *Options
}

func (r *gbitRun) on() *bed { return r.bed }

func (r *gbitRun) turn(ctx context.Context, _ *meter) (all []figure, err error) {
	err = r.everyWay(ctx, r.o, r.o.Duration/tcpWays, func(way metric, moved traffic.Moved) {
		all = append(all, figure{way, moved.CPU.Seconds() * 1e3 / moved.Gbit()})
	})
	return all, err
}

// tcpWays is how many there are.
const tcpWays = 3

// everyWay transfers between two pods, and between the first of them and the remote host both
// ways, for some time each.
func (b *bed) everyWay(ctx context.Context, o *Options, d time.Duration, done func(way metric, moved traffic.Moved)) error {
	pod, other, ext := b.pods[0], b.pods[1], b.rig.Ext
	for _, w := range [tcpWays]struct {
		metric
		from, to *rig.Host
		at       netip.Addr
	}{
		{gbitPodToPod, pod.Host, other.Host, other.Addr4},
		{gbitPodToUplink, pod.Host, ext, rig.ExtAddr4},
		{gbitUplinkToPod, ext, pod.Host, pod.Addr4},
	} {
		if err := ctx.Err(); err != nil {
			return err
		}
		moved, err := transfer(w.from, w.to, w.at, o, d, &meter{})
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		done(w.metric, moved)
	}
	return nil
}

var (
	tripP50  = metric{name: "p50", unit: "us", lower: true}
	tripP90  = metric{name: "p90", unit: "us", lower: true}
	tripP99  = metric{name: "p99", unit: "us", lower: true}
	tripRate = metric{name: "rate", unit: "trips/s"}
	perTrip  = metric{name: "cost", unit: "us/trip", lower: true}
)

var podToPodRR = &scenario{
	name:  "pod-to-pod-rr",
	about: "round trips of one byte by TCP between two pods of a node",
	uses:  []string{"rules", "cores", "revalidate"},
	paths: networks,
	more:  []string{pathXvethXDP},
	open: func(ctx context.Context, path string, o *Options) (runner, error) {
		return openRR(ctx, path, o, 2, func(b *bed) (from, to *rig.Host, at netip.Addr) {
			return b.pods[0].Host, b.pods[1].Host, b.pods[1].Addr4
		})
	},
}

var uplinkRR = &scenario{
	name:  "uplink-rr",
	about: "round trips of one byte by TCP from the remote host to a pod",
	uses:  []string{"rules", "cores", "revalidate"},
	paths: networks,
	open: func(ctx context.Context, path string, o *Options) (runner, error) {
		return openRR(ctx, path, o, 1, func(b *bed) (from, to *rig.Host, at netip.Addr) {
			return b.rig.Ext, b.pod().Host, b.pod().Addr4
		})
	},
}

// rrRun makes round trips on one connection.
type rrRun struct {
	*bed
	o        *Options
	from, to *rig.Host
	at       netip.Addr
}

func openRR(ctx context.Context, path string, o *Options, pods int, ends func(*bed) (from, to *rig.Host, at netip.Addr)) (runner, error) {
	b, err := newBed(ctx, path, o, bedOptions{pods: pods})
	if err != nil {
		return nil, err
	}
	r := &rrRun{bed: b, o: o}
	r.from, r.to, r.at = ends(b)
	return r, nil
}

func (r *rrRun) on() *bed { return r.bed }

func (r *rrRun) turn(_ context.Context, m *meter) ([]figure, error) {
	p, err := traffic.NewPair(r.from, r.to, r.at, "")
	if err != nil {
		return nil, err
	}
	defer p.Close()
	if err := m.start(); err != nil {
		return nil, err
	}
	trips, err := p.RoundTrips(r.o.Duration, r.o.Cores-1)
	if err = errors.Join(err, m.stop()); err != nil {
		return nil, err
	}
	n := float64(len(trips.Times))
	slices.Sort(trips.Times)
	return []figure{
		{tripP50, percentile(trips.Times, 50)},
		{tripP90, percentile(trips.Times, 90)},
		{tripP99, percentile(trips.Times, 99)},
		{tripRate, n / trips.Took.Seconds()},
		{perTrip, trips.CPU.Seconds() * 1e6 / n},
	}, nil
}

// percentile of times in their order, in microseconds; 0 of none.
func percentile(sorted []time.Duration, p int) float64 {
	if len(sorted) == 0 {
		return 0
	}
	// The smallest that at least p percent are not above.
	i := (len(sorted)*p + 99) / 100
	return float64(sorted[max(i, 1)-1].Nanoseconds()) / 1e3
}
