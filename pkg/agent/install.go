// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/xveth/xveth/pkg/cluster"
	"github.com/xveth/xveth/pkg/install"
	"github.com/xveth/xveth/pkg/netconf"
)

// list is the text of the network list. It names MTU and uplinks where the plugin would not
// find the same by itself.
func (a *Agent) list(self cluster.Node, r cluster.Result) ([]byte, error) {
	o := install.ListOptions{
		Name: a.cfg.Network, Subnets: self.PodCIDRs, FastPath: &a.cfg.FastPath, PortMap: a.hasPortMap(),
	}
	if r.Tunnelled > 0 || len(a.cfg.Cluster.Uplinks) > 0 {
		o.MTU, o.Uplinks = r.MTU, r.Uplinks
	}
	return install.Generate(o)
}

// hasPortMap says whether the runtime will find the reference plugin for host ports.
func (a *Agent) hasPortMap() bool {
	_, err := os.Stat(filepath.Join(a.cfg.BinDir, "portmap"))
	return err == nil
}

// install puts plugins and list in place, if they are not; a list that somebody has removed
// or changed is put back.
func (a *Agent) install(text []byte, conf *netconf.Conf) error {
	path := filepath.Join(a.cfg.ConfDir, a.cfg.List)
	have, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if before, _ := a.current(); before != nil && bytes.Equal(have, text) {
		return nil
	}
	if !a.hasPortMap() {
		slog.Warn("Host ports do not work: the reference plugin portmap is not installed.", "dir", a.cfg.BinDir)
	}
	rep, err := install.Install(install.Options{
		BinDir: a.cfg.BinDir, ConfDir: a.cfg.ConfDir, From: a.cfg.From, List: text, File: a.cfg.List, Force: true,
	})
	if err != nil {
		return err
	}
	for _, s := range rep.Steps {
		if s.Do != install.Same {
			slog.Info("Installed.", "did", s.Do, "what", s.What)
		}
	}
	a.mu.Lock()
	a.installed, a.conf = text, conf
	a.mu.Unlock()
	return nil
}
