// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"fmt"
	"net"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/xveth/xveth/bpf"
)

// Redirector is a program on the uplink that redirects to a pod and checks nothing. It is a
// limit to compare with, and no network: the node itself gets nothing of what is redirected.
type Redirector int

// The redirectors.
const (
	// RedirectXDP sends whatever is IP to the pod.
	RedirectXDP Redirector = iota
	// RedirectXDPByDst looks the IPv4 destination up, as it has to be where there are
	// several pods.
	RedirectXDPByDst
	// RedirectPeer is RedirectXDP for skbs, by tc.
	RedirectPeer
)

// Redirect puts a redirector on the uplink. The function that is returned ends it.
func (p *Pod) Redirect(by Redirector) (end func(), err error) {
	mac, err := macOf(p.Host, PodDev)
	if err != nil {
		return nil, err
	}
	err = p.rig.Node.Do(func() error {
		end, err = p.redirect(by, mac)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("redirect the uplink to %q: %w", p.ID, err)
	}
	return end, nil
}

func (p *Pod) redirect(by Redirector, mac net.HardwareAddr) (func(), error) {
	host, err := netlink.LinkByName(p.HostDev)
	if err != nil {
		return nil, fmt.Errorf("find %q: %w", p.HostDev, err)
	}
	uplink, err := netlink.LinkByName(Uplink)
	if err != nil {
		return nil, fmt.Errorf("find %q: %w", Uplink, err)
	}
	to := bpf.RigRigPod{Ifindex: uint32(host.Attrs().Index)}
	copy(to.Macs[:], mac)
	copy(to.Macs[6:], host.Attrs().HardwareAddr)
	objs, err := loadRig(map[string]any{"rig_ifindex": to.Ifindex, "rig_macs": to.Macs})
	if err != nil {
		return nil, err
	}
	defer objs.Close()
	if err := objs.RigPods.Put(p.Addr4.As4(), to); err != nil {
		return nil, fmt.Errorf("tell the redirect of %s: %w", p.Addr4, err)
	}
	l, err := attachRedirect(objs, uplink.Attrs().Index, by)
	if err != nil {
		return nil, err
	}
	return func() { _ = l.Close() }, nil
}

func attachRedirect(objs *bpf.RigObjects, ifindex int, by Redirector) (link.Link, error) {
	prog := objs.RigRedirect
	switch by {
	case RedirectPeer:
		return link.AttachTCX(link.TCXOptions{
			Program: objs.RigRedirectPeer, Interface: ifindex, Attach: ebpf.AttachTCXIngress,
		})
	case RedirectXDPByDst:
		prog = objs.RigRedirectDst
	}
	return link.AttachXDP(link.XDPOptions{Program: prog, Interface: ifindex, Flags: link.XDPDriverMode})
}
