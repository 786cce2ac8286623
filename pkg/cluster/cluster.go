// SPDX-License-Identifier: Apache-2.0

// Package cluster makes the kernel of a node reach the pods of the other nodes: by routes
// where the nodes share a link, and through a VXLAN device where they do not. It also hides
// the node's pods from what lies outside the cluster. All of it is the kernel's: it goes on
// working while nobody calls Apply.
//
// Only what carries our name is changed or removed: routes of protocol RouteProtocol, the
// device DeviceName, and the node's chain of table inet xveth.
//
// All functions work in the network namespace of the calling thread.
package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/xveth/xveth/pkg/masq"
	"github.com/xveth/xveth/pkg/veth"
)

// Tunnel says which nodes are reached through VXLAN.
type Tunnel string

// The ways to choose.
const (
	// TunnelAuto takes the tunnel to the nodes that are not on a link of this one, and
	// for pods of a family in which the other node cannot be reached.
	TunnelAuto Tunnel = "auto"
	// TunnelNever leaves nodes that are not on a link to the routers between.
	TunnelNever Tunnel = "never"
	// TunnelAlways takes it to all of them.
	TunnelAlways Tunnel = "always"
)

// Config says how pods of other nodes are reached.
type Config struct {
	Tunnel Tunnel
	// VNI and Port (UDP) of the tunnel.
	VNI, Port int
	// Masquerade hides pods behind the node's address when they talk to anything that is
	// neither a pod nor in KeepSource.
	Masquerade bool
	KeepSource []netip.Prefix
	// Uplinks that the operator named; empty takes those that routes lead to.
	Uplinks []string
}

// Node of the cluster.
type Node struct {
	Name string
	// Addrs are the node's own; the first of a family counts.
	Addrs    []netip.Addr
	PodCIDRs []netip.Prefix
	// Created decides between two nodes that claim the same range: the newer has it.
	Created time.Time
}

