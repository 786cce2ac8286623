// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/test/rig"
)

const (
	// greetAtOnce is how many packets are under way; no ring and no buffer is that short.
	greetAtOnce = 128
	// greetBuffer holds them, each with a page of its own.
	greetBuffer = 4 << 20
	// lost is after how long an answer will not come any more.
	lost = 300 * time.Millisecond
	// lostMax is how many of the flows may stay without an answer.
	lostMax = 0.01
)

// Establish lets every flow be answered once by the pods, from the port at which they get
// it, so that conntrack holds it for what it is: a connection, and not a new one with every
// packet.
func Establish(ctx context.Context, r *rig.Rig, pods []*rig.Pod, port uint16, f rig.UDPFlows) (err error) {
	if err := r.Wire.Do(func() error { return Pin(0) }); err != nil {
		return err
	}
	deafEnd, err := deafen(r.Ext)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, deafEnd()) }()
	var echoes []*reader
	defer func() {
		for _, e := range echoes {
			err = errors.Join(err, e.Close())
		}
	}()
	for _, p := range pods {
		e, err := newReader(p.Host, netip.AddrPortFrom(p.Addr4, port), greetBuffer, 1, true, echo)
		if err != nil {
			return err
		}
		echoes = append(echoes, e)
	}
	gen, err := r.NewGenerator(f)
	if err != nil {
		return err
	}
	defer gen.Close()
	return greet(ctx, gen, echoes, max(f.Flows, 1))
}

func echo(fd int, m *messages, n int) error {
	for i := range n {
		m.iovs[i].SetLen(int(m.hdrs[i].len))
	}
	_, err := m.send(fd, n)
	for i := range n {
		m.iovs[i].SetLen(datagramMax)
	}
	return err
}

// greet sends a packet of each flow, and goes on when those under way are answered.
func greet(ctx context.Context, gen *rig.Generator, echoes []*reader, flows int) error {
	answered := func() (n int) {
		for _, e := range echoes {
			n += int(e.n.Load())
		}
		return n
	}
	missing := 0
	for sent := 0; sent < flows; {
		burst := min(greetAtOnce, flows-sent)
		if err := errors.Join(ctx.Err(), gen.Send(burst)); err != nil {
			return err
		}
		sent += burst
		for end := time.Now().Add(lost); answered() < sent-missing; time.Sleep(10 * time.Microsecond) {
			if time.Now().After(end) {
				missing = sent - answered()
			}
		}
		if float64(missing) > max(lostMax*float64(flows), greetAtOnce/2) {
			return fmt.Errorf("only %d of %d flows were answered", answered(), sent)
		}
	}
	return nil
}

// deafen makes a host drop UDP silently: there is nobody on it who expects the answers.
// The function that is returned ends it.
func deafen(h *rig.Host) (func() error, error) {
	t := &nftables.Table{Family: nftables.TableFamilyINet, Name: "deaf"}
	change := func(f func(c *nftables.Conn)) error {
		return h.Do(func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			f(c)
			return c.Flush()
		})
	}
	err := change(func(c *nftables.Conn) {
		c.AddTable(t)
		chain := c.AddChain(&nftables.Chain{
			Name: "prerouting", Table: t, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw,
		})
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
			&expr.Verdict{Kind: expr.VerdictDrop},
		}})
	})
	if err != nil {
		return nil, fmt.Errorf("%s: drop udp: %w", h.Name, err)
	}
	return func() error { return change(func(c *nftables.Conn) { c.DelTable(t) }) }, nil
}
