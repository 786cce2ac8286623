// SPDX-License-Identifier: Apache-2.0

package veth

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// maker holds what the steps of Add share.
type maker struct {
	*plan
	host *netlink.Handle
	pod  *podNS
	pair Pair
	na   *naSocket

	hostWatch, podWatch *addrWatch
}

// prepareHost checks what the host has to offer and turns on forwarding of the
// families in use, before anything is made.
func prepareHost(host *netlink.Handle, p *plan) error {
	if p.v6 {
		off, err := getSysctl("net", "ipv6", "conf", "default", "disable_ipv6")
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: the host's kernel runs without it: remove the ipv6 ranges from the network", ErrNoIPv6)
		}
		if err != nil {
			return fmt.Errorf("read whether the host has ipv6: %w", err)
		}
		if off != "0" {
			return fmt.Errorf("%w: the host has net.ipv6.conf.default.disable_ipv6=%s: set it to 0 or remove the ipv6 ranges from the network", ErrNoIPv6, off)
		}
		if err := setSysctl("1", "net", "ipv6", "conf", "all", "forwarding"); err != nil {
			return err
		}
	}
	if p.v4 {
		if err := setSysctl("1", "net", "ipv4", "ip_forward"); err != nil {
			return err
		}
	}
	for _, a := range p.Addresses {
		// No route at all is as good as a route elsewhere.
		routes, err := host.RouteGet(a.Prefix.Addr().AsSlice())
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return fmt.Errorf("%w: %s is an address of the host itself", ErrConflict, a.Prefix.Addr())
		}
	}
	return nil
}

// close closes what the steps opened.
func (m *maker) close() {
	m.na.close()
	m.hostWatch.close()
	m.podWatch.close()
}

// create makes the pair, both ends down, and finds out its indexes.
func (m *maker) create(u *undo) error {
	err := m.newPair()
	if errors.Is(err, unix.EEXIST) {
		if err = m.clearWay(); err == nil {
			err = m.newPair()
		}
	}
	if err != nil {
		return fmt.Errorf("make veth pair %q and %q: %w", m.hostName, m.IfName, err)
	}
	u.push(func() { m.remove() })
	// The pod's end is asked, not the host's: there a manager of devices may
	// be renaming at this moment.
	link, err := m.pod.nl.LinkByName(m.IfName)
	if err != nil {
		return fmt.Errorf("look up %q in the pod: %w", m.IfName, err)
	}
	m.pair.PodIndex, m.pair.HostIndex = link.Attrs().Index, link.Attrs().ParentIndex
	m.pair.PodMAC, m.pair.PodMTU = link.Attrs().HardwareAddr, link.Attrs().MTU
	return nil
}

func (m *maker) newPair() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = m.hostName, m.MTU, m.hostMAC
	if m.LargeTCP != nil {
		attrs.GSOIPv4MaxSize = m.LargeTCP.MaxSize
	}
	pair := netlink.NewVeth(attrs)
	pair.PeerName = m.IfName
	pair.PeerHardwareAddr = m.MAC
	pair.PeerNamespace = netlink.NsFd(int(m.pod.ns.Fd()))
	return m.host.LinkAdd(pair)
}

// clearWay finds out which of the two names is taken, and removes a host end
// that an ADD which was killed, or a pod which died, left under our name.
func (m *maker) clearWay() error {
	_, err := m.pod.nl.LinkByName(m.IfName)
	if err == nil {
		return fmt.Errorf("%w in the pod: DEL the attachment first", ErrExists)
	}
	if !isNotFound(err) {
		return fmt.Errorf("look up %q in the pod: %w", m.IfName, err)
	}
	old, err := m.host.LinkByName(m.hostName)
	if isNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up %q on the host: %w", m.hostName, err)
	}
	if !isOurs(old, m.hostName, m.alias) {
		return fmt.Errorf("%w: %q is a %s with alias %q", ErrNotOurs, m.hostName, old.Type(), old.Attrs().Alias)
	}
	if err := m.host.LinkDel(old); err != nil && !isNotFound(err) {
		return fmt.Errorf("remove the stale %q: %w", m.hostName, err)
	}
	return nil
}

// remove takes the pair away.
func (m *maker) remove() {
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: m.hostName, Index: m.pair.HostIndex}}
	// There is nobody to tell: the error that led here is the one to report.
	_ = m.host.LinkDel(link)
}

