// SPDX-License-Identifier: Apache-2.0

// Package agent keeps a node of a Kubernetes cluster in line with what the API says: routes
// and tunnels to the pods of the other nodes, the masquerade, the plugin binaries and the
// network list of the runtime, the fast path on the uplinks. It holds no state of its own:
// all of it follows from the API and the kernel, and goes on working while no agent runs.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/xveth/xveth/pkg/arm"
	"github.com/xveth/xveth/pkg/cluster"
	"github.com/xveth/xveth/pkg/install"
	"github.com/xveth/xveth/pkg/netconf"
)

// Config of an agent.
type Config struct {
	// NodeName is the name of this node's object.
	NodeName string
	Cluster  cluster.Config
	FastPath install.FastPath
	// BinDir and ConfDir are where the runtime looks for plugins and for networks, From is
	// where the binaries to be installed are; "" when they are in BinDir already.
	BinDir, ConfDir, From string
	// List is the file name of the network list, Network its name.
	List, Network string
	// CRISocket is where the runtime is asked which pods live; "" collects no garbage.
	CRISocket string
	// Listen is where health and metrics are served; "" serves none.
	Listen string
	// Version of the program.
	Version string
}

const (
	// resync is how long a change that nothing tells of goes unnoticed.
	resync = 10 * time.Second
	// settle is how long changes are collected before they are acted on.
	settle = 50 * time.Millisecond
	// pause is the least time between two rounds.
	pause = 200 * time.Millisecond
	// collectEvery is the time between two rounds of garbage collection.
	collectEvery = 2 * time.Minute
)

// Agent of one node.
type Agent struct {
	cfg   Config
	nodes listers.NodeLister
	// listed says that all nodes are known.
	listed  cache.InformerSynced
	factory informers.SharedInformerFactory
	wake    chan struct{}
	count   *counters

	pods podRoutes // of the loop alone

	mu        sync.Mutex
	ready     error // why the node is not ready for pods; nil if it is
	alive     time.Time
	installed []byte // the network list that is in place; nil before
	conf      *netconf.Conf
}

// New makes an agent.
func New(cfg Config, client kubernetes.Interface) (*Agent, error) {
	a := &Agent{
		cfg: cfg, wake: make(chan struct{}, 1), count: newCounters(),
		ready: errors.New("the API server has not answered yet"), alive: time.Now(),
	}
	a.factory = informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(strip))
	nodes := a.factory.Core().V1().Nodes()
	a.nodes, a.listed = nodes.Lister(), nodes.Informer().HasSynced
	_, err := nodes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { a.poke() },
		DeleteFunc: func(any) { a.poke() },
		UpdateFunc: func(was, is any) {
			if !reflect.DeepEqual(was, is) {
				a.poke()
			}
		},
	})
	return a, err
}

// strip leaves of an object what the agent looks at: the heartbeats of a large cluster
// are no news, and 250 pods take little memory.
func strip(obj any) (any, error) {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	kept := &corev1.Node{}
	kept.Name, kept.UID, kept.CreationTimestamp = n.Name, n.UID, n.CreationTimestamp
	kept.Spec.PodCIDR, kept.Spec.PodCIDRs = n.Spec.PodCIDR, n.Spec.PodCIDRs
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			kept.Status.Addresses = append(kept.Status.Addresses, a)
		}
	}
	return kept, nil
}

// poke has the loop look again soon.
func (a *Agent) poke() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Run works until the context ends. What it has made stays: the next agent goes on from
// there.
func (a *Agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var parts sync.WaitGroup
	defer parts.Wait()
	defer cancel()
	if a.cfg.Listen != "" {
		l, err := listen(ctx, a.cfg.Listen)
		if err != nil {
			return err
		}
		parts.Go(func() { a.serve(ctx, l) })
	}
	a.factory.StartWithContext(ctx)
	if err := a.watchKernel(ctx); err != nil {
		return err
	}
	if a.cfg.CRISocket != "" {
		parts.Go(func() { a.collectGarbage(ctx) })
	}
	a.loop(ctx)
	return nil
}

