// SPDX-License-Identifier: Apache-2.0

// Package top shows which pods and flows of a node have how much traffic, how much of it
// takes the fast path, and why the rest does not. It reads counters that are kept anyway
// and changes nothing. All functions look at the network namespace of the calling thread.
package top

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/pkg/status"
)

// Rates are what happened on a node in an interval. The JSON names are stable. Packets
// and bits are per second; bits are those of IP packets.
type Rates struct {
	// At is the end of the interval.
	At time.Time `json:"at"`
	// Seconds is its length.
	Seconds float64 `json:"seconds"`
	// Fast and Kernel are packets that came in by armed interfaces, by their way.
	Fast   float64 `json:"fast"`
	Kernel float64 `json:"kernel"`
	// Lost are packets and frames that were lost, at ingress and behind redirects.
	Lost float64 `json:"lost"`
	// FastBits took the fast path.
	FastBits float64 `json:"fastBits"`
	// Reasons for each way, and what was learned; only those that happened.
	Reasons []Reason `json:"reasons"`
	// Losses behind redirects; only those that happened.
	Losses []Loss `json:"losses"`
	// Known flows, and those of them that are fast now.
	Known int `json:"knownFlows"`
	Live  int `json:"liveFlows"`
	// Interfaces to pods and out of the node.
	Interfaces []Interface `json:"interfaces"`
	// Flows that are fast now, or were within the interval.
	Flows []Flow `json:"flows"`
}

// Reason is one of the counters of package status.
type Reason struct {
	Reason  string      `json:"reason"`
	Path    status.Path `json:"path"`
	Meaning string      `json:"meaning"`
	Packets float64     `json:"packets"`
}

// Loss is of frames on their way to an interface.
type Loss struct {
	Interface string  `json:"interface"`
	Cause     string  `json:"cause"`
	Frames    float64 `json:"frames"`
}

// Interface is the host end of a pod, or an uplink.
type Interface struct {
	Name string `json:"name"`
	// Uplink says that it leads out of the node.
	Uplink bool `json:"uplink"`
	// Pod is "network container interface" of the pod.
	Pod string `json:"pod,omitempty"`
	// To is what the node sends there, From what comes from there.
	To   Traffic `json:"to"`
	From Traffic `json:"from"`
	// Lost frames on the way there.
	Lost float64 `json:"lost"`
}

// Traffic in one direction.
type Traffic struct {
	Packets float64 `json:"packets"`
	Bits    float64 `json:"bits"`
	// FastBits of Bits took the fast path.
	FastBits float64 `json:"fastBits"`
}

// Share of the fast path, from 0 to 1; ok is false without traffic.
func (i *Interface) Share() (share float64, ok bool) {
	bits := i.To.Bits + i.From.Bits
	if bits == 0 {
		return 0, false
	}
	return (i.To.FastBits + i.From.FastBits) / bits, true
}

// Flow is a flow on the fast path.
type Flow struct {
	Proto string `json:"proto"`
	In    string `json:"in"`
	Out   string `json:"out"`
	// Src and Dst as packets come in.
	Src netip.AddrPort `json:"src"`
	Dst netip.AddrPort `json:"dst"`
	// Live says that packets take the fast path now.
	Live bool `json:"live"`
	// Age in seconds since the flow was learned.
	Age     float64 `json:"age"`
	Packets float64 `json:"packets"`
	Bits    float64 `json:"bits"`
}

// moved is what flows moved by or to an interface.
type moved struct {
	in, out uint64 // bytes
	// past is what was handed to the pod past the statistics of the host end.
	past count
}

func rates(a, b *sample, node *status.Node) *Rates {
	r := &Rates{
		At: b.at, Seconds: b.at.Sub(a.at).Seconds(), Known: len(b.flows),
		Reasons: []Reason{}, Losses: []Loss{}, Interfaces: []Interface{}, Flows: make([]Flow, 0, len(b.flows)),
	}
	lostTo := r.addLosses(a, b)
	r.addReasons(a, b)
	by := r.addFlows(a, b)
	for _, u := range node.Uplinks {
		for index, l := range b.links {
			if l.name == u.Name {
				r.addInterface(a, b, index, by[index], Interface{Name: u.Name, Uplink: true, Lost: lostTo[index]})
			}
		}
	}
	for _, p := range node.Attachments {
		if _, ok := b.links[p.HostIndex]; ok {
			r.addInterface(a, b, p.HostIndex, by[p.HostIndex], Interface{
				Name: p.HostDev, Pod: p.Network + " " + p.ContainerID + " " + p.IfName, Lost: lostTo[p.HostIndex],
			})
		}
	}
	return r
}

