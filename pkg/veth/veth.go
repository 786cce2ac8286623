// SPDX-License-Identifier: Apache-2.0

// Package veth makes, checks and removes the veth pair of one attachment: the
// pod's interface with its addresses and routes, and the host's end with the
// gateway addresses and a route to each address of the pod. It knows nothing
// of CNI, of address management or of the fast path.
//
// The pair is created in one request with both ends in their final place: the
// host's end under a name derived from the attachment, the pod's end straight
// in the pod's namespace. The usual way (make both ends in one namespace, then
// move and rename) shows an "eth0" to everybody who watches the host, collides
// with one that exists there, and leaves debris when it is killed between the
// steps. Everything else that ADD makes hangs on the pair, so removing the
// host's end removes all of it.
package veth

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

var (
	// ErrExists says that the pod has an interface of that name already.
	ErrExists = errors.New("interface exists already")
	// ErrConflict says that an address is used by somebody else on this host.
	ErrConflict = errors.New("address is in use")
	// ErrNoIPv6 says that IPv6 was asked for where it is off.
	ErrNoIPv6 = errors.New("ipv6 is not available")
	// ErrNetns says that a path is not the network namespace of a pod.
	ErrNetns = errors.New("not a usable network namespace")
	// ErrInvalid says that a Config cannot work.
	ErrInvalid = errors.New("invalid attachment")
	// ErrNotOurs says that a device is in the way that xveth did not make.
	ErrNotOurs = errors.New("device was not made by xveth")
)

// Config describes one attachment.
type Config struct {
	// Network, ContainerID and IfName name the attachment.
	Network     string
	ContainerID string
	IfName      string
	// NetnsPath is the file of the pod's network namespace.
	NetnsPath string
	// MTU of both ends; 0 leaves the kernel's default.
	MTU int
	// MAC of the pod's end; nil lets the kernel choose.
	MAC net.HardwareAddr
	// LargeTCP lets the pods of the node send TCP packets of more than 64 KiB to each
	// other; nil leaves the kernel's limits.
	LargeTCP *LargeTCP
	// TxChecksumOff makes the pod compute checksums itself, for frames that
	// cross an XDP redirect.
	TxChecksumOff bool
	// Addresses of the pod.
	Addresses []Address
	// Routes of the pod. Nothing is added to them but a link-scope route to
	// each gateway: no route to the addresses' own prefixes.
	Routes []Route
}

// Hosts are the addresses without their subnets.
func (c *Config) Hosts() []netip.Addr {
	all := make([]netip.Addr, 0, len(c.Addresses))
	for _, a := range c.Addresses {
		all = append(all, a.Prefix.Addr())
	}
	return all
}

// LargeTCP are the limits of a TCP packet that is cut into segments later, or never: the
// kernel's BIG TCP, of IPv4. Kernels before 6.3 do not have it and leave 64 KiB.
type LargeTCP struct {
	// MaxSize of the packet, bytes.
	MaxSize uint32
	// MaxSegs keeps packets of short segments, which leave the node, as small as an uplink
	// takes them.
	MaxSegs uint32
}

// Address is one address of a pod.
type Address struct {
	// Prefix is the address with the length of its subnet.
	Prefix netip.Prefix
	// Gateway is the address that the host's end gets.
	Gateway netip.Addr
}

// Route is one route of a pod.
type Route struct {
	// Dst is where the route leads to.
	Dst netip.Prefix
	// Gateway; the zero value takes the first gateway of the family, unless
	// Scope says that the destination is on the link.
	Gateway netip.Addr
	// MTU, AdvMSS and Priority of the route; 0 leaves the kernel's default.
	MTU      int
	AdvMSS   int
	Priority int
	// Table of the route; 0 is the main table.
	Table int
	// Scope of the route; nil is the scope that fits the gateway.
	Scope *int
}

// Pair is what Add made.
type Pair struct {
	// HostName, HostIndex, HostMAC and HostMTU of the host's end.
	HostName  string
	HostIndex int
	HostMAC   net.HardwareAddr
	HostMTU   int
	// PodIndex, PodMAC and PodMTU of the pod's end.
	PodIndex int
	PodMAC   net.HardwareAddr
	PodMTU   int
}

// undo is a stack of steps to take back, run unless done was called.
type undo struct {
	steps    []func()
	finished bool
}

func (u *undo) push(step func()) { u.steps = append(u.steps, step) }
func (u *undo) done()            { u.finished = true }
func (u *undo) run() {
	for i := len(u.steps) - 1; i >= 0 && !u.finished; i-- {
		u.steps[i]()
	}
}

// Add makes the pair of an attachment. It must run in the host's network
// namespace. When it returns an error nothing is left.
func Add(ctx context.Context, cfg Config) (*Pair, error) {
	p, err := newPlan(cfg)
	if err != nil {
		return nil, err
	}
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink of the host: %w", err)
	}
	defer host.Close()
	if err := prepareHost(host, p); err != nil {
		return nil, err
	}
	pod, err := openPod(cfg.NetnsPath)
	if err != nil {
		return nil, err
	}
	defer pod.close()

	var u undo
	defer u.run()
	m := &maker{plan: p, host: host, pod: pod}
	defer m.close()
	if err := m.create(&u); err != nil {
		return nil, err
	}
	steps := []func() error{m.bringUp, m.configurePod, m.configureHost, m.finish}
	for _, step := range steps {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("make %q: %w", cfg.IfName, err)
		}
		if err := step(); err != nil {
			return nil, err
		}
	}
	u.done()
	return &m.pair, nil
}

// isNotFound says whether a look-up of a link ended with "no such link".
func isNotFound(err error) bool {
	var nf netlink.LinkNotFoundError
	return errors.As(err, &nf) || errors.Is(err, unix.ENODEV)
}
