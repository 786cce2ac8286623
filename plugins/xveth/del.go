// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/xveth/xveth/pkg/arm"
	"github.com/xveth/xveth/pkg/ipam"
	"github.com/xveth/xveth/pkg/veth"
)

// del removes an attachment. The address is given back last, when nothing can send
// packets of the old pod to the next one that gets it.
func del(ctx context.Context, a *attachment) error {
	if err := a.removeLink(); err != nil {
		return err
	}
	return ipam.Del(ctx, a.conf, a.args)
}

// gc removes what belongs to this network and to none of the valid attachments.
func gc(ctx context.Context, a *attachment) error {
	valid := a.conf.ValidAttachments
	if valid == nil {
		slog.Warn("GC without a list of valid attachments removes nothing.")
		return nil
	}
	have, err := veth.List(a.conf.Name)
	if err != nil {
		return err
	}
	var failed error
	for _, h := range have {
		if a.isValid(h, valid) {
			continue
		}
		slog.Info("GC removes an attachment.", "host", h.HostName, "of", h.ContainerID+"/"+h.IfName)
		failed = errors.Join(failed, arm.Remove(h.HostIndex, func() error { return veth.RemoveByName(h.HostName) }))
	}
	arm.ForgetGone()
	failed = errors.Join(failed, a.unshapeInvalid(valid))
	if failed != nil {
		return failed
	}
	return errors.Join(a.unmasquerade(), ipam.GC(ctx, a.conf, a.args, valid))
}

func (a *attachment) isValid(h veth.Attachment, valid []types.GCAttachment) bool {
	for _, v := range valid {
		if h.HostName == veth.HostName(a.conf.Name, v.ContainerID, v.IfName) || h.Is(a.conf.Name, v.ContainerID, v.IfName) {
			return true
		}
	}
	return false
}
