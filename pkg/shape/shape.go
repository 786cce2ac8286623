// SPDX-License-Identifier: Apache-2.0

// Package shape limits the bandwidth of one attachment on the kernel path: a
// token bucket on the host's end of the veth for what goes to the pod, and one
// on an ifb device, which everything that comes from the pod is redirected to.
// It does not make the veth and it does not know the fast path: who limits a
// direction has to keep that direction off the fast path.
package shape

import (
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/pkg/dump"
)

const (
	// AliasPrefix starts the alias of the ifb device of an attachment.
	AliasPrefix = "xveth:v1:"

	ifbPrefix    = "xi"
	networkChars = 4
	nameChars    = 9
	maxAlias     = 255

	// filterPriority stands behind all priorities that the kernel gives and
	// that people choose: other filters see a packet before it is redirected.
	filterPriority = 60000
)

var (
	// ErrInvalid says that limits or a key cannot work.
	ErrInvalid = errors.New("invalid bandwidth limit")
	// ErrMissing says that Check found something to be gone or different.
	ErrMissing = errors.New("bandwidth limit is not as ADD left it")
	// ErrNotOurs says that a device is in the way that xveth did not make.
	ErrNotOurs = errors.New("device was not made by xveth")
)

// Limits of one attachment, in bits a second and bits; ingress is towards the
// pod. A rate of 0 does not limit its direction, a burst of 0 takes the
// smallest that works.
type Limits struct {
	IngressRate, IngressBurst uint64
	EgressRate, EgressBurst   uint64
}

// Device is the ifb device of one attachment as List finds it.
type Device struct {
	// Name and Index of the device.
	Name  string
	Index int
	// Key of the attachment.
	Key string
	// Unlabelled says that the device has a name of ours but no alias: the ADD
	// that made it died at once. Key is empty then.
	Unlabelled bool
}

// Is says whether this is the device of the attachment with that key.
func (d Device) Is(key string) bool {
	return d.Name == DeviceName(key) && (d.Unlabelled || d.Key == key)
}

var base32Lower = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// DeviceName returns the name of the ifb device of an attachment.
func DeviceName(key string) string {
	network, _, _ := strings.Cut(key, "/")
	return networkPrefix(network) + digest(key)[:nameChars]
}

// networkPrefix returns what the names of all devices of a network start with.
func networkPrefix(network string) string { return ifbPrefix + digest(network)[:networkChars] }

func digest(s string) string {
	h := sha256.Sum256([]byte(s))
	return base32Lower.EncodeToString(h[:])
}

// isDeviceName says whether a name could have been made by DeviceName.
func isDeviceName(name string) bool {
	rest, ok := strings.CutPrefix(name, ifbPrefix)
	return ok && len(rest) == networkChars+nameChars && strings.Trim(rest, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

func alias(key string) string { return AliasPrefix + key }

func checkKey(key string) error {
	if key == "" || len(alias(key)) > maxAlias {
		return fmt.Errorf("%w: key %q is empty or too long", ErrInvalid, key)
	}
	return nil
}

// Ensure puts the limits of an attachment in place on its host veth, which
// must be in the caller's network namespace. The key is its stable name,
// <network>/<rest> (see veth.Key), mtu the longest packet of the pod. On an error everything that
// this call made is removed.
func Ensure(hostVeth, key string, mtu int, l Limits) error {
	if err := checkKey(key); err != nil {
		return err
	}
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink of the host: %w", err)
	}
	defer host.Close()
	link, err := host.LinkByName(hostVeth)
	if err != nil {
		return fmt.Errorf("look up %q: %w", hostVeth, err)
	}
	var u undo
	defer u.run()
	s := &shaper{host: host, veth: link, key: key, mtu: mtu, undo: &u}
	if l.IngressRate > 0 {
		if err := s.bucket(link, l.IngressRate, l.IngressBurst); err != nil {
			return fmt.Errorf("limit what goes to the pod on %q: %w", hostVeth, err)
		}
	}
	if l.EgressRate > 0 {
		if err := s.egress(l.EgressRate, l.EgressBurst); err != nil {
			return fmt.Errorf("limit what comes from the pod on %q: %w", hostVeth, err)
		}
	}
	u.done()
	return nil
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

// shaper holds what the steps of Ensure share.
type shaper struct {
	host *netlink.Handle
	veth netlink.Link
	key  string
	mtu  int
	undo *undo
}

// bucket makes a token bucket the root qdisc of a link.
func (s *shaper) bucket(link netlink.Link, rate, burst uint64) error {
	q, err := tokenBucket(link.Attrs().Index, s.mtu, rate, burst)
	if err != nil {
		return err
	}
	if err := s.host.QdiscReplace(q); err != nil {
		return fmt.Errorf("make token bucket on %q: %w", link.Attrs().Name, err)
	}
	s.undo.push(func() { _ = s.host.QdiscDel(q) })
	return nil
}

// egress makes the ifb device with its bucket, then redirects to it, in this
// order: a packet never meets a device that is not ready.
func (s *shaper) egress(rate, burst uint64) error {
	ifb, err := s.device()
	if err != nil {
		return err
	}
	if err := s.bucket(ifb, rate, burst); err != nil {
		return err
	}
	return s.redirect(ifb)
}

// device finds or makes the ifb device.
func (s *shaper) device() (netlink.Link, error) {
	name := DeviceName(s.key)
	link, err := s.host.LinkByName(name)
	if isNotFound(err) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = name, s.mtu
		if err := s.host.LinkAdd(&netlink.Ifb{LinkAttrs: attrs}); err != nil {
			return nil, fmt.Errorf("make ifb device %q (the kernel needs the module ifb): %w", name, err)
		}
		s.undo.push(func() { _ = s.host.LinkDel(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: name}}) })
		link, err = s.host.LinkByName(name)
	}
	if err != nil {
		return nil, fmt.Errorf("look up %q: %w", name, err)
	}
	if !isOurs(link, s.key) {
		return nil, fmt.Errorf("%w: %q is a %s with alias %q", ErrNotOurs, name, link.Type(), link.Attrs().Alias)
	}
	if err := s.host.LinkSetAlias(link, alias(s.key)); err != nil {
		return nil, fmt.Errorf("set the alias of %q: %w", name, err)
	}
	if err := s.host.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("set %q up: %w", name, err)
	}
	return link, nil
}

