// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/bpf"
)

// ours is how the name of each of our programs begins.
const ours = "xv_"

// ErrForeign says that somebody else's program holds the hook.
var ErrForeign = errors.New("somebody else's program is attached")

func init() {
	// Without the kernel's own words an XDP refusal is a bare "invalid argument".
	nl.EnableErrorMessageReporting = true
}

// Pod says how a host veth is to be driven.
type Pod struct {
	// ToPod lets flows to the pod be learned.
	ToPod bool
	// FromPod lets flows from the pod be learned and repeated.
	FromPod bool
	// XDP adds native XDP, for pods that send xdp_frames.
	XDP bool
	// MAC address of the pod's end; needed where the host veth is the port of a bridge.
	MAC net.HardwareAddr
}

// AttachPod arms the host veth with the given index. What is attached lives as long
// as the interface.
func (d *Datapath) AttachPod(ifindex int, p Pod) error {
	unlock, err := d.lock()
	if err != nil {
		return err
	}
	defer unlock()
	l, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return fmt.Errorf("find interface %d: %w", ifindex, err)
	}
	if err := d.noteMember(l, p); err != nil {
		return err
	}
	if p.ToPod {
		if err := ensureTCX(ifindex, ebpf.AttachTCXEgress, d.progs.XvLearnPod); err != nil {
			return err
		}
		if err := d.allowRedirect(ifindex); err != nil {
			return err
		}
	}
	if !p.FromPod {
		return nil
	}
	if err := ensureTCX(ifindex, ebpf.AttachTCXIngress, d.progs.XvTcIn); err != nil {
		return err
	}
	if !p.XDP {
		return nil
	}
	return d.attachXDP(l)
}

// allowRedirect lets XDP send frames to an interface.
func (d *Datapath) allowRedirect(ifindex int) error {
	v := bpf.DatapathBpfDevmapVal{Ifindex: uint32(ifindex)}
	v.BpfProg.Fd = -1
	if err := d.maps.XvDevs.Put(uint32(ifindex), v); err != nil {
		return fmt.Errorf("put interface %d into the devmap: %w", ifindex, err)
	}
	return nil
}

// attachXDP runs our program natively on an interface on which no other runs.
func (d *Datapath) attachXDP(l netlink.Link) error {
	name, index := l.Attrs().Name, l.Attrs().Index
	port := bpf.DatapathXvPort{}
	copy(port.Mac[:], l.Attrs().HardwareAddr)
	flags := unix.XDP_FLAGS_DRV_MODE
	if x := l.Attrs().Xdp; x != nil && x.Attached {
		have, err := programName(ebpf.ProgramID(x.ProgId))
		if err != nil || !strings.HasPrefix(have, ours) {
			return fmt.Errorf("attach xdp to %q: %w: %q (id %d)", name, ErrForeign, have, x.ProgId)
		}
		if id, _, err := identify(d.progs.XvXdpIn); err == nil && uint32(id) == x.ProgId {
			return d.putPort(index, port)
		}
	} else {
		flags |= unix.XDP_FLAGS_UPDATE_IF_NOEXIST
	}
	if err := d.putPort(index, port); err != nil {
		return err
	}
	if err := netlink.LinkSetXdpFdWithFlags(l, d.progs.XvXdpIn.FD(), flags); err != nil {
		_ = d.maps.XvPorts.Delete(uint32(index))
		return fmt.Errorf("attach xdp to %q: %w", name, err)
	}
	return nil
}

func (d *Datapath) putPort(ifindex int, port bpf.DatapathXvPort) error {
	if err := d.maps.XvPorts.Put(uint32(ifindex), &port); err != nil {
		return fmt.Errorf("note the MAC address of interface %d: %w", ifindex, err)
	}
	return nil
}

// detachXDP takes our program off an interface; anybody else's stays.
func (d *Datapath) detachXDP(l netlink.Link) error {
	_ = d.maps.XvPorts.Delete(uint32(l.Attrs().Index))
	return setXDPOff(l)
}

func setXDPOff(l netlink.Link) error {
	x := l.Attrs().Xdp
	if x == nil || !x.Attached {
		return nil
	}
	if have, err := programName(ebpf.ProgramID(x.ProgId)); err != nil || !strings.HasPrefix(have, ours) {
		return nil
	}
	if err := netlink.LinkSetXdpFdWithFlags(l, -1, unix.XDP_FLAGS_DRV_MODE); err != nil {
		return fmt.Errorf("detach xdp from %q: %w", l.Attrs().Name, err)
	}
	return nil
}

