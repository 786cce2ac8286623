// SPDX-License-Identifier: Apache-2.0

package netbench

import (
	"context"
	"errors"
	"net/netip"

	"github.com/xveth/xveth/pkg/netbench/traffic"
	"github.com/xveth/xveth/test/rig"
)

const connPort = 80

var (
	connPerSecond = metric{name: "rate", unit: "connections/s"}
	perConn       = metric{name: "cost", unit: "us/connection", lower: true}
)

var connRate = &scenario{
	name:  "conn-rate",
	about: "TCP connections from the remote host to a pod: connect, one byte each way, close",
	uses:  []string{"rules", "cores"},
	paths: networks,
	open: func(ctx context.Context, path string, o *Options) (runner, error) {
		b, err := newBed(ctx, path, o, bedOptions{pods: 1})
		if err != nil {
			return nil, err
		}
		// The client has more ports than its closed connections hold.
		for name, value := range map[string]string{
			"net.ipv4.tcp_tw_reuse": "1", "net.ipv4.ip_local_port_range": "1024 65535",
		} {
			if err := b.rig.Ext.Sysctl(name, value); err != nil {
				return nil, errors.Join(err, b.close())
			}
		}
		return &connRun{b, o}, nil
	},
}

// connRun makes one connection after the other.
type connRun struct {
	*bed
	o *Options
}

func (r *connRun) on() *bed { return r.bed }

func (r *connRun) turn(ctx context.Context, m *meter) ([]figure, error) {
	if err := m.start(); err != nil {
		return nil, err
	}
	at := netip.AddrPortFrom(r.pod().Addr4, connPort)
	c, err := traffic.Connections(ctx, r.rig.Ext, r.pod().Host, at, r.o.Duration, r.o.Cores-1)
	if err = errors.Join(err, m.stop()); err != nil {
		return nil, err
	}
	return []figure{
		{connPerSecond, float64(c.Made) / c.Took.Seconds()},
		{perConn, c.CPU.Seconds() * 1e6 / float64(c.Made)},
	}, nil
}

const (
	// oneshotBurst is how many flows there are at most before conntrack is emptied, so
	// that its table never is full.
	oneshotBurst = 100_000
	// oneshotRate is about what is sent in a second.
	oneshotRate = 400_000
)

var udpOneshot = &scenario{
	name:  "udp-oneshot",
	about: "UDP packets from the wire into a pod, each of a flow of its own",
	uses:  []string{"size", "rules"},
	paths: networks,
	open: func(ctx context.Context, path string, o *Options) (runner, error) {
		b, err := newBed(ctx, path, o, bedOptions{pods: 1})
		if err != nil {
			return nil, err
		}
		r := &oneshotRun{bed: b, o: o}
		if r.packets, err = r.prepare(); err != nil {
			return nil, errors.Join(err, b.close())
		}
		return r, nil
	},
}

type oneshotRun struct {
	*bed
	o       *Options
	packets *traffic.Packets
}

func (r *oneshotRun) prepare() (*traffic.Packets, error) {
	sink, err := rig.NewSink(r.pod().Host, sinkPort)
	if err != nil {
		return nil, err
	}
	p, err := traffic.NewPackets(r.rig, rig.UDPFlows{
		Src: netip.AddrPortFrom(benchAddr, firstPort), Dst: netip.AddrPortFrom(r.pod().Addr4, sinkPort),
		Flows: MaxFlows, Size: r.o.Size,
	}, 0, sink)
	if err != nil {
		return nil, errors.Join(err, sink.Close())
	}
	r.later(p.Close)
	return p, nil
}

func (r *oneshotRun) on() *bed { return r.bed }

func (r *oneshotRun) turn(ctx context.Context, m *meter) ([]figure, error) {
	if err := m.start(); err != nil {
		return nil, err
	}
	burst := min(oneshotBurst, int(r.o.Duration.Seconds()*oneshotRate))
	c, err := r.packets.MeasureBursts(ctx, r.o.Duration, burst, func() error { return traffic.ForgetConntrack(r.rig.Node) })
	if err = errors.Join(err, m.stop()); err != nil {
		return nil, err
	}
	return []figure{
		{rate, c.Rate() / 1e6},
		{perCPU, c.CPU.Seconds() * 1e9 / float64(c.Arrived)},
	}, nil
}
