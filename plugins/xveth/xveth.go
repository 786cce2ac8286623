// SPDX-License-Identifier: Apache-2.0

// Command xveth is a CNI plugin: it connects a pod to its node by a veth pair
// and arms the learned fast path on it.
package main

import (
	"context"
	"errors"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	cniversion "github.com/containernetworking/cni/pkg/version"

	"github.com/xveth/xveth/pkg/lock"
	"github.com/xveth/xveth/pkg/netconf"
	"github.com/xveth/xveth/pkg/shape"
	"github.com/xveth/xveth/pkg/veth"
)

// version is set by the linker.
var version = "dev"

func main() {
	skel.PluginMainFuncs(skel.CNIFuncs{
		Add:    verb("ADD", add),
		Check:  verb("CHECK", check),
		Del:    verb("DEL", del),
		GC:     verb("GC", gc),
		Status: verb("STATUS", status),
	}, cniversion.PluginSupports(netconf.Versions()...), "xveth "+version+": veth pairs with a learned XDP fast path")
}

// attachment is one call of the runtime.
type attachment struct {
	conf *netconf.Conf
	args *skel.CmdArgs
}

// verb parses what every verb is given and turns every error into one of the
// specification's codes.
func verb(name string, run func(context.Context, *attachment) error) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		conf, err := netconf.Parse(args.StdinData, args.Args)
		if err != nil {
			return err
		}
		done, err := openLog(conf, args, name)
		if err != nil {
			return err
		}
		err = cniError(run(context.Background(), &attachment{conf, args}))
		done(err)
		return err
	}
}

// cniError gives an error the code that tells the runtime what to do about it.
func cniError(err error) error {
	if err == nil {
		return nil
	}
	var known *types.Error
	if errors.As(err, &known) {
		return types.NewError(known.Code, err.Error(), known.Details)
	}
	code := types.ErrInternal
	switch {
	case errors.Is(err, lock.ErrBusy):
		code = types.ErrTryAgainLater
	case errors.Is(err, veth.ErrNetns):
		code = types.ErrInvalidNetNS
	case errors.Is(err, veth.ErrInvalid), errors.Is(err, veth.ErrNoIPv6), errors.Is(err, shape.ErrInvalid):
		code = types.ErrInvalidNetworkConfig
	}
	return types.NewError(code, err.Error(), "")
}
