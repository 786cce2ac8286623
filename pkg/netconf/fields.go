// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
)

const (
	minRevalidate     = 10 * time.Millisecond
	maxRevalidate     = time.Minute
	defaultRevalidate = time.Second

	minMaxFlows     = 1 << 10
	maxMaxFlows     = 1 << 24
	defaultMaxFlows = 1 << 16

	// maxDNSText is the longest that a domain name can be; options have no
	// limit of their own.
	maxDNSText = 253
)

const (
	wantUplinks    = `a list of device names or of objects {"name", "mode"}`
	wantUplink     = `a device name or an object {"name", "mode"}`
	wantDevice     = `a device name: 1 to 15 bytes without white space, control characters, "/" or ":", not "." or ".."`
	wantRevalidate = `a duration such as "1s", from 10ms to 1m`
	wantMaxFlows   = "an integer from 1024 to 16777216"
	wantMark       = `an integer from 0 to 4294967295 or a string such as "0x100" of at most 32 bits`
	wantServer     = "an IP address"
	wantDNS        = "at most 253 printable characters without white space"
)

func uplinkFields() []field[Uplink] {
	return []field[Uplink]{
		{key: "name", read: readUplinkName},
		{key: "mode", read: func(u *Uplink, n node) error { return readMode(&u.Mode, n) }},
	}
}

func fastPathFields() []field[FastPath] {
	return []field[FastPath]{
		{key: "mode", read: func(f *FastPath, n node) error { return readMode(&f.Mode, n) }},
		{key: "revalidate", read: readRevalidate},
		{key: "maxFlows", read: func(f *FastPath, n node) error {
			v, err := n.integer(minMaxFlows, maxMaxFlows, wantMaxFlows)
			f.MaxFlows = uint32(v)
			return err
		}},
		{key: "excludeMark", read: readExcludeMark},
	}
}

// dnsFields lists the keys of types.DNS. A null is what Go writes for an empty
// list.
func dnsFields() []field[types.DNS] {
	return []field[types.DNS]{
		{key: "nameservers", null: true, read: readNameservers},
		{key: "domain", null: true, read: func(d *types.DNS, n node) (err error) {
			d.Domain, err = readDNSText(n, true)
			return err
		}},
		{key: "search", null: true, read: func(d *types.DNS, n node) (err error) {
			d.Search, err = readDNSList(n)
			return err
		}},
		{key: "options", null: true, read: func(d *types.DNS, n node) (err error) {
			d.Options, err = readDNSList(n)
			return err
		}},
	}
}

func readUplinks(c *Conf, n node) error {
	list, err := n.list(wantUplinks)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, item := range list {
		var u Uplink
		switch item.raw[0] {
		case '"':
			err = readUplinkName(&u, item)
		case '{':
			err = readObject(&u, item, uplinkFields())
		default:
			err = item.invalid(wantUplink)
		}
		if err != nil {
			return err
		}
		if u.Name == "" {
			return missing(join(item.path, "name"), wantDevice)
		}
		if seen[u.Name] {
			return errf(types.ErrInvalidNetworkConfig, "check %q: device %q is given twice", item.path, u.Name)
		}
		seen[u.Name] = true
		c.Uplinks = append(c.Uplinks, u)
	}
	return nil
}

func readUplinkName(u *Uplink, n node) error {
	name, err := n.text(wantDevice)
	if err == nil && (utils.ValidateInterfaceName(name) != nil || !printable(name)) {
		err = n.invalid(wantDevice)
	}
	u.Name = name
	return err
}

func readMode(m *Mode, n node) error {
	s, err := n.oneOf(string(ModeAuto), string(ModeXDP), string(ModeTCX), string(ModeOff))
	*m = Mode(s)
	return err
}

func readRevalidate(f *FastPath, n node) error {
	s, err := n.text(wantRevalidate)
	if err != nil {
		return err
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < minRevalidate || d > maxRevalidate {
		return n.invalid(wantRevalidate)
	}
	f.Revalidate = d
	return nil
}

func readExcludeMark(f *FastPath, n node) error {
	if !n.isString() {
		v, err := n.integer(0, math.MaxUint32, wantMark)
		f.ExcludeMark = uint32(v)
		return err
	}
	s, err := n.text(wantMark)
	if err != nil {
		return err
	}
	digits, ok := strings.CutPrefix(s, "0x")
	v, err := strconv.ParseUint(digits, 16, 32)
	if !ok || err != nil {
		return n.invalid(wantMark)
	}
	f.ExcludeMark = uint32(v)
	return nil
}

func readNameservers(d *types.DNS, n node) error {
	list, err := n.list("a list of IP addresses")
	if err != nil {
		return err
	}
	for _, item := range list {
		s, err := item.text(wantServer)
		if err != nil {
			return err
		}
		// The zone of an IPv6 address may be any text, hence the second check.
		if _, err := netip.ParseAddr(s); err != nil || len(s) > maxDNSText || !printable(s) {
			return item.invalid(wantServer)
		}
		d.Nameservers = append(d.Nameservers, s)
	}
	return nil
}

func readDNSList(n node) ([]string, error) {
	list, err := n.list("a list of strings")
	if err != nil {
		return nil, err
	}
	var texts []string
	for _, item := range list {
		s, err := readDNSText(item, false)
		if err != nil {
			return nil, err
		}
		texts = append(texts, s)
	}
	return texts, nil
}

// readDNSText refuses what could add a line or a word to a resolv.conf.
func readDNSText(n node, empty bool) (string, error) {
	s, err := n.text(wantDNS)
	if err == nil && (s == "" && !empty || len(s) > maxDNSText || !printable(s)) {
		err = n.invalid(wantDNS)
	}
	return s, err
}

// printable says whether s is free of white space, of control characters and
// of characters that only change how others are shown.
func printable(s string) bool {
	for _, r := range s {
		if r == unicode.ReplacementChar || unicode.IsSpace(r) || !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}
