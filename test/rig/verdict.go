// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Action is what becomes of a frame.
type Action int32

// What XDP can do with a frame by itself.
const (
	XDPDrop Action = 1
	XDPPass Action = 2
	XDPTx   Action = 3
)

// Verdict is the same for every packet.
type Verdict struct {
	Action Action
	// Frags makes it a program that takes frames of several buffers too.
	Frags bool
}

// Attach runs a verdict natively on an interface of a host. The function that is returned
// ends it.
func (v Verdict) Attach(h *Host, dev string) (end func(), err error) {
	err = h.Do(func() error {
		end, err = v.attachHere(dev)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", h.Name, err)
	}
	return end, nil
}

func (v Verdict) attachHere(dev string) (func(), error) {
	spec := verdictSpec("rig_verdict", ebpf.XDP, int32(v.Action))
	if v.Frags {
		spec.Flags = unix.BPF_F_XDP_HAS_FRAGS
	}
	return attach(dev, spec, func(index int, prog *ebpf.Program) (link.Link, error) {
		return link.AttachXDP(link.XDPOptions{Program: prog, Interface: index, Flags: link.XDPDriverMode})
	})
}

// DropBehindXDP drops what passes an interface's XDP, as skbs.
func DropBehindXDP(h *Host, dev string) (end func(), err error) {
	const shot = 2 // TC_ACT_SHOT
	spec := verdictSpec("rig_shot", ebpf.SchedCLS, shot)
	err = h.Do(func() error {
		end, err = attach(dev, spec, func(index int, prog *ebpf.Program) (link.Link, error) {
			return link.AttachTCX(link.TCXOptions{Program: prog, Interface: index, Attach: ebpf.AttachTCXIngress})
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", h.Name, err)
	}
	return end, nil
}

func verdictSpec(name string, kind ebpf.ProgramType, verdict int32) *ebpf.ProgramSpec {
	return &ebpf.ProgramSpec{
		Name: name, Type: kind, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()},
	}
}

func attach(dev string, spec *ebpf.ProgramSpec, to func(int, *ebpf.Program) (link.Link, error)) (func(), error) {
	at, err := netlink.LinkByName(dev)
	if err != nil {
		return nil, fmt.Errorf("find %q: %w", dev, err)
	}
	prog, err := ebpf.NewProgram(spec)
	if err != nil {
		return nil, fmt.Errorf("load a verdict: %w", err)
	}
	defer prog.Close()
	l, err := to(at.Attrs().Index, prog)
	if err != nil {
		return nil, fmt.Errorf("attach a verdict to %q: %w", dev, err)
	}
	return func() { _ = l.Close() }, nil
}
