// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"github.com/xveth/xveth/bpf"
)

// Reasons lists the names that Counters uses, in the order of bpf/reason.h.
func Reasons() ([]string, error) {
	names, err := reasonNames()
	if err != nil {
		return nil, err
	}
	return names[bpf.DatapathXvReasonXV_OK+1 : bpf.DatapathXvReasonXV_REASON_MAX], nil
}

// Program is one of the loaded programs.
type Program struct {
	Name string
	ID   uint32
	// Runs and Time of the program; both are 0 while the kernel does not count
	// (sysctl kernel.bpf_stats_enabled).
	Runs uint64
	Time time.Duration
}

// Programs lists the pinned programs by name.
func (d *Datapath) Programs() ([]Program, error) {
	pinned := d.pinnedPrograms()
	all := make([]Program, 0, len(pinned))
	for _, name := range slices.Sorted(maps.Keys(pinned)) {
		info, err := (*pinned[name]).Info()
		if err != nil {
			return nil, fmt.Errorf("read program %q: %w", name, err)
		}
		p := Program{Name: name}
		if id, ok := info.ID(); ok {
			p.ID = uint32(id)
		}
		if stats, err := (*pinned[name]).Stats(); err == nil {
			p.Runs, p.Time = stats.RunCount, stats.Runtime
		}
		all = append(all, p)
	}
	return all, nil
}

// LossesSeen says whether the programs are attached that count losses behind a
// redirect.
func (d *Datapath) LossesSeen() bool {
	for _, name := range []string{"link_redirect_err", "link_devmap_xmit"} {
		if _, err := os.Stat(filepath.Join(d.dir, name)); errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}

// Builds identify the object that the pinned programs came from, and the one that is
// embedded here.
func (d *Datapath) Builds() (pinned, embedded uint64, err error) {
	s, err := d.settings()
	return s.Build, build(), err
}

// Fill says how many flows of an address family are known, expired ones included, and
// how many can be.
type Fill struct {
	Family    int
	Used, Max uint32
}

// Fill counts the learned flows.
func (d *Datapath) Fill() ([]Fill, error) {
	four := Fill{Family: 4, Max: d.maps.XvFlows4.MaxEntries()}
	six := Fill{Family: 6, Max: d.maps.XvFlows6.MaxEntries()}
	for f, err := range d.Flows() {
		if err != nil {
			return nil, err
		}
		if f.Src.Addr().Is4() {
			four.Used++
		} else {
			six.Used++
		}
	}
	return []Fill{four, six}, nil
}

// Hooks says what is attached to an interface, by program name and in the order in
// which it runs.
type Hooks struct {
	// XDP program and whether it runs in the driver; "" when there is none.
	XDP       string
	XDPNative bool
	// Ingress and Egress are the programs on tcx.
	Ingress, Egress []string
	// IngressFilters and EgressFilters are the kinds of the clsact filters, which
	// run behind tcx.
	IngressFilters, EgressFilters []string
	// Qdisc is the kind of the root qdisc; "noqueue" when nothing is shaped.
	Qdisc string
	// Redirect says that XDP may send frames to the interface.
	Redirect bool
	// Blocked is how long nothing is redirected to the interface, because it
	// refused frames.
	Blocked time.Duration
}

// IsOurs says whether a program with that name is one of ours.
func IsOurs(program string) bool { return strings.HasPrefix(program, ours) }

// Hooks reads what is attached to an interface of the calling thread's namespace.
func (d *Datapath) Hooks(l netlink.Link) (Hooks, error) {
	h, err := HooksOf(l)
	if err != nil {
		return h, err
	}
	index := uint32(l.Attrs().Index)
	var v bpf.DatapathBpfDevmapVal
	h.Redirect = d.maps.XvDevs.Lookup(index, &v) == nil
	var until uint64
	if err := d.maps.XvBlocked.Lookup(index, &until); err == nil {
		if now := coarseNow(); until > now {
			h.Blocked = time.Duration(until - now)
		}
	}
	return h, nil
}

// HooksOf is Hooks where nothing is loaded.
func HooksOf(l netlink.Link) (Hooks, error) {
	var h Hooks
	if x := l.Attrs().Xdp; x != nil && x.Attached {
		h.XDPNative = x.AttachMode != nl.XDP_ATTACHED_SKB
		var err error
		if h.XDP, err = programName(ebpf.ProgramID(x.ProgId)); err != nil {
			h.XDP = fmt.Sprintf("id %d", x.ProgId)
		}
	}
	for _, hook := range []struct {
		at      ebpf.AttachType
		parent  uint32
		progs   *[]string
		filters *[]string
	}{
		{ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS, &h.Ingress, &h.IngressFilters},
		{ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS, &h.Egress, &h.EgressFilters},
	} {
		progs, err := tcxPrograms(l.Attrs().Index, hook.at)
		if err != nil {
			return h, err
		}
		for _, p := range progs {
			*hook.progs = append(*hook.progs, p.name)
		}
		filters, err := netlinksafe.FilterList(l, hook.parent)
		if err != nil {
			continue // no clsact qdisc
		}
		for _, f := range filters {
			*hook.filters = append(*hook.filters, f.Type())
		}
	}
	qdiscs, err := netlinksafe.QdiscList(l)
	if err != nil {
		return h, fmt.Errorf("list qdiscs of %q: %w", l.Attrs().Name, err)
	}
	for _, q := range qdiscs {
		if q.Attrs().Parent == netlink.HANDLE_ROOT {
			h.Qdisc = q.Type()
		}
	}
	return h, nil
}

// FlushMatching removes the flows that match and returns how many there were. Packets
// of a removed flow go to the kernel, which may let it be learned anew.
func (d *Datapath) FlushMatching(match func(*Flow) bool) (int, error) {
	n, now := 0, coarseNow()
	matches := func(f Flow) bool {
		if !match(&f) {
			return false
		}
		n++
		return true
	}
	err := errors.Join(
		forget(d.maps.XvFlows4, func(k *bpf.DatapathXvKey4, v *bpf.DatapathXvFlow4) bool {
			return matches(flow4(k, v, now))
		}),
		forget(d.maps.XvFlows6, func(k *bpf.DatapathXvKey6, v *bpf.DatapathXvFlow6) bool {
			return matches(flow6(k, v, now))
		}),
	)
	return n, err
}

// Indexes lists the interfaces that the maps have entries of: flows in either
// direction, redirect targets and ports.
func (d *Datapath) Indexes() ([]int, error) {
	seen := map[int]bool{}
	for f, err := range d.Flows() {
		if err != nil {
			return nil, err
		}
		seen[f.In], seen[f.Out] = true, true
	}
	for _, m := range []*ebpf.Map{d.maps.XvDevs, d.maps.XvPorts, d.maps.XvMembers} {
		var index uint32
		var value []byte
		it := m.Iterate()
		for it.Next(&index, &value) {
			seen[int(index)] = true
		}
		if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
			return nil, fmt.Errorf("read interfaces: %w", err)
		}
	}
	return slices.Sorted(maps.Keys(seen)), nil
}
