// SPDX-License-Identifier: Apache-2.0

package netbench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/xveth/xveth/test/rig"
)

var cniAddDel = &scenario{
	name:  "cni-add-del",
	about: "time of ADD and DEL through libcni and of the binary alone, on a node with other pods",
	uses:  []string{"rules", "pods", "parallel"},
	paths: []string{pathPTP, pathBridge, pathXvethOff, pathXveth},
	open:  openCNI,
}

// cniRun connects and disconnects namespaces that are there already.
type cniRun struct {
	*bed
	o    *Options
	free []*rig.Pod
}

func openCNI(ctx context.Context, path string, o *Options) (runner, error) {
	b, err := newBed(ctx, path, o, bedOptions{pods: o.Pods})
	if err != nil {
		return nil, err
	}
	r := &cniRun{bed: b, o: o}
	for i := range o.Parallel {
		p, err := b.rig.NewNetns(fmt.Sprintf("free%d", i))
		if err != nil {
			return nil, errors.Join(err, b.close())
		}
		r.free = append(r.free, p)
	}
	return r, nil
}

func (r *cniRun) on() *bed { return r.bed }

// verb is one of the operations, and how it is called.
type verb struct {
	name string
	call func(ctx context.Context, p *rig.Pod) error
}

func (r *cniRun) turn(ctx context.Context, m *meter) ([]figure, error) {
	if err := m.start(); err != nil {
		return nil, err
	}
	var all []figure
	for _, pair := range [][2]verb{
		{{"add", r.net.Add}, {"del", r.net.Del}},
		{{"add-alone", r.alone("ADD")}, {"del-alone", r.alone("DEL")}},
	} {
		figures, err := r.repeat(ctx, pair, r.o.Duration/2)
		if err != nil {
			return nil, err
		}
		all = append(all, figures...)
	}
	return all, m.stop()
}

// alone calls the plugin without libcni.
func (r *cniRun) alone(command string) func(context.Context, *rig.Pod) error {
	return func(ctx context.Context, p *rig.Pod) error { return r.net.Exec(ctx, command, p) }
}

// repeat connects and disconnects for some time.
func (r *cniRun) repeat(ctx context.Context, pair [2]verb, d time.Duration) ([]figure, error) {
	var times [2][]time.Duration
	for end := time.Now().Add(d); len(times[0]) == 0 || time.Now().Before(end); {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for i, v := range pair {
			took, err := r.atOnce(ctx, v)
			if err != nil {
				return nil, err
			}
			times[i] = append(times[i], took...)
		}
	}
	var all []figure
	for i, v := range pair {
		slices.Sort(times[i])
		for _, p := range []int{50, 90, 99} {
			name := fmt.Sprintf("%s p%d", v.name, p)
			all = append(all, figure{metric{name: name, unit: "ms", lower: true, headline: p == 50}, percentile(times[i], p) / 1e3})
		}
	}
	return all, nil
}

// atOnce does it to all free namespaces at the same time.
func (r *cniRun) atOnce(ctx context.Context, v verb) ([]time.Duration, error) {
	took := make([]time.Duration, len(r.free))
	failed := make([]error, len(r.free))
	var wg sync.WaitGroup
	for i, p := range r.free {
		wg.Go(func() {
			start := time.Now()
			failed[i] = v.call(ctx, p)
			took[i] = time.Since(start)
		})
	}
	wg.Wait()
	return took, errors.Join(failed...)
}
