// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"time"

	"github.com/xveth/xveth/test/rig"
)

// Counter counts what arrives.
type Counter interface {
	// Packets is how many arrived so far.
	Packets() (uint64, error)
	Close() error
}

// Packets are UDP packets that a rig's generator sends from the wire into the uplink.
type Packets struct {
	rig   *rig.Rig
	gen   *rig.Generator
	sink  Counter
	burst int
}

// NewPackets prepares packets that the sink counts. The thread that generates does all
// that the node does as well, on the first processor. Close closes the sink too.
func NewPackets(r *rig.Rig, f rig.UDPFlows, batch int, sink Counter) (*Packets, error) {
	if err := r.Wire.Do(func() error { return Pin(0) }); err != nil {
		return nil, err
	}
	gen, err := r.NewGenerator(f)
	if err != nil {
		return nil, err
	}
	gen.Batch = uint32(batch)
	return &Packets{rig: r, gen: gen, sink: sink}, nil
}

// Close ends the generator and the counter.
func (p *Packets) Close() error {
	p.gen.Close()
	return p.sink.Close()
}

// Send sends a number of packets.
func (p *Packets) Send(n int) error { return p.gen.Send(n) }

// WarmUp sends for some time, and finds out how many packets go into that time. Few
// system calls matter: each makes the kernel rewrite the call of the generator's program,
// which costs as much as a thousand packets.
func (p *Packets) WarmUp(d time.Duration) error {
	start := time.Now()
	sent, err := p.gen.SendFor(d)
	if err != nil {
		return err
	}
	p.burst = max(1, int(float64(sent)*d.Seconds()/time.Since(start).Seconds()))
	return nil
}

// Counted is what a measurement counted.
type Counted struct {
	Sent, Arrived uint64
	Took          time.Duration
	// CPU is the processor time of generator, node and pod, as far as they run on the
	// generator's processor. Other work on the machine is not in it.
	CPU time.Duration
}

// Rate is packets a second that arrived.
func (c Counted) Rate() float64 { return float64(c.Arrived) / c.Took.Seconds() }

// Measure sends for some time, in bursts as long as WarmUp took.
func (p *Packets) Measure(ctx context.Context, d time.Duration) (c Counted, err error) {
	before, err := p.sink.Packets()
	if err != nil {
		return c, err
	}
	err = p.rig.Wire.Do(func() error {
		cpu, err := threadTime()
		if err != nil {
			return err
		}
		soft := softirqTime()
		if err := p.sendFor(ctx, d, &c); err != nil {
			return err
		}
		now, err := threadTime()
		c.CPU = now - cpu + softirqTime() - soft
		return err
	})
	if err != nil {
		return c, err
	}
	after, err := p.sink.Packets()
	if err != nil {
		return c, err
	}
	if c.Arrived = after - before; c.Arrived == 0 {
		return c, errors.New("no packet arrived")
	}
	return c, nil
}

func (p *Packets) sendFor(ctx context.Context, d time.Duration, c *Counted) error {
	for start := time.Now(); c.Took < d; c.Took = time.Since(start) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := p.gen.SendHere(p.burst); err != nil {
			return err
		}
		c.Sent += uint64(p.burst)
	}
	return nil
}
