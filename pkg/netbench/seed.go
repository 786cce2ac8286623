// SPDX-License-Identifier: Apache-2.0

package netbench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/xveth/xveth/pkg/netbench/traffic"
	"github.com/xveth/xveth/test/rig"
)

// published are figures of the kernel's mailing lists that a scenario is shown beside. What
// they compared is a kernel with a change and one without; a running kernel has the change,
// so here its effect shows as that of the batch.
type published struct {
	What   string  `json:"what"`
	Before float64 `json:"before"`
	After  float64 `json:"after"`
	Unit   string  `json:"unit"`
	Ratio  float64 `json:"ratio"`
}

func publish(what string, before, after float64, unit string) *published {
	return &published{what, before, after, unit, after / before}
}

const batchPrefix = "batch-"

// batches are how many frames the wire hands over at once: so many come in one NAPI poll.
var batches = []string{"batch-1", "batch-4", "batch-8", "batch-16", "batch-32", "batch-64"}

// batchOf reads the number in a path's name; 0 is the kernel's own choice.
func batchOf(path string) (int, error) {
	n, isBatch := strings.CutPrefix(path, batchPrefix)
	if !isBatch {
		return 0, nil
	}
	return strconv.Atoi(n)
}

var seedXDPPass = &scenario{
	name:      "seed-xdp-pass",
	about:     "uplink, XDP_REDIRECT, veth, the pod's stack, by frames at a time",
	uses:      []string{"size"},
	paths:     batches,
	published: publish("veth: allocate skbs in bulk for XDP_PASS", 3.64, 3.75, "Mpps"),
	open: func(ctx context.Context, path string, o *Options) (runner, error) {
		return openSeed(ctx, path, pathRedirect, o, func(b *bed) (traffic.Counter, error) {
			return rig.NewSink(b.pod().Host, sinkPort)
		})
	},
}

// pathUplinkDrop is a limit: the generator, and drop on the uplink.
const pathUplinkDrop = "uplink-drop"

var seedRedirectDrop = &scenario{
	name:      "seed-redirect-drop",
	about:     "uplink, XDP_REDIRECT, veth, XDP_DROP in the pod, by frames at a time",
	uses:      []string{"size"},
	paths:     append(batches[:len(batches):len(batches)], pathUplinkDrop),
	published: publish("xdp: return frames by their owner's pointer, redirect and drop", 8.45, 9.0, "Mpps"),
	open: func(ctx context.Context, path string, o *Options) (runner, error) {
		if path == pathUplinkDrop {
			return openSeed(ctx, path, pathLimit, o, func(b *bed) (traffic.Counter, error) {
				return traffic.NewLinkCounter(b.rig.Node, rig.Uplink), nil
			})
		}
		return openSeed(ctx, path, pathRedirect, o, func(b *bed) (traffic.Counter, error) {
			err := b.verdict(b.pod().Host, rig.PodDev, rig.Verdict{Action: rig.XDPDrop})
			return traffic.NewLinkCounter(b.pod().Host, rig.PodDev), err
		})
	},
}

var seedXDPTx = &scenario{
	name:      "seed-xdp-tx",
	about:     "uplink, XDP_TX, back into the wire, by frames at a time",
	uses:      []string{"size"},
	paths:     batches,
	published: publish("veth: transmit in bulk for XDP_TX", 7.26, 7.84, "Mpps"),
	open: func(ctx context.Context, path string, o *Options) (runner, error) {
		return openSeed(ctx, path, pathVeth, o, func(b *bed) (traffic.Counter, error) {
			err := b.verdict(b.rig.Node, rig.Uplink, rig.Verdict{Action: rig.XDPTx})
			return traffic.NewLinkCounter(b.rig.Wire, rig.WireNode), err
		})
	},
}

// openSeed makes a bed of which nothing comes back to the remote host.
func openSeed(ctx context.Context, name, base string, o *Options, sink func(b *bed) (traffic.Counter, error)) (runner, error) {
	batch, err := batchOf(name)
	if err != nil {
		return nil, err
	}
	b, err := newBed(ctx, base, o, bedOptions{pods: 1, oneWay: true})
	if err != nil {
		return nil, err
	}
	r := &uplinkRun{bed: b, o: o}
	if r.packets, err = b.seedPackets(o, batch, sink); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return r, nil
}

func (b *bed) seedPackets(o *Options, batch int, sink func(b *bed) (traffic.Counter, error)) (*traffic.Packets, error) {
	s, err := sink(b)
	if err != nil {
		return nil, err
	}
	p, err := traffic.NewPackets(b.rig, rig.UDPFlows{
		Src: netip.AddrPortFrom(benchAddr, firstPort), Dst: netip.AddrPortFrom(b.pod().Addr4, sinkPort), Size: o.Size,
	}, batch, s)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	b.later(p.Close)
	return p, nil
}

// Paths of seed-multibuffer.
const (
	pathPlainXDP = "xdp"
	pathFragsXDP = "xdp.frags"
	pathJumbo    = "jumbo"
)

// jumboMTU is that of jumbo frames, which come in several buffers.
const jumboMTU = 9000

var seedMultibuffer = &scenario{
	name:      "seed-multibuffer",
	about:     "DROP, TX, and PASS with a drop by tc: plain programs, those that take fragments, and jumbo frames",
	uses:      []string{"size"},
	paths:     []string{pathPlainXDP, pathFragsXDP, pathJumbo},
	published: publish("xdp: multi-buffer, drop of single-buffer frames", 740, 739.5, "kpps"),
	open:      openMultibuffer,
}

