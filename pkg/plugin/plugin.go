// SPDX-License-Identifier: Apache-2.0

// Package plugin is what the CNI plugins of xveth have in common around their verbs:
// reading the configuration, the log, and the codes of errors.
package plugin

import (
	"context"
	"errors"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	cniversion "github.com/containernetworking/cni/pkg/version"

	"github.com/xveth/xveth/pkg/lock"
	"github.com/xveth/xveth/pkg/netconf"
	"github.com/xveth/xveth/pkg/shape"
	"github.com/xveth/xveth/pkg/veth"
)

// Call is one call of the runtime.
type Call struct {
	Conf *netconf.Conf
	Args *skel.CmdArgs
}

// Verb does what one verb of the specification asks for.
type Verb func(context.Context, *Call) error

// Verbs of a plugin; all are needed.
type Verbs struct {
	Add, Check, Del, GC, Status Verb
}

// Parser reads a configuration and the CNI_ARGS that came with it. With an error that is
// only about prevResult it returns the rest.
type Parser func(stdin []byte, cniArgs string) (*netconf.Conf, error)

// Main serves the call that this process was started for.
func Main(about string, parse Parser, v Verbs) {
	on := func(name string, verb Verb) func(*skel.CmdArgs) error {
		return func(args *skel.CmdArgs) error { return serve(name, parse, verb, args) }
	}
	skel.PluginMainFuncs(skel.CNIFuncs{
		Add:    on("ADD", v.Add),
		Check:  on("CHECK", v.Check),
		Del:    on("DEL", v.Del),
		GC:     on("GC", v.GC),
		Status: on("STATUS", v.Status),
	}, cniversion.PluginSupports(netconf.Versions()...), about)
}

// serve parses what every verb is given and turns every error into one of the
// specification's codes.
func serve(name string, parse Parser, verb Verb, args *skel.CmdArgs) error {
	conf, err := parse(args.StdinData, args.Args)
	// What has to be removed is removed, whatever ADD is said to have given.
	removes := name == "DEL" || name == "GC"
	if conf == nil || err != nil && !removes {
		return err
	}
	done, err := openLog(conf, args, name)
	if err != nil {
		return err
	}
	err = coded(verb(context.Background(), &Call{conf, args}))
	done(err)
	return err
}

// coded gives an error the code that tells the runtime what to do about it.
func coded(err error) error {
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

// Result reads a result of any version.
func Result(r types.Result) (*current.Result, error) {
	res, err := current.NewResultFromResult(r)
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "read prevResult: "+err.Error(), "")
	}
	return res, nil
}
