// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/pkg/ipam"
	"github.com/xveth/xveth/pkg/masq"
	"github.com/xveth/xveth/pkg/netconf"
	"github.com/xveth/xveth/pkg/veth"
)

// check compares the attachment with the result of its ADD.
func check(ctx context.Context, a *attachment) error {
	if a.conf.PrevResult == nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "CHECK needs prevResult, the result of ADD", "")
	}
	res, err := asCurrent(a.conf.PrevResult)
	if err != nil {
		return err
	}
	cfg, err := a.fromResult(res)
	if err != nil {
		return err
	}
	if err := veth.Check(cfg); err != nil {
		return err
	}
	if err := ipam.Check(ctx, a.conf, a.args); err != nil {
		return err
	}
	subnets, err := a.masqSubnets(cfg.Addresses)
	if err != nil {
		return err
	}
	if len(subnets) > 0 {
		if err := masq.Check(a.conf.Name, subnets); err != nil {
			return err
		}
	}
	hostName := veth.HostName(a.conf.Name, a.args.ContainerID, a.args.IfName)
	if err := a.checkShape(hostName, cfg.MTU); err != nil {
		return err
	}
	return a.checkArmed(hostName)
}

// fromResult is the pair that a result describes. A result before version 1.1 has no
// MTU, so it is worked out as ADD did.
func (a *attachment) fromResult(res *current.Result) (veth.Config, error) {
	own := &current.Result{}
	mtu := 0
	for i, intf := range res.Interfaces {
		if intf.Name != a.args.IfName || intf.Sandbox == "" {
			continue
		}
		mtu = intf.Mtu
		for _, ip := range res.IPs {
			if ip.Interface != nil && *ip.Interface == i {
				own.IPs = append(own.IPs, ip)
			}
		}
	}
	if len(own.IPs) == 0 {
		return veth.Config{}, types.NewError(types.ErrInvalidNetworkConfig,
			fmt.Sprintf("prevResult has no address on interface %q", a.args.IfName), "")
	}
	own.Routes = res.Routes
	p, err := a.makePlan(own)
	if err != nil {
		return veth.Config{}, err
	}
	if mtu != 0 {
		p.veth.MTU = mtu
	}
	return p.veth, nil
}

// status says whether the next ADD can succeed; whether the fast path is armed is
// told on standard error, because a node without it works.
func status(ctx context.Context, a *attachment) error {
	if err := ipam.Status(ctx, a.conf, a.args); err != nil && !a.hasReclaimable() {
		return err
	}
	uplinks, err := a.uplinks()
	if err != nil {
		return types.NewError(types.ErrPluginNotAvailable, err.Error(), "")
	}
	fmt.Fprintln(os.Stderr, "xveth: fast path "+a.armedText(uplinks))
	return nil
}

func (a *attachment) armedText(uplinks []netconf.Uplink) string {
	if a.conf.FastPath.Mode == netconf.ModeOff {
		return "not armed: fastPath.mode is off"
	}
	d, err := datapath.Open(datapath.DefaultDir)
	if errors.Is(err, datapath.ErrNotLoaded) {
		if err := datapath.Probe(datapath.DefaultDir); err != nil {
			return "not armed: " + err.Error()
		}
		return "not armed yet: the first ADD loads it"
	}
	if err != nil {
		return "not armed: " + err.Error()
	}
	defer d.Close()
	text := "armed"
	if on, err := datapath.IsLiberal(); err != nil || !on {
		text += "; no TCP is learned while net.netfilter.nf_conntrack_tcp_be_liberal is 0"
	}
	for _, u := range uplinks {
		drive, reason := d.UplinkDrive(u.Name, want(u, a.conf.FastPath.Mode))
		text += fmt.Sprintf("; uplink %s: %s", u.Name, drive)
		if reason != "" {
			text += " (" + reason + ")"
		}
	}
	return text
}
