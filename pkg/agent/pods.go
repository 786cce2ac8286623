// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"github.com/xveth/xveth/pkg/ipam"
	"github.com/xveth/xveth/pkg/netconf"
	"github.com/xveth/xveth/pkg/veth"
)

// grown is how old an attachment has to be for its routes to be missing: ADD makes the
// interface first and the routes after it.
const grown = 5 * time.Second

// podRoutes puts back the routes to this node's pods that somebody else removed, such as
// a manager of networks that was restarted.
type podRoutes struct {
	seen map[string]time.Time // by name of the host's end
}

func (p *podRoutes) restore(conf *netconf.Conf) error {
	pods, err := veth.List(conf.Name)
	if err != nil {
		return err
	}
	leases, err := ipam.Leases(conf)
	if err != nil {
		return err
	}
	was, now := p.seen, time.Now()
	p.seen = map[string]time.Time{}
	var failed error
	for _, pod := range pods {
		since, known := was[pod.HostName]
		if !known {
			since = now
		}
		p.seen[pod.HostName] = since
		if now.Sub(since) < grown {
			continue
		}
		var addrs []netip.Addr
		for _, l := range leases {
			if pod.Is(conf.Name, l.ContainerID, l.IfName) {
				addrs = append(addrs, l.Addr)
			}
		}
		n, err := veth.EnsureRoutes(pod.HostIndex, addrs)
		failed = errors.Join(failed, err)
		if n > 0 {
			slog.Warn("Routes to a pod were gone, and are back.", "interface", pod.HostName, "routes", n)
		}
	}
	return failed
}
