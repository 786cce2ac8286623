// SPDX-License-Identifier: Apache-2.0

package netbench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/xveth/xveth/test/rig"
)

// cleanUpWithin bounds the removal of the pods, which a signal must not cut short.
const cleanUpWithin = 30 * time.Second

// bed is a rig with pods, on which one path is measured.
type bed struct {
	path path
	rig  *rig.Rig
	net  *rig.Network
	pods []*rig.Pod
	undo []func() error
}

// bedOptions is what a scenario wants besides what the user wants.
type bedOptions struct {
	pods int
	// oneWay cuts the wire back to the remote host.
	oneWay bool
	// more plugins follow in the chain, with these capabilities.
	more []plugin
	caps map[string]any
}

// newBed makes the rig of a path.
func newBed(ctx context.Context, name string, o *Options, want bedOptions) (*bed, error) {
	p, ok := paths[name]
	if !ok {
		return nil, unknownPath(name)
	}
	return newBedOf(ctx, p, o, want)
}

func newBedOf(ctx context.Context, p path, o *Options, want bedOptions) (*bed, error) {
	dirs := strings.Join([]string{o.Plugins, o.Reference}, string(os.PathListSeparator))
	r, err := rig.New(rig.Options{Plugins: dirs, OneWay: want.oneWay})
	if err != nil {
		return nil, err
	}
	b := &bed{path: p, rig: r}
	if err := b.build(ctx, o, want); err != nil {
		return nil, errors.Join(fmt.Errorf("make the bed of %s: %w", p.name, err), b.close())
	}
	return b, nil
}

func (b *bed) build(ctx context.Context, o *Options, want bedOptions) error {
	p := b.path
	if err := o.rules.Apply(ctx, b.rig.Node); err != nil {
		return err
	}
	if p.before != nil {
		if err := p.before(ctx, b.rig.Node, o); err != nil {
			return err
		}
	}
	conflist, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": "bench", "plugins": append(p.plugins(o), want.more...),
	})
	if err != nil {
		return err
	}
	if b.net, err = b.rig.NewNetwork(conflist, want.caps); err != nil {
		return err
	}
	if err := b.rig.Ext.Do(func() error {
		return rig.AddRoute(netip.MustParsePrefix(clusterNet), rig.NodeAddr4)
	}); err != nil {
		return err
	}
	for i := range want.pods {
		if err := b.addPod(ctx, fmt.Sprintf("pod%d", i)); err != nil {
			return err
		}
	}
	if p.after != nil {
		return p.after(b)
	}
	return nil
}

func (b *bed) addPod(ctx context.Context, id string) error {
	p, err := b.rig.NewNetns(id)
	if err != nil {
		return err
	}
	if err := b.net.Add(ctx, p); err != nil {
		p.Destroy()
		return err
	}
	b.pods = append(b.pods, p)
	if !p.Addr4.IsValid() {
		return fmt.Errorf("pod %q has no IPv4 address", id)
	}
	return p.FindHostDev()
}

// removePod takes the pod that was added last away.
func (b *bed) removePod(ctx context.Context) error {
	p := b.pods[len(b.pods)-1]
	b.pods = b.pods[:len(b.pods)-1]
	err := b.net.Del(ctx, p)
	p.Destroy()
	return err
}

// close removes the pods by their plugins and then the rest.
func (b *bed) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanUpWithin)
	defer cancel()
	var failed error
	for _, undo := range slices.Backward(b.undo) {
		failed = errors.Join(failed, undo())
	}
	for len(b.pods) > 0 {
		failed = errors.Join(failed, b.removePod(ctx))
	}
	b.rig.Close()
	return failed
}

// later has something done when the bed is closed.
func (b *bed) later(undo func() error) { b.undo = append(b.undo, undo) }

func (b *bed) pod() *rig.Pod { return b.pods[0] }

// redirect sends what comes in by the uplink to the first pod.
func (b *bed) redirect(by rig.Redirector) error {
	end, err := b.pod().Redirect(by)
	if err != nil {
		return err
	}
	b.later(func() error { end(); return nil })
	return b.wantNAPI()
}

// verdict has one verdict for all frames of an interface.
func (b *bed) verdict(h *rig.Host, dev string, v rig.Verdict) error {
	end, err := v.Attach(h, dev)
	if err != nil {
		return err
	}
	b.later(func() error { end(); return nil })
	return nil
}

// wantNAPI makes the pod's end take frames.
func (b *bed) wantNAPI() error {
	return b.pod().Do(func() error { return rig.Offload(rig.PodDev, map[string]bool{"rx-gro": true}) })
}
