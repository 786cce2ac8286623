// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/xveth/xveth/pkg/shape"
	"github.com/xveth/xveth/pkg/veth"
)

// key names the attachment for its limits.
func (a *attachment) key() string {
	return veth.Key(a.conf.Name, a.args.ContainerID, a.args.IfName)
}

func (a *attachment) limits() shape.Limits {
	b := a.conf.Runtime.Bandwidth
	if b == nil {
		return shape.Limits{}
	}
	return shape.Limits(*b)
}

// shape limits the pod's bandwidth where the runtime asked for it.
func (a *attachment) shape(hostName string, mtu int) error {
	if a.conf.Runtime.Bandwidth == nil {
		return nil
	}
	return shape.Ensure(hostName, a.key(), mtu, a.limits())
}

func (a *attachment) checkShape(hostName string, mtu int) error {
	if a.conf.Runtime.Bandwidth == nil {
		return nil
	}
	return shape.Check(hostName, a.key(), mtu, a.limits())
}

// unshape removes what the limits need besides the pair.
func (a *attachment) unshape() error { return shape.Remove(a.key()) }

// unshapeInvalid removes it for attachments that are no longer valid.
func (a *attachment) unshapeInvalid(valid []types.GCAttachment) error {
	devices, err := shape.List(veth.NetworkKey(a.conf.Name))
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, v := range valid {
		keep[shape.DeviceName(veth.Key(a.conf.Name, v.ContainerID, v.IfName))] = true
	}
	var failed error
	for _, d := range devices {
		if !keep[d.Name] {
			failed = errors.Join(failed, shape.RemoveByName(d.Name))
		}
	}
	return failed
}
