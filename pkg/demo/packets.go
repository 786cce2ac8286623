// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"net/netip"
	"time"

	"github.com/xveth/xveth/pkg/netbench/traffic"
	"github.com/xveth/xveth/test/rig"
)

// The packets whose rate is measured.
const (
	packetFlows = 4096
	firstPort   = 20000
	sinkPort    = 9
	frameSize   = 64
)

// shares is into how many system calls a measurement is divided.
const shares = 4

// packetRun sends packets from the remote host into a pod.
type packetRun struct{ *traffic.Packets }

func newPacketRun(ctx context.Context, b *bed) (packetRun, error) {
	f := rig.UDPFlows{
		Src: netip.AddrPortFrom(rig.ExtAddr4, firstPort), Dst: netip.AddrPortFrom(b.a.Addr4, sinkPort),
		Flows: packetFlows, Size: frameSize,
	}
	if err := traffic.Establish(ctx, b.rig, []*rig.Pod{b.a}, sinkPort, f); err != nil {
		return packetRun{}, err
	}
	sink, err := rig.NewSink(b.a.Host, f.Dst.Port())
	if err != nil {
		return packetRun{}, err
	}
	p, err := traffic.NewPackets(b.rig, f, 0, sink)
	if err != nil {
		_ = sink.Close()
		return packetRun{}, err
	}
	return packetRun{p}, nil
}

// measure returns the packets that arrived, in millions a second.
func (p packetRun) measure(ctx context.Context, for_ time.Duration) (float64, error) {
	if err := p.WarmUp(ctx, for_/shares, 0); err != nil {
		return 0, err
	}
	c, err := p.Measure(ctx, for_)
	return c.Rate() / 1e6, err
}
