// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/bpf"
)

// Drive is the hook that serves an uplink.
type Drive string

// The ways in which an uplink can be driven.
const (
	DriveXDP  Drive = "xdp"
	DriveTCX  Drive = "tcx"
	DriveNone Drive = "none"
)

// Want says how the operator wants an uplink to be driven.
type Want int

// The wishes for an uplink.
const (
	WantAuto Want = iota // XDP where frames carry complete checksums, else tcx
	WantXDP              // XDP whatever the device is; tcx only if it is refused
	WantTCX
	WantOff
)

// AttachUplink arms an uplink and returns the hook that serves it. When that is not
// the one that was wanted, reason says why.
func (d *Datapath) AttachUplink(name string, want Want) (drive Drive, reason string, err error) {
	unlock, err := d.lock()
	if err != nil {
		return DriveNone, "", err
	}
	defer unlock()
	l, err := netlink.LinkByName(name)
	if err != nil {
		return DriveNone, "", fmt.Errorf("find uplink %q: %w", name, err)
	}
	if want == WantOff {
		return DriveNone, "", d.detach(l)
	}
	if kind := l.Attrs().EncapType; kind != "ether" {
		return DriveNone, fmt.Sprintf("a device of link type %s has no Ethernet frames", kind), nil
	}
	if want == WantAuto {
		if reason, err = noXDP(l); err != nil {
			return DriveNone, "", err
		}
	}
	index := l.Attrs().Index
	if err := ensureTCX(index, ebpf.AttachTCXEgress, d.progs.XvLearnUplink); err != nil {
		return DriveNone, "", err
	}
	if want != WantTCX && reason == "" {
		err := d.driveByXDP(l)
		d.keepRefusal(index, err)
		if err == nil {
			return DriveXDP, "", nil
		}
		reason = err.Error()
	}
	if err := d.detachXDP(l); err != nil {
		return DriveNone, "", err
	}
	return DriveTCX, reason, ensureTCX(index, ebpf.AttachTCXIngress, d.progs.XvTcIn)
}

// driveByXDP puts XDP on an uplink, and behind it the program that leaves the notes.
func (d *Datapath) driveByXDP(l netlink.Link) error {
	index := l.Attrs().Index
	foreign, err := foreignIngress(l)
	if err != nil {
		return err
	}
	if foreign != "" {
		return fmt.Errorf("%w: %s would be skipped by xdp", ErrForeign, foreign)
	}
	// XDP first: where it is refused, the program that serves the uplink stays.
	if err := d.attachXDP(l); err != nil {
		return err
	}
	if err := ensureTCX(index, ebpf.AttachTCXIngress, d.progs.XvTcNote); err != nil {
		return err
	}
	return d.allowRedirect(index)
}

// foreignIngress names a tcx program or clsact filter of somebody else's on an
// interface's ingress.
func foreignIngress(l netlink.Link) (string, error) {
	progs, err := tcxPrograms(l.Attrs().Index, ebpf.AttachTCXIngress)
	if err != nil {
		return "", err
	}
	for _, p := range progs {
		if !strings.HasPrefix(p.name, ours) {
			return fmt.Sprintf("tcx program %q", p.name), nil
		}
	}
	filters, err := netlinksafe.FilterList(l, netlink.HANDLE_MIN_INGRESS)
	if err != nil {
		return "", nil // no clsact qdisc
	}
	if len(filters) > 0 {
		return fmt.Sprintf("a %s filter", filters[0].Type()), nil
	}
	return "", nil
}

// noXDP says why native XDP is not to be used on an uplink by itself, if it is not.
func noXDP(l netlink.Link) (string, error) {
	switch l.Type() {
	case "device": // a NIC: rtnetlink has no kind for it
	case "veth":
		return "frames from a veth may carry unfinished checksums", nil
	default:
		return fmt.Sprintf("a %s has no native xdp of its own", l.Type()), nil
	}
	links, err := netlinksafe.LinkList()
	if err != nil {
		return "", fmt.Errorf("list interfaces: %w", err)
	}
	for _, up := range links {
		if up.Type() == "vlan" && up.Attrs().ParentIndex == l.Attrs().Index {
			return fmt.Sprintf("xdp cannot tell the frames of VLAN interface %q from untagged ones", up.Attrs().Name), nil
		}
	}
	return "", nil
}

// DetachAll takes our programs off every interface of this network namespace and removes
// the pins: nothing of ours runs any more. It returns the names of the interfaces.
func DetachAll(dir string) ([]string, error) {
	links, err := netlinksafe.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var names []string
	var failed error
	for _, l := range links {
		had, err := detachFrom(l)
		if had {
			names = append(names, l.Attrs().Name)
		}
		failed = errors.Join(failed, err)
	}
	if failed != nil {
		return names, failed
	}
	return names, Unload(dir)
}

// detachFrom takes our programs off an interface, whatever is loaded now, and says
// whether there were any.
func detachFrom(l netlink.Link) (bool, error) {
	h, err := HooksOf(l)
	if err != nil {
		return false, err
	}
	had := IsOurs(h.XDP)
	for _, name := range append(h.Ingress, h.Egress...) {
		had = had || IsOurs(name)
	}
	if !had {
		return false, nil
	}
	return true, errors.Join(
		setXDPOff(l),
		detachTCX(l.Attrs().Index, ebpf.AttachTCXIngress),
		detachTCX(l.Attrs().Index, ebpf.AttachTCXEgress))
}

