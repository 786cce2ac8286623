// SPDX-License-Identifier: Apache-2.0

package netbench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/xveth/xveth/pkg/netbench/traffic"
	"github.com/xveth/xveth/test/rig"
)

// scaleFlowsPerPod is how many flows each pod has while pods become more.
const scaleFlowsPerPod = 10

// Steps in which flows and pods become more, up to what the options say.
var (
	scaleFlows = []int{1, 100, 1000, 10_000, 30_000, 100_000, 1_000_000}
	scalePods  = []int{1, 10, 50, 100, 250}
)

var scale = &scenario{
	name:    "scale",
	about:   "cost of a packet from the wire to a pod, as flows and pods become more",
	uses:    []string{"size", "flows", "rules", "pods", "revalidate"},
	paths:   []string{pathPTP, pathXveth},
	more:    []string{pathBridge, pathXvethOff, pathXvethTCX},
	flows:   1_000_000,
	pods:    250,
	open:    openScale,
	prepare: roomForFlows,
}

// scaleRun measures one step after the other.
type scaleRun struct {
	beds  []*bed
	steps []scaleStep
	o     *Options
}

type scaleStep struct {
	metric
	flows   int
	packets *traffic.Packets
}

func openScale(ctx context.Context, path string, o *Options) (runner, error) {
	r := &scaleRun{o: o}
	if err := r.prepare(ctx, path); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// prepare makes a bed for all numbers of flows, and one for each number of pods.
func (r *scaleRun) prepare(ctx context.Context, path string) error {
	var steps []scaleStep
	for _, n := range upTo(scaleFlows, r.o.Flows) {
		steps = append(steps, newScaleStep(fmt.Sprintf("flows=%d", n), n))
	}
	if err := r.addBed(ctx, path, 1, steps); err != nil {
		return err
	}
	for _, n := range upTo(scalePods, r.o.Pods) {
		step := newScaleStep(fmt.Sprintf("pods=%d", n), n*scaleFlowsPerPod)
		if err := r.addBed(ctx, path, n, []scaleStep{step}); err != nil {
			return err
		}
	}
	return nil
}

func newScaleStep(name string, flows int) scaleStep {
	return scaleStep{metric: metric{name: name, unit: "ns/packet", lower: true, headline: true}, flows: flows}
}

// upTo cuts steps off at the largest, which is the last in any case.
func upTo(steps []int, largest int) []int {
	i, _ := slices.BinarySearch(steps, largest)
	return append(slices.Clone(steps[:i]), largest)
}

// addBed makes a bed with packets for all of its pods. Of the last step's flows, which are
// the most, those of the others are a part.
func (r *scaleRun) addBed(ctx context.Context, path string, pods int, steps []scaleStep) error {
	o := *r.o
	o.Flows = steps[len(steps)-1].flows
	b, err := newBed(ctx, path, &o, bedOptions{pods: pods})
	if err != nil {
		return err
	}
	r.beds = append(r.beds, b)
	first, last := b.pods[0].Addr4, b.pods[pods-1].Addr4
	if number(last)-number(first) != pods-1 {
		return fmt.Errorf("the addresses of %d pods are not in a row: %s to %s", pods, first, last)
	}
	f := rig.UDPFlows{
		Src: netip.AddrPortFrom(benchAddr, firstPort), Dst: netip.AddrPortFrom(first, sinkPort),
		Flows: o.Flows, Dsts: pods, Size: o.Size,
	}
	if err := traffic.Establish(ctx, b.rig, b.pods, sinkPort, f); err != nil {
		return err
	}
	var sinks sinkSum
	b.later(func() error { return sinks.close() })
	for _, p := range b.pods {
		s, err := rig.NewSink(p.Host, sinkPort)
		if err != nil {
			return err
		}
		sinks = append(sinks, s)
	}
	for _, s := range steps {
		f.Flows = s.flows
		if s.packets, err = traffic.NewPackets(b.rig, f, 0, sinks); err != nil {
			return err
		}
		b.later(s.packets.Close)
		r.steps = append(r.steps, s)
	}
	return nil
}

// number is an IPv4 address as a number.
func number(a netip.Addr) int {
	b := a.As4()
	return int(binary.BigEndian.Uint32(b[:]))
}

func (r *scaleRun) on() *bed { return nil }

func (r *scaleRun) close() (failed error) {
	for _, b := range r.beds {
		failed = errors.Join(failed, b.close())
	}
	return failed
}

// turn measures each step as long as other scenarios do: shorter than the
// interval after which flows are confirmed, it would hide what that costs.
func (r *scaleRun) turn(ctx context.Context, m *meter) (all []figure, err error) {
	for _, s := range r.steps {
		c, err := measurePackets(ctx, s.packets, s.flows, r.o.Duration, &meter{})
		if err != nil {
			return nil, err
		}
		all = append(all, figure{s.metric, c.CPU.Seconds() * 1e9 / float64(c.Arrived)})
	}
	return all, nil
}

// sinkSum counts what several sinks count.
type sinkSum []*rig.Sink

// Packets is how many arrived so far, at all of them.
func (s sinkSum) Packets() (sum uint64, err error) {
	for _, one := range s {
		n, err := one.Packets()
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// Close does nothing: several generators count by the same sinks.
func (s sinkSum) Close() error { return nil }

func (s sinkSum) close() (failed error) {
	for _, one := range s {
		failed = errors.Join(failed, one.Close())
	}
	return failed
}
