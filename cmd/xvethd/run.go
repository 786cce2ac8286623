// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/xveth/xveth/pkg/agent"
	"github.com/xveth/xveth/pkg/datapath"
)

func run(ctx context.Context, o *agent.Options) error {
	c, err := o.Config()
	if err != nil {
		return usageError{err}
	}
	api, err := apiConfig(o)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(api)
	if err != nil {
		return fmt.Errorf("reach the API server: %w", err)
	}
	a, err := agent.New(c, client)
	if err != nil {
		return err
	}
	slog.Info("Started.", "version", version, "node", c.NodeName, "api", api.Host)
	defer slog.Info("Ended; what was made stays.")
	return a.Run(ctx)
}

// apiConfig says how to reach the API server.
func apiConfig(o *agent.Options) (*rest.Config, error) {
	api, err := rest.InClusterConfig()
	if o.Kubeconfig != "" {
		api, err = clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	}
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, usageError{errors.New("this is no pod: say --kubeconfig")}
	}
	if err != nil {
		return nil, fmt.Errorf("find out how to reach the API server: %w", err)
	}
	if o.APIServer != "" {
		api.Host = o.APIServer
	}
	api.ContentType = "application/vnd.kubernetes.protobuf"
	api.UserAgent = "xvethd/" + version
	return api, nil
}

// prepare does what xvethd needs more privileges for than it has.
func prepare() error {
	dir := filepath.Dir(datapath.DefaultDir)
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("look for a BPF file system at %s: %w", dir, err)
	}
	if fs.Type != unix.BPF_FS_MAGIC {
		if err := unix.Mount("bpf", dir, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
			return fmt.Errorf("mount a BPF file system at %s: %w", dir, err)
		}
		slog.Info("Mounted a BPF file system.", "at", dir)
	}
	return datapath.EnsureLiberal()
}

func remove(o *agent.Options) error {
	c, err := o.Config()
	if err != nil {
		return usageError{err}
	}
	err = agent.Remove(c)
	_, off := datapath.DetachAll(datapath.DefaultDir)
	return errors.Join(err, off)
}