// per makes a rate of what a counter counted. One that went back was made anew.
func (r *Rates) per(was, is uint64) float64 {
	if is < was {
		was = 0
	}
	return float64(is-was) / r.Seconds
}

func (r *Rates) addReasons(a, b *sample) {
	for reason, is := range b.counters {
		x := Reason{reason, status.PathOf(reason), status.Meaning(reason), r.per(a.counters[reason], is)}
		if x.Packets == 0 {
			continue
		}
		r.Reasons = append(r.Reasons, x)
		switch x.Path {
		case status.Fast:
			r.Fast += x.Packets
		case status.Kernel:
			r.Kernel += x.Packets
		case status.Lost:
			r.Lost += x.Packets
		}
	}
	slices.SortFunc(r.Reasons, func(x, y Reason) int {
		return cmp.Or(cmp.Compare(x.Path, y.Path), cmp.Compare(y.Packets, x.Packets), cmp.Compare(x.Reason, y.Reason))
	})
}

// addLosses returns frames lost by interface.
func (r *Rates) addLosses(a, b *sample) map[int]float64 {
	was := map[datapath.Loss]uint64{}
	for _, l := range a.losses {
		was[datapath.Loss{Ifindex: l.Ifindex, Err: l.Err}] = l.Frames
	}
	to := map[int]float64{}
	for _, l := range b.losses {
		frames := r.per(was[datapath.Loss{Ifindex: l.Ifindex, Err: l.Err}], l.Frames)
		if frames == 0 {
			continue
		}
		r.Lost += frames
		to[l.Ifindex] += frames
		r.Losses = append(r.Losses, Loss{b.nameOf(l.Ifindex), status.LossCause(l), frames})
	}
	return to
}

// addFlows returns what the flows of each interface moved.
func (r *Rates) addFlows(a, b *sample) map[int]moved {
	by := map[int]moved{}
	for k, f := range b.flows {
		was := a.flows[k]
		if f.Packets < was.Packets || f.Age.Seconds() < r.Seconds { // it was learned anew
			was = datapath.Flow{}
		}
		packets, bytes := f.Packets-was.Packets, f.Bytes-min(was.Bytes, f.Bytes)
		if f.Live() {
			r.Live++
		} else if packets == 0 {
			continue
		}
		in, out := by[f.In], by[f.Out]
		if f.In == f.Out {
			in.in, in.out = in.in+bytes, in.out+bytes
			by[f.In] = in
		} else {
			in.in += bytes
			out.out += bytes
			if f.ToPod && !b.links[f.In].byXDP {
				out.past.packets += packets
				out.past.bytes += bytes
			}
			by[f.In], by[f.Out] = in, out
		}
		x := Flow{
			Proto: status.ProtoName(f.Proto), In: b.nameOf(f.In), Out: b.nameOf(f.Out), Src: f.Src, Dst: f.Dst, Live: f.Live(),
			Age: f.Age.Seconds(), Packets: r.per(0, packets), Bits: 8 * r.per(0, bytes),
		}
		r.FastBits += x.Bits
		r.Flows = append(r.Flows, x)
	}
	return by
}

func (r *Rates) addInterface(a, b *sample, index int, m moved, i Interface) {
	was, is := a.links[index], b.links[index]
	i.From = r.traffic(was.rx, is.rx, count{}, m.in)
	i.To = r.traffic(was.tx, is.tx, m.past, m.out)
	r.Interfaces = append(r.Interfaces, i)
}

// traffic of an interface in one direction: what its statistics count, and what went past
// them. They are not read at the same instant as the flows, of which there cannot be more.
func (r *Rates) traffic(was, is, past count, fast uint64) Traffic {
	t := Traffic{
		Packets:  r.per(was.packets, is.packets) + r.per(0, past.packets),
		Bits:     8 * (r.per(was.bytes, is.bytes) + r.per(0, past.bytes)),
		FastBits: 8 * r.per(0, fast),
	}
	t.Bits = max(t.Bits, t.FastBits)
	return t
}

func (s *sample) nameOf(index int) string {
	if l, ok := s.links[index]; ok {
		return l.name
	}
	return status.NameOfGone(index)
}
