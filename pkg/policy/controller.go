// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"
)

const (
	// settle is how long a change waits for others that come with it.
	settle = 20 * time.Millisecond
	// firstRetry and lastRetry bound the pauses after the kernel has refused the rules.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 10 * time.Second
	// verifyEvery is how often the table is looked after while nothing changes.
	verifyEvery = 10 * time.Second
)

// Counters say what a controller has done. All may be read at any time.
type Counters struct {
	// Syncs are transactions that the kernel took, Failures are rounds that failed.
	Syncs, Failures atomic.Uint64
	// Replaced are syncs that wrote the whole table, Repaired those of them that found it
	// changed by somebody else.
	Replaced, Repaired atomic.Uint64
	// LastSync is how long the last sync took, from reading the objects to the kernel's
	// answer, in nanoseconds.
	LastSync atomic.Int64
	// Policies, Subjects (addresses of isolated pods of this node) and Chains are as of the
	// last sync; Problems are parts of policies that mean nothing.
	Policies, Subjects, Chains, Problems atomic.Int64
}

// Controller keeps the rules as the API has the policies.
type Controller struct {
	// Counters are what it has done.
	Counters Counters

	node       string
	log        *slog.Logger
	pods       corelisters.PodLister
	namespaces corelisters.NamespaceLister
	policies   networkinglisters.NetworkPolicyLister
	listed     []cache.InformerSynced
	wake       chan struct{}
	synced     atomic.Bool
	said       map[string]bool // problems that are in the log

	mu    sync.Mutex
	early map[types.NamespacedName][]netip.Addr
}

// New makes a controller for the pods of a node. It takes the informers of Pods,
// Namespaces and NetworkPolicies, of all namespaces, from the factory, which the caller
// starts after New. Strip says which fields of them it reads.
func New(node string, factory informers.SharedInformerFactory, log *slog.Logger) (*Controller, error) {
	if node == "" {
		return nil, errors.New("network policy: the name of this node is empty")
	}
	pods, namespaces := factory.Core().V1().Pods(), factory.Core().V1().Namespaces()
	policies := factory.Networking().V1().NetworkPolicies()
	c := &Controller{
		node: node, log: log, pods: pods.Lister(), namespaces: namespaces.Lister(), policies: policies.Lister(),
		wake: make(chan struct{}, 1), said: map[string]bool{}, early: map[types.NamespacedName][]netip.Addr{},
	}
	anything := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { c.changed() },
		UpdateFunc: func(_, _ any) { c.changed() },
		DeleteFunc: func(any) { c.changed() },
	}
	onPod := anything
	onPod.UpdateFunc = func(old, now any) {
		a, ok := old.(*corev1.Pod)
		b, ok2 := now.(*corev1.Pod)
		if !ok || !ok2 || !alike(a, b) {
			c.changed()
		}
	}
	for _, i := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{{pods.Informer(), onPod}, {namespaces.Informer(), anything}, {policies.Informer(), anything}} {
		if _, err := i.informer.AddEventHandler(i.handler); err != nil {
			return nil, fmt.Errorf("network policy: watch the API: %w", err)
		}
		c.listed = append(c.listed, i.informer.HasSynced)
	}
	return c, nil
}

// changed asks for another sync.
func (c *Controller) changed() {
	select {
	case c.wake <- struct{}{}:
	default: // it is asked for already
	}
}

// PodStarted tells the addresses of a pod of this node before its status has them, so that
// its first packets meet its policies already. It has no effect before the API's pod is
// known, whose labels decide, nor once its status has the addresses.
func (c *Controller) PodStarted(namespace, name string, addrs []netip.Addr) {
	c.setEarly(types.NamespacedName{Namespace: namespace, Name: name}, slices.Clone(addrs))
}

// PodStopped takes back what PodStarted told.
func (c *Controller) PodStopped(namespace, name string) {
	c.setEarly(types.NamespacedName{Namespace: namespace, Name: name}, nil)
}

func (c *Controller) setEarly(pod types.NamespacedName, addrs []netip.Addr) {
	c.mu.Lock()
	if len(addrs) == 0 {
		delete(c.early, pod)
	} else {
		c.early[pod] = addrs
	}
	c.mu.Unlock()
	c.changed()
}