// ensureTCX puts a program last on a tcx hook, in the place of an older one of ours
// where there is one.
func ensureTCX(ifindex int, hook ebpf.AttachType, prog *ebpf.Program) error {
	have, err := tcxPrograms(ifindex, hook)
	if err != nil {
		return err
	}
	want, _, err := identify(prog)
	if err != nil {
		return err
	}
	opts := link.RawAttachProgramOptions{
		Target: ifindex, Program: prog, Attach: hook, Anchor: link.Tail(),
	}
	for _, h := range have {
		if !strings.HasPrefix(h.name, ours) {
			continue
		}
		if h.id == want {
			return nil
		}
		old, err := ebpf.NewProgramFromID(h.id)
		if err != nil {
			return fmt.Errorf("open program %d on interface %d: %w", h.id, ifindex, err)
		}
		defer old.Close()
		opts.Anchor = link.ReplaceProgram(old)
	}
	if err := link.RawAttachProgram(opts); err != nil {
		return fmt.Errorf("attach %s to interface %d: %w", hook, ifindex, err)
	}
	return nil
}

// detachTCX takes our programs off a tcx hook; anybody else's stay.
func detachTCX(ifindex int, hook ebpf.AttachType) error {
	have, err := tcxPrograms(ifindex, hook)
	if err != nil {
		return err
	}
	for _, h := range have {
		if !strings.HasPrefix(h.name, ours) {
			continue
		}
		old, err := ebpf.NewProgramFromID(h.id)
		if err != nil {
			return fmt.Errorf("open program %d on interface %d: %w", h.id, ifindex, err)
		}
		err = link.RawDetachProgram(link.RawDetachProgramOptions{Target: ifindex, Program: old, Attach: hook})
		_ = old.Close()
		if err != nil {
			return fmt.Errorf("detach %s from interface %d: %w", hook, ifindex, err)
		}
	}
	return nil
}

type attached struct {
	id   ebpf.ProgramID
	name string
}

// tcxPrograms lists what is on a tcx hook, in the order in which it runs.
func tcxPrograms(ifindex int, hook ebpf.AttachType) ([]attached, error) {
	res, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: hook})
	if err != nil {
		return nil, fmt.Errorf("list %s programs of interface %d: %w", hook, ifindex, err)
	}
	var all []attached
	for _, p := range res.Programs {
		name, err := programName(p.ID)
		if err != nil {
			continue // gone since the list was made
		}
		all = append(all, attached{p.ID, name})
	}
	return all, nil
}

// IsArmed says whether anything of ours is attached to a host veth.
func (d *Datapath) IsArmed(ifindex int) (bool, error) {
	var v bpf.DatapathBpfDevmapVal
	if d.maps.XvDevs.Lookup(uint32(ifindex), &v) == nil {
		return true, nil
	}
	for _, hook := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		if has, err := hasOurs(ifindex, hook); has || err != nil {
			return has, err
		}
	}
	return false, nil
}

// hasOurs says whether a program of ours is on a tcx hook.
func hasOurs(ifindex int, hook ebpf.AttachType) (bool, error) {
	have, err := tcxPrograms(ifindex, hook)
	if err != nil {
		return false, err
	}
	for _, h := range have {
		if strings.HasPrefix(h.name, ours) {
			return true, nil
		}
	}
	return false, nil
}

// CheckPod compares what is attached to a host veth with what AttachPod puts there.
// The error names the program that is missing.
func (d *Datapath) CheckPod(ifindex int, p Pod) error {
	l, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return fmt.Errorf("find interface %d: %w", ifindex, err)
	}
	if err := d.checkMember(l, p); err != nil {
		return err
	}
	if p.ToPod {
		if err := checkTCX(ifindex, ebpf.AttachTCXEgress); err != nil {
			return err
		}
		var v bpf.DatapathBpfDevmapVal
		if err := d.maps.XvDevs.Lookup(uint32(ifindex), &v); err != nil {
			return fmt.Errorf("interface is not in the devmap: %w", err)
		}
	}
	if !p.FromPod {
		return nil
	}
	if err := checkTCX(ifindex, ebpf.AttachTCXIngress); err != nil || !p.XDP {
		return err
	}
	return d.checkXDP(ifindex)
}

// checkXDP finds our XDP program gone. An interface that has no entry in the map of
// ports never had it, and another program there is the reason.
func (d *Datapath) checkXDP(ifindex int) error {
	var port bpf.DatapathXvPort
	if err := d.maps.XvPorts.Lookup(uint32(ifindex), &port); err != nil {
		return nil
	}
	l, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return fmt.Errorf("find interface %d: %w", ifindex, err)
	}
	if x := l.Attrs().Xdp; x != nil && x.Attached {
		return nil
	}
	return errors.New("xdp program missing")
}

func checkTCX(ifindex int, hook ebpf.AttachType) error {
	has, err := hasOurs(ifindex, hook)
	if err == nil && !has {
		err = fmt.Errorf("program missing on %s", hook)
	}
	return err
}
