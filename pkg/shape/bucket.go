// SPDX-License-Identifier: Apache-2.0

package shape

import (
	"fmt"
	"math"

	"github.com/vishvananda/netlink"
)

const (
	bitsPerByte = 8
	// linkHeader is what a packet has in front of its MTU: Ethernet and one
	// VLAN tag, which the kernel counts too.
	linkHeader = 18
	// smallestBurst in seconds: a bucket that a timer fills has to hold what
	// comes in between two ticks of a slow kernel (100 Hz).
	smallestBurst = 0.01
	// queueTime is how long a packet may wait, as in the reference plugin.
	queueTime = 0.025
	// tick is the kernel's unit of a bucket's depth in seconds (2^6 ns).
	tick = 64e-9
)

// tokenBucket plans the qdisc for a rate in bits a second and a burst in bits.
//
// A packet longer than the bucket is deep never passes, and with a local jumbo
// MTU packets have 65535 bytes, so the burst asked for is raised to one packet.
// The depth is given to the kernel as a time in ticks: it is rounded up, since
// at 10 Gbit/s the microseconds that the reference plugin uses lose 1250 bytes.
func tokenBucket(link, mtu int, rate, burst uint64) (*netlink.Tbf, error) {
	bytesPerSecond := rate / bitsPerByte
	if bytesPerSecond == 0 {
		return nil, fmt.Errorf("%w: a rate of %d bits a second is less than a byte", ErrInvalid, rate)
	}
	depth := float64(burst / bitsPerByte)
	if burst == 0 {
		depth = float64(bytesPerSecond) * smallestBurst
	}
	depth = math.Max(depth, float64(mtu+linkHeader))
	// One tick more covers the rounding when the kernel turns it into bytes.
	ticks := math.Ceil(depth/float64(bytesPerSecond)/tick) + 1
	return &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: link,
			Handle:    netlink.MakeHandle(1, 0),
			Parent:    netlink.HANDLE_ROOT,
		},
		Rate:   bytesPerSecond,
		Buffer: clamp(ticks),
		Limit:  clamp(float64(bytesPerSecond)*queueTime + depth),
	}, nil
}

func clamp(f float64) uint32 {
	return uint32(math.Min(f, math.MaxUint32))
}