// multiRun measures three verdicts, one after the other.
type multiRun struct {
	steps []multiStep
	jumbo bool
	o     *Options
}

type multiStep struct {
	metric
	*bed
	packets *traffic.Packets
	sender  *traffic.Sender
}

func openMultibuffer(ctx context.Context, path string, o *Options) (runner, error) {
	r := &multiRun{o: o, jumbo: path == pathJumbo}
	for _, v := range []struct {
		name string
		rig.Action
	}{{"drop", rig.XDPDrop}, {"tx", rig.XDPTx}, {"pass", rig.XDPPass}} {
		err := r.addStep(ctx, v.name, rig.Verdict{Action: v.Action, Frags: path != pathPlainXDP})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", v.name, err), r.close())
		}
	}
	return r, nil
}

func (r *multiRun) addStep(ctx context.Context, name string, v rig.Verdict) error {
	b, err := newBed(ctx, pathVeth, r.o, bedOptions{pods: 1, oneWay: true})
	if err != nil {
		return err
	}
	s := multiStep{metric: metric{name: name, unit: "Mpps", headline: true}, bed: b}
	if r.jumbo {
		s.name += " jumbo"
		err = b.setMTU(jumboMTU)
	}
	if err == nil {
		err = s.prepare(r, v)
	}
	r.steps = append(r.steps, s)
	return err
}

func (s *multiStep) prepare(r *multiRun, v rig.Verdict) error {
	end, err := rig.DropBehindXDP(s.rig.Node, rig.Uplink)
	if err != nil {
		return err
	}
	s.later(func() error { end(); return nil })
	if err := s.verdict(s.rig.Node, rig.Uplink, v); err != nil {
		return err
	}
	if !r.jumbo {
		s.packets, err = s.seedPackets(r.o, 0, func(b *bed) (traffic.Counter, error) {
			return traffic.NewLinkCounter(b.rig.Node, rig.Uplink), nil
		})
		return err
	}
	if err := s.knowNode(); err != nil {
		return err
	}
	s.sender, err = traffic.NewSender(s.rig.Ext, netip.AddrPortFrom(s.pod().Addr4, sinkPort), 1, jumboMTU-20-8)
	if err != nil {
		return err
	}
	s.later(func() error { s.sender.Close(); return nil })
	return nil
}

// knowNode tells the remote host the node's MAC address: on a wire that goes one way there
// is no answer to a question for it.
func (b *bed) knowNode() error {
	var uplink netlink.Link
	err := b.rig.Node.Do(func() (err error) {
		uplink, err = netlink.LinkByName(rig.Uplink)
		return err
	})
	if err != nil {
		return fmt.Errorf("find the uplink: %w", err)
	}
	return b.rig.Ext.Do(func() error {
		l, err := netlink.LinkByName(rig.ExtDev)
		if err != nil {
			return err
		}
		err = netlink.NeighSet(&netlink.Neigh{
			LinkIndex: l.Attrs().Index, IP: rig.NodeAddr4.AsSlice(),
			HardwareAddr: uplink.Attrs().HardwareAddr, State: netlink.NUD_PERMANENT,
		})
		if err != nil {
			return fmt.Errorf("tell the remote host the node's address: %w", err)
		}
		return nil
	})
}

// setMTU makes the way from the remote host to the node take larger packets.
func (b *bed) setMTU(mtu int) error {
	for _, l := range []struct {
		host *rig.Host
		dev  string
	}{{b.rig.Wire, rig.WireExt}, {b.rig.Wire, rig.WireNode}, {b.rig.Node, rig.Uplink}, {b.rig.Ext, rig.ExtDev}} {
		err := l.host.Do(func() error {
			dev, err := netlink.LinkByName(l.dev)
			if err != nil {
				return err
			}
			return netlink.LinkSetMTU(dev, mtu)
		})
		if err != nil {
			return fmt.Errorf("set the mtu of %q to %d: %w", l.dev, mtu, err)
		}
	}
	return nil
}

func (r *multiRun) on() *bed { return nil }

func (r *multiRun) close() (failed error) {
	for _, s := range r.steps {
		failed = errors.Join(failed, s.bed.close())
	}
	return failed
}

func (r *multiRun) turn(ctx context.Context, _ *meter) (all []figure, err error) {
	d := max(MinDuration, r.o.Duration/time.Duration(len(r.steps)))
	for _, s := range r.steps {
		if r.jumbo {
			mpps, err := s.sendJumbo(ctx, d)
			if err != nil {
				return nil, err
			}
			all = append(all, figure{s.metric, mpps})
			continue
		}
		c, err := measurePackets(ctx, s.packets, 1, d, &meter{})
		if err != nil {
			return nil, err
		}
		all = append(all,
			figure{s.metric, c.Rate() / 1e6},
			figure{metric{name: s.name + " cost", unit: perCPU.unit, lower: true}, c.CPU.Seconds() * 1e9 / float64(c.Arrived)})
	}
	return all, nil
}

// sendJumbo sends from a socket: frames of the generator have one buffer.
func (s *multiStep) sendJumbo(ctx context.Context, d time.Duration) (float64, error) {
	counter := traffic.NewLinkCounter(s.rig.Node, rig.Uplink)
	before, err := counter.Packets()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if _, _, err := s.sender.Send(d); err != nil {
		return 0, errors.Join(ctx.Err(), err)
	}
	took := time.Since(start)
	after, err := counter.Packets()
	return float64(after-before) / took.Seconds() / 1e6, err
}