// Synced says whether the kernel has had the rules of all objects once.
func (c *Controller) Synced() bool { return c.synced.Load() }

// Run keeps the rules until the context ends, in the network namespace of the calling
// thread. Nothing is changed before all objects have been listed: what an earlier process
// left stays in force until one transaction replaces it. When Run ends, the rules stay.
func (c *Controller) Run(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if !cache.WaitForCacheSync(ctx.Done(), c.listed...) {
		return context.Cause(ctx)
	}
	t := &table{}
	defer t.close()
	retry := firstRetry
	for {
		pause := verifyEvery
		if err := c.sync(t); err != nil {
			c.Counters.Failures.Add(1)
			c.log.Error("The network policy rules could not be written.", "error", err, "retry", retry)
			pause, retry = retry, min(2*retry, lastRetry)
		} else {
			retry = firstRetry
		}
		if !c.wait(ctx, pause) {
			return nil
		}
	}
}

// wait returns when something has changed and settled, or after the pause. It returns
// false when the context has ended.
func (c *Controller) wait(ctx context.Context, pause time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pause):
		return true
	case <-c.wake:
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(settle):
	}
	select {
	case <-c.wake: // is covered by the sync that comes now
	default:
	}
	return true
}

// sync makes the kernel's rules those of the objects.
func (c *Controller) sync(t *table) error {
	start := time.Now()
	ours, err := t.verify()
	if err != nil {
		return err
	}
	if !ours {
		c.log.Warn("Somebody has changed the network policy rules; they are written anew.", "table", tableName)
	}
	o, err := c.objects()
	if err != nil {
		return err
	}
	rules := Compile(o)
	c.report(rules)
	wrote, err := t.write(rules)
	if err != nil {
		return err
	}
	c.count(o, rules, wrote, !ours)
	if wrote != nothing {
		c.Counters.LastSync.Store(int64(time.Since(start)))
		c.log.Debug("The network policy rules are written.", "wrote", wrote.String(), "took", time.Since(start),
			"policies", len(o.Policies), "subjects", rules.Subjects())
	}
	c.synced.Store(true)
	return nil
}

func (c *Controller) count(o Objects, r *Rules, wrote wrote, repaired bool) {
	if wrote != nothing {
		c.Counters.Syncs.Add(1)
	}
	if wrote == everything {
		c.Counters.Replaced.Add(1)
	}
	if repaired {
		c.Counters.Repaired.Add(1)
	}
	c.Counters.Policies.Store(int64(len(o.Policies)))
	c.Counters.Subjects.Store(int64(r.Subjects()))
	c.Counters.Chains.Store(int64(len(r.chains)))
	c.Counters.Problems.Store(int64(len(r.Problems)))
}

// report logs each problem when it appears.
func (c *Controller) report(r *Rules) {
	now := map[string]bool{}
	for _, p := range r.Problems {
		now[p.Error()] = true
		if !c.said[p.Error()] {
			c.log.Warn("A part of a network policy means nothing and allows nothing.", "error", p)
		}
	}
	c.said = now
}

// objects reads what the informers have.
func (c *Controller) objects() (o Objects, err error) {
	o.Node = c.node
	if o.Pods, err = c.pods.List(labels.Everything()); err != nil {
		return o, fmt.Errorf("list pods: %w", err)
	}
	if o.Namespaces, err = c.namespaces.List(labels.Everything()); err != nil {
		return o, fmt.Errorf("list namespaces: %w", err)
	}
	if o.Policies, err = c.policies.List(labels.Everything()); err != nil {
		return o, fmt.Errorf("list network policies: %w", err)
	}
	o.Early = c.stillEarly(o.Pods)
	return o, nil
}

// stillEarly returns the addresses that are not in the status of their pods, and forgets
// the others.
func (c *Controller) stillEarly(pods []*corev1.Pod) map[types.NamespacedName][]netip.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.early) == 0 {
		return nil
	}
	left := map[types.NamespacedName][]netip.Addr{}
	for _, p := range pods {
		key := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
		addrs, ok := c.early[key]
		if !ok {
			continue
		}
		known, _ := podAddrs(p) // Compile reports the error
		if slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !slices.Contains(known, a) }) {
			left[key] = addrs
		} else {
			delete(c.early, key)
		}
	}
	return left
}
