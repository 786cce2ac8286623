// SPDX-License-Identifier: Apache-2.0

package veth

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Attachment is the host's end of one attachment as List finds it.
type Attachment struct {
	// HostName and HostIndex of the device.
	HostName  string
	HostIndex int
	// Network, ContainerID and IfName as the alias gives them; a part that was
	// too long for an alias is its hash. Compare with Is.
	Network     string
	ContainerID string
	IfName      string
	// Unlabelled says that the device has a name of ours but no alias: the ADD
	// that made it died at once. Network is the one that was asked for.
	Unlabelled bool
}

// Is says whether this is the attachment with these names.
func (a Attachment) Is(network, containerID, ifname string) bool {
	if a.Unlabelled {
		return a.HostName == HostName(network, containerID, ifname)
	}
	return Key(network, containerID, ifname) == a.Network+"/"+a.ContainerID+"/"+a.IfName
}

// Del removes the pair of an attachment. It succeeds when there is none, and
// when the pod's namespace is gone or its path empty.
func Del(network, containerID, ifname, netnsPath string) error {
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink of the host: %w", err)
	}
	defer host.Close()
	name, alias := HostName(network, containerID, ifname), Alias(network, containerID, ifname)
	link, err := host.LinkByName(name)
	if err != nil && !isNotFound(err) {
		return fmt.Errorf("look up %q: %w", name, err)
	}
	if err != nil || !isOurs(link, name, alias) {
		if link, err = findByPeer(host, name, alias, ifname, netnsPath); err != nil || link == nil {
			return err
		}
	}
	return remove(host, link)
}

// findByPeer looks for a host end that was renamed or lost its alias, by the
// pod's end. It returns nil when there is none that is provably ours.
func findByPeer(host *netlink.Handle, name, alias, ifname, netnsPath string) (netlink.Link, error) {
	if netnsPath == "" || checkIfName(ifname) != nil {
		return nil, nil
	}
	pod, err := openPod(netnsPath)
	if errors.Is(err, ErrNetns) { // gone, most likely with the pair
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer pod.close()
	inner, err := pod.nl.LinkByName(ifname)
	if isNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up %q in the pod: %w", ifname, err)
	}
	if inner.Type() != "veth" || inner.Attrs().ParentIndex <= 0 {
		return nil, nil
	}
	outer, err := host.LinkByIndex(inner.Attrs().ParentIndex)
	if isNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up the peer of %q: %w", ifname, err)
	}
	a := outer.Attrs()
	ours := outer.Type() == "veth" && a.ParentIndex == inner.Attrs().Index && (a.Alias == alias || a.Name == name)
	if !ours {
		return nil, nil
	}
	return outer, nil
}

// remove deletes a link, which may be vanishing with its pod's namespace at
// the same time.
func remove(host *netlink.Handle, link netlink.Link) error {
	if err := host.LinkDel(link); err != nil && !isNotFound(err) {
		return fmt.Errorf("remove %q: %w", link.Attrs().Name, err)
	}
	return nil
}

// List returns all host ends of a network, or of all networks when the name is
// empty.
func List(network string) ([]Attachment, error) {
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink of the host: %w", err)
	}
	defer host.Close()
	links, err := listLinks(host)
	if err != nil {
		return nil, err
	}
	var all []Attachment
	for _, link := range links {
		if link.Type() != "veth" {
			continue
		}
		if a, ok := attachmentOf(link.Attrs(), network); ok {
			all = append(all, a)
		}
	}
	return all, nil
}

// attachmentOf reads one link; ok is false for one that is not of the network.
func attachmentOf(attrs *netlink.LinkAttrs, network string) (Attachment, bool) {
	a := Attachment{HostName: attrs.Name, HostIndex: attrs.Index}
	if attrs.Alias == "" {
		a.Network, a.Unlabelled = network, true
		return a, isHostName(attrs.Name) && (network == "" || strings.HasPrefix(attrs.Name, networkPrefix(network)))
	}
	var err error
	a.Network, a.ContainerID, a.IfName, err = ParseAlias(attrs.Alias)
	return a, err == nil && (network == "" || a.Network == NetworkKey(network))
}

// RemoveByName removes a host end that List returned. It succeeds when there
// is none, and refuses a device that is not ours.
func RemoveByName(name string) error {
	link, err := netlink.LinkByName(name)
	if isNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up %q: %w", name, err)
	}
	if _, ours := attachmentOf(link.Attrs(), ""); !ours || link.Type() != "veth" {
		return fmt.Errorf("remove %q: %w", name, ErrNotOurs)
	}
	if err := netlink.LinkDel(link); err != nil && !isNotFound(err) {
		return fmt.Errorf("remove %q: %w", name, err)
	}
	return nil
}
