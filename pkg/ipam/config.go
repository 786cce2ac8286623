// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"bufio"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/plugins/pkg/ip"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"

	"github.com/xveth/xveth/pkg/netconf"
)

// defaultDataDir is the reference plugin's, which does not export it.
const defaultDataDir = "/var/lib/cni/networks"

// load reads the ipam section as the reference plugin does. envArgs is
// CNI_ARGS.
func load(c *netconf.Conf, envArgs string) (*allocator.IPAMConfig, error) {
	if err := checkName(c); err != nil {
		return nil, err
	}
	if err := checkNulls(c.Raw); err != nil {
		return nil, cniError(types.ErrInvalidNetworkConfig, "read ipam of network %q: %w", c.Name, err)
	}
	ipArg, err := requestedByArgs(envArgs)
	if err != nil {
		return nil, err
	}
	conf, _, err := allocator.LoadIPAMConfig(c.Raw, ipArg)
	if err != nil {
		return nil, cniError(types.ErrInvalidNetworkConfig, "read ipam of network %q: %w", c.Name, err)
	}
	if slices.Contains(conf.Routes, nil) {
		return nil, cniError(types.ErrInvalidNetworkConfig, "read ipam of network %q: a route is null", c.Name)
	}
	if err := checkRequested(c, conf); err != nil {
		return nil, err
	}
	return conf, nil
}

// checkName keeps a network's name from leading out of the data directory.
func checkName(c *netconf.Conf) error {
	if err := utils.ValidateNetworkName(c.Name); err != nil {
		return err
	}
	return nil
}

// checkNulls finds the nulls in lists of addresses that make the reference
// parser panic.
func checkNulls(raw []byte) error {
	var n struct {
		RuntimeConfig struct {
			IPs []*json.RawMessage `json:"ips"`
		} `json:"runtimeConfig"`
		Args struct {
			CNI struct {
				IPs []*json.RawMessage `json:"ips"`
			} `json:"cni"`
		} `json:"args"`
	}
	if err := json.Unmarshal(raw, &n); err != nil {
		return nil // LoadIPAMConfig says it better
	}
	if slices.Contains(append(n.RuntimeConfig.IPs, n.Args.CNI.IPs...), nil) {
		return errors.New("a requested address is null")
	}
	return nil
}

// requestedByArgs returns what host-local knows of CNI_ARGS. The reference
// refuses keys that it does not know, and some of them are xveth's.
func requestedByArgs(envArgs string) (string, error) {
	ipArg := ""
	for _, pair := range strings.Split(envArgs, ";") {
		value, ok := strings.CutPrefix(pair, "IP=")
		if !ok || value == "" {
			continue
		}
		if ip.ParseIP(value) == nil {
			return "", cniError(types.ErrInvalidEnvironmentVariables, "read CNI_ARGS: %q is not an address", value)
		}
		ipArg = pair
	}
	return ipArg, nil
}

// checkRequested finds, before anything is touched, the requests that no
// retry can fulfil.
func checkRequested(c *netconf.Conf, conf *allocator.IPAMConfig) error {
	used := map[int]net.IP{}
	for _, addr := range uniqueIPs(conf.IPArgs) {
		set := slices.IndexFunc(conf.Ranges, func(s allocator.RangeSet) bool { return s.Contains(addr) })
		if set < 0 {
			return cniError(types.ErrInvalidNetworkConfig, "requested address %s is in no range of network %q", addr, c.Name)
		}
		if other, ok := used[set]; ok {
			return cniError(types.ErrInvalidNetworkConfig, "requested addresses %s and %s are in one range set of network %q, which gives one",
				other, addr, c.Name)
		}
		used[set] = addr
		if r, err := conf.Ranges[set].RangeFor(addr); err == nil && addr.Equal(r.Gateway) {
			return cniError(types.ErrInvalidNetworkConfig, "requested address %s is the gateway of network %q", addr, c.Name)
		}
	}
	return nil
}

// uniqueIPs drops repetitions: a runtime may ask for one address in several
// ways at once.
func uniqueIPs(ips []net.IP) []net.IP {
	var out []net.IP
	for _, addr := range ips {
		if !slices.ContainsFunc(out, addr.Equal) {
			out = append(out, addr)
		}
	}
	return out
}

func subnets(conf *allocator.IPAMConfig) []netip.Prefix {
	var ps []netip.Prefix
	for _, set := range conf.Ranges {
		for _, r := range set {
			bits, _ := r.Subnet.Mask.Size()
			p := netip.PrefixFrom(toAddr(r.Subnet.IP), bits)
			if !slices.Contains(ps, p) {
				ps = append(ps, p)
			}
		}
	}
	return ps
}

func toAddr(b net.IP) netip.Addr {
	addr, _ := netip.AddrFromSlice(b)
	return addr.Unmap()
}

// storeDir returns where the network's reservations are. It reads no more of
// the section than it needs, so that DEL and GC work when ranges are wrong, or
// missing because only ADD is told them.
func storeDir(c *netconf.Conf) (string, error) {
	if err := checkName(c); err != nil {
		return "", err
	}
	var n struct {
		IPAM struct {
			DataDir string `json:"dataDir"`
		} `json:"ipam"`
	}
	if err := json.Unmarshal(c.Raw, &n); err != nil {
		return "", cniError(types.ErrInvalidNetworkConfig, "read ipam of network %q: %w", c.Name, err)
	}
	if n.IPAM.DataDir == "" {
		n.IPAM.DataDir = defaultDataDir
	}
	return filepath.Join(n.IPAM.DataDir, c.Name), nil
}

// readResolvConf is the reference plugin's, which does not export it.
func readResolvConf(path string) (types.DNS, error) {
	var dns types.DNS
	f, err := os.Open(path)
	if err != nil {
		return dns, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		fields := strings.Fields(line)
		if len(fields) < 2 || line[0] == '#' || line[0] == ';' {
			continue
		}
		switch fields[0] {
		case "nameserver":
			dns.Nameservers = append(dns.Nameservers, fields[1])
		case "domain":
			dns.Domain = fields[1]
		case "search":
			dns.Search = append(dns.Search, fields[1:]...)
		case "options":
			dns.Options = append(dns.Options, fields[1:]...)
		}
	}
	return dns, lines.Err()
}
