// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/xveth/xveth/pkg/datapath"
)

// Exit statuses.
const (
	exitOK        = 0
	exitFailed    = 1 // an error, or status finds the node degraded
	exitUsage     = 2
	exitNotLoaded = 3 // as systemctl says of what does not run
)

// exitError ends the command with a status and without a message.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// usageError is a command line that makes no sense.
type usageError struct{ error }

// exitStatus reports what a command returned.
func exitStatus(err error) int {
	var exit exitError
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		return int(exit)
	}
	fmt.Fprintf(os.Stderr, "xvethctl: %v\n", err)
	switch {
	case errors.As(err, &usage):
		return exitUsage
	case errors.Is(err, datapath.ErrNotLoaded):
		return exitNotLoaded
	}
	return exitFailed
}

// app is what all commands share.
type app struct {
	bpffs  string
	output string
}

func newRoot() *cobra.Command {
	a := &app{}
	root := &cobra.Command{
		Use:           "xvethctl",
		Short:         "Show and manage the fast path of a node",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          unknownCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.PersistentFlags().StringVar(&a.bpffs, "bpffs", datapath.DefaultDir, "`directory` in which programs and maps are pinned")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.SetHelpCommand(&cobra.Command{Hidden: true})
	root.AddCommand(a.newDemo(), a.newDetach(), a.newFlows(), a.newFlush(), a.newGC(), a.newMetrics(), a.newStatus(), a.newTop())
	for _, c := range root.Commands() {
		c.Args = noArgs
		if c.Name() != "demo" { // which has words of its own
			needRoot(c)
		}
	}
	root.AddCommand(newBench(), a.newInstall(), a.newUninstall(), newMan())
	return root
}

// needRoot makes a command say plainly what the kernel would say in many ways.
func needRoot(c *cobra.Command) {
	run := c.RunE
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if os.Geteuid() != 0 {
			return errors.New("programs and maps are root's: run it as root")
		}
		return run(cmd, args)
	}
}

func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			names = append(names, c.Name())
		}
	}
	return usageError{fmt.Errorf("unknown command %q: want one of %s", args[0], strings.Join(names, ", "))}
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("unexpected argument %q", args[0])}
	}
	return nil
}

// outputFlag adds the choice between text and JSON to a command.
func (a *app) outputFlag(c *cobra.Command) {
	c.Flags().StringVarP(&a.output, "output", "o", "text", "`format`: text or json")
	complete(c, "output", "text", "json")
	c.PreRunE = func(*cobra.Command, []string) error {
		if a.output != "text" && a.output != "json" {
			return usageError{fmt.Errorf("output format %q: want text or json", a.output)}
		}
		return nil
	}
}

func (a *app) asJSON() bool { return a.output == "json" }

// writeJSON prints one JSON value for people as well as for programs.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("write json: %w", err)
	}
	return nil
}