func (a *Agent) loop(ctx context.Context) {
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
		case <-again.C:
		}
		if !sleep(ctx, settle) {
			return
		}
		select {
		case <-a.wake: // it is in what is looked at now
		default:
		}
		start := time.Now()
		err := a.sync(ctx)
		a.count.round(time.Since(start), err)
		a.mu.Lock()
		a.ready, a.alive = err, time.Now()
		a.mu.Unlock()
		again.Reset(resync)
		if !sleep(ctx, pause) {
			return
		}
	}
}

// sleep waits, and says whether the context goes on.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

var (
	errNotListed = errors.New("the API server has not answered yet")
	errNoRange   = errors.New("the node has no pod range yet: does the controller manager allocate them (--allocate-node-cidrs)?")
)

// sync does what is to be done once. The network list is written only after all the rest
// is in place: with it the node counts as ready for pods.
func (a *Agent) sync(context.Context) error {
	if !a.listed() {
		return errNotListed
	}
	self, others, err := a.read()
	if err != nil {
		return err
	}
	r, err := cluster.Apply(a.cfg.Cluster, self, others)
	a.count.ways(r)
	for _, u := range r.Unknown {
		slog.Warn("A way to pods of another node is not known.", "error", u)
	}
	if err != nil {
		slog.Error("The node does not reach all pods.", "error", err)
		return err
	}
	text, err := a.list(self, r)
	if err != nil {
		return err
	}
	conf, err := install.Conf(text)
	if err != nil {
		return fmt.Errorf("read the network list that was made: %w", err)
	}
	// Pods have their network without the fast path, too.
	if err := a.arm(conf, r.Uplinks); err != nil {
		slog.Warn("The fast path is not armed on all uplinks.", "error", err)
	}
	if err := a.install(text, conf); err != nil {
		slog.Error("The plugin is not installed.", "error", err)
		return err
	}
	if err := a.pods.restore(conf); err != nil {
		slog.Warn("Routes to pods of this node could not be checked.", "error", err)
	}
	return nil
}

// read takes this node and the others from what the API has told.
func (a *Agent) read() (self cluster.Node, others []cluster.Node, err error) {
	all, err := a.nodes.List(labels.Everything())
	if err != nil {
		return self, nil, err
	}
	found := false
	for _, n := range all {
		node := toNode(n)
		if n.Name == a.cfg.NodeName {
			self, found = node, true
		} else {
			others = append(others, node)
		}
	}
	switch {
	case !found:
		return self, nil, fmt.Errorf("there is no node %q: does the kubelet register under this name?", a.cfg.NodeName)
	case len(self.PodCIDRs) == 0:
		return self, nil, errNoRange
	}
	// In any order the informer gives the same nodes; logs and lists stay the same.
	slices.SortFunc(others, func(a, b cluster.Node) int { return strings.Compare(a.Name, b.Name) })
	return self, others, nil
}

// toNode leaves out what is no address and no range; the API server checks both.
func toNode(n *corev1.Node) cluster.Node {
	node := cluster.Node{Name: n.Name, Created: n.CreationTimestamp.Time}
	ranges := n.Spec.PodCIDRs
	if len(ranges) == 0 && n.Spec.PodCIDR != "" {
		ranges = []string{n.Spec.PodCIDR}
	}
	for _, r := range ranges {
		if p, err := netip.ParsePrefix(r); err == nil {
			node.PodCIDRs = append(node.PodCIDRs, p.Masked())
		}
	}
	for _, addr := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(addr.Address); addr.Type == corev1.NodeInternalIP && err == nil {
			node.Addrs = append(node.Addrs, ip.Unmap())
		}
	}
	return node
}

// arm attaches the fast path to the uplinks. It is cheap when nothing has changed.
func (a *Agent) arm(conf *netconf.Conf, names []string) error {
	uplinks := make([]netconf.Uplink, 0, len(names))
	for _, n := range names {
		uplinks = append(uplinks, netconf.Uplink{Name: n})
	}
	return arm.Node(conf, uplinks)
}
