// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"net/netip"
	"testing"
)

// TestCRI goes through the life of a pod with containerd.
func TestCRI(t *testing.T) {
	eachContainerd(t, func(t *testing.T, c *containerd) {
		p := c.addPod(t, "first", nil)
		for _, addr := range []netip.Addr{p.addr4, p.addr6} {
			at := netip.AddrPortFrom(addr, servePort)
			c.wantFastIn(t, "udp", at, at)
			c.wantFastIn(t, "tcp", at, at)
		}
		c.remove(t, p)
	})
}
