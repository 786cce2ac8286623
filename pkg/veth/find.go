// SPDX-License-Identifier: Apache-2.0

package veth

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrNoPair says that a pod's interface is not one end of a veth pair whose other end is on
// the host.
var ErrNoPair = errors.New("no veth pair to the host")

// Find looks up the pair of a pod's interface, whoever made it. The ends are told by their
// indexes and namespaces: names can change. It must run in the host's network namespace.
func Find(netnsPath, ifname string) (*Pair, error) {
	pod, err := openPod(netnsPath)
	if err != nil {
		return nil, err
	}
	defer pod.close()
	in, err := pod.nl.LinkByName(ifname)
	if err != nil {
		return nil, fmt.Errorf("look up %q in the pod: %w", ifname, err)
	}
	if in.Type() != "veth" {
		return nil, fmt.Errorf("%w: %q in the pod is a %s", ErrNoPair, ifname, kindOf(in))
	}
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink of the host: %w", err)
	}
	defer host.Close()
	out, err := host.LinkByIndex(in.Attrs().ParentIndex)
	if isNotFound(err) {
		return nil, fmt.Errorf("%w: the other end of %q is in another namespace", ErrNoPair, ifname)
	}
	if err != nil {
		return nil, fmt.Errorf("look up the other end of %q: %w", ifname, err)
	}
	id, err := host.GetNetNsIdByFd(int(pod.ns.Fd()))
	if err != nil {
		return nil, fmt.Errorf("find the host's number of namespace %q: %w", netnsPath, err)
	}
	a := out.Attrs()
	if out.Type() != "veth" || a.ParentIndex != in.Attrs().Index || id < 0 || a.NetNsID != id {
		return nil, fmt.Errorf("%w: interface %q of the host has the other end's number and is not it", ErrNoPair, a.Name)
	}
	return &Pair{
		HostName: a.Name, HostIndex: a.Index, HostMAC: a.HardwareAddr, HostMTU: a.MTU,
		PodIndex: in.Attrs().Index, PodMAC: in.Attrs().HardwareAddr, PodMTU: in.Attrs().MTU,
	}, nil
}

// HostIndex finds the host's end of a pair by its name and MAC address, when the pod's end
// cannot be asked for it. It is 0 where there is none.
func HostIndex(name, mac string) int {
	l, err := netlink.LinkByName(name)
	if err != nil || l.Type() != "veth" || l.Attrs().HardwareAddr.String() != mac {
		return 0
	}
	return l.Attrs().Index
}

// kindOf names the kind of a link; netlink has none for a NIC.
func kindOf(l netlink.Link) string {
	if l.Type() == "device" {
		return "device of its own"
	}
	return l.Type()
}

// TakeFrames lets XDP redirect frames to a pod's interface: it turns on GRO, and with it
// NAPI.
func TakeFrames(netnsPath, ifname string) error {
	pod, err := openPod(netnsPath)
	if err != nil {
		return err
	}
	defer pod.close()
	return pod.offloads.set(ifname, false)
}

// TakesFrames says why XDP cannot redirect frames to a pod's interface, if so.
func TakesFrames(netnsPath, ifname string) error {
	pod, err := openPod(netnsPath)
	if err != nil {
		return err
	}
	defer pod.close()
	return pod.offloads.check(ifname, false)
}
