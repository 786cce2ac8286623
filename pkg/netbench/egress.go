// SPDX-License-Identifier: Apache-2.0

package netbench

import (
	"context"
	"errors"
	"net/netip"

	"github.com/xveth/xveth/pkg/netbench/traffic"
	"github.com/xveth/xveth/test/rig"
)

// maxSenders is how many sockets send; more would only be open.
const maxSenders = 10_000

// udpHeaders are Ethernet's, IPv4's and UDP's.
const udpHeaders = 14 + 20 + 8

var egressTCP = metric{name: "tcp", unit: "Gbit/s", headline: true}

var podToUplink = &scenario{
	name:  "pod-to-uplink",
	about: "UDP packets from sockets of a pod to the remote host, and bulk TCP",
	uses:  []string{"size", "flows", "rules", "revalidate", "congestion"},
	paths: networks,
	open: func(ctx context.Context, path string, o *Options) (runner, error) {
		b, err := newBed(ctx, path, o, bedOptions{pods: 1})
		if err != nil {
			return nil, err
		}
		r := &egressRun{bed: b, o: o}
		if err := r.prepare(); err != nil {
			return nil, errors.Join(err, b.close())
		}
		return r, nil
	},
}

// egressRun sends from the pod to the remote host.
type egressRun struct {
	*bed
	o      *Options
	sender *traffic.Sender
	sink   traffic.Counter
}

func (r *egressRun) prepare() error {
	to := netip.AddrPortFrom(rig.ExtAddr4, sinkPort)
	s, err := traffic.NewSender(r.pod().Host, to, min(r.o.Flows, maxSenders), r.o.Size-udpHeaders)
	if err != nil {
		return err
	}
	r.sender = s
	r.later(func() error { s.Close(); return nil })
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := r.rig.Ext.EchoUDP(ctx, to); err != nil {
		return err
	}
	if err := s.Greet(); err != nil {
		return err
	}
	if r.sink, err = rig.NewSink(r.rig.Ext, sinkPort); err != nil {
		return err
	}
	r.later(r.sink.Close)
	return nil
}

func (r *egressRun) on() *bed { return r.bed }

func (r *egressRun) turn(_ context.Context, m *meter) ([]figure, error) {
	if _, _, err := r.sender.Send(r.o.Duration / (2 * warmUp)); err != nil {
		return nil, err
	}
	before, err := r.sink.Packets()
	if err != nil {
		return nil, err
	}
	if err := m.start(); err != nil {
		return nil, err
	}
	_, cpu, err := r.sender.Send(r.o.Duration / 2)
	if err = errors.Join(err, m.stop()); err != nil {
		return nil, err
	}
	after, err := r.sink.Packets()
	if err != nil {
		return nil, err
	}
	if after == before {
		return nil, errors.New("no packet arrived")
	}
	one := *r.o
	one.Flows, one.Cores = 1, 1
	moved, err := transfer(r.pod().Host, r.rig.Ext, rig.ExtAddr4, &one, r.o.Duration/2, &meter{})
	if err != nil {
		return nil, err
	}
	arrived := float64(after - before)
	return []figure{
		{rate, arrived / m.took.Seconds() / 1e6},
		{perCPU, cpu.Seconds() * 1e9 / arrived},
		{egressTCP, moved.Gbit() / moved.Took.Seconds()},
	}, nil
}
