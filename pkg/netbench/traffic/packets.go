// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/xveth/xveth/pkg/bench/cputime"
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

	// Poller, if set, is the thread whose processor time is taken instead of the
	// generator's: that of a kernel thread that polls the uplink.
	Poller int
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

// sendAtOnce is how many packets one system call sends that nobody measures: it ends soon
// after a signal.
const sendAtOnce = 1 << 18

// Send sends a number of packets.
func (p *Packets) Send(ctx context.Context, n int) error {
	for ; n > 0; n -= sendAtOnce {
		if err := errors.Join(ctx.Err(), p.gen.Send(min(n, sendAtOnce))); err != nil {
			return err
		}
	}
	return nil
}

// WarmUp sends for some time, and at least so many packets. It finds out how many go into
// that time. Few system calls matter: each makes the kernel rewrite the call of the
// generator's program, which costs as much as a thousand packets.
func (p *Packets) WarmUp(ctx context.Context, d time.Duration, least int) error {
	start := time.Now()
	sent, err := p.gen.SendFor(d)
	if err != nil {
		return err
	}
	p.burst = max(1, int(float64(sent)*d.Seconds()/time.Since(start).Seconds()))
	return p.Send(ctx, least-sent)
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
func (p *Packets) Measure(ctx context.Context, d time.Duration) (Counted, error) {
	return p.MeasureBursts(ctx, d, p.burst, func() error { return nil })
}

// MeasureBursts sends for some time, a burst at a time. What is done between two bursts is
// not measured.
func (p *Packets) MeasureBursts(ctx context.Context, d time.Duration, burst int, between func() error) (c Counted, err error) {
	before, err := p.sink.Packets()
	if err != nil {
		return c, err
	}
	for c.Took < d {
		if err := ctx.Err(); err != nil {
			return c, err
		}
		if err := p.rig.Wire.Do(func() error { return p.sendBurst(burst, &c) }); err != nil {
			return c, err
		}
		if err := between(); err != nil {
			return c, err
		}
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

// sendBurst sends on the wire's thread.
func (p *Packets) sendBurst(n int, c *Counted) error {
	cpu, err := p.cpuTime()
	if err != nil {
		return err
	}
	start := time.Now()
	if err := p.gen.SendHere(n); err != nil {
		return err
	}
	c.Took += time.Since(start)
	c.Sent += uint64(n)
	now, err := p.cpuTime()
	c.CPU += now - cpu
	return err
}

// cpuTime is the processor time of what is measured, so far.
func (p *Packets) cpuTime() (time.Duration, error) {
	if p.Poller != 0 {
		return schedTime(fmt.Sprintf("/proc/%d", p.Poller)), nil
	}
	t, err := cputime.Thread()
	return t + softirqTime(1), err
}
