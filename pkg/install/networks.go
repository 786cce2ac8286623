// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/containernetworking/cni/libcni"
)

const (
	listExt = ".conflist"
	// maxList is what the plugins read at most.
	maxList = 1 << 20
	// defaultDataDir of host-local, which does not export it.
	defaultDataDir = "/var/lib/cni/networks"
)

// Network is one configuration in the folder where the runtime looks for them.
type Network struct {
	File string `json:"file"`
	// Name of the network and Plugins in their order.
	Name    string   `json:"network"`
	Plugins []string `json:"plugins"`
	// Error says why runtimes cannot read it.
	Error string `json:"error,omitempty"`

	text []byte
}

// changes are network lists by file name as they will be; nil is one that will be gone.
type changes map[string][]byte

// networks lists what a runtime finds in a folder once it is changed, in the order in
// which runtimes look at it.
func networks(dir string, c changes) ([]Network, error) {
	files, err := libcni.ConfFiles(dir, []string{".conf", listExt, ".json"})
	if err != nil {
		return nil, err
	}
	for name := range c {
		if path := filepath.Join(dir, name); !slices.Contains(files, path) {
			files = append(files, path)
		}
	}
	slices.Sort(files)
	var all []Network
	for _, path := range files {
		text, changed := c[filepath.Base(path)]
		var failed error
		if !changed {
			text, failed = readRegular(path, maxList)
		}
		gone := changed && text == nil
		if failed != nil {
			_, err := os.Lstat(path)
			gone = errors.Is(err, fs.ErrNotExist) // meanwhile
		}
		if !gone {
			all = append(all, readNetwork(path, text, failed))
		}
	}
	return all, nil
}

func readNetwork(path string, text []byte, err error) Network {
	n := Network{File: path, Plugins: []string{}, text: text}
	if err == nil && filepath.Ext(path) == listExt {
		err = n.readList()
	} else if err == nil {
		err = n.readSingle()
	}
	if err != nil {
		n.Error = err.Error()
	}
	return n
}

func (n *Network) readList() error {
	list, err := libcni.NetworkConfFromBytes(n.text)
	if err != nil {
		return err
	}
	n.Name = list.Name
	for _, p := range list.Plugins {
		n.Plugins = append(n.Plugins, p.Network.Type)
	}
	if len(n.Plugins) == 0 && list.LoadOnlyInlinedPlugins {
		return errors.New("it has no plugins")
	}
	return nil
}

func (n *Network) readSingle() error {
	p, err := libcni.NetworkPluginConfFromBytes(n.text)
	if err != nil {
		return err
	}
	n.Name, n.Plugins = p.Network.Name, append(n.Plugins, p.Network.Type)
	return nil
}

// needs says whether a network calls a plugin, be it by another plugin that delegates.
func (n *Network) needs(plugin string) bool {
	var v any
	if json.Unmarshal(n.text, &v) != nil {
		// No runtime can read it now; whoever mends it may well need the plugin.
		return bytes.Contains(n.text, []byte(strconv.Quote(plugin)))
	}
	return hasType(v, plugin)
}

func hasType(v any, plugin string) bool {
	switch v := v.(type) {
	case []any:
		return slices.ContainsFunc(v, func(x any) bool { return hasType(x, plugin) })
	case map[string]any:
		if v["type"] == plugin {
			return true
		}
		for _, x := range v {
			if hasType(x, plugin) {
				return true
			}
		}
	}
	return false
}

// pool is a range of addresses that host-local gives out, and the folder in which it
// keeps the account of them.
type pool struct {
	store    string
	from, to netip.Addr
}

// ipamSection is what host-local reads of ranges.
type ipamSection struct {
	Type    string
	DataDir string
	ipamRange
	Ranges [][]ipamRange
}

type ipamRange struct{ Subnet, RangeStart, RangeEnd string }

// pools lists the ranges of a network. What cannot be read gives out nothing either.
func (n *Network) pools() []pool {
	type plugin struct{ IPAM ipamSection }
	var list struct {
		Plugins []plugin
		plugin
	}
	if n.Error != "" || json.Unmarshal(n.text, &list) != nil {
		return nil
	}
	var all []pool
	for _, p := range append(list.Plugins, list.plugin) {
		if p.IPAM.Type != "host-local" {
			continue
		}
		dir := p.IPAM.DataDir
		if dir == "" {
			dir = defaultDataDir
		}
		for _, set := range append(p.IPAM.Ranges, []ipamRange{p.IPAM.ipamRange}) {
			for _, r := range set {
				if x, ok := r.pool(filepath.Join(dir, n.Name)); ok {
					all = append(all, x)
				}
			}
		}
	}
	return all
}

func (r ipamRange) pool(store string) (pool, bool) {
	subnet, err := netip.ParsePrefix(r.Subnet)
	if err != nil {
		return pool{}, false
	}
	x := pool{store: store, from: subnet.Masked().Addr(), to: lastOf(subnet)}
	if a, err := netip.ParseAddr(r.RangeStart); err == nil {
		x.from = a
	}
	if a, err := netip.ParseAddr(r.RangeEnd); err == nil {
		x.to = a
	}
	return x, true
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}

func (p pool) overlaps(q pool) bool {
	return p.from.BitLen() == q.from.BitLen() && p.from.Compare(q.to) <= 0 && q.from.Compare(p.to) <= 0
}

// checkRanges refuses a new list that gives out addresses that another network gives out
// as well, by another account: two pods would get the same.
func checkRanges(all []Network, file string) error {
	i := slices.IndexFunc(all, func(n Network) bool { return filepath.Base(n.File) == file })
	if i < 0 {
		return nil
	}
	for _, other := range all {
		if other.File == all[i].File {
			continue
		}
		for _, theirs := range other.pools() {
			for _, ours := range all[i].pools() {
				if ours.store != theirs.store && ours.overlaps(theirs) {
					return fmt.Errorf("network %q gives out %s to %s, and network %q of %q gives out %s to %s without knowing of it: "+
						"use the same name and dataDir for both, or remove the other",
						all[i].Name, ours.from, ours.to, other.Name, other.File, theirs.from, theirs.to)
				}
			}
		}
	}
	return nil
}