// addr returns the node's address of a family.
func (n *Node) addr(v4 bool) (netip.Addr, bool) {
	for _, a := range n.Addrs {
		if a.Is4() == v4 {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// Result says what came of Apply.
type Result struct {
	// MTU is that of the way to pods of other nodes, in bytes.
	MTU int
	// Uplinks are the devices that the pods' packets leave by, the VXLAN device last.
	Uplinks []string
	// Native and Tunnelled count the other nodes' ranges by the way to them. Left are
	// those that TunnelNever leaves to the routers between.
	Native, Tunnelled, Left int
	// Unknown says for each range to which no way was found why that is so.
	Unknown []error
}

// Apply brings the kernel in line with the cluster. It changes only what differs, never
// takes a route away before its successor is there, and goes on after an error. A range to
// which no way is found now is no error: what was made for it before stays as it is.
func Apply(cfg Config, self Node, others []Node) (Result, error) {
	p, failed := newPlan(cfg, self, others)
	if failed != nil {
		return Result{}, failed
	}
	tunnel, err := p.syncTunnel()
	failed = errors.Join(failed, err)
	failed = errors.Join(failed, p.syncRoutes(tunnel))
	// What only old routes needed goes after them.
	failed = errors.Join(failed, p.dropTunnel(tunnel))
	if cfg.Masquerade {
		failed = errors.Join(failed, masq.ReplaceNode(self.PodCIDRs, append(p.podRanges(), cfg.KeepSource...)))
	} else {
		failed = errors.Join(failed, masq.RemoveNode())
	}
	return p.result(tunnel), failed
}

// Remove takes away all that Apply made.
func Remove() error {
	p := &plan{}
	return errors.Join(p.syncRoutes(nil), p.dropTunnel(nil), masq.RemoveNode())
}

// plan says how each range is reached.
type plan struct {
	cfg  Config
	self Node
	ways []way
	// unknown are ranges of which it could not be found out, and why.
	unknown []netip.Prefix
	why     []error
	uplinks []string
	mtu     int // of the links
	left    int
}

// way to the pods of another node.
type way struct {
	node *Node
	dst  netip.Prefix
	// link and via are those of the other node itself; the tunnel's packets go there too.
	link   int
	via    netip.Addr
	tunnel bool
}

func newPlan(cfg Config, self Node, others []Node) (*plan, error) {
	p := &plan{cfg: cfg, self: self}
	if err := p.findUplinks(); err != nil {
		return nil, err
	}
	for _, c := range claims(self, others) {
		if err := p.add(c.node, c.dst); err != nil {
			p.unknown = append(p.unknown, c.dst)
			p.why = append(p.why, fmt.Errorf("find the way to pods %s of node %q: %w", c.dst, c.node.Name, err))
		}
	}
	return p, nil
}

type claim struct {
	node *Node
	dst  netip.Prefix
}

// claims are the ranges of the other nodes. A range that overlaps one of this node's, or
// of a newer node's, is left out: it is an old one's that is on its way out.
func claims(self Node, others []Node) []claim {
	others = slices.Clone(others)
	slices.SortFunc(others, func(a, b Node) int {
		if c := b.Created.Compare(a.Created); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	taken := slices.Clone(self.PodCIDRs)
	var all []claim
	for i := range others {
		for _, dst := range others[i].PodCIDRs {
			if slices.ContainsFunc(taken, dst.Overlaps) {
				continue
			}
			taken = append(taken, dst)
			all = append(all, claim{&others[i], dst})
		}
	}
	return all
}

// findUplinks takes the devices that the operator named, or those of the default routes;
// those that lead to other nodes come to the latter.
func (p *plan) findUplinks() error {
	p.uplinks = slices.Clone(p.cfg.Uplinks)
	if len(p.uplinks) == 0 {
		var err error
		if p.uplinks, err = veth.Uplinks(); err != nil {
			return err
		}
	}
	for _, name := range p.uplinks {
		mtu, err := veth.LinkMTU(name)
		if err != nil {
			return fmt.Errorf("uplink: %w", err)
		}
		p.atMost(mtu)
	}
	return nil
}

func (p *plan) atMost(mtu int) {
	if p.mtu == 0 || mtu < p.mtu {
		p.mtu = mtu
	}
}

// add decides how a range is reached.
func (p *plan) add(n *Node, dst netip.Prefix) error {
	if p.cfg.Tunnel != TunnelAlways {
		via, ok := n.addr(dst.Addr().Is4())
		var h hop
		var err error
		if ok {
			h, err = lookUp(via)
		}
		switch {
		case ok && err == nil && h.direct:
			p.ways = append(p.ways, way{node: n, dst: dst, link: h.link, via: via})
			p.use(h)
			return nil
		case p.cfg.Tunnel == TunnelNever && err != nil:
			return err
		case p.cfg.Tunnel == TunnelNever:
			p.left++
			return nil
		}
	}
	if len(p.self.Addrs) == 0 {
		return errors.New("this node has no address")
	}
	// One family carries all tunnelled packets: that of this node's first address.
	v4 := p.self.Addrs[0].Is4()
	via, ok := n.addr(v4)
	if !ok {
		return fmt.Errorf("it has no address of the family of %s, which this node's tunnel needs", p.self.Addrs[0])
	}
	h, err := lookUp(via)
	if err != nil {
		return err
	}
	p.ways = append(p.ways, way{node: n, dst: dst, link: h.link, via: via, tunnel: true})
	p.use(h)
	return nil
}

// use has the pods' packets leave by the device too, unless the operator has named all.
func (p *plan) use(h hop) {
	if len(p.cfg.Uplinks) == 0 && !slices.Contains(p.uplinks, h.name) {
		p.uplinks = append(p.uplinks, h.name)
		p.atMost(h.mtu)
	}
}

// tunnelled are the ways through the tunnel.
func (p *plan) tunnelled() []way {
	var ways []way
	for _, w := range p.ways {
		if w.tunnel {
			ways = append(ways, w)
		}
	}
	return ways
}

// podRanges are those of the whole cluster.
func (p *plan) podRanges() []netip.Prefix {
	all := slices.Clone(p.self.PodCIDRs)
	for _, w := range p.ways {
		all = append(all, w.dst)
	}
	return append(all, p.unknown...)
}

func (p *plan) result(t *tunnel) Result {
	r := Result{MTU: p.mtu, Uplinks: p.uplinks, Left: p.left, Unknown: p.why}
	for _, w := range p.ways {
		if w.tunnel {
			r.Tunnelled++
		} else {
			r.Native++
		}
	}
	if t != nil {
		r.MTU, r.Uplinks = t.mtu, append(slices.Clone(r.Uplinks), DeviceName)
	}
	return r
}
