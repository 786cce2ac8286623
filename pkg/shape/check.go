// SPDX-License-Identifier: Apache-2.0

package shape

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/pkg/dump"
)

// Check compares the limits of an attachment with the kernel's state. The
// error names the first thing missing.
func Check(hostVeth, key string, mtu int, l Limits) error {
	if err := checkKey(key); err != nil {
		return err
	}
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink of the host: %w", err)
	}
	defer host.Close()
	link, err := host.LinkByName(hostVeth)
	if isNotFound(err) {
		return fmt.Errorf("%w: the host has no device %q", ErrMissing, hostVeth)
	}
	if err != nil {
		return fmt.Errorf("look up %q: %w", hostVeth, err)
	}
	s := &shaper{host: host, veth: link, key: key, mtu: mtu}
	if l.IngressRate > 0 {
		if err := s.checkBucket(link, l.IngressRate, l.IngressBurst); err != nil {
			return err
		}
	}
	if l.EgressRate > 0 {
		return s.checkEgress(l.EgressRate, l.EgressBurst)
	}
	return nil
}

func (s *shaper) checkEgress(rate, burst uint64) error {
	name := DeviceName(s.key)
	ifb, err := s.host.LinkByName(name)
	if isNotFound(err) {
		return fmt.Errorf("%w: the host has no device %q", ErrMissing, name)
	}
	if err != nil {
		return fmt.Errorf("look up %q: %w", name, err)
	}
	if !isOurs(ifb, s.key) {
		return fmt.Errorf("%w: %q is not our ifb device", ErrMissing, name)
	}
	if ifb.Attrs().RawFlags&unix.IFF_UP == 0 {
		return fmt.Errorf("%w: %q is down", ErrMissing, name)
	}
	if err := s.checkBucket(ifb, rate, burst); err != nil {
		return err
	}
	filters, err := s.redirects()
	if err != nil {
		return err
	}
	for _, f := range filters {
		if target(f) == ifb.Attrs().Index {
			return nil
		}
	}
	return fmt.Errorf("%w: %q does not redirect to %q", ErrMissing, s.veth.Attrs().Name, name)
}

func (s *shaper) checkBucket(link netlink.Link, rate, burst uint64) error {
	want, err := tokenBucket(link.Attrs().Index, s.mtu, rate, burst)
	if err != nil {
		return err
	}
	all, err := dump.All("qdiscs", func() ([]netlink.Qdisc, error) {
		return s.host.QdiscList(link) //nolint:forbidigo // it is repeated
	})
	if err != nil {
		return err
	}
	for _, q := range all {
		have, ok := q.(*netlink.Tbf)
		if !ok || have.Parent != netlink.HANDLE_ROOT {
			continue
		}
		if have.Rate != want.Rate {
			return fmt.Errorf("%w: the token bucket on %q lets %d bytes a second pass, not %d",
				ErrMissing, link.Attrs().Name, have.Rate, want.Rate)
		}
		if have.Limit != want.Limit {
			return fmt.Errorf("%w: the token bucket on %q queues %d bytes, not %d",
				ErrMissing, link.Attrs().Name, have.Limit, want.Limit)
		}
		return nil
	}
	return fmt.Errorf("%w: %q has no token bucket", ErrMissing, link.Attrs().Name)
}

// Remove removes the ifb device of an attachment. It succeeds when there is
// none. What is on the host veth goes with the veth: remove that first, since
// a redirect to a device that is gone drops every packet.
func Remove(key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	return remove(DeviceName(key), func(l netlink.Link) bool { return isOurs(l, key) })
}

// RemoveByName removes an ifb device that List returned. It succeeds when
// there is none, and refuses a device that is not ours.
func RemoveByName(name string) error {
	return remove(name, func(l netlink.Link) bool { _, ok := deviceOf(l); return ok })
}

func remove(name string, ours func(netlink.Link) bool) error {
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink of the host: %w", err)
	}
	defer host.Close()
	link, err := host.LinkByName(name)
	if isNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up %q: %w", name, err)
	}
	if !ours(link) {
		return fmt.Errorf("remove %q: %w", name, ErrNotOurs)
	}
	if err := host.LinkDel(link); err != nil && !isNotFound(err) {
		return fmt.Errorf("remove %q: %w", name, err)
	}
	return nil
}

// List returns the ifb devices of a network, the part of the key before the
// first slash, or of all networks when it is empty.
func List(network string) ([]Device, error) {
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink of the host: %w", err)
	}
	defer host.Close()
	links, err := dump.All("links", host.LinkList) //nolint:forbidigo // it is repeated
	if err != nil {
		return nil, err
	}
	var all []Device
	for _, l := range links {
		d, ok := deviceOf(l)
		if !ok {
			continue
		}
		of, _, _ := strings.Cut(d.Key, "/")
		if network == "" || of == network || d.Unlabelled && strings.HasPrefix(d.Name, networkPrefix(network)) {
			all = append(all, d)
		}
	}
	return all, nil
}

// deviceOf reads one link; ok is false for one that is not ours.
func deviceOf(link netlink.Link) (d Device, ok bool) {
	a := link.Attrs()
	d = Device{Name: a.Name, Index: a.Index, Unlabelled: a.Alias == ""}
	if link.Type() != "ifb" || !isDeviceName(a.Name) {
		return d, false
	}
	d.Key, ok = strings.CutPrefix(a.Alias, AliasPrefix)
	return d, ok && d.Key != "" || d.Unlabelled
}

// isOurs says whether a link is the ifb device of an attachment.
func isOurs(link netlink.Link, key string) bool {
	d, ok := deviceOf(link)
	return ok && d.Is(key)
}

// isNotFound says whether a look-up of a link ended with "no such link".
func isNotFound(err error) bool {
	var nf netlink.LinkNotFoundError
	return errors.As(err, &nf) || errors.Is(err, unix.ENODEV)
}
