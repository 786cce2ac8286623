// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/xveth/xveth/pkg/arm"
	"github.com/xveth/xveth/pkg/ipam"
	"github.com/xveth/xveth/pkg/lock"
	"github.com/xveth/xveth/pkg/masq"
	"github.com/xveth/xveth/pkg/veth"
)

// undo is a stack of steps that take back what has been done so far.
type undo struct{ steps []func() error }

func (u *undo) push(step func() error) { u.steps = append(u.steps, step) }

// done keeps what has been done.
func (u *undo) done() { u.steps = nil }

// run takes everything back, the last step first. What goes wrong is logged: the
// runtime's DEL tries again.
func (u *undo) run() {
	for i := len(u.steps) - 1; i >= 0; i-- {
		if err := u.steps[i](); err != nil {
			slog.Error("Taking back a step failed.", "error", err)
		}
	}
}

func add(ctx context.Context, a *attachment) error {
	var u undo
	defer u.run()

	leased, visible, err := a.lease(ctx)
	if err != nil {
		return err
	}
	defer visible()
	u.push(func() error { return ipam.Del(ctx, a.conf, a.args) })
	if len(leased.IPs) == 0 {
		return types.NewError(types.ErrInvalidNetworkConfig, "the address manager gave no address", "")
	}

	p, err := a.makePlan(leased)
	if err != nil {
		return err
	}
	pair, err := veth.Add(ctx, p.veth)
	if err != nil {
		return err
	}
	visible()
	u.push(func() error { return a.removeLink() })

	if err := a.masquerade(p); err != nil {
		return err
	}
	if err := a.shape(pair.HostName, p.veth.MTU); err != nil {
		return err
	}
	// A pod without a fast path is a working pod: never fail for it.
	if err := arm.Pod(a.conf, p.uplinks, pair, p.veth.Hosts()); err != nil {
		slog.Warn("The fast path is not armed.", "error", err)
	}
	if err := types.PrintResult(a.result(p, pair, leased), a.conf.CNIVersion); err != nil {
		return err
	}
	u.done()
	return nil
}

// removeLink takes away the pair and all that hangs on it or came with it, but not the
// addresses.
func (a *attachment) removeLink() error {
	index := hostIndex(veth.HostName(a.conf.Name, a.args.ContainerID, a.args.IfName))
	err := arm.Remove(index, func() error {
		return errors.Join(
			veth.Del(a.conf.Name, a.args.ContainerID, a.args.IfName, a.args.Netns),
			a.unshape(),
		)
	})
	if err != nil {
		return err
	}
	return a.unmasquerade()
}

// masquerade hides the network behind the node.
func (a *attachment) masquerade(p *plan) error {
	if len(p.masq) == 0 {
		return nil
	}
	unlock, err := lock.Exclusive(masq.Lock)
	if err != nil {
		return err
	}
	defer unlock()
	return masq.Ensure(a.conf.Name, p.masq)
}

// unmasquerade removes the network's rules with its last attachment. The lock keeps
// the attachment that another ADD makes meanwhile from losing them.
func (a *attachment) unmasquerade() error {
	if has, err := masq.Has(a.conf.Name); err != nil || !has {
		return err
	}
	unlock, err := lock.Exclusive(masq.Lock)
	if err != nil {
		return err
	}
	defer unlock()
	left, err := veth.List(a.conf.Name)
	if err != nil || len(left) > 0 {
		return err
	}
	return masq.Remove(a.conf.Name)
}
