// SPDX-License-Identifier: Apache-2.0

package netbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/xveth/xveth/pkg/netbench/traffic"
	"github.com/xveth/xveth/test/rig"
)

var twoCore = &scenario{
	name:  "two-core",
	about: "UDP packets from a generator on one processor to a node and its pod on another",
	uses:  []string{"size", "flows", "rules", "revalidate"},
	paths: withLimits,
	flows: 1000,
	open: func(ctx context.Context, path string, o *Options) (runner, error) {
		r, err := openUplink(ctx, path, o, bedOptions{pods: 1}, toPod)
		if err != nil {
			return nil, err
		}
		u := r.(*uplinkRun)
		if u.packets.Poller, err = u.pollApart(); err != nil {
			return nil, errors.Join(err, u.close())
		}
		return u, nil
	},
	prepare: roomForFlows,
}

// pollApart has a thread on the second processor poll the uplink, as the interrupt of a NIC
// would there, and returns that thread.
func (b *bed) pollApart() (tid int, err error) {
	before, err := napiThreads()
	if err != nil {
		return 0, err
	}
	if err := b.rig.Node.WriteFile("/sys/class/net/"+rig.Uplink+"/threaded", "1"); err != nil {
		return 0, fmt.Errorf("poll the uplink by a thread: %w", err)
	}
	after, err := napiThreads()
	if err != nil {
		return 0, err
	}
	for tid := range after {
		if !before[tid] {
			return tid, traffic.PinThread(tid, 1)
		}
	}
	return 0, errors.New("poll the uplink by a thread: the kernel has started none")
}

// napiThreads finds the kernel's threads that poll an interface of the uplink's name.
func napiThreads() (map[int]bool, error) {
	comms, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return nil, err
	}
	all := map[int]bool{}
	for _, c := range comms {
		name, _ := os.ReadFile(c)
		if !strings.HasPrefix(string(name), "napi/"+rig.Uplink) {
			continue
		}
		tid, err := strconv.Atoi(filepath.Base(filepath.Dir(c)))
		if err != nil {
			return nil, err
		}
		all[tid] = true
	}
	return all, nil
}
