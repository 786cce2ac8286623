// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/pkg/status"
)

// headerLen is what interface statistics count of each packet besides the IP packet.
const headerLen = 14

// Sampler reads the counters of a node; each reading gives the rates since the one before.
type Sampler struct {
	dir  string
	last *sample
	// node tells which interfaces lead to pods and which out of the node.
	node *status.Node
}

// NewSampler takes the first reading of the node whose programs are pinned below dir.
func NewSampler(dir string) (*Sampler, error) {
	s := &Sampler{dir: dir}
	var err error
	s.last, err = s.read()
	return s, err
}

// Rates takes a reading and returns the rates since the one before. After an error that
// one counts on.
func (s *Sampler) Rates() (*Rates, error) {
	now, err := s.read()
	if err != nil {
		return nil, err
	}
	r := rates(s.last, now, s.node)
	s.last = now
	return r, nil
}

// sample is one reading of all counters.
type sample struct {
	at       time.Time
	links    map[int]linkCount
	flows    map[flowKey]datapath.Flow
	counters datapath.Counters
	losses   []datapath.Loss
}

// flowKey is what tells flows apart.
type flowKey struct {
	proto    uint8
	in       int
	src, dst netip.AddrPort
}

// linkCount are the statistics of an interface, in IP packets.
type linkCount struct {
	name   string
	byXDP  bool // flows from it are redirected by XDP
	rx, tx count
}

type count struct{ packets, bytes uint64 }

func (s *Sampler) read() (*sample, error) {
	d, err := datapath.Open(s.dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	now := &sample{flows: map[flowKey]datapath.Flow{}}
	if now.counters, err = d.Counters(); err != nil {
		return nil, err
	}
	if now.losses, err = d.Losses(); err != nil {
		return nil, err
	}
	if now.links, err = readLinks(d); err != nil {
		return nil, err
	}
	now.at = time.Now()
	for f, err := range d.Flows() {
		if err != nil {
			return nil, err
		}
		now.flows[flowKey{f.Proto, f.In, f.Src, f.Dst}] = f
	}
	return now, s.know(now.links)
}

// know asks who is behind the interfaces when others have come or gone: that takes many
// calls for each of them.
func (s *Sampler) know(links map[int]linkCount) error {
	if s.node != nil && s.last != nil && slices.Equal(slices.Sorted(maps.Keys(links)), slices.Sorted(maps.Keys(s.last.links))) {
		return nil
	}
	var err error
	s.node, err = status.Brief(s.dir)
	return err
}

func readLinks(d *datapath.Datapath) (map[int]linkCount, error) {
	programs, err := d.Programs()
	if err != nil {
		return nil, err
	}
	links, err := netlinksafe.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	all := make(map[int]linkCount, len(links))
	for _, l := range links {
		a := l.Attrs()
		c := linkCount{name: a.Name, byXDP: runs(a.Xdp, programs)}
		if st := a.Statistics; st != nil {
			c.rx, c.tx = inIP(st.RxPackets, st.RxBytes), inIP(st.TxPackets, st.TxBytes)
		}
		all[a.Index] = c
	}
	return all, nil
}

// runs says whether one of our programs is what XDP runs.
func runs(x *netlink.LinkXdp, ours []datapath.Program) bool {
	return x != nil && x.Attached && slices.ContainsFunc(ours, func(p datapath.Program) bool { return p.ID == x.ProgId })
}

func inIP(packets, bytes uint64) count {
	return count{packets, bytes - min(bytes, headerLen*packets)}
}
