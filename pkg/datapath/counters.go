// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/xveth/xveth/bpf"
)

// reasonNames lists enum xv_reason of bpf/reason.h in the order of its values, as
// "fast_xdp" or "pass_no_flow". They come from the object's type information.
var reasonNames = sync.OnceValues(func() ([]string, error) {
	spec, err := bpf.LoadDatapath()
	if err != nil {
		return nil, fmt.Errorf("read the embedded programs: %w", err)
	}
	var enum *btf.Enum
	if err := spec.Types.TypeByName("xv_reason", &enum); err != nil {
		return nil, fmt.Errorf("find the reasons: %w", err)
	}
	names := make([]string, 0, len(enum.Values))
	for _, v := range enum.Values {
		names = append(names, strings.ToLower(strings.TrimPrefix(v.Name, "XV_")))
	}
	return names, nil
})

// Counters holds packets by the name of their reason, such as "fast_xdp" or
// "pass_no_flow". A packet that passes ingress and egress counts at both.
type Counters map[string]uint64

// Counters reads the packet counters.
func (d *Datapath) Counters() (Counters, error) {
	names, err := reasonNames()
	if err != nil {
		return nil, err
	}
	all := Counters{}
	for r := range bpf.DatapathXvReasonXV_REASON_MAX {
		if r == bpf.DatapathXvReasonXV_OK {
			continue
		}
		var perCPU []uint64
		if err := d.maps.XvCounters.Lookup(uint32(r), &perCPU); err != nil {
			return nil, fmt.Errorf("read counters: %w", err)
		}
		var sum uint64
		for _, n := range perCPU {
			sum += n
		}
		all[names[r]] = sum
	}
	return all, nil
}

// Fast is the number of packets that took the fast path.
func (c Counters) Fast() uint64 {
	return c["fast_xdp"] + c["fast_xdp_tx"] + c["fast_tcx"]
}

// Loss counts frames that were lost behind a redirect.
type Loss struct {
	// Ifindex of the interface that they were to leave by.
	Ifindex int
	// Err of the device; nil means that its ring was full.
	Err error
	// Frames lost.
	Frames uint64
}

// Losses lists what was lost behind redirects.
func (d *Datapath) Losses() ([]Loss, error) {
	var (
		all []Loss
		k   bpf.DatapathXvLossKey
		n   uint64
	)
	it := d.maps.XvLosses.Iterate()
	for it.Next(&k, &n) {
		l := Loss{Ifindex: int(k.Ifindex), Frames: n}
		if k.Err != 0 {
			l.Err = syscall.Errno(-k.Err)
		}
		all = append(all, l)
	}
	if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return nil, fmt.Errorf("read losses: %w", err)
	}
	return all, nil
}
