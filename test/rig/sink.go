// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/bpf"
)

// Sink counts and drops UDP packets to one port as soon as a host's own stack has
// received them.
type Sink struct {
	host  *Host
	chain *nftables.Chain
}

const sinkTable = "sink"

// NewSink starts counting on a host.
func NewSink(h *Host, port uint16) (*Sink, error) {
	s := &Sink{host: h}
	err := h.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		t := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: sinkTable})
		s.chain = c.AddChain(&nftables.Chain{
			Name: "prerouting", Table: t, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw,
		})
		c.AddRule(&nftables.Rule{Table: t, Chain: s.chain, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{byte(port >> 8), byte(port)}},
			&expr.Counter{},
			&expr.Verdict{Kind: expr.VerdictDrop},
		}})
		return c.Flush()
	})
	if err != nil {
		return nil, fmt.Errorf("%s: start a sink: %w", h.Name, err)
	}
	return s, nil
}

// Packets is how many packets have arrived so far.
func (s *Sink) Packets() (n uint64, err error) {
	err = s.host.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		rules, err := c.GetRules(s.chain.Table, s.chain)
		if err != nil {
			return err
		}
		for _, r := range rules {
			for _, e := range r.Exprs {
				if counter, ok := e.(*expr.Counter); ok {
					n = counter.Packets
					return nil
				}
			}
		}
		return errors.New("no counter")
	})
	if err != nil {
		return 0, fmt.Errorf("%s: read the sink: %w", s.host.Name, err)
	}
	return n, nil
}

// Close stops counting.
func (s *Sink) Close() error {
	return s.host.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		c.DelTable(s.chain.Table)
		return c.Flush()
	})
}

// OrderSink counts and drops numbered packets as a host receives them.
type OrderSink struct {
	host *Host
	objs *bpf.RigObjects
	link link.Link
}

// NewOrderSink starts counting on an interface of a host.
func NewOrderSink(h *Host, dev string) (*OrderSink, error) {
	s := &OrderSink{host: h}
	err := h.Do(func() error {
		l, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		if s.objs, err = loadRig(nil); err != nil {
			return err
		}
		s.link, err = link.AttachTCX(link.TCXOptions{
			Interface: l.Attrs().Index, Program: s.objs.RigOrder, Attach: ebpf.AttachTCXIngress,
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: start an order sink: %w", h.Name, err)
	}
	return s, nil
}

// Counts returns how many packets arrived, and how many of them behind a later one.
func (s *OrderSink) Counts() (arrived, late uint64, err error) {
	err = errors.Join(s.objs.RigArrived.Get(&arrived), s.objs.RigLate.Get(&late))
	return arrived, late, err
}

// Close stops counting.
func (s *OrderSink) Close() {
	_ = s.link.Close()
	_ = s.objs.Close()
}
