// SPDX-License-Identifier: Apache-2.0

package install

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"

	"github.com/containernetworking/cni/libcni"

	"github.com/xveth/xveth/pkg/ipam"
	"github.com/xveth/xveth/pkg/netconf"
)

// maxFileName is NAME_MAX.
const maxFileName = 255

var fileName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*\` + listExt + `$`)

// ListOptions says what a generated network list has in it.
type ListOptions struct {
	// Name of the network.
	Name string
	// Subnets that pods get an address of each family from. Several of a family are one
	// pool.
	Subnets []netip.Prefix
	// Masquerade is the plugin's own (ipMasq).
	Masquerade bool
	// MTU of routes that lead out of the node, in bytes; 0 takes the uplink's.
	MTU int
	// Uplinks by name; none takes the devices of the default routes.
	Uplinks []string
	// FastPath settings; nil takes the defaults.
	FastPath *FastPath
	// PortMap appends the reference plugin portmap, for host ports.
	PortMap bool
}

// FastPath settings of a generated list, as they stand in it; "" and 0 take the default.
type FastPath struct {
	Mode       string `json:"mode,omitempty"`
	Revalidate string `json:"revalidate,omitempty"`
	MaxFlows   uint32 `json:"maxFlows,omitempty"`
}

// Generate writes a network list.
func Generate(o ListOptions) ([]byte, error) {
	type (
		addresses struct {
			Subnet string `json:"subnet"`
		}
		route struct {
			Dst string `json:"dst"`
		}
		section struct {
			Type   string        `json:"type"`
			Ranges [][]addresses `json:"ranges"`
			Routes []route       `json:"routes"`
		}
		plugin struct {
			Type         string          `json:"type"`
			Capabilities map[string]bool `json:"capabilities"`
			IPMasq       bool            `json:"ipMasq"`
			MTU          int             `json:"mtu,omitempty"`
			Uplinks      []string        `json:"uplinks,omitempty"`
			FastPath     *FastPath       `json:"fastPath,omitempty"`
			IPAM         section         `json:"ipam"`
		}
		other struct {
			Type         string          `json:"type"`
			Capabilities map[string]bool `json:"capabilities"`
		}
		// A runtime whose library is older than CNIVersions takes CNIVersion, and does
		// without GC and STATUS.
		list struct {
			CNIVersion  string   `json:"cniVersion"`
			CNIVersions []string `json:"cniVersions"`
			Name        string   `json:"name"`
			Plugins     []any    `json:"plugins"`
		}
	)
	s := section{Type: "host-local"}
	for _, family := range []struct {
		bits int
		all  string
	}{{32, "0.0.0.0/0"}, {128, "::/0"}} {
		var set []addresses
		for _, p := range o.Subnets {
			if p.Addr().BitLen() == family.bits {
				set = append(set, addresses{p.String()})
			}
		}
		if len(set) > 0 {
			s.Ranges, s.Routes = append(s.Ranges, set), append(s.Routes, route{family.all})
		}
	}
	plugins := []any{plugin{
		Type: mainPlugin, IPMasq: o.Masquerade, MTU: o.MTU, Uplinks: o.Uplinks, FastPath: o.FastPath, IPAM: s,
		Capabilities: map[string]bool{"bandwidth": true, "fastPath": true, "ips": true, "mac": true},
	}}
	if o.PortMap {
		plugins = append(plugins, other{"portmap", map[string]bool{"portMappings": true}})
	}
	text, err := json.MarshalIndent(list{
		CNIVersion: "1.0.0", CNIVersions: []string{"1.0.0", "1.1.0"}, Name: o.Name, Plugins: plugins,
	}, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(text, '\n'), nil
}

// Conf is the configuration that xveth will be given of a network list.
func Conf(text []byte) (*netconf.Conf, error) {
	list, err := libcni.NetworkConfFromBytes(text)
	if err != nil {
		return nil, err
	}
	for _, p := range list.Plugins {
		if p.Network.Type == mainPlugin {
			return parsePlugin(list, p)
		}
	}
	return nil, fmt.Errorf("the list has no plugin of type %q", mainPlugin)
}

// checkFileName keeps the name within the folder and such that runtimes look at it.
func checkFileName(name string) error {
	if !fileName.MatchString(name) || len(name) > maxFileName {
		return fmt.Errorf("file name %q is not allowed, want at most %d letters, digits and _ . - with a letter or digit first and %q last",
			name, maxFileName, listExt)
	}
	return nil
}

// checkList reads a network list as the runtime does, and each part of it that is ours as
// our plugin does.
func checkList(text []byte) error {
	if len(text) > maxList {
		return fmt.Errorf("%d bytes, want at most %d", len(text), maxList)
	}
	list, err := libcni.NetworkConfFromBytes(text)
	if err != nil {
		return err
	}
	ours := false
	for i, p := range list.Plugins {
		if !slices.Contains(Plugins(), p.Network.Type) {
			continue
		}
		ours = true
		if err := checkPlugin(list, p); err != nil {
			return fmt.Errorf("plugins[%d]: %w", i, err)
		}
	}
	if !ours {
		return fmt.Errorf("check \"plugins\": none of them is of type %q", mainPlugin)
	}
	return nil
}

// checkPlugin gives a plugin the configuration that libcni will make of the list.
func checkPlugin(list *libcni.NetworkConfigList, p *libcni.PluginConfig) error {
	conf, err := parsePlugin(list, p)
	if err != nil || p.Network.Type == chainPlugin {
		return err
	}
	_, err = ipam.Subnets(conf)
	return err
}

func parsePlugin(list *libcni.NetworkConfigList, p *libcni.PluginConfig) (*netconf.Conf, error) {
	given := map[string]any{"name": list.Name}
	if list.CNIVersion != "" {
		given["cniVersion"] = list.CNIVersion
	}
	p, err := libcni.InjectConf(p, given)
	if err != nil {
		return nil, err
	}
	if p.Network.Type == chainPlugin {
		return netconf.ParseChained(p.Bytes, "")
	}
	return netconf.Parse(p.Bytes, "")
}

// checkTwice finds a key that is given twice, of which libcni would take the last and
// hide it from the plugin's own check.
func checkTwice(dec *json.Decoder, path string) error {
	tok, err := dec.Token()
	if err != nil {
		return err
	}
	open, ok := tok.(json.Delim)
	if !ok {
		return nil
	}
	seen := map[string]bool{}
	for i := 0; dec.More(); i++ {
		child := path + "[" + strconv.Itoa(i) + "]"
		if open == '{' {
			tok, err := dec.Token()
			if err != nil {
				return err
			}
			key, _ := tok.(string)
			if seen[key] {
				return fmt.Errorf("%q has the key %q twice", path, key)
			}
			seen[key] = true
			child = path + "." + key
			if path == "" {
				child = key
			}
		}
		if err := checkTwice(dec, child); err != nil {
			return err
		}
	}
	_, err = dec.Token()
	return err
}
