// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/xveth/xveth/pkg/netconf"
)

// ownArg is the key of CNI_ARGS that only xveth knows; a plugin that refuses
// keys it does not know must not see it.
const ownArg = "FAST_PATH="

// target finds the plugin and says how to call it. The arguments are those of
// the attachment and not the environment's, so that the agent can delegate as
// well as the plugin.
func target(c *netconf.Conf, a *skel.CmdArgs, verb string) (*program, error) {
	if c.IPAMType == "" {
		return nil, cniError(types.ErrInvalidNetworkConfig, "network %q has no ipam type", c.Name)
	}
	path, err := find(c.IPAMType, a.Path)
	if err != nil {
		return nil, cniError(types.ErrInvalidNetworkConfig, "find ipam plugin %q: %w", c.IPAMType, err)
	}
	pairs := slices.DeleteFunc(strings.Split(a.Args, ";"), func(p string) bool { return strings.HasPrefix(p, ownArg) })
	return &program{path, environ(a, verb, strings.Join(pairs, ";"))}, nil
}

// delegate calls the plugin for a verb without a result. Its error is passed
// on as it came.
func delegate(ctx context.Context, c *netconf.Conf, a *skel.CmdArgs, verb string, stdin []byte) error {
	p, err := target(c, a, verb)
	if err != nil {
		return err
	}
	_, err = p.run(ctx, stdin)
	return err
}

func addDelegated(ctx context.Context, c *netconf.Conf, a *skel.CmdArgs) (*current.Result, error) {
	p, err := target(c, a, "ADD")
	if err != nil {
		return nil, err
	}
	answer, err := p.run(ctx, c.Raw)
	if err != nil {
		return nil, err
	}
	result, err := readResult(answer, c.CNIVersion)
	if err == nil && len(result.IPs) == 0 {
		err = errors.New("it has no address")
	}
	if err == nil {
		return result, nil
	}
	failed := cniError(types.ErrInternal, "use result of ipam plugin %q: %w", c.IPAMType, err)
	// The plugin believes that the addresses are in use.
	if err := delegate(context.WithoutCancel(ctx), c, a, "DEL", c.Raw); err != nil {
		failed.Details = "undo: " + err.Error()
	}
	return nil, failed
}

// readResult reads a plugin's result. One that does not name its version has the
// configuration's.
func readResult(answer []byte, confVersion string) (*current.Result, error) {
	var fields map[string]any
	if err := json.Unmarshal(answer, &fields); err != nil {
		return nil, err
	}
	if fields == nil {
		return nil, errors.New("it is null")
	}
	named, _ := fields["cniVersion"].(string)
	if named == "" {
		fields["cniVersion"] = confVersion
		var err error
		if answer, err = json.Marshal(fields); err != nil {
			return nil, err
		}
		named = confVersion
	}
	result, err := create.Create(named, answer)
	if err != nil {
		return nil, err
	}
	return current.NewResultFromResult(result)
}

func gcDelegated(ctx context.Context, c *netconf.Conf, a *skel.CmdArgs, valid []types.GCAttachment) error {
	if !hasVerbsOf110(c) {
		return nil
	}
	stdin, err := withValid(c.Raw, valid)
	if err != nil {
		return cniError(types.ErrInvalidNetworkConfig, "write configuration of ipam plugin %q: %w", c.IPAMType, err)
	}
	return delegate(ctx, c, a, "GC", stdin)
}

// withValid makes sure that the plugin sees the list that the caller decided
// on.
func withValid(raw []byte, valid []types.GCAttachment) ([]byte, error) {
	var n map[string]json.RawMessage
	if err := json.Unmarshal(raw, &n); err != nil {
		return nil, err
	}
	list, err := json.Marshal(valid)
	if err != nil {
		return nil, err
	}
	n["cni.dev/valid-attachments"] = list
	return json.Marshal(n)
}

func statusDelegated(ctx context.Context, c *netconf.Conf, a *skel.CmdArgs) error {
	if _, err := target(c, a, "STATUS"); err != nil {
		return types.NewError(types.ErrPluginNotAvailable, err.Error(), "")
	}
	if !hasVerbsOf110(c) {
		return nil
	}
	return delegate(ctx, c, a, "STATUS", c.Raw)
}

// hasVerbsOf110 tells whether the network's version of the specification has
// GC and STATUS; plugins refuse them in a configuration of an older one.
func hasVerbsOf110(c *netconf.Conf) bool {
	ok, err := version.GreaterThanOrEqualTo(c.CNIVersion, "1.1.0")
	return err == nil && ok
}
