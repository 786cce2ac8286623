// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

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
type packetRun struct {
	gen  *rig.Generator
	sink *rig.Sink
}

func newPacketRun(b *bed) (packetRun, error) {
	f := rig.UDPFlows{
		Src: netip.AddrPortFrom(rig.ExtAddr4, firstPort), Dst: netip.AddrPortFrom(b.a.Addr4, sinkPort),
		Flows: packetFlows, Size: frameSize,
	}
	if err := establish(b, f); err != nil {
		return packetRun{}, err
	}
	// The thread that generates does all that the node does as well.
	if err := b.rig.Wire.Do(func() error { return pin(0) }); err != nil {
		return packetRun{}, err
	}
	gen, err := b.rig.NewGenerator(f)
	if err != nil {
		return packetRun{}, err
	}
	sink, err := rig.NewSink(b.a.Host, f.Dst.Port())
	if err != nil {
		gen.Close()
		return packetRun{}, err
	}
	return packetRun{gen, sink}, nil
}

func (p packetRun) close() {
	p.gen.Close()
	_ = p.sink.Close()
}

// establish lets every flow be answered once, so that conntrack holds it for what it
// is: a connection, and not a new one with every packet.
func establish(b *bed, f rig.UDPFlows) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := b.a.EchoUDP(ctx, f.Dst); err != nil {
		return err
	}
	for i := range f.Flows {
		from := netip.AddrPortFrom(f.Src.Addr(), f.Src.Port()+uint16(i))
		conn, err := b.rig.Ext.DialUDP(from, f.Dst)
		if err != nil {
			return err
		}
		_, err = rig.RoundTrip(conn, []byte("hello"), patience)
		_ = conn.Close()
		if err != nil {
			return fmt.Errorf("greet the pod by UDP: %w", err)
		}
	}
	return nil
}

// measure returns the packets that arrived, in millions a second.
func (p packetRun) measure(for_ time.Duration) (float64, error) {
	// A first burst says how many packets go into a share of the time. Few system calls
	// matter: each makes the kernel rewrite the call of the generator's program, which
	// costs as much as a thousand packets.
	start := time.Now()
	warm, err := p.gen.SendFor(for_ / shares)
	if err != nil {
		return 0, err
	}
	burst := int(float64(warm) * (for_ / shares).Seconds() / time.Since(start).Seconds())
	before, err := p.sink.Packets()
	if err != nil {
		return 0, err
	}
	start = time.Now()
	for time.Since(start) < for_ {
		if err := p.gen.Send(max(burst, 1)); err != nil {
			return 0, err
		}
	}
	took := time.Since(start)
	after, err := p.sink.Packets()
	if err != nil {
		return 0, err
	}
	if after == before {
		return 0, errors.New("no packet arrived")
	}
	return float64(after-before) / took.Seconds() / 1e6, nil
}

// pin keeps the calling thread on the n-th of the processors that this process may use,
// or on the last one where there are fewer.
func pin(n int) error {
	var have, want unix.CPUSet
	if err := unix.SchedGetaffinity(unix.Getpid(), &have); err != nil {
		return fmt.Errorf("list processors: %w", err)
	}
	n = min(n, have.Count()-1)
	for cpu, seen := 0, 0; seen <= n; cpu++ {
		if !have.IsSet(cpu) {
			continue
		}
		if seen == n {
			want.Set(cpu)
		}
		seen++
	}
	if err := unix.SchedSetaffinity(0, &want); err != nil {
		return fmt.Errorf("pin a thread: %w", err)
	}
	return nil
}
