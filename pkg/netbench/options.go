// SPDX-License-Identifier: Apache-2.0

package netbench

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/xveth/xveth/pkg/netbench/ruleset"
)

// Defaults of the options.
const (
	DefaultRounds   = 5
	DefaultDuration = 3 * time.Second
	DefaultSize     = 64
	DefaultFlows    = 1
	DefaultRules    = "masquerade"
	DefaultSink     = SinkDrop
	DefaultPods     = 1
	DefaultParallel = 1
)

// Limits of the options.
const (
	MaxRounds   = 1000
	MinDuration = 20 * time.Millisecond
	MaxDuration = time.Minute
	// MinSize and MaxSize are those of Ethernet frames that carry IPv4 and UDP.
	MinSize = 60
	MaxSize = 1514
	// MaxFlows is what the addresses for benchmarks (198.18.0.0/16) have ports for.
	MaxFlows = 16_000_000
	// MaxPods is what a node usually takes, with some room.
	MaxPods = 300
	// MaxParallel is more than any runtime starts at once.
	MaxParallel = 64
)

// Where packets end in the pod.
const (
	SinkDrop   = "drop"   // in its raw table, after its stack has received them
	SinkSocket = "socket" // in a program that reads them with recvmmsg
)

// ErrNotRoot says that the caller may not make network namespaces.
var ErrNotRoot = errors.New("the benchmarks make network namespaces and load BPF programs: run them as root")

// ErrInterrupted says that the caller's context ended. What was made is gone even so.
var ErrInterrupted = errors.New("interrupted; everything is removed again")

// ErrScenario says that there is no such scenario.
var ErrScenario = errors.New("unknown scenario")

// ErrOptions says that options make no sense.
var ErrOptions = errors.New("invalid options")

// Options of a run. What is zero gets its default.
type Options struct {
	// Plugins is the folder of the plugins of xveth, Reference that of the reference
	// plugins.
	Plugins, Reference string
	// Rounds is the number of turns of each path, and Duration the length of one.
	Rounds   int
	Duration time.Duration
	// Size of frames in bytes, without their checksum (FCS).
	Size int
	// Flows, or connections, at the same time.
	Flows int
	// Rules of the node, as ruleset.Parse reads them.
	Rules string
	// Sink is where packets end in the pod.
	Sink string
	// Pods on the node.
	Pods int
	// Parallel is how many operations run at once.
	Parallel int
	// Cores is 2 to give each end of a conversation a processor of its own.
	Cores int
	// Revalidate is the interval of xveth's confirmations; 0 leaves it alone.
	Revalidate time.Duration
	// Congestion is the congestion control of TCP; "" leaves it to the machine.
	Congestion string
	// Paths to measure instead of the scenario's own.
	Paths []string
	// Progress, if set, says what is being done; each message replaces the one before.
	Progress func(string)

	rules ruleset.Rules
}

// fill sets what is zero to its default and checks the rest.
func (o *Options) fill(s *scenario) error {
	setDefault(&o.Rounds, DefaultRounds)
	setDefault(&o.Duration, DefaultDuration)
	setDefault(&o.Size, DefaultSize)
	setDefault(&o.Flows, s.flows)
	setDefault(&o.Flows, DefaultFlows)
	setDefault(&o.Rules, DefaultRules)
	setDefault(&o.Sink, DefaultSink)
	setDefault(&o.Pods, s.pods)
	setDefault(&o.Pods, DefaultPods)
	setDefault(&o.Parallel, DefaultParallel)
	setDefault(&o.Cores, 1)
	if len(o.Paths) == 0 {
		o.Paths = s.paths
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	return o.check(s)
}

func setDefault[T comparable](to *T, value T) {
	var zero T
	if *to == zero {
		*to = value
	}
}

func (o *Options) check(s *scenario) error {
	for _, r := range []struct {
		what      string
		v, lo, hi int
	}{
		{"rounds", o.Rounds, 1, MaxRounds},
		{"size", o.Size, MinSize, MaxSize},
		{"flows", o.Flows, 1, MaxFlows},
		{"pods", o.Pods, 1, MaxPods},
		{"parallel", o.Parallel, 1, MaxParallel},
		{"cores", o.Cores, 1, 2},
	} {
		if r.v < r.lo || r.v > r.hi {
			return fmt.Errorf("%w: %s: %d is not between %d and %d", ErrOptions, r.what, r.v, r.lo, r.hi)
		}
	}
	if o.Duration < MinDuration || o.Duration > MaxDuration {
		return fmt.Errorf("%w: duration: %v is not between %v and %v", ErrOptions, o.Duration, MinDuration, MaxDuration)
	}
	if o.Sink != SinkDrop && o.Sink != SinkSocket {
		return fmt.Errorf("%w: sink %q: want %s or %s", ErrOptions, o.Sink, SinkDrop, SinkSocket)
	}
	var err error
	if o.rules, err = ruleset.Parse(o.Rules); err != nil {
		return fmt.Errorf("%w: %w", ErrOptions, err)
	}
	for i, p := range o.Paths {
		if !slices.Contains(s.allPaths(), p) {
			return fmt.Errorf("%w: path %q of %s: want some of %s", ErrOptions, p, s.name, strings.Join(s.allPaths(), ", "))
		}
		if slices.Contains(o.Paths[:i], p) {
			return fmt.Errorf("%w: path %q is given twice", ErrOptions, p)
		}
	}
	return nil
}

// params are the options that a scenario uses, for its result.
func (o *Options) params(s *scenario) map[string]any {
	all := map[string]any{
		"size": o.Size, "flows": o.Flows, "rules": o.Rules, "sink": o.Sink, "pods": o.Pods, "cores": o.Cores,
		"parallel":   o.Parallel,
		"revalidate": o.Revalidate.String(), "congestion": o.Congestion,
	}
	out := map[string]any{"rounds": o.Rounds, "duration": o.Duration.String()}
	for _, name := range s.uses {
		if name == "revalidate" && o.Revalidate == 0 || name == "congestion" && o.Congestion == "" {
			continue
		}
		out[name] = all[name]
	}
	if s.published != nil {
		out["published"] = s.published
	}
	return out
}
