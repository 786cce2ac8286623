// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/xveth/xveth/pkg/netconf"
)

// openLog sends the log of one call to the file that the configuration names, or
// nowhere. The function that it returns writes how the call ended.
func openLog(c *netconf.Conf, a *skel.CmdArgs, verb string) (func(error), error) {
	if c.LogFile == "" {
		slog.SetDefault(slog.New(slog.DiscardHandler))
		return func(error) {}, nil
	}
	f, err := os.OpenFile(c.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil && verb != "ADD" {
		// What has to be removed is removed, log or not.
		fmt.Fprintf(os.Stderr, "xveth: open logFile: %v\n", err)
		slog.SetDefault(slog.New(slog.DiscardHandler))
		return func(error) {}, nil
	}
	if err != nil {
		return nil, types.NewError(types.ErrIOFailure, fmt.Sprintf("open logFile: %v", err), "")
	}
	h := slog.NewTextHandler(f, &slog.HandlerOptions{Level: c.LogLevel})
	slog.SetDefault(slog.New(h).With("verb", verb, "network", c.Name, "container", a.ContainerID, "ifname", a.IfName))
	start := time.Now()
	return func(err error) {
		if err != nil {
			slog.Error("The call failed.", "error", err, "took", time.Since(start))
		} else {
			slog.Info("The call succeeded.", "took", time.Since(start))
		}
		_ = f.Close()
	}, nil
}
