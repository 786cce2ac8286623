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

// Redirect makes whatever IP comes in by the uplink go to one pod, without a look at whose
// it is: by XDP, or by tc with peer. It is a limit to compare with, and no network: the
// node itself gets only what is not IP. The function that is returned ends it.
func (p *Pod) Redirect(peer bool) (end func(), err error) {
	mac, err := macOf(p.Host, PodDev)
	if err != nil {
		return nil, err
	}
	err = p.rig.Node.Do(func() error {
		end, err = redirect(p.HostDev, mac, peer)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("redirect the uplink to %q: %w", p.ID, err)
	}
	return end, nil
}

func redirect(to string, mac net.HardwareAddr, peer bool) (func(), error) {
	host, err := netlink.LinkByName(to)
	if err != nil {
		return nil, fmt.Errorf("find %q: %w", to, err)
	}
	uplink, err := netlink.LinkByName(Uplink)
	if err != nil {
		return nil, fmt.Errorf("find %q: %w", Uplink, err)
	}
	var macs [12]byte
	copy(macs[:], mac)
	copy(macs[6:], host.Attrs().HardwareAddr)
	objs, err := loadRig(map[string]any{"rig_ifindex": uint32(host.Attrs().Index), "rig_macs": macs})
	if err != nil {
		return nil, err
	}
	defer objs.Close()
	l, err := attachRedirect(objs, uplink.Attrs().Index, peer)
	if err != nil {
		return nil, err
	}
	return func() { _ = l.Close() }, nil
}

func attachRedirect(objs *bpf.RigObjects, ifindex int, peer bool) (link.Link, error) {
	if peer {
		return link.AttachTCX(link.TCXOptions{
			Program: objs.RigRedirectPeer, Interface: ifindex, Attach: ebpf.AttachTCXIngress,
		})
	}
	return link.AttachXDP(link.XDPOptions{
		Program: objs.RigRedirect, Interface: ifindex, Flags: link.XDPDriverMode,
	})
}
