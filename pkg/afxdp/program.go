// SPDX-License-Identifier: Apache-2.0

package afxdp

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// maxQueues is how many queues of an interface a Program serves.
const maxQueues = 1024

// xdpPass is XDP_PASS.
const xdpPass = 2

// ProgramConfig says what a Program gives to sockets.
type ProgramConfig struct {
	// UDPPort limits it to UDP packets to this port: IPv4 without options and fragments,
	// IPv6 without extension headers, no VLAN tag. 0 takes every packet, also the
	// neighbour discovery that the interface's own addresses need.
	UDPPort uint16
	// Generic runs the program after the kernel has made an skb, for drivers without XDP.
	Generic bool
}

// Program is an XDP program on an interface that gives packets to the sockets of their
// queues. A packet of a queue without socket goes to the kernel's stack.
type Program struct {
	place   place
	device  string
	prog    *ebpf.Program
	sockets *ebpf.Map
	link    link.Link
}

// Attach puts a Program on an interface of the calling thread's network namespace.
func Attach(device string, c ProgramConfig) (*Program, error) {
	at, err := find(device)
	if err != nil {
		return nil, fmt.Errorf("attach xdp to %q: %w", device, err)
	}
	p := &Program{place: at, device: device}
	if err := p.load(c); err != nil {
		_ = p.Close()
		return nil, fmt.Errorf("attach xdp to %q: %w", device, err)
	}
	var flags link.XDPAttachFlags
	if c.Generic {
		flags = link.XDPGenericMode
	}
	p.link, err = link.AttachXDP(link.XDPOptions{Program: p.prog, Interface: at.ifindex, Flags: flags})
	if err != nil {
		_ = p.Close()
		return nil, attachError(err, device)
	}
	return p, nil
}

func attachError(err error, device string) error {
	switch {
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
		return fmt.Errorf("attach xdp to %q: %w (%w): detach the other program (ip link shows it)",
			device, ErrBusy, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("attach xdp to %q: %w (%w): run as root or with CAP_NET_ADMIN and CAP_BPF",
			device, ErrPrivilege, err)
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("attach xdp to %q: %w by the driver (%w): try Generic", device, ErrNotSupported, err)
	}
	return fmt.Errorf("attach xdp to %q: %w", device, err)
}

func (p *Program) load(c ProgramConfig) error {
	var err error
	p.sockets, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "xveth_xsks", Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: maxQueues,
	})
	if err != nil {
		return loadError("make the map of sockets", err)
	}
	spec := &ebpf.ProgramSpec{
		Name: "xveth_afxdp", Type: ebpf.XDP, License: "Apache-2.0",
		Instructions: instructions(p.sockets.FD(), c.UDPPort), Flags: unix.BPF_F_XDP_HAS_FRAGS,
	}
	p.prog, err = ebpf.NewProgram(spec)
	if errors.Is(err, unix.EINVAL) {
		// Before kernel 5.18 there are no packets in several buffers.
		spec.Flags = 0
		p.prog, err = ebpf.NewProgram(spec)
	}
	if err != nil {
		return loadError("load the program", err)
	}
	return nil
}

func loadError(what string, err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%s: %w (%w): run as root or with CAP_BPF and CAP_NET_ADMIN", what, ErrPrivilege, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Offsets of what the program looks at: fields of struct xdp_md, and of headers.
const (
	ctxData, ctxDataEnd, ctxQueue = 0, 4, 16

	etherType        = 12
	ip4Version       = 14
	ip4Fragment      = 14 + 6
	ip4Protocol      = 14 + 9
	ip4UDPPort       = 14 + 20 + 2
	ip6NextHeader    = 14 + 6
	ip6UDPPort       = 14 + 40 + 2
	ip4UDP, ip6UDP   = 14 + 20 + 8, 14 + 40 + 8
	ip4PlainHeader   = 0x45   // version 4, no options
	ip4FragmentField = 0x3fff // more fragments, or an offset
)

// onWire is a 16-bit field of a header as a load in the machine's byte order sees it.
func onWire(v uint16) int32 {
	return int32(binary.NativeEndian.Uint16([]byte{byte(v >> 8), byte(v)}))
}

// instructions is the program. R6 is its context, R7 the packet, R8 its end.
func instructions(mapFD int, port uint16) asm.Instructions {
	redirect := asm.Instructions{
		asm.LoadMem(asm.R2, asm.R6, ctxQueue, asm.Word),
		asm.LoadMapPtr(asm.R1, mapFD),
		// What is returned if the queue has no socket.
		asm.Mov.Imm(asm.R3, xdpPass),
		asm.FnRedirectMap.Call(),
		asm.Return(),
	}
	if port == 0 {
		return append(asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}, redirect...)
	}
	ins := append(onlyUDP(port), redirect...)
	return append(ins, asm.Mov.Imm(asm.R0, xdpPass).WithSymbol("pass"), asm.Return())
}

