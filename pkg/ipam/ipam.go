// SPDX-License-Identifier: Apache-2.0

// Package ipam gets and gives back the addresses of an attachment. The type
// host-local runs in this process on the reference plugin's allocator and
// on-disk format, so that a machine can change from a reference plugin to xveth
// and back; any other type is a plugin, called by the CNI protocol. The package
// puts no address on an interface.
package ipam

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/xveth/xveth/pkg/netconf"
)

// hostLocal is the type that needs no other program.
const hostLocal = "host-local"

// Add reserves addresses for the attachment. When it fails, nothing stays
// reserved; an attachment that has addresses already gets an error, not more of
// them.
func Add(ctx context.Context, c *netconf.Conf, a *skel.CmdArgs) (*current.Result, error) {
	if c.IPAMType == hostLocal {
		return addHostLocal(ctx, c, a)
	}
	return addDelegated(ctx, c, a)
}

// Del gives the attachment's addresses back. It succeeds when there are none,
// needs no network namespace and creates nothing.
func Del(ctx context.Context, c *netconf.Conf, a *skel.CmdArgs) error {
	if c.IPAMType == hostLocal {
		return delHostLocal(ctx, c, a)
	}
	return delegate(ctx, c, a, "DEL", c.Raw)
}

// Check returns an error that names the reservation that is missing. With a
// previous result every address of it must be reserved, without one at least
// one address.
func Check(ctx context.Context, c *netconf.Conf, a *skel.CmdArgs) error {
	if c.IPAMType == hostLocal {
		return checkHostLocal(ctx, c, a)
	}
	return delegate(ctx, c, a, "CHECK", c.Raw)
}

// GC gives back the addresses of this network that belong to none of the valid
// attachments. A nil list, unlike an empty one, means that the runtime gave
// none: then nothing is removed.
func GC(ctx context.Context, c *netconf.Conf, a *skel.CmdArgs, valid []types.GCAttachment) error {
	if valid == nil {
		return nil
	}
	if c.IPAMType == hostLocal {
		return gcHostLocal(ctx, c, valid)
	}
	return gcDelegated(ctx, c, a, valid)
}

// Status returns an error, of CNI code 50, when the next Add could not
// succeed: the store cannot be used or a range set has no free address. It
// changes nothing.
func Status(ctx context.Context, c *netconf.Conf, a *skel.CmdArgs) error {
	if c.IPAMType == hostLocal {
		return statusHostLocal(c)
	}
	return statusDelegated(ctx, c, a)
}

// Subnets returns the subnet of each host-local range, each once; nil for
// other types, whose ranges are not known.
func Subnets(c *netconf.Conf) ([]netip.Prefix, error) {
	if c.IPAMType != hostLocal {
		return nil, nil
	}
	conf, err := load(c, "")
	if err != nil {
		return nil, err
	}
	return subnets(conf), nil
}

// cniError is for the CNI edge, which looks for a *types.Error and not at what
// it wraps.
func cniError(code uint, format string, args ...any) *types.Error {
	return types.NewError(code, fmt.Errorf(format, args...).Error(), "")
}
