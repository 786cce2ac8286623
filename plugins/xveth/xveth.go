// SPDX-License-Identifier: Apache-2.0

// Command xveth is a CNI plugin: it connects a pod to its node by a veth pair
// and arms the learned fast path on it.
package main

import (
	"context"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/xveth/xveth/pkg/netconf"
	"github.com/xveth/xveth/pkg/plugin"
)

// version is set by the linker.
var version = "dev"

func main() {
	plugin.Main("xveth "+version+": veth pairs with a learned XDP fast path", netconf.Parse, plugin.Verbs{
		Add: on(add), Check: on(check), Del: on(del), GC: on(gc), Status: on(status),
	})
}

// attachment is one call of the runtime.
type attachment struct {
	conf *netconf.Conf
	args *skel.CmdArgs
}

func on(verb func(context.Context, *attachment) error) plugin.Verb {
	return func(ctx context.Context, c *plugin.Call) error {
		return verb(ctx, &attachment{c.Conf, c.Args})
	}
}