// bringUp gives the host's end its alias and takes both ends up, with what has
// to be set while they are down.
func (m *maker) bringUp() error {
	host := byIndex(m.pair.HostIndex)
	if err := m.host.LinkSetAlias(host, m.alias); err != nil {
		return fmt.Errorf("set the alias of %q: %w", m.hostName, err)
	}
	if err := m.hostSysctls(); err != nil {
		return err
	}
	if m.v6 {
		var err error
		if m.hostWatch, err = newAddrWatch(); err != nil {
			return err
		}
	}
	if err := m.addLinkLocal(m.host, m.pair.HostIndex, m.hostMAC); err != nil {
		return err
	}
	// Before the host's end goes up: it is then that the kernel notes whether the
	// device takes redirected frames (veth_set_xdp_features).
	if err := m.pod.offloads.set(m.IfName, m.TxChecksumOff); err != nil {
		return err
	}
	if err := m.setLargeTCP(); err != nil {
		return err
	}
	if err := m.host.LinkSetUp(host); err != nil {
		return fmt.Errorf("set %q up: %w", m.hostName, err)
	}
	if err := m.pod.ns.Do(func(ns.NetNS) error { return m.podSysctls() }); err != nil {
		return fmt.Errorf("prepare %q in the pod: %w", m.IfName, err)
	}
	// IPv4 addresses come first: the kernel announces them when the link comes
	// up (arp_notify). Sending the ARP ourselves would take a packet socket,
	// and closing one waits for all CPUs: longer than all of ADD.
	if err := m.addPodAddresses(true); err != nil {
		return err
	}
	if err := m.addLinkLocal(m.pod.nl, m.pair.PodIndex, m.pair.PodMAC); err != nil {
		return err
	}
	if err := m.pod.nl.LinkSetUp(byIndex(m.pair.PodIndex)); err != nil {
		return fmt.Errorf("set %q up in the pod: %w", m.IfName, err)
	}
	return nil
}

// setLargeTCP sets the limits of the pod's end; the host's end was made with them.
func (m *maker) setLargeTCP() error {
	if m.LargeTCP == nil {
		return nil
	}
	pod := byIndex(m.pair.PodIndex)
	if err := m.pod.nl.LinkSetGSOMaxSegs(pod, int(m.LargeTCP.MaxSegs)); err != nil {
		return fmt.Errorf("limit the segments of a packet of %q in the pod: %w", m.IfName, err)
	}
	if err := m.pod.nl.LinkSetGSOIPv4MaxSize(pod, int(m.LargeTCP.MaxSize)); err != nil {
		return fmt.Errorf("allow large tcp packets of %q in the pod: %w", m.IfName, err)
	}
	return nil
}

// hostSysctls makes the host's end announce a MAC address that somebody changes
// later, keeps it from listening to router advertisements of the pod and from
// waiting for duplicate address detection. Where IPv6 is off there is less to
// set.
func (m *maker) hostSysctls() error {
	if err := writeSysctl("1", "net", "ipv4", "conf", m.hostName, "arp_notify"); err != nil {
		return err
	}
	for _, s := range [][2]string{{"accept_ra", "0"}, {"accept_dad", "0"}, {"ndisc_notify", "1"}} {
		err := writeSysctl(s[1], "net", "ipv6", "conf", m.hostName, s[0])
		if err == nil {
			continue
		}
		if m.v6 || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		break
	}
	return nil
}

// podSysctls runs in the pod's namespace.
func (m *maker) podSysctls() error {
	if m.v4 {
		if err := writeSysctl("1", "net", "ipv4", "conf", m.IfName, "arp_notify"); err != nil {
			return err
		}
	}
	if !m.v6 {
		return nil
	}
	// Runtimes create namespaces with IPv6 off; like the reference plugins we
	// turn it on where an IPv6 address was asked for.
	for _, dev := range []string{"lo", m.IfName} {
		if err := setSysctl("0", "net", "ipv6", "conf", dev, "disable_ipv6"); err != nil {
			return fmt.Errorf("%w in the pod: %w", ErrNoIPv6, err)
		}
	}
	for _, s := range [][2]string{{"accept_dad", "0"}, {"ndisc_notify", "1"}} {
		if err := writeSysctl(s[1], "net", "ipv6", "conf", m.IfName, s[0]); err != nil {
			return err
		}
	}
	var err error
	if m.na, err = newNASocket(); err != nil {
		return err
	}
	m.podWatch, err = newAddrWatch()
	return err
}

// byIndex names a link by its index alone.
func byIndex(index int) netlink.Link {
	return &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: index}}
}

// isOurs says whether a link is the host's end of the attachment with that
// alias. One without an alias was left by an ADD that died at once.
func isOurs(link netlink.Link, hostName, alias string) bool {
	a := link.Attrs()
	return link.Type() == "veth" && (a.Alias == alias || a.Alias == "" && a.Name == hostName)
}