// onlyUDP leaves for "pass" unless the packet goes to a UDP port.
func onlyUDP(port uint16) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R7, asm.R6, ctxData, asm.Word),
		asm.LoadMem(asm.R8, asm.R6, ctxDataEnd, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R7),
		asm.Add.Imm(asm.R4, ip4UDP),
		asm.JGT.Reg(asm.R4, asm.R8, "pass"),
		asm.LoadMem(asm.R5, asm.R7, etherType, asm.Half),
		asm.JEq.Imm(asm.R5, onWire(unix.ETH_P_IP), "ip4"),
		asm.JNE.Imm(asm.R5, onWire(unix.ETH_P_IPV6), "pass"),
		asm.Mov.Reg(asm.R4, asm.R7),
		asm.Add.Imm(asm.R4, ip6UDP),
		asm.JGT.Reg(asm.R4, asm.R8, "pass"),
		asm.LoadMem(asm.R5, asm.R7, ip6NextHeader, asm.Byte),
		asm.JNE.Imm(asm.R5, unix.IPPROTO_UDP, "pass"),
		asm.LoadMem(asm.R5, asm.R7, ip6UDPPort, asm.Half),
		asm.Ja.Label("port"),
		asm.LoadMem(asm.R5, asm.R7, ip4Version, asm.Byte).WithSymbol("ip4"),
		asm.JNE.Imm(asm.R5, ip4PlainHeader, "pass"),
		asm.LoadMem(asm.R5, asm.R7, ip4Fragment, asm.Half),
		asm.And.Imm(asm.R5, onWire(ip4FragmentField)),
		asm.JNE.Imm(asm.R5, 0, "pass"),
		asm.LoadMem(asm.R5, asm.R7, ip4Protocol, asm.Byte),
		asm.JNE.Imm(asm.R5, unix.IPPROTO_UDP, "pass"),
		asm.LoadMem(asm.R5, asm.R7, ip4UDPPort, asm.Half),
		asm.JNE.Imm(asm.R5, onWire(port), "pass").WithSymbol("port"),
	}
}

// Serve gives a socket what arrives at its queue, until the socket is closed.
func (p *Program) Serve(s *Socket) error {
	switch {
	case s.place != p.place:
		return fmt.Errorf("serve %s: %w: the program is on %q", s.name, ErrConfig, p.device)
	case s.rx.off:
		return fmt.Errorf("serve %s: %w", s.name, ErrDirection)
	case s.queue >= maxQueues:
		return fmt.Errorf("serve %s: %w: a program serves %d", s.name, ErrNoQueue, maxQueues)
	case s.closed.Load():
		return fmt.Errorf("serve %s: %w", s.name, ErrClosed)
	}
	s.program.Store(p)
	if err := p.sockets.Update(uint32(s.queue), uint32(s.fd), ebpf.UpdateAny); err != nil {
		return loadError("serve "+s.name, err)
	}
	return nil
}

// drop takes a socket out of the map. It may be the queue's no more, or the map be closed.
func (p *Program) drop(s *Socket) {
	_ = p.sockets.Delete(uint32(s.queue))
}

// Close takes the program off the interface. Sockets stay, and receive nothing any more.
func (p *Program) Close() error {
	var errs []error
	if p.link != nil {
		errs = append(errs, p.link.Close())
	}
	if p.prog != nil {
		errs = append(errs, p.prog.Close())
	}
	if p.sockets != nil {
		errs = append(errs, p.sockets.Close())
	}
	return errors.Join(errs...)
}
