// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/xveth/xveth/pkg/arm"
	"github.com/xveth/xveth/pkg/ipam"
	"github.com/xveth/xveth/pkg/masq"
	"github.com/xveth/xveth/pkg/plugin"
	"github.com/xveth/xveth/pkg/veth"
)

// check compares the attachment with the result of its ADD.
func check(ctx context.Context, a *attachment) error {
	if a.conf.PrevResult == nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "CHECK needs prevResult, the result of ADD", "")
	}
	res, err := plugin.Result(a.conf.PrevResult)
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
	return arm.Check(a.conf, &veth.Pair{HostName: hostName, HostIndex: hostIndex(hostName)})
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
	uplinks, err := arm.Uplinks(a.conf)
	if err != nil {
		return types.NewError(types.ErrPluginNotAvailable, err.Error(), "")
	}
	fmt.Fprintln(os.Stderr, "xveth: fast path "+arm.Text(a.conf, uplinks))
	return nil
}
