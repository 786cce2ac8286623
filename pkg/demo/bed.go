// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/pkg/netbench/ruleset"
	"github.com/xveth/xveth/pkg/status"
	"github.com/xveth/xveth/test/rig"
)

// kernelConf makes of the default configuration what any veth plugin sets up.
var kernelConf = map[string]any{
	"fastPath": map[string]any{"mode": "off"},
	"localMTU": "off",
}

// Ports on which pods and the remote host answer.
const (
	echoPort = 7
	namePort = 53
	webPort  = 80
)

// bed is a rig with two pods and a firewall, on which one path is measured.
type bed struct {
	name string
	rig  *rig.Rig
	a, b *rig.Pod
}

func newBed(ctx context.Context, name, plugins string, conf map[string]any) (*bed, error) {
	r, err := rig.New(rig.Options{Plugins: plugins, Conf: conf})
	if err != nil {
		return nil, err
	}
	b := &bed{name: name, rig: r}
	if err := b.fill(ctx); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

func (b *bed) fill(ctx context.Context) error {
	if err := b.rig.Node.Do(ruleset.Firewall); err != nil {
		return fmt.Errorf("add the firewall: %w", err)
	}
	var err error
	if b.a, err = b.rig.AddPod(ctx, "a", nil); err != nil {
		return err
	}
	b.b, err = b.rig.AddPod(ctx, "b", nil)
	return err
}

// close removes the pods by the plugin and then the rest.
func (b *bed) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanUpWithin)
	defer cancel()
	var failed error
	for _, p := range b.rig.Pods() {
		failed = errors.Join(failed, p.Remove(ctx))
	}
	b.rig.Close()
	return failed
}

func (b *bed) pods() []*rig.Pod { return []*rig.Pod{b.a, b.b} }

// reach pings and connects between the pods and the remote host.
func (b *bed) reach(ctx context.Context) ([]Reached, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, at := range []struct {
		host *rig.Host
		addr netip.Addr
	}{
		{b.b.Host, b.b.Addr4}, {b.b.Host, b.b.Addr6}, {b.rig.Ext, rig.ExtAddr4}, {b.rig.Ext, rig.ExtAddr6},
	} {
		if err := at.host.EchoTCP(ctx, netip.AddrPortFrom(at.addr, echoPort)); err != nil {
			return nil, err
		}
	}
	var all []Reached
	for _, way := range []struct {
		from, to string
		host     *rig.Host
		addr     netip.Addr
	}{
		{"pod a", "pod b", b.a.Host, b.b.Addr4},
		{"pod a", "pod b", b.a.Host, b.b.Addr6},
		{"pod a", "remote host", b.a.Host, rig.ExtAddr4},
		{"pod a", "remote host", b.a.Host, rig.ExtAddr6},
		{"remote host", "pod b", b.rig.Ext, b.b.Addr4},
		{"remote host", "pod b", b.rig.Ext, b.b.Addr6},
	} {
		for _, try := range []struct {
			what string
			do   func(*rig.Host, netip.Addr) (time.Duration, error)
		}{{"ping", ping}, {"tcp", connect}} {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			took, err := try.do(way.host, way.addr)
			if err != nil {
				return nil, fmt.Errorf("%s from %s to %s (%s): %w", try.what, way.from, way.to, way.addr, err)
			}
			all = append(all, Reached{try.what, way.from, way.to, way.addr, float64(took.Nanoseconds()) / 1e3})
		}
	}
	return all, nil
}

// connect makes a round trip over a TCP connection of its own; it returns the time of
// the round trip, without that of connecting.
func connect(from *rig.Host, to netip.Addr) (time.Duration, error) {
	conn, err := from.DialTCP(netip.AddrPort{}, netip.AddrPortFrom(to, echoPort))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	start := time.Now()
	_, err = rig.RoundTrip(conn, []byte("hello"), patience)
	return time.Since(start), err
}

// talkFor is how long everybody talks before the flows are read; it is less than the
// interval after which a flow has to be confirmed.
const talkFor = 300 * time.Millisecond

// learn opens connections between all parts and lists the flows that are learned of
// them while they are open.
func (b *bed) learn(ctx context.Context) ([]status.Flow, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, err := range []error{
		b.b.EchoTCP(ctx, netip.AddrPortFrom(b.b.Addr4, webPort)),
		b.b.EchoTCP(ctx, netip.AddrPortFrom(b.b.Addr6, webPort)),
		b.rig.Ext.EchoUDP(ctx, netip.AddrPortFrom(rig.ExtAddr4, namePort)),
	} {
		if err != nil {
			return nil, err
		}
	}
	var conns []net.Conn
	for _, way := range []struct {
		dial func(from, to netip.AddrPort) (net.Conn, error)
		to   netip.AddrPort
	}{
		{dialTCP(b.a.Host), netip.AddrPortFrom(b.b.Addr4, webPort)},
		{dialTCP(b.rig.Ext), netip.AddrPortFrom(b.b.Addr6, webPort)},
		{dialUDP(b.a.Host), netip.AddrPortFrom(rig.ExtAddr4, namePort)},
	} {
		conn, err := way.dial(netip.AddrPort{}, way.to)
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		conns = append(conns, conn)
	}
	for end := time.Now().Add(talkFor); time.Now().Before(end) && ctx.Err() == nil; {
		for _, conn := range conns {
			if _, err := rig.RoundTrip(conn, []byte("hello"), patience); err != nil {
				return nil, fmt.Errorf("talk to %s: %w", conn.RemoteAddr(), err)
			}
		}
	}
	return b.flows()
}

func dialTCP(h *rig.Host) func(from, to netip.AddrPort) (net.Conn, error) {
	return func(from, to netip.AddrPort) (net.Conn, error) { return h.DialTCP(from, to) }
}

func dialUDP(h *rig.Host) func(from, to netip.AddrPort) (net.Conn, error) {
	return func(from, to netip.AddrPort) (net.Conn, error) { return h.DialUDP(from, to) }
}

// flows lists the live flows of the node.
func (b *bed) flows() (all []status.Flow, err error) {
	d, err := datapath.Open(b.rig.Node.Path(datapath.DefaultDir))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	err = b.rig.Node.Do(func() error {
		all, err = status.Flows(d, status.FlowFilter{})
		return err
	})
	if err != nil {
		return nil, err
	}
	return all, status.SortFlows(all, "packets")
}
