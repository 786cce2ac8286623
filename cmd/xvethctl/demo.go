// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/pkg/demo"
)

// cniBin is where plugins are installed.
const cniBin = "/opt/cni/bin"

// The limits keep a demo a demo.
const (
	maxRounds   = 1000
	minDuration = 50 * time.Millisecond
	maxDuration = time.Minute
)

func (a *app) newDemo() *cobra.Command {
	var (
		asJSON bool
		o      demo.Options
	)
	c := &cobra.Command{
		Use:   "demo",
		Short: "Make two pods, let them talk, and compare the kernel's path with xveth",
		Long: `Make a node, two pods and a remote host in network namespaces of their own, let
them talk, measure the kernel's path against xveth in alternate rounds, and remove
everything again. Nothing of this machine's own network is touched. Needs root.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runDemo(cmd.Context(), o, asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object and nothing else")
	c.Flags().IntVar(&o.Rounds, "rounds", 7, "`number` of measurements of each path")
	c.Flags().DurationVar(&o.Duration, "duration", 800*time.Millisecond, "`length` of one measurement; of a latency, a third of it")
	c.Flags().StringVar(&o.Plugins, "plugins", "", "`directory` of the plugin xveth (default: that of xvethctl, then "+cniBin+")")
	return c
}

func runDemo(ctx context.Context, o demo.Options, asJSON bool) error {
	if o.Rounds < 1 || o.Rounds > maxRounds {
		return usageError{fmt.Errorf("rounds: %d is not between 1 and %d", o.Rounds, maxRounds)}
	}
	if o.Duration < minDuration || o.Duration > maxDuration {
		return usageError{fmt.Errorf("duration: %v is not between %v and %v", o.Duration, minDuration, maxDuration)}
	}
	if os.Geteuid() != 0 {
		return demo.ErrNotRoot
	}
	var err error
	if o.Plugins, err = findPlugins(o.Plugins); err != nil {
		return err
	}
	clearLine := func() {}
	o.Progress = func(string) {}
	if isTerminal(os.Stderr) {
		clearLine = func() { fmt.Fprint(os.Stderr, "\r\x1b[K") }
		o.Progress = func(s string) { clearLine(); fmt.Fprintf(os.Stderr, "... %s", s) }
	}
	o.Out = io.Discard
	if !asJSON {
		o.Out = lineWriter{os.Stdout, clearLine}
	}
	rep, err := demo.Run(ctx, o)
	clearLine()
	if err != nil || !asJSON {
		return err
	}
	return writeJSON(os.Stdout, rep)
}

// lineWriter takes the progress message away before it writes.
type lineWriter struct {
	to    io.Writer
	clear func()
}

func (w lineWriter) Write(b []byte) (int, error) {
	w.clear()
	return w.to.Write(b)
}

// findPlugins returns the folder of the plugin.
func findPlugins(dir string) (string, error) {
	dirs := []string{dir}
	if dir == "" {
		dirs = []string{cniBin}
		if self, err := os.Executable(); err == nil {
			dirs = []string{filepath.Dir(self), cniBin}
		}
	}
	for _, d := range dirs {
		if st, err := os.Stat(filepath.Join(d, "xveth")); err == nil && st.Mode().IsRegular() {
			return filepath.Abs(d)
		}
	}
	return "", fmt.Errorf("the plugin xveth is not in %v (make build, or --plugins)", dirs)
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
