// SPDX-License-Identifier: Apache-2.0

package netbench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

var memory = &scenario{
	name:  "memory",
	about: "kernel memory of the maps, and of each pod besides its network namespace",
	uses:  []string{"rules", "flows", "pods"},
	paths: []string{pathPTP, pathBridge, pathXvethOff, pathXveth},
	flows: defaultMaxFlows / 2,
	pods:  100,
	open:  openMemory,
}

var (
	// Other work on the machine can make it negative, so there are no ratios.
	memPod  = metric{name: "pod", unit: "KiB", alone: true}
	memMaps = metric{name: "maps", unit: "MiB", alone: true}
)

// memoryRun connects namespaces that are there already.
type memoryRun struct {
	*bed
	o    *Options
	free []*rig.Pod
}

func openMemory(ctx context.Context, path string, o *Options) (runner, error) {
	// One pod makes what a node has once: programs, maps, chains.
	b, err := newBed(ctx, path, o, bedOptions{pods: 1})
	if err != nil {
		return nil, err
	}
	r := &memoryRun{bed: b, o: o}
	for i := range o.Pods {
		p, err := b.rig.NewNetns(fmt.Sprintf("free%d", i))
		if err != nil {
			return nil, errors.Join(err, b.close())
		}
		r.free = append(r.free, p)
	}
	return r, nil
}

func (r *memoryRun) on() *bed { return r.bed }

func (r *memoryRun) turn(ctx context.Context, m *meter) (all []figure, err error) {
	before, err := kernelMemory()
	if err != nil {
		return nil, err
	}
	for i, p := range r.free {
		if err := errors.Join(ctx.Err(), r.net.Add(ctx, p)); err != nil {
			return nil, errors.Join(err, r.removeAll(r.free[:i]))
		}
	}
	after, err := kernelMemory()
	if err := errors.Join(err, r.removeAll(r.free)); err != nil {
		return nil, err
	}
	maps, err := mapMemory(r.rig.Node.Path(datapath.DefaultDir))
	if err != nil {
		return nil, err
	}
	return []figure{
		{memPod, float64(after-before) / 1024 / float64(len(r.free))},
		{memMaps, float64(maps) / (1 << 20)},
	}, nil
}

// removeAll disconnects namespaces, also when the run is being stopped.
func (r *memoryRun) removeAll(pods []*rig.Pod) (failed error) {
	ctx, cancel := context.WithTimeout(context.Background(), cleanUpWithin)
	defer cancel()
	for _, p := range pods {
		failed = errors.Join(failed, r.net.Del(ctx, p))
	}
	return failed
}

// kernelKeys of /proc/meminfo are what the kernel has for itself.
var kernelKeys = []string{"Slab", "KernelStack", "PageTables", "Percpu", "VmallocUsed"}

// kernelMemory is what the kernel uses for itself, in bytes, of the whole machine.
func kernelMemory() (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("read the kernel's memory: %w", err)
	}
	return parseMeminfo(string(text), kernelKeys)
}

// parseMeminfo adds up some lines, in bytes.
func parseMeminfo(text string, keys []string) (sum int64, err error) {
	for _, key := range keys {
		_, rest, found := strings.Cut("\n"+text, "\n"+key+":")
		f := strings.Fields(rest)
		if !found || len(f) < 2 || f[1] != "kB" {
			return 0, fmt.Errorf("read the kernel's memory: no %s", key)
		}
		n, err := strconv.ParseInt(f[0], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the kernel's memory: %s: %w", key, err)
		}
		sum += n << 10
	}
	return sum, nil
}

// mapMemory is what the pinned maps below a folder use; 0 where nothing is pinned.
func mapMemory(dir string) (sum uint64, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
		if err != nil {
			return nil // a program or a link
		}
		defer m.Close()
		info, err := m.Info()
		if err != nil {
			return fmt.Errorf("read map %s: %w", d.Name(), err)
		}
		if n, known := info.Memlock(); known {
			sum += n
		}
		return nil
	})
	return sum, err
}
