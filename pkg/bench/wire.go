// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/xveth/xveth/test/rig"
)

// ErrPrivilege says that a scenario makes network namespaces, and may not.
var ErrPrivilege = errors.New("run as root")

const (
	wireMTU = 1500
	// settleTime is how long frames may be on their way after the last was sent.
	settleTime = time.Second
	// settleTick is how often is looked whether they have arrived, and turnTick whether
	// the turn is over.
	settleTick, turnTick = 20 * time.Microsecond, 200 * time.Microsecond
)

// wire is a veth between two hosts that nobody else uses.
type wire struct {
	from, to  *rig.Host
	near, far string // the interfaces at the ends
}

// newHosts makes two hosts for wires.
func newHosts() (from, to *rig.Host, err error) {
	if os.Geteuid() != 0 {
		return nil, nil, fmt.Errorf("make network namespaces: %w", ErrPrivilege)
	}
	hosts := make([]*rig.Host, 0, 2)
	for _, name := range []string{"sender", "receiver"} {
		h, err := rig.NewHost(name, false)
		if err == nil {
			hosts = append(hosts, h)
			// Nothing but the benchmark's frames may cross the wire.
			err = errors.Join(h.Sysctl("net.ipv6.conf.all.disable_ipv6", "1"),
				h.Sysctl("net.ipv6.conf.default.disable_ipv6", "1"))
		}
		if err != nil {
			for _, h := range hosts {
				h.Close()
			}
			return nil, nil, err
		}
	}
	return hosts[0], hosts[1], nil
}

// newWire makes a veth with one queue at each end.
func newWire(from, to *rig.Host, name string) (*wire, error) {
	w := &wire{from: from, to: to, near: name + "-a", far: name + "-b"}
	err := from.Do(func() error {
		la := netlink.NewLinkAttrs()
		la.Name, la.NumRxQueues, la.NumTxQueues, la.MTU = w.near, 1, 1, wireMTU
		l := netlink.NewVeth(la)
		l.PeerName, l.PeerNamespace = w.far, netlink.NsFd(to.NetnsFD())
		l.PeerNumRxQueues, l.PeerNumTxQueues, l.PeerMTU = 1, 1, wireMTU
		if err := netlink.LinkAdd(l); err != nil {
			return fmt.Errorf("add veth %q: %w", w.near, err)
		}
		return rig.LinkUp(w.near)
	})
	if err == nil {
		err = to.Do(func() error { return rig.LinkUp(w.far) })
	}
	return w, err
}

// counts is how many frames the sending interface has sent, and how many it has dropped
// because the queue of the veth was full.
func (w *wire) counts() (sent, dropped uint64, err error) {
	err = w.from.Do(func() error {
		l, err := netlink.LinkByName(w.near)
		if err != nil {
			return fmt.Errorf("read statistics of %q: %w", w.near, err)
		}
		sent, dropped = l.Attrs().Statistics.TxPackets, l.Attrs().Statistics.TxDropped
		return nil
	})
	return sent, dropped, err
}

// crossing is a way of sending frames over a wire and receiving them.
type crossing interface {
	// send sends until the context ends and returns how many frames.
	send(ctx context.Context) (uint64, error)
	// receive receives until the context ends.
	receive(ctx context.Context) error
	// received is how many frames it has received so far.
	received() uint64
	// lost is how many frames did not get that far: each is counted somewhere.
	lost() (uint64, error)
	close() error
}

// crossingPath measures a crossing: what it receives, not what it sends. The kernel's threads
// take part in it, so a turn is not made again because others ran meanwhile.
func crossingPath(name string, c crossing) path {
	return path{name: name, lossy: true, rough: true, pair: func(d time.Duration) (turn, error) {
		var n int
		var t turn
		took, waited, err := watch(func() (err error) {
			start := time.Now()
			n, t.lost, err = cross(c, func() bool { return time.Since(start) >= d })
			return err
		})
		t.rate = float64(n) / took.Seconds()
		t.disturbed = waited.Seconds() / took.Seconds()
		return t, err
	}}
}

// cross sends and receives for one turn. It returns how many frames arrived, and the share of
// those that were lost. A frame that is neither fails the run.
func cross(c crossing, stop func() bool) (int, float64, error) {
	before := c.received()
	lostBefore, err := c.lost()
	if err != nil {
		return 0, 0, err
	}
	sending, stopSending := context.WithTimeout(context.Background(), settleTime)
	defer stopSending()
	receiving, stopReceiving := context.WithCancel(context.Background())
	defer stopReceiving()
	var sent, lost uint64
	var errs [2]error
	together(3, func(i int) int {
		switch i {
		case 0:
			// A turn in which nothing arrived would have no rate.
			for sending.Err() == nil && (!stop() || c.received() == before) {
				time.Sleep(turnTick)
			}
			stopSending()
		case 1:
			defer stopReceiving()
			if sent, errs[0] = c.send(sending); errs[0] == nil {
				lost, errs[0] = settle(c, sent, before, lostBefore)
			}
		case 2:
			errs[1] = c.receive(receiving)
		}
		return 0
	})
	n := c.received() - before
	if err := errors.Join(errs[:]...); err != nil {
		return 0, 0, err
	}
	if n == 0 {
		return 0, 0, fmt.Errorf("none of %d frames arrived within %v", sent, settleTime)
	}
	return int(n), float64(lost) / float64(sent), nil
}

// settle waits until every frame that was sent has been received or is counted as lost.
func settle(c crossing, sent, before, lostBefore uint64) (uint64, error) {
	for end := time.Now().Add(settleTime); ; time.Sleep(settleTick) {
		lost, err := c.lost()
		if err != nil {
			return 0, err
		}
		n := c.received() - before
		lost -= lostBefore
		switch {
		case n+lost == sent:
			return lost, nil
		case n+lost > sent, time.Now().After(end):
			return 0, fmt.Errorf("sent %d frames, received %d, counted %d as lost", sent, n, lost)
		}
	}
}
