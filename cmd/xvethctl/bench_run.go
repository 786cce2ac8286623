// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
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

// allScenarios is what the whole suite is called.
const allScenarios = "all"

// benchRun are the flags of the command.
type benchRun struct {
	netbench.Options
	asJSON   bool
	progress func(string)
	clear    func()
}

// Flags that mean something to every scenario of the network, each of which says which
// others do; to those of the host-side library; and to the suite.
var (
	anyScenario     = []string{"duration", "rounds", "path", "json", "plugins", "reference"}
	libraryScenario = []string{"duration", "rounds", "json"}
	suiteFlags      = []string{"duration", "rounds", "json", "plugins", "reference"}
)

func newBenchRun() *cobra.Command {
	var b benchRun
	c := &cobra.Command{
		Use:   "run SCENARIO|" + allScenarios,
		Short: "Run one scenario, or all: paths take turns, and ratios are compared",
		Long: `Run one scenario: its paths take turns, and ratios are compared round by round. The network
is made in namespaces of this process, and is gone when it ends. Scenarios of the network
need root; those of the host-side library take --rounds and --duration only, with
defaults of their own. "` + allScenarios + `" runs what docs/benchmarks.md is made of; with --json it prints one
object behind the other, for "bench report".`,
		Args: func(_ *cobra.Command, args []string) error {
			names := append(scenarioNames(), allScenarios)
			if len(args) == 1 && slices.Contains(names, args[0]) {
				return nil
			}
			return usageError{fmt.Errorf("want one scenario of: %s", strings.Join(names, ", "))}
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := onlyFlags(cmd.Flags(), args[0]); err != nil {
				return err
			}
			b.clear, b.progress = progressLine()
			defer b.clear()
			return b.run(cmd, args[0])
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

// onlyFlags refuses flags that a scenario would ignore.
func onlyFlags(f *pflag.FlagSet, scenario string) error {
	takes := libraryScenario
	if scenario == allScenarios {
		takes = suiteFlags
	}
	for _, s := range netbench.Scenarios() {
		if s.Name == scenario {
			takes = slices.Concat(anyScenario, s.Uses)
		}
	}
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

// run runs a scenario of either kind, or all.
func (b *benchRun) run(cmd *cobra.Command, name string) error {
	if slices.Contains(bench.Scenarios(), name) {
		return b.runLibrary(cmd, name)
	}
	if err := b.findPlugins(); err != nil {
		return err
	}
	if name == allScenarios {
		return b.runAll(cmd)
	}
	for name, to := range map[string]*int{"flows": &b.Flows, "pods": &b.Pods} {
		if !cmd.Flags().Changed(name) {
			*to = 0 // the scenario's own default
		}
	}
	return b.runNetwork(cmd.Context(), cmd.OutOrStdout(), name, b.Options)
}

// runAll goes on after a scenario that failed, but not after an interruption.
func (b *benchRun) runAll(cmd *cobra.Command) error {
	var failed error
	all := netbench.Suite()
	progress := b.progress
	for i, s := range all {
		o := s.Options
		o.Plugins, o.Reference, o.Rounds, o.Duration = b.Plugins, b.Reference, b.Rounds, max(o.Duration, b.Duration)
		b.progress = func(text string) { progress(fmt.Sprintf("%d of %d: %s", i+1, len(all), text)) }
		err := b.runNetwork(cmd.Context(), cmd.OutOrStdout(), s.Scenario, o)
		if errors.Is(err, netbench.ErrInterrupted) || errors.Is(err, netbench.ErrNotRoot) {
			return err
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", s.Scenario, err)
			b.clear()
			fmt.Fprintf(os.Stderr, "xvethctl: %v\n", err)
		}
		failed = errors.Join(failed, err)
	}
	for _, name := range bench.Scenarios() {
		failed = errors.Join(failed, b.runLibraryWith(cmd.OutOrStdout(), name, bench.Options{}))
	}
	return failed
}

func (b *benchRun) runNetwork(ctx context.Context, out io.Writer, name string, o netbench.Options) error {
	o.Progress = b.progress
	r, err := netbench.Run(ctx, name, o)
	if errors.Is(err, netbench.ErrOptions) {
		err = usageError{err}
	}
	if err != nil {
		return err
	}
	r.Command = commandLine(r)
	return b.print(out, r)
}

func (b *benchRun) runLibrary(cmd *cobra.Command, name string) error {
	var o bench.Options
	if cmd.Flags().Changed("rounds") {
		o.Rounds = b.Rounds
	}
	if cmd.Flags().Changed("duration") {
		o.Duration = b.Duration
	}
	if o.Rounds < 0 || o.Rounds > maxRounds || o.Duration < 0 || o.Duration > maxDuration {
		return usageError{fmt.Errorf("want up to %d rounds of up to %v", maxRounds, maxDuration)}
	}
	return b.runLibraryWith(cmd.OutOrStdout(), name, o)
}

func (b *benchRun) runLibraryWith(out io.Writer, name string, o bench.Options) error {
	o.Progress = func(round, rounds int) { b.progress(fmt.Sprintf("%s: round %d of %d", name, round, rounds)) }
	began := time.Now().UTC().Truncate(time.Second)
	r, err := bench.Run(name, o)
	if err != nil {
		return err
	}
	machine := result.ThisMachine()
	r.Machine, r.Time, r.Command = &machine, began, "xvethctl bench run "+name
	return b.print(out, r)
}

func (b *benchRun) print(out io.Writer, r result.Result) error {
	r.Version = version
	b.clear()
	if b.asJSON {
		return writeJSON(out, r)
	}
	return writeResult(out, r)
}

// commandLine is what gives a result again.
func commandLine(r result.Result) string {
	words := []string{"xvethctl bench run", r.Scenario}
	for _, s := range netbench.Scenarios() {
		if s.Name != r.Scenario {
			continue
		}
		for _, flag := range slices.Concat([]string{"duration", "rounds"}, s.Uses) {
			if v, have := r.Params[flag]; have {
				words = append(words, fmt.Sprintf("--%s %v", flag, v))
			}
		}
		if paths := pathsOf(r); !slices.Equal(paths, s.Paths) {
			words = append(words, "--path "+strings.Join(paths, ","))
		}
	}
	return strings.Join(words, " ")
}

func pathsOf(r result.Result) (all []string) {
	for _, row := range r.Rows {
		if !slices.Contains(all, row.Path) {
			all = append(all, row.Path)
		}
	}
	return all
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
	return fmt.Errorf("the reference plugins are not in %s (name their folder by --reference)",
		cmp.Or(strings.Join(dirs, " or "), "."))
}
