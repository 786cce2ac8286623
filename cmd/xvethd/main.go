// SPDX-License-Identifier: Apache-2.0

// Command xvethd is the node agent for Kubernetes: one runs on each node.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/xveth/xveth/pkg/agent"
)

// version is set by the linker.
var version = "dev"

// Exit statuses.
const (
	exitFailed = 1
	exitUsage  = 2
)

// usageError is a command line or an environment that makes no sense.
type usageError struct{ error }

func main() {
	// The agent is small, and is to stay so beside the pods. The environment still has the
	// last word.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	err := newRoot().ExecuteContext(ctx)
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "xvethd: %v\n", err)
	var usage usageError
	if errors.As(err, &usage) {
		os.Exit(exitUsage)
	}
	os.Exit(exitFailed)
}

func newRoot() *cobra.Command {
	o, flags := agent.NewOptions(version)
	root := &cobra.Command{
		Use:   "xvethd",
		Short: "Connect the pods of a Kubernetes node",
		Long: `Connect the pods of this node with those of the others, install the CNI plugin, and keep
the fast path on the uplinks. Every option can also be given in the environment: --tunnel
as XVETHD_TUNNEL. What xvethd has made stays when it ends; "xvethd remove" takes it away.`,
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o) },
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.PersistentFlags().AddFlagSet(flags)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		if err := agent.FromEnv(flags, os.Environ()); err != nil {
			return usageError{err}
		}
		o.ToLog()
		return nil
	}
	root.AddCommand(&cobra.Command{
		Use:   "prepare",
		Short: "Do what only a privileged container may",
		Long: `Mount a BPF file system at /sys/fs/bpf, if there is none, and set
net.netfilter.nf_conntrack_tcp_be_liberal. Run before xvethd, which then needs fewer
privileges.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error { return prepare() },
	}, &cobra.Command{
		Use:   "remove",
		Short: "Take away what xvethd has made on this node",
		Long: `Remove the network list, the plugins, routes, tunnel and masquerade that xvethd has made,
and the fast path. Pods that are there keep their interfaces, and are cut off from other
nodes.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error { return remove(o) },
	})
	return root
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("unexpected argument %q", args[0])}
	}
	return nil
}
