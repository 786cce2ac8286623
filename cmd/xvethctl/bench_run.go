// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/xveth/xveth/pkg/bench"
	"github.com/xveth/xveth/pkg/bench/result"
	"github.com/xveth/xveth/pkg/netbench"
)

// benchRun are the flags of the command.
type benchRun struct {
	netbench.Options
	asJSON bool
}

// anyScenario are the flags that mean something to every scenario of the network; each
// scenario says which others do.
var anyScenario = []string{"duration", "rounds", "path", "json", "plugins", "reference"}

// libraryScenario are the flags of scenarios of the host-side library.
var libraryScenario = []string{"duration", "rounds", "json"}

func newBenchRun() *cobra.Command {
	var b benchRun
	c := &cobra.Command{
		Use:   "run SCENARIO",
		Short: "Run one scenario: its paths take turns, and ratios are compared",
		Long: `Run one scenario: its paths take turns, and ratios are compared round by round. The network
is made in namespaces of this process, and is gone when it ends. Scenarios of the network
need root; those of the host-side library take --rounds and --duration only, with
defaults of their own.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 && slices.Contains(scenarioNames(), args[0]) {
				return nil
			}
			return usageError{fmt.Errorf("want one scenario of: %s", strings.Join(scenarioNames(), ", "))}
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := b.run(cmd, args[0])
			if err != nil {
				return err
			}
			r.Version, r.Command = version, commandLine(cmd, args[0])
			if b.asJSON {
				return writeJSON(cmd.OutOrStdout(), r)
			}
			return writeResult(cmd.OutOrStdout(), r)
		},
	}
	b.addFlags(c.Flags())
	return c
}

func (b *benchRun) addFlags(f *pflag.FlagSet) {
	f.BoolVar(&b.asJSON, "json", false, "print one JSON object")
	f.IntVar(&b.Rounds, "rounds", netbench.DefaultRounds, "`number` of turns of each path")
	f.DurationVar(&b.Duration, "duration", netbench.DefaultDuration, "`length` of a turn")
	f.IntVar(&b.Size, "size", netbench.DefaultSize, "`bytes` of a frame, without its checksum")
	f.IntVar(&b.Flows, "flows", netbench.DefaultFlows, "`number` of flows or connections at the same time")
	f.StringVar(&b.Rules, "rules", netbench.DefaultRules, "`rules` of the node: none, masquerade, services=N, forward=N")
	f.StringVar(&b.Sink, "sink", netbench.DefaultSink, "`where` packets end in the pod: drop (its raw table), socket (a program)")
	f.IntVar(&b.Pods, "pods", netbench.DefaultPods, "`number` of pods on the node")
	f.IntVar(&b.Parallel, "parallel", netbench.DefaultParallel, "`number` of CNI operations at once")
	f.IntVar(&b.Cores, "cores", 1, "2 to give both ends of a conversation a processor of their own")
	f.DurationVar(&b.Revalidate, "revalidate", 0, "`interval` of xveth's confirmations (default: the plugin's)")
	f.StringVar(&b.Congestion, "congestion", "", "`name` of TCP's congestion control (default: the machine's)")
	f.StringSliceVar(&b.Paths, "path", nil, "`paths` to measure, the first of which is what the others are compared with")
	f.StringVar(&b.Plugins, "plugins", "", "`directory` of the plugins of xveth (default: that of xvethctl, then "+cniBin+")")
	f.StringVar(&b.Reference, "reference", "", "`directory` of the reference plugins (default: as of --plugins)")
}

func scenarioNames() []string {
	var names []string
	for _, s := range netbench.Scenarios() {
		names = append(names, s.Name)
	}
	return append(names, bench.Scenarios()...)
}

// commandLine is what gives the same run again.
func commandLine(cmd *cobra.Command, scenario string) string {
	words := []string{cmd.CommandPath(), scenario}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Name != "json" && f.Name != "plugins" && f.Name != "reference" {
			words = append(words, "--"+f.Name, strings.Trim(f.Value.String(), "[]"))
		}
	})
	return strings.Join(words, " ")
}

// run runs a scenario of either kind.
func (b *benchRun) run(cmd *cobra.Command, name string) (result.Result, error) {
	takes := libraryScenario
	for _, s := range netbench.Scenarios() {
		if s.Name == name {
			takes = slices.Concat(anyScenario, s.Uses)
		}
	}
	if err := onlyFlags(cmd.Flags(), name, takes); err != nil {
		return result.Result{}, err
	}
	clearLine, progress := progressLine()
	defer clearLine()
	if slices.Contains(bench.Scenarios(), name) {
		return b.runLibrary(cmd.Flags(), name, progress)
	}
	for name, to := range map[string]*int{"flows": &b.Flows, "pods": &b.Pods} {
		if !cmd.Flags().Changed(name) {
			*to = 0 // the scenario's own default
		}
	}
	if err := b.findPlugins(); err != nil {
		return result.Result{}, err
	}
	b.Progress = progress
	r, err := netbench.Run(cmd.Context(), name, b.Options)
	if errors.Is(err, netbench.ErrOptions) {
		err = usageError{err}
	}
	return r, err
}

// onlyFlags refuses flags that a scenario would ignore.
func onlyFlags(f *pflag.FlagSet, scenario string, takes []string) error {
	var bad []string
	f.Visit(func(f *pflag.Flag) {
		if !slices.Contains(takes, f.Name) {
			bad = append(bad, "--"+f.Name)
		}
	})
	if len(bad) > 0 {
		return usageError{fmt.Errorf("%s takes no %s, only --%s", scenario, strings.Join(bad, ", "), strings.Join(takes, ", --"))}
	}
	return nil
}

// progressLine shows messages in one line of a terminal, if there is one.
func progressLine() (clearLine func(), progress func(string)) {
	if !isTerminal(os.Stderr) {
		return func() {}, func(string) {}
	}
	clearLine = func() { fmt.Fprint(os.Stderr, "\r\x1b[K") }
	return clearLine, func(s string) { clearLine(); fmt.Fprintf(os.Stderr, "... %s", s) }
}

func (b *benchRun) runLibrary(f *pflag.FlagSet, name string, progress func(string)) (result.Result, error) {
	o := bench.Options{Progress: func(round, rounds int) {
		progress(fmt.Sprintf("round %d of %d", round, rounds))
	}}
	if f.Changed("rounds") {
		o.Rounds = b.Rounds
	}
	if f.Changed("duration") {
		o.Duration = b.Duration
	}
	if o.Rounds < 0 || o.Rounds > maxRounds || o.Duration < 0 || o.Duration > maxDuration {
		return result.Result{}, usageError{fmt.Errorf("want up to %d rounds of up to %v", maxRounds, maxDuration)}
	}
	r, err := bench.Run(name, o)
	machine := result.ThisMachine()
	r.Machine, r.Time = &machine, time.Now().UTC().Truncate(time.Second)
	return r, err
}

// findPlugins finds the folders of xveth's plugins and of the reference plugins.
func (b *benchRun) findPlugins() (err error) {
	if b.Plugins, err = findPlugins(b.Plugins); err != nil {
		return err
	}
	dirs := []string{b.Reference}
	if b.Reference == "" {
		dirs = []string{b.Plugins, cniBin}
	}
	for _, d := range dirs {
		if st, err := os.Stat(filepath.Join(d, "ptp")); err == nil && st.Mode().IsRegular() {
			b.Reference, err = filepath.Abs(d)
			return err
		}
	}
	return fmt.Errorf("the reference plugins are not in %v (name their folder by --reference)", dirs)
}
