// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/xveth/xveth/pkg/ipam"
	"github.com/xveth/xveth/pkg/netconf"
	"github.com/xveth/xveth/pkg/veth"
)

const (
	// cniCache is where libcni keeps results: containerd's and CRI-O's are there.
	cniCache = "/var/lib/cni"
	// askWithin bounds a question to the runtime.
	askWithin = 10 * time.Second
	// collectWithin bounds a round of the plugins.
	collectWithin = 2 * time.Minute
)

// attachment of a pod, by what the runtime calls it.
type attachment struct{ containerID, ifName string }

// collectGarbage gives back what pods have left of which the runtime does not know any
// more. A pod is known to it only after its ADD has ended, so one that is missing is
// garbage if it was missing the round before, too: no ADD takes that long.
func (a *Agent) collectGarbage(ctx context.Context) {
	var missing map[attachment]bool
	for sleep(ctx, collectEvery) {
		text, conf := a.current()
		if conf == nil {
			continue
		}
		now, err := a.missing(ctx, conf)
		if err != nil {
			slog.Warn("No garbage is collected.", "error", err)
			continue
		}
		dead := map[attachment]bool{}
		for at := range now {
			if missing[at] {
				dead[at] = true
			}
		}
		missing = now
		if len(dead) == 0 {
			continue
		}
		if err := a.collect(ctx, text, conf, dead); err != nil {
			slog.Warn("Garbage is left.", "attachments", len(dead), "error", err)
			continue
		}
		slog.Info("Garbage was collected.", "attachments", len(dead))
		a.count.garbage.Add(float64(len(dead)))
	}
}

// current is the network list that is in place, as text and as the plugin reads it.
func (a *Agent) current() ([]byte, *netconf.Conf) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.installed, a.conf
}

// missing are the attachments that are there and of which the runtime does not know.
func (a *Agent) missing(ctx context.Context, conf *netconf.Conf) (map[attachment]bool, error) {
	// First what is there: what comes meanwhile is not missing.
	have, err := attachments(conf)
	if err != nil {
		return nil, err
	}
	known, err := a.sandboxes(ctx)
	if err != nil {
		return nil, err
	}
	for at := range have {
		if known[at.containerID] {
			delete(have, at)
		}
	}
	return have, nil
}

// attachments are those that have an interface or an address. An interface whose
// container has a name that is too long for an alias is left to its address.
func attachments(conf *netconf.Conf) (map[attachment]bool, error) {
	leases, err := ipam.Leases(conf)
	if err != nil {
		return nil, err
	}
	pods, err := veth.List(conf.Name)
	if err != nil {
		return nil, err
	}
	all := map[attachment]bool{}
	for _, l := range leases {
		all[attachment{l.ContainerID, l.IfName}] = true
	}
	for _, p := range pods {
		if !p.Unlabelled && p.Is(conf.Name, p.ContainerID, p.IfName) {
			all[attachment{p.ContainerID, p.IfName}] = true
		}
	}
	return all, nil
}

// sandboxes asks the runtime for the pods that it knows of.
func (a *Agent) sandboxes(ctx context.Context) (map[string]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	conn, err := grpc.NewClient(a.cfg.CRISocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("ask the runtime at %s: %w", a.cfg.CRISocket, err)
	}
	defer conn.Close()
	answer, err := cri.NewRuntimeServiceClient(conn).ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask the runtime at %s for its pods: %w", a.cfg.CRISocket, err)
	}
	known := map[string]bool{}
	for _, s := range answer.Items {
		known[s.Id] = true
	}
	return known, nil
}

// collect runs the GC of all plugins of the list, for which everything but the dead is
// valid.
func (a *Agent) collect(ctx context.Context, text []byte, conf *netconf.Conf, dead map[attachment]bool) error {
	ctx, cancel := context.WithTimeout(ctx, collectWithin)
	defer cancel()
	list, err := libcni.NetworkConfFromBytes(text)
	if err != nil {
		return err
	}
	cni := libcni.NewCNIConfigWithCacheDir([]string{a.cfg.BinDir}, cniCache, nil)
	valid := []types.GCAttachment{}
	have, err := attachments(conf)
	if err != nil {
		return err
	}
	cached, err := cni.GetCachedAttachments("")
	if err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("read the runtime's cache of results: %w", err)
	}
	for _, c := range cached {
		if c.Network == conf.Name {
			have[attachment{c.ContainerID, c.IfName}] = true
		}
	}
	for at := range have {
		if !dead[at] {
			valid = append(valid, types.GCAttachment{ContainerID: at.containerID, IfName: at.ifName})
		}
	}
	return cni.GCNetworkList(ctx, list, &libcni.GCArgs{ValidAttachments: valid})
}