// redirect sends what comes from the pod to the ifb device.
func (s *shaper) redirect(ifb netlink.Link) error {
	// clsact and not ingress: it has place for the egress programs of others,
	// and for ours on a kernel without tcx.
	q := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: s.veth.Attrs().Index,
		Handle:    netlink.MakeHandle(0xffff, 0),
		Parent:    netlink.HANDLE_CLSACT,
	}}
	switch err := s.host.QdiscAdd(q); {
	case err == nil:
		s.undo.push(func() { _ = s.host.QdiscDel(q) })
	case !errors.Is(err, unix.EEXIST):
		return fmt.Errorf("make clsact qdisc: %w", err)
	}
	have, err := s.redirects()
	if err != nil {
		return err
	}
	for _, f := range have {
		if target(f) == ifb.Attrs().Index {
			return nil
		}
		// It led to an ifb device of ours that is gone.
		if err := s.host.FilterDel(f); err != nil {
			return fmt.Errorf("remove a stale redirect: %w", err)
		}
	}
	// u32 without a selector matches everything, and where the reference
	// bandwidth plugin works it is there; matchall is missing from some kernels.
	f := &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: s.veth.Attrs().Index,
			Parent:    netlink.HANDLE_MIN_INGRESS,
			Priority:  filterPriority,
			Protocol:  unix.ETH_P_ALL,
		},
		Actions: []netlink.Action{netlink.NewMirredAction(ifb.Attrs().Index)},
	}
	if err := s.host.FilterAdd(f); err != nil {
		return fmt.Errorf("redirect to %q: %w", ifb.Attrs().Name, err)
	}
	s.undo.push(func() { _ = s.host.FilterDel(f) })
	return nil
}

// redirects returns the redirects at our priority.
func (s *shaper) redirects() ([]netlink.Filter, error) {
	all, err := dump.All("filters", func() ([]netlink.Filter, error) {
		return s.host.FilterList(s.veth, netlink.HANDLE_MIN_INGRESS) //nolint:forbidigo // it is repeated
	})
	if err != nil {
		return nil, err
	}
	var ours []netlink.Filter
	for _, f := range all {
		if f.Attrs().Priority == filterPriority && target(f) != 0 {
			ours = append(ours, f)
		}
	}
	return ours, nil
}

// target returns the index of the device that a filter redirects to, or 0.
func target(f netlink.Filter) int {
	u32, ok := f.(*netlink.U32)
	if !ok {
		return 0
	}
	for _, a := range u32.Actions {
		if r, ok := a.(*netlink.MirredAction); ok && r.MirredAction == netlink.TCA_EGRESS_REDIR {
			return r.Ifindex
		}
	}
	return 0
}
