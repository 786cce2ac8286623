// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/xveth/xveth/pkg/cluster"
	"github.com/xveth/xveth/pkg/install"
	"github.com/xveth/xveth/pkg/netconf"
	"github.com/xveth/xveth/pkg/veth"
)

// Options are the settings of an agent as people write them: each is an option of the
// command and a variable of the environment.
type Options struct {
	// Kubeconfig is a file that says how to reach the API server; "" takes what a pod has.
	Kubeconfig string
	// APIServer is its address, where that of the file or of the Service is not to be used.
	APIServer string
	LogLevel  slog.Level

	cfg        Config
	tunnel     string
	keepSource []string
	revalidate time.Duration
}

// EnvPrefix begins the names of environment variables: --node-name is XVETHD_NODE_NAME.
const EnvPrefix = "XVETHD_"

// Env is the variable of an option.
func Env(flag string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// NewOptions returns options and the flags that set them.
func NewOptions(version string) (*Options, *pflag.FlagSet) {
	o := &Options{cfg: Config{Version: version}}
	f := pflag.NewFlagSet("xvethd", pflag.ContinueOnError)
	f.SortFlags = false
	f.StringVar(&o.cfg.NodeName, "node-name", "", "`name` of this node's object in the API (required)")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "`file` that says how to reach the API server; without it the pod's service account is used")
	f.StringVar(&o.APIServer, "api-server", "", "`address` of the API server (https://host:port), so that starting does not depend on the Service that kube-proxy makes")
	f.StringVar(&o.tunnel, "tunnel", string(cluster.TunnelAuto), "which nodes are reached through VXLAN: auto (those that are not on a link of this one), never, always")
	f.IntVar(&o.cfg.Cluster.VNI, "vxlan-vni", 1, "network identifier of the tunnel, 1 to 16777215; the same on all nodes")
	f.IntVar(&o.cfg.Cluster.Port, "vxlan-port", 8472, "UDP port of the tunnel; the same on all nodes")
	f.BoolVar(&o.cfg.Cluster.Masquerade, "masquerade", true, "hide pods behind the node's address when they talk to what is no pod")
	f.StringSliceVar(&o.keepSource, "non-masquerade-cidrs", nil, "`ranges` to which pods keep their address, beside those of pods")
	f.StringSliceVar(&o.cfg.Cluster.Uplinks, "uplinks", nil, "`devices` that lead out of the node; without it those that routes to other nodes and default routes name")
	f.StringVar(&o.cfg.FastPath.Mode, "fast-path", string(netconf.ModeAuto), "mode of the fast path: auto, xdp, tcx, off (see fastPath.mode)")
	f.DurationVar(&o.revalidate, "revalidate", time.Second, "how long a flow is repeated without the kernel's word, 10ms to 1m (see fastPath.revalidate)")
	f.Uint32Var(&o.cfg.FastPath.MaxFlows, "max-flows", 65536, "flows that can be learned in each family (see fastPath.maxFlows)")
	f.StringVar(&o.cfg.BinDir, "cni-bin-dir", "/opt/cni/bin", "`folder` in which the runtime looks for plugins")
	f.StringVar(&o.cfg.ConfDir, "cni-conf-dir", "/etc/cni/net.d", "`folder` in which the runtime looks for networks")
	f.StringVar(&o.cfg.From, "cni-bin-from", "", "`folder` of the plugins that are to be installed; without it they have to be in --cni-bin-dir")
	f.StringVar(&o.cfg.List, "cni-conf-name", "10-xveth.conflist", "file `name` of the network list")
	f.StringVar(&o.cfg.Network, "network", "xveth", "`name` of the network")
	f.StringVar(&o.cfg.CRISocket, "cri-socket", "unix:///run/containerd/containerd.sock", "`address` of the runtime, which is asked which pods live; empty collects no garbage")
	f.StringVar(&o.cfg.Listen, "listen", "127.0.0.1:9476", "`address` and port of /healthz, /readyz and /metrics; empty serves none")
	f.TextVar(&o.LogLevel, "log-level", slog.LevelInfo, "least `level` that is logged: debug, info, warn, error")
	return o, f
}

// FromEnv sets the flags that the command line has not set from the environment, which has
// to have no variable with our prefix that is none of ours.
func FromEnv(f *pflag.FlagSet, environ []string) error {
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, EnvPrefix) {
			continue
		}
		flag := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, EnvPrefix), "_", "-"))
		if f.Lookup(flag) == nil {
			return fmt.Errorf("there is no option for the environment variable %s", name)
		}
		if f.Changed(flag) {
			continue
		}
		if err := f.Set(flag, value); err != nil {
			return fmt.Errorf("environment variable %s: %w", name, err)
		}
	}
	return nil
}

// Config checks the options.
func (o *Options) Config() (Config, error) {
	c := o.cfg
	if c.NodeName == "" {
		return c, errors.New("--node-name: say which node this is")
	}
	c.Cluster.Tunnel = cluster.Tunnel(o.tunnel)
	if !slices.Contains([]cluster.Tunnel{cluster.TunnelAuto, cluster.TunnelNever, cluster.TunnelAlways}, c.Cluster.Tunnel) {
		return c, fmt.Errorf("--tunnel %q: want auto, never or always", o.tunnel)
	}
	if c.Cluster.VNI < 1 || c.Cluster.VNI >= 1<<24 {
		return c, fmt.Errorf("--vxlan-vni %d: want 1 to %d", c.Cluster.VNI, 1<<24-1)
	}
	if c.Cluster.Port < 1 || c.Cluster.Port >= 1<<16 {
		return c, fmt.Errorf("--vxlan-port %d: want 1 to %d", c.Cluster.Port, 1<<16-1)
	}
	c.Cluster.KeepSource = nil
	for _, s := range o.keepSource {
		p, err := netip.ParsePrefix(strings.TrimSpace(s))
		if err != nil || p.Addr().Is4In6() || p.Addr().IsMulticast() {
			return c, fmt.Errorf("--non-masquerade-cidrs: %q is not an address and a length, such as 192.168.0.0/16", s)
		}
		c.Cluster.KeepSource = append(c.Cluster.KeepSource, p.Masked())
	}
	c.FastPath.Revalidate = o.revalidate.String()
	// The plugin's own parser knows what it takes.
	probe := cluster.Node{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	text, err := (&Agent{cfg: c}).list(probe, cluster.Result{Uplinks: c.Cluster.Uplinks})
	if err != nil {
		return c, err
	}
	if _, err := install.Conf(text); err != nil {
		return c, fmt.Errorf("the plugin does not take these options: %w", err)
	}
	return c, nil
}

// Remove takes away what an agent has made on this node. Plugins that are needed for the
// DEL of pods stay.
func Remove(c Config) error {
	rep, err := install.Uninstall(install.UninstallOptions{
		BinDir: c.BinDir, ConfDir: c.ConfDir, InUse: func() (string, error) {
			pods, err := veth.List(c.Network)
			if len(pods) == 0 {
				return "", err
			}
			return fmt.Sprintf("%d pods of network %q are there", len(pods), c.Network), err
		},
	})
	for _, s := range rep.Steps {
		slog.Info("Uninstalled.", "did", s.Do, "what", s.What, "why", s.Why)
	}
	return errors.Join(err, cluster.Remove())
}

// ToLog sends the log to standard error, as the runtime of a pod collects it.
func (o *Options) ToLog() {
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: o.LogLevel})))
}
