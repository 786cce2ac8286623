// SPDX-License-Identifier: Apache-2.0

// Command xvethctl shows and manages the fast path of a node.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// version is set by the linker.
var version = "dev"

func main() { os.Exit(run()) }

func run() int {
	// The first signal ends the work, and what is to be cleaned up is; the second
	// ends the process.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return exitStatus(newRoot().ExecuteContext(ctx))
}
