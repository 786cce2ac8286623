// SPDX-License-Identifier: Apache-2.0

// Package demo shows on one machine what xveth does: it makes a node, two pods and a
// remote host in network namespaces of their own, lets them talk, compares the kernel's
// path with xveth's in alternate rounds, and removes everything. It is no benchmark:
// one machine plays all parts, so only its ratios mean something.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/xveth/xveth/pkg/bench/result"
)

// ErrNotRoot says that the caller may not make network namespaces.
var ErrNotRoot = errors.New("the demo makes network namespaces and loads BPF programs: run it as root")

// ErrInterrupted says that the caller's context ended. What was made is gone even so.
var ErrInterrupted = errors.New("interrupted; everything is removed again")

// cleanUpWithin bounds the removal of the pods, which a signal must not cut short.
const cleanUpWithin = 10 * time.Second

// Options of a run.
type Options struct {
	// Plugins is the folder of the plugin binaries.
	Plugins string
	// Rounds is how often each path is measured.
	Rounds int
	// Duration of one round of a measurement of throughput; latencies take a third.
	Duration time.Duration
	// Out gets the report as text while it comes about.
	Out io.Writer
	// Progress says what is being done; each message replaces the one before.
	Progress func(string)
}

// Run shows and measures. What it made is gone when it returns.
func Run(ctx context.Context, o Options) (rep *Report, err error) {
	if os.Geteuid() != 0 {
		return nil, ErrNotRoot
	}
	start := time.Now()
	rep = &Report{Machine: result.ThisMachine(), Rounds: o.Rounds, RoundSeconds: o.Duration.Seconds()}
	writeHead(o.Out, rep)
	defer func() {
		rep.Seconds = time.Since(start).Seconds()
		if err == nil {
			writeTail(o.Out, rep)
		}
	}()

	o.Progress("making two nodes with two pods and a remote host each")
	kernel, err := newBed(ctx, "kernel", o.Plugins, kernelConf)
	if err != nil {
		return rep, orInterrupted(ctx, err)
	}
	defer func() { err = errors.Join(err, kernel.close()) }()
	xveth, err := newBed(ctx, "xveth", o.Plugins, nil)
	if err != nil {
		return rep, orInterrupted(ctx, err)
	}
	defer func() { err = errors.Join(err, xveth.close()) }()

	d := &demo{Options: o, rep: rep, beds: [2]*bed{kernel, xveth}}
	for _, step := range []func(context.Context) error{d.reach, d.packets, d.transfers, d.latencies, d.flows} {
		if err := step(ctx); err != nil {
			return rep, orInterrupted(ctx, err)
		}
	}
	return rep, nil
}

// orInterrupted takes an error for what follows from an interruption, if there was one.
func orInterrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ErrInterrupted
	}
	return err
}

// demo is one run.
type demo struct {
	Options
	rep  *Report
	beds [2]*bed
}

// reach lets everything talk to everything.
func (d *demo) reach(ctx context.Context) error {
	b := d.beds[1]
	d.Progress("ping and TCP between the pods and the remote host")
	for _, p := range b.pods() {
		d.rep.Pods = append(d.rep.Pods, Pod{p.ID, p.Addr4, p.Addr6, p.HostDev})
	}
	var err error
	if d.rep.Reached, err = b.reach(ctx); err != nil {
		return err
	}
	writeReached(d.Out, d.rep)
	return nil
}

func (d *demo) packets(ctx context.Context) error {
	var runs [2]packetRun
	for i, b := range d.beds {
		run, err := newPacketRun(ctx, b)
		if err != nil {
			return err
		}
		defer run.Close()
		runs[i] = run
	}
	c, err := d.compare(ctx, "UDP packets", d.Duration, func(i int, for_ time.Duration) (float64, error) {
		return runs[i].measure(ctx, for_)
	})
	if err != nil {
		return err
	}
	d.rep.Rows = []Row{{"kernel", c.Kernel.Median}, {"xveth", c.Xveth.Median}}
	d.rep.Ratio = c.Xveth.Median / c.Kernel.Median
	d.rep.Packets = c.inUnit("Mpps", d.rep.Ratio)
	writeCompared(d.Out, "64-byte UDP, remote host to pod", d.rep.Packets)
	return nil
}

func (d *demo) transfers(ctx context.Context) error {
	c, err := d.compare(ctx, "TCP transfers", d.Duration, func(i int, for_ time.Duration) (float64, error) {
		b := d.beds[i]
		return b.transfer(b.a.Host, b.b.Host, b.b.Addr4, for_)
	})
	if err != nil {
		return err
	}
	d.rep.TCP = c.inUnit("Gbit/s", c.Xveth.Median/c.Kernel.Median)
	writeCompared(d.Out, "bulk TCP, pod to pod", d.rep.TCP)
	return nil
}

func (d *demo) latencies(ctx context.Context) error {
	for _, m := range []struct {
		title string
		ext   bool
		to    *Compared
	}{
		{"TCP round trip, pod to pod", false, &d.rep.RR.PodToPod},
		{"TCP round trip, remote host to pod", true, &d.rep.RR.ExtToPod},
	} {
		c, err := d.compare(ctx, m.title, d.Duration/3, func(i int, for_ time.Duration) (float64, error) {
			b := d.beds[i]
			from := b.a.Host
			if m.ext {
				from = b.rig.Ext
			}
			return b.roundTrips(from, b.b.Host, b.b.Addr4, for_)
		})
		if err != nil {
			return err
		}
		// Of a latency less is better: turned round, so that more than 1 is in
		// favour of xveth in every ratio.
		*m.to = c.inUnit("us", c.Kernel.Median/c.Xveth.Median)
		writeCompared(d.Out, m.title, *m.to)
	}
	return nil
}

// compare measures both paths in turn. Which goes first changes with every round, so
// that a machine that slows down or speeds up meanwhile favours neither.
func (d *demo) compare(ctx context.Context, what string, for_ time.Duration, measure func(int, time.Duration) (float64, error)) (Compared, error) {
	var runs [2][]float64
	for round := range d.Rounds {
		for turn := range 2 {
			if err := ctx.Err(); err != nil {
				return Compared{}, err
			}
			i := (round + turn) % 2
			d.Progress(fmt.Sprintf("%s: round %d of %d, %s", what, round+1, d.Rounds, d.beds[i].name))
			v, err := measure(i, for_)
			if err != nil {
				return Compared{}, fmt.Errorf("measure %s, %s: %w", what, d.beds[i].name, err)
			}
			runs[i] = append(runs[i], v)
		}
	}
	return Compared{Kernel: statOf(runs[0]), Xveth: statOf(runs[1])}, nil
}

// flows lets all parts talk once more and reads what the node learns of it.
func (d *demo) flows(ctx context.Context) error {
	d.Progress("learned flows")
	var err error
	if d.rep.Flows, err = d.beds[1].learn(ctx); err != nil {
		return err
	}
	writeFlows(d.Out, d.rep)
	return nil
}
