// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/vishvananda/netlink"
)

// Network is a list of plugins that libcni runs on the node, as a runtime does.
type Network struct {
	rig  *Rig
	cni  *libcni.CNIConfig
	exec *Exec
	list *libcni.NetworkConfigList
	caps map[string]any
}

// NewNetwork reads a conflist. Plugins are looked for in the folders of Options.Plugins.
// caps are passed to those plugins that declare them.
func (r *Rig) NewNetwork(conflist []byte, caps map[string]any) (*Network, error) {
	list, err := libcni.ConfListFromBytes(conflist)
	if err != nil {
		return nil, fmt.Errorf("read the network: %w", err)
	}
	// The cache is on the node's own file system.
	cache, exec := r.Node.Path("/var/lib/cni"), NewExec(r.Node)
	return &Network{
		rig: r, list: list, caps: caps, exec: exec,
		cni: libcni.NewCNIConfigWithCacheDir(filepath.SplitList(r.opts.Plugins), cache, exec),
	}, nil
}

func (n *Network) runtimeConf(p *Pod) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: p.ID, NetNS: p.Netns, IfName: PodDev, CapabilityArgs: n.caps}
}

// Add connects a pod's namespace.
func (n *Network) Add(ctx context.Context, p *Pod) error {
	raw, err := n.cni.AddNetworkList(ctx, n.list, n.runtimeConf(p))
	if err != nil {
		return fmt.Errorf("add pod %q: %w", p.ID, err)
	}
	if p.Result, err = current.NewResultFromResult(raw); err != nil {
		return fmt.Errorf("add pod %q: read result: %w", p.ID, err)
	}
	p.TakeAddrs()
	return nil
}

// Del disconnects a pod; its namespace stays.
func (n *Network) Del(ctx context.Context, p *Pod) error {
	if err := n.cni.DelNetworkList(ctx, n.list, n.runtimeConf(p)); err != nil {
		return fmt.Errorf("delete pod %q: %w", p.ID, err)
	}
	return nil
}

// Exec runs the first plugin of the list by itself, as libcni would, with one verb for a
// pod's namespace.
func (n *Network) Exec(ctx context.Context, verb string, p *Pod) error {
	first := n.list.Plugins[0]
	path, err := n.exec.FindInPath(first.Network.Type, filepath.SplitList(n.rig.opts.Plugins))
	if err != nil {
		return err
	}
	conf, err := libcni.InjectConf(first, map[string]any{"name": n.list.Name, "cniVersion": n.list.CNIVersion})
	if err != nil {
		return err
	}
	args := invoke.Args{
		Command: verb, ContainerID: p.ID, NetNS: p.Netns, IfName: PodDev, Path: n.rig.opts.Plugins,
	}
	_, err = n.exec.ExecPlugin(ctx, path, conf.Bytes, args.AsEnv())
	return err
}

// FindHostDev sets HostDev to the node's end of the pod's pair, whoever made it.
func (p *Pod) FindHostDev() error {
	var peer int
	err := p.Do(func() error {
		l, err := netlink.LinkByName(PodDev)
		if err == nil {
			peer = l.Attrs().ParentIndex
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("find %q of %q: %w", PodDev, p.ID, err)
	}
	err = p.rig.Node.Do(func() error {
		l, err := netlink.LinkByIndex(peer)
		if err == nil {
			p.HostDev = l.Attrs().Name
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("find the node's end of %q: %w", p.ID, err)
	}
	return nil
}

// TakeAddrs takes the first address of each family from the result.
func (p *Pod) TakeAddrs() {
	for _, ip := range p.Result.IPs {
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		if addr = addr.Unmap(); addr.Is4() && !p.Addr4.IsValid() {
			p.Addr4 = addr
		} else if addr.Is6() && !p.Addr6.IsValid() {
			p.Addr6 = addr
		}
	}
}

// Exec lets libcni run plugins on a host.
type Exec struct {
	version.PluginDecoder
	host *Host
}

// NewExec makes one for a host.
func NewExec(h *Host) *Exec { return &Exec{host: h} }

// ExecPlugin runs a plugin. What it reports on standard output is the error.
func (e *Exec) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &errOut
	err := e.host.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err == nil {
		return out.Bytes(), nil
	}
	var said types.Error
	if json.Unmarshal(out.Bytes(), &said) == nil && said.Msg != "" {
		return nil, &said
	}
	return nil, fmt.Errorf("run %s: %w: %s%s", filepath.Base(path), err, out.Bytes(), errOut.Bytes())
}

// FindInPath looks for a plugin in some folders.
func (e *Exec) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}
