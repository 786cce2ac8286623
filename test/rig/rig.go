// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Addresses of the rig, all from ranges that are reserved for documentation or private
// use.
var (
	NodeAddr4 = netip.MustParseAddr("192.0.2.1")
	ExtAddr4  = netip.MustParseAddr("192.0.2.2")
	NodeAddr6 = netip.MustParseAddr("2001:db8:1::1")
	ExtAddr6  = netip.MustParseAddr("2001:db8:1::2")
	// PodNet4 and PodNet6 hold the pods of the rig's default network.
	PodNet4 = netip.MustParsePrefix("10.88.0.0/24")
	PodNet6 = netip.MustParsePrefix("2001:db8:88::/64")
)

// Names of interfaces.
const (
	// Uplink of the node.
	Uplink = "eth0"
	// ExtDev is the remote host's interface.
	ExtDev = "ext0"
	// WireExt and WireNode are the ends of the wire at the remote host and at the node.
	WireExt = "w0"
	// WireNode is the one towards the node.
	WireNode = "w1"
	// PodDev is the interface of every pod.
	PodDev = "eth0"
)

// Options of a rig.
type Options struct {
	// Plugins is the folder of the plugin binaries.
	Plugins string
	// Conf overrides keys of the default network configuration; nil values remove
	// them.
	Conf map[string]any
	// TxChecksum leaves checksum offload on at the remote host and the uplink, as
	// between virtual machines; else frames are as on a cable.
	TxChecksum bool
	// OneWay drops what the node sends before it reaches the remote host.
	OneWay bool
}

// Rig is a remote host, a wire and a node.
type Rig struct {
	Ext, Wire, Node *Host

	opts Options
	conf map[string]any
	undo []func()
	mu   sync.Mutex
	pods []*Pod
}

// New builds a rig. Close removes it.
func New(opts Options) (*Rig, error) {
	r := &Rig{opts: opts, conf: DefaultConf()}
	for k, v := range opts.Conf {
		if v == nil {
			delete(r.conf, k)
		} else {
			r.conf[k] = v
		}
	}
	if err := r.build(); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// DefaultConf is the network configuration of a rig: both families, masquerade, and an
// uplink on which the operator vouches for complete checksums.
func DefaultConf() map[string]any {
	return map[string]any{
		"cniVersion": "1.1.0",
		"name":       "rig",
		"type":       "xveth",
		"ipMasq":     true,
		"uplinks":    []any{map[string]any{"name": Uplink, "mode": "xdp"}},
		"ipam": map[string]any{
			"type": "host-local",
			"ranges": [][]map[string]string{
				{{"subnet": PodNet4.String()}},
				{{"subnet": PodNet6.String()}},
			},
			"routes": []map[string]string{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}},
		},
	}
}

func (r *Rig) build() error {
	var err error
	for _, h := range []struct {
		to      **Host
		name    string
		private bool
	}{{&r.Ext, "ext", false}, {&r.Wire, "wire", false}, {&r.Node, "node", true}} {
		if *h.to, err = NewHost(h.name, h.private); err != nil {
			return err
		}
	}
	if err := r.Wire.Do(r.layWire); err != nil {
		return err
	}
	if err := r.Ext.Do(r.setUpExt); err != nil {
		return err
	}
	if err := r.Node.Do(r.setUpNode); err != nil {
		return err
	}
	for _, s := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
		if err := r.Node.Sysctl(s, "1"); err != nil {
			return err
		}
	}
	return nil
}

// layWire connects the remote host and the node by two veths, and those by the wire's
// programs. With TxChecksum a bridge takes their place: skbs then cross as skbs, with
// checksums that are not finished, which a frame cannot carry.
func (r *Rig) layWire() error {
	if err := addVeth(WireExt, ExtDev, r.Ext); err != nil {
		return err
	}
	if err := addVeth(WireNode, Uplink, r.Node); err != nil {
		return err
	}
	if r.opts.TxChecksum {
		return joinByBridge(WireExt, WireNode)
	}
	join := joinWire
	if r.opts.OneWay {
		join = joinOneWay
	}
	cut, err := join(WireExt, WireNode)
	if err != nil {
		return err
	}
	r.undo = append(r.undo, func() { _ = r.Wire.Do(func() error { cut(); return nil }) })
	return nil
}

// asOnCable makes a veth behave like a NIC: frames leave with complete checksums, and
// its receive side runs NAPI.
func (r *Rig) asOnCable(name string) error {
	f := map[string]bool{"rx-gro": true}
	if !r.opts.TxChecksum {
		f["tx-checksum-ip-generic"] = false
	}
	return Offload(name, f)
}

func (r *Rig) setUpExt() error {
	return errors.Join(
		r.asOnCable(ExtDev),
		AddAddr(ExtDev, netip.PrefixFrom(ExtAddr4, 24)),
		AddAddr(ExtDev, netip.PrefixFrom(ExtAddr6, 64)),
		AddRoute(PodNet4, NodeAddr4),
		AddRoute(PodNet6, NodeAddr6),
	)
}

func (r *Rig) setUpNode() error {
	return errors.Join(
		r.asOnCable(Uplink),
		AddAddr(Uplink, netip.PrefixFrom(NodeAddr4, 24)),
		AddAddr(Uplink, netip.PrefixFrom(NodeAddr6, 64)),
		AddRoute(netip.MustParsePrefix("0.0.0.0/0"), ExtAddr4),
		AddRoute(netip.MustParsePrefix("::/0"), ExtAddr6),
	)
}

// Close removes the rig and everything that runs in it.
func (r *Rig) Close() {
	for i := len(r.undo) - 1; i >= 0; i-- {
		r.undo[i]()
	}
	r.undo = nil
	r.mu.Lock()
	pods := r.pods
	r.pods = nil
	r.mu.Unlock()
	for _, p := range pods {
		p.Host.Close()
	}
	for _, h := range []*Host{r.Ext, r.Wire, r.Node} {
		if h != nil {
			h.Close()
		}
	}
}

// Conf returns the rig's network configuration as JSON, with some keys changed.
func (r *Rig) Conf(changes map[string]any) []byte {
	conf := map[string]any{}
	for k, v := range r.conf {
		conf[k] = v
	}
	for k, v := range changes {
		if v == nil {
			delete(conf, k)
		} else {
			conf[k] = v
		}
	}
	out, err := json.Marshal(conf)
	if err != nil {
		panic(err) // only maps of plain values get here
	}
	return out
}

// Plugin runs a plugin binary on the node with one verb, as a runtime does, and returns
// what it printed on standard output and standard error.
func (r *Rig) Plugin(ctx context.Context, verb string, conf []byte, env map[string]string) (Output, error) {
	return r.runPlugin(ctx, "xveth", verb, conf, env)
}

// bindNetns gives a pod's namespace a path on the node, as runtimes do.
func (r *Rig) bindNetns(pod *Host, path string) error {
	return r.Node.Do(func() error {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, nil, 0o444); err != nil {
			return err
		}
		if err := unix.Mount(pod.NetnsPath(), path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind the namespace of %q: %w", pod.Name, err)
		}
		return nil
	})
}

// unbindNetns takes the path away.
func (r *Rig) unbindNetns(path string) error {
	return r.Node.Do(func() error {
		return errors.Join(unix.Unmount(path, unix.MNT_DETACH), os.Remove(path))
	})
}

// pluginPath is what the plugins get as CNI_PATH.
func (r *Rig) pluginPath() string {
	return strings.Join(filepath.SplitList(r.opts.Plugins), string(os.PathListSeparator))
}
