// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/xveth/xveth/test/rig"
)

// linkCounter counts what an interface has received, before anything is done with it.
type linkCounter struct {
	host *rig.Host
	dev  string
}

// NewLinkCounter counts what comes in by an interface of a host.
func NewLinkCounter(h *rig.Host, dev string) Counter { return &linkCounter{h, dev} }

// Packets is how many packets came in.
func (c *linkCounter) Packets() (n uint64, err error) {
	err = c.host.Do(func() error {
		l, err := netlink.LinkByName(c.dev)
		if err != nil {
			return fmt.Errorf("%s: find %q: %w", c.host.Name, c.dev, err)
		}
		n = l.Attrs().Statistics.RxPackets
		return nil
	})
	return n, err
}

// Close does nothing: the kernel counts on.
func (c *linkCounter) Close() error { return nil }
