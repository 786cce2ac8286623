// SPDX-License-Identifier: Apache-2.0

// Command xveth-chain is a chained CNI plugin: it arms the learned fast path on the
// interface that a plugin before it made, and changes nothing else of it.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/xveth/xveth/pkg/arm"
	"github.com/xveth/xveth/pkg/netconf"
	"github.com/xveth/xveth/pkg/plugin"
	"github.com/xveth/xveth/pkg/veth"
)

// version is set by the linker.
var version = "dev"

func main() {
	plugin.Main("xveth-chain "+version+": a learned XDP fast path for interfaces that other plugins make",
		netconf.ParseChained, plugin.Verbs{Add: add, Check: check, Del: del, GC: gc, Status: status})
}

func add(_ context.Context, c *plugin.Call) error {
	if c.Conf.PrevResult == nil {
		return errNoResult()
	}
	if arm.Wanted(c.Conf) {
		if err := armPod(c); err != nil && c.Conf.Required {
			return fmt.Errorf("arm the fast path: %w", err)
		} else if err != nil {
			// A pod without a fast path is a working pod.
			slog.Warn("The fast path is not armed.", "error", err)
		}
	}
	return types.PrintResult(c.Conf.PrevResult, c.Conf.CNIVersion)
}

func errNoResult() error {
	return types.NewError(types.ErrInvalidNetworkConfig,
		"xveth-chain needs prevResult: put it behind the plugin that makes the interface", "")
}

// armPod arms a pod, or leaves it as it was.
func armPod(c *plugin.Call) error {
	pair, err := findPair(c)
	if err != nil {
		return err
	}
	addrs, err := addresses(c)
	if err != nil {
		return err
	}
	uplinks, err := arm.Uplinks(c.Conf)
	if err != nil {
		return err
	}
	if err := veth.TakeFrames(c.Args.Netns, c.Args.IfName); err != nil {
		return err
	}
	if err := arm.Pod(c.Conf, uplinks, pair, addrs); err != nil {
		if c.Conf.Required {
			err = errors.Join(err, arm.Disarm(pair.HostIndex))
		}
		return err
	}
	return nil
}

// findPair looks for the pair that the fast path is to be armed on.
func findPair(c *plugin.Call) (*veth.Pair, error) {
	if c.Conf.FastPath.Mode == netconf.ModeXDP {
		return nil, errors.New(`fastPath.mode "xdp" needs an interface whose packets have complete checksums, which plugin xveth makes: use "auto"`)
	}
	return veth.Find(c.Args.Netns, c.Args.IfName)
}

// addresses are those of the result of the plugins before.
func addresses(c *plugin.Call) ([]netip.Addr, error) {
	if c.Conf.PrevResult == nil {
		return nil, nil
	}
	res, err := plugin.Result(c.Conf.PrevResult)
	if err != nil {
		return nil, err
	}
	var all []netip.Addr
	for _, ip := range res.IPs {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			all = append(all, a.Unmap())
		}
	}
	return all, nil
}

// del leaves the interface to the plugin that made it, without our programs. It runs before
// that plugin's DEL; when the pod is gone there is only what the maps remember.
func del(_ context.Context, c *plugin.Call) error {
	var failed error
	for _, index := range hostEnds(c) {
		failed = errors.Join(failed, arm.Disarm(index))
	}
	addrs, err := addresses(c)
	arm.ForgetAddrs(addrs)
	arm.ForgetGone()
	return errors.Join(failed, err)
}

// hostEnds are the indexes of the pod's host veth. The kernel may still be about to remove it
// when the namespace is gone; then the result of the plugins before says which one it is.
func hostEnds(c *plugin.Call) []int {
	if c.Args.Netns != "" {
		pair, err := veth.Find(c.Args.Netns, c.Args.IfName)
		if err == nil {
			return []int{pair.HostIndex}
		}
		if !errors.Is(err, veth.ErrNetns) {
			return nil
		}
	}
	if c.Conf.PrevResult == nil {
		return nil
	}
	res, err := plugin.Result(c.Conf.PrevResult)
	if err != nil {
		return nil
	}
	var all []int
	for _, i := range res.Interfaces {
		if index := veth.HostIndex(i.Name, i.Mac); i.Sandbox == "" && index != 0 {
			all = append(all, index)
		}
	}
	return all
}

func check(_ context.Context, c *plugin.Call) error {
	if c.Conf.PrevResult == nil {
		return errNoResult()
	}
	if !arm.Wanted(c.Conf) {
		return nil
	}
	pair, err := findPair(c)
	if err == nil {
		if err := arm.Check(c.Conf, pair); err != nil {
			return err
		}
		err = veth.TakesFrames(c.Args.Netns, c.Args.IfName)
	}
	if err != nil && c.Conf.Required {
		return fmt.Errorf("check the fast path: %w", err)
	}
	return nil
}

// gc drops what was known of pods that are gone. Programs go with their interface.
func gc(_ context.Context, _ *plugin.Call) error {
	arm.ForgetGone()
	return nil
}

// status says on standard error whether the fast path is armed: a network works without,
// unless the configuration requires it.
func status(_ context.Context, c *plugin.Call) error {
	uplinks, err := arm.Uplinks(c.Conf)
	if err != nil {
		return types.NewError(types.ErrPluginNotAvailable, err.Error(), "")
	}
	if err := arm.Obstacle(c.Conf); err != nil && c.Conf.Required {
		return types.NewError(types.ErrPluginNotAvailable, "the fast path cannot be armed: "+err.Error(), "")
	}
	fmt.Fprintln(os.Stderr, "xveth-chain: fast path "+arm.Text(c.Conf, uplinks))
	return nil
}