// Detach takes our programs off an interface, or forgets one that is about to vanish and does.
func (d *Datapath) Detach(ifindex int) error {
	unlock, err := d.lock()
	if err != nil {
		return err
	}
	defer unlock()
	l, err := netlink.LinkByIndex(ifindex)
	if err == nil {
		err = d.detach(l)
	} else {
		err = fmt.Errorf("find interface %d: %w", ifindex, err)
	}
	if err != nil && isGone(ifindex) {
		return d.forgetHooks(ifindex)
	}
	return err
}

func (d *Datapath) detach(l netlink.Link) error {
	index := l.Attrs().Index
	return errors.Join(
		d.forgetHooks(index),
		d.detachXDP(l),
		detachTCX(index, ebpf.AttachTCXIngress),
		detachTCX(index, ebpf.AttachTCXEgress))
}

// forgetHooks removes what the maps say of an interface because of our programs on it.
func (d *Datapath) forgetHooks(ifindex int) error {
	i := uint32(ifindex)
	return errors.Join(deleteKey(d.maps.XvDevs, &i), deleteKey(d.maps.XvMembers, &i))
}

// swapAttached puts the programs of this build in the place of those that another
// build left on the interfaces of this network namespace.
func (d *Datapath) swapAttached() error {
	links, err := netlinksafe.LinkList()
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	for _, l := range links {
		for _, hook := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			if err := d.swapTCX(l.Attrs().Index, hook); err != nil {
				if isGone(l.Attrs().Index) {
					continue
				}
				return err
			}
		}
		if x := l.Attrs().Xdp; x == nil || !x.Attached {
			continue
		}
		if have, err := programName(ebpf.ProgramID(l.Attrs().Xdp.ProgId)); err != nil || !strings.HasPrefix(have, ours) {
			continue
		}
		if err := d.attachXDP(l); err != nil {
			return err
		}
		if err := d.allowRedirect(l.Attrs().Index); err != nil {
			return err
		}
	}
	return nil
}

// isGone says whether an interface has vanished since it was listed.
func isGone(index int) bool {
	_, err := netlink.LinkByIndex(index)
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound)
}

func (d *Datapath) swapTCX(ifindex int, hook ebpf.AttachType) error {
	have, err := tcxPrograms(ifindex, hook)
	if err != nil {
		return err
	}
	fresh := d.pinnedPrograms()
	for _, h := range have {
		p, known := fresh[h.name]
		if !known {
			continue
		}
		if err := ensureTCX(ifindex, hook, *p); err != nil {
			return err
		}
		if h.name == "xv_learn_pod" {
			return d.allowRedirect(ifindex)
		}
	}
	return nil
}

// UplinkDrive returns the hook that serves an uplink now, and what is to be said about
// it: why it is not the one that was wanted, or why nothing is learned there. It
// changes nothing.
func (d *Datapath) UplinkDrive(name string, want Want) (drive Drive, reason string) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return DriveNone, err.Error()
	}
	foreign, err := foreignIngress(l)
	if err != nil {
		return DriveNone, err.Error()
	}
	if foreign != "" {
		foreign += " would be skipped by xdp"
	}
	if x := l.Attrs().Xdp; x != nil && x.Attached {
		have, err := programName(ebpf.ProgramID(x.ProgId))
		if err == nil && strings.HasPrefix(have, ours) {
			if foreign != "" {
				foreign = "nothing is learned: " + foreign
			}
			return DriveXDP, foreign
		}
		reason = fmt.Sprintf("xdp program %q is somebody else's", have)
	}
	if err := checkTCX(l.Attrs().Index, ebpf.AttachTCXIngress); err != nil {
		return DriveNone, err.Error()
	}
	switch {
	case reason != "" || want == WantTCX:
	case foreign != "":
		reason = foreign
	default:
		if reason, _ = noXDP(l); reason == "" || want == WantXDP {
			reason = d.refusal(l.Attrs().Index)
		}
	}
	return DriveTCX, reason
}

// keepRefusal remembers why XDP could not be attached, for UplinkDrive to tell: the
// kernel says it once, and it cannot be asked without another attempt.
func (d *Datapath) keepRefusal(ifindex int, refused error) {
	if refused == nil {
		_ = d.maps.XvRefusals.Delete(uint32(ifindex))
		return
	}
	var r bpf.DatapathXvRefusal
	for i, c := range []byte(refused.Error()) {
		if i < len(r.Text)-1 {
			r.Text[i] = int8(c)
		}
	}
	_ = d.maps.XvRefusals.Put(uint32(ifindex), &r)
}

func (d *Datapath) refusal(ifindex int) string {
	var r bpf.DatapathXvRefusal
	if d.maps.XvRefusals.Lookup(uint32(ifindex), &r) != nil {
		return ""
	}
	return unix.ByteSliceToString(unsafe.Slice((*byte)(unsafe.Pointer(&r.Text)), len(r.Text)))
}
