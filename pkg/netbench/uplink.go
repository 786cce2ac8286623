// SPDX-License-Identifier: Apache-2.0

package netbench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/xveth/xveth/pkg/netbench/traffic"
	"github.com/xveth/xveth/test/rig"
)

const (
	// clusterNet holds the addresses of Services.
	clusterNet = "10.96.0.0/12"
	// sinkPort is where pods take packets.
	sinkPort = 9
	// firstPort is the first source port of a generator.
	firstPort = 1024
	// warmUp is the part of a turn that comes before it and is not measured; the same
	// is what one system call sends.
	warmUp = 4
	// learnedAfter is how many packets of a flow it takes to learn it, at the most.
	learnedAfter = 4
	// warmUpMax is how many packets a warm-up takes at the most: more flows than a node can
	// confirm within the interval are never all learned.
	warmUpMax = 500_000
)

// benchAddr is the first source address of generated packets: RFC 2544 reserves its network
// for benchmarks.
var benchAddr = netip.MustParseAddr("198.18.0.1")

var (
	rate   = metric{name: "rate", unit: "Mpps"}
	perCPU = metric{name: "cost", unit: "ns/packet", lower: true}
)

var uplinkToPod = &scenario{
	name:  "uplink-to-pod",
	about: "UDP packets from the wire into a pod",
	uses:  []string{"size", "flows", "rules", "sink", "revalidate"},
	paths: withLimits,
	more:  []string{pathLimit},
	open: func(ctx context.Context, path string, o *Options) (runner, error) {
		return openUplink(ctx, path, o, bedOptions{pods: 1}, toPod)
	},
	prepare: roomForFlows,
}

// aim says where packets for a bed's pod go.
type aim func(context.Context, *bed) (netip.AddrPort, error)

// toPod aims at the first pod.
func toPod(_ context.Context, b *bed) (netip.AddrPort, error) {
	return netip.AddrPortFrom(b.pod().Addr4, sinkPort), nil
}

// uplinkRun sends packets from the wire into a pod.
type uplinkRun struct {
	*bed
	o       *Options
	packets *traffic.Packets
}

// openUplink makes a bed, and packets for it that go to an address.
func openUplink(ctx context.Context, path string, o *Options, want bedOptions, dst aim) (runner, error) {
	p, ok := paths[path]
	if !ok {
		return nil, unknownPath(path)
	}
	return openUplinkOn(ctx, p, o, want, dst)
}

func openUplinkOn(ctx context.Context, p path, o *Options, want bedOptions, dst aim) (runner, error) {
	b, err := newBedOf(ctx, p, o, want)
	if err != nil {
		return nil, err
	}
	r := &uplinkRun{bed: b, o: o}
	to, err := dst(ctx, b)
	if err == nil {
		r.packets, err = b.newPackets(ctx, o, to)
	}
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	return r, nil
}

// newPackets lets the flows be known to the node, and then has them counted in the pod.
func (b *bed) newPackets(ctx context.Context, o *Options, dst netip.AddrPort) (*traffic.Packets, error) {
	f := rig.UDPFlows{
		Src: netip.AddrPortFrom(benchAddr, firstPort), Dst: dst, Flows: o.Flows, Size: o.Size,
	}
	if !b.path.blind {
		if err := traffic.Establish(ctx, b.rig, b.pods[:1], sinkPort, f); err != nil {
			return nil, err
		}
	}
	sink, err := b.newSink(o)
	if err != nil {
		return nil, err
	}
	p, err := traffic.NewPackets(b.rig, f, 0, sink)
	if err != nil {
		return nil, errors.Join(err, sink.Close())
	}
	b.later(p.Close)
	return p, p.Send(ctx, learnedAfter*o.Flows)
}

// newSink is where packets end.
func (b *bed) newSink(o *Options) (traffic.Counter, error) {
	switch {
	case b.path.name == pathLimit:
		return traffic.NewLinkCounter(b.rig.Node, rig.Uplink), nil
	case o.Sink == SinkSocket:
		return traffic.NewSocketSink(b.pod().Host, netip.AddrPortFrom(b.pod().Addr4, sinkPort), 1)
	}
	return rig.NewSink(b.pod().Host, sinkPort)
}

func (r *uplinkRun) on() *bed { return r.bed }

func (r *uplinkRun) turn(ctx context.Context, m *meter) ([]figure, error) {
	c, err := measurePackets(ctx, r.packets, r.o.Flows, r.o.Duration, m)
	if err != nil {
		return nil, err
	}
	return []figure{
		{rate, c.Rate() / 1e6},
		{perCPU, c.CPU.Seconds() * 1e9 / float64(c.Arrived)},
	}, nil
}

// measurePackets warms up, until the flows are learned, and measures.
func measurePackets(ctx context.Context, p *traffic.Packets, flows int, d time.Duration, m *meter) (c traffic.Counted, err error) {
	if err := p.WarmUp(ctx, d/warmUp, min(learnedAfter*flows, warmUpMax)); err != nil {
		return c, err
	}
	if err := m.start(); err != nil {
		return c, err
	}
	if c, err = p.Measure(ctx, d); err != nil {
		return c, fmt.Errorf("send packets: %w", err)
	}
	return c, m.stop()
}
