// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

const (
	// maxArgs bounds CNI_ARGS.
	maxArgs = 64 << 10
	// macBytes is the length of an Ethernet address.
	macBytes = 6

	// minRate is one byte a second: the kernel counts in bytes and takes no
	// rate of 0.
	minRate = 8
	// minBurst is one byte, in bits.
	minBurst = 8
	// maxBurst is the most that the kernel's 32 bits of bytes can hold.
	maxBurst = 8*math.MaxUint32 - 1
	// burstRate is the part of a second of the rate that a burst defaults to,
	// about one timer tick of a common kernel.
	burstRate = 250
	// burstFloor is the least that a burst defaults to: two packets of the
	// largest local MTU with their headers fit in it.
	burstFloor = 8 * 2 * (maxMTU + maxHeader)
	maxHeader  = 64
	// burstSeconds bounds the default burst of low rates: a token bucket keeps
	// its depth as time, and its 32 bits of scheduler ticks last little longer.
	burstSeconds = 256
)

const (
	wantIP    = `an address of a pod such as "192.0.2.5" or "192.0.2.5/24"`
	wantIPs   = "a list of addresses"
	wantMAC   = `a unicast MAC address of 6 bytes such as "02:00:00:00:00:01"`
	wantRate  = "0 (no limit) or an integer of bits per second from 8 to 18446744073709551615"
	wantBurst = "0 (the default) or an integer of bits from 8 to 34359738359"
)

func runtimeFields() []field[Runtime] {
	return []field[Runtime]{
		{key: "ips", null: true, read: readIPs},
		{key: "mac", null: true, read: readMAC},
		{key: "bandwidth", null: true, read: readBandwidth},
		{key: "fastPath", null: true, read: func(r *Runtime, n node) error {
			s, err := n.oneOf("on", "off")
			r.FastPathOff = s == "off"
			return err
		}},
	}
}

// readRuntimeConfig does not look at keys that are not ours: a runtime fills
// in whatever the capabilities of the configuration ask for.
func readRuntimeConfig(c *Conf, n node) error {
	obj, err := n.object()
	if err != nil {
		return err
	}
	for _, f := range runtimeFields() {
		child, ok := obj[f.key]
		if !ok || child.isNull() {
			continue
		}
		if err := f.read(&c.Runtime, child); err != nil {
			return err
		}
	}
	return nil
}

func readIPs(r *Runtime, n node) error {
	list, err := n.list(wantIPs)
	if err != nil {
		return err
	}
	var ips []netip.Prefix
	seen := map[netip.Addr]bool{}
	for _, item := range list {
		s, err := item.text(wantIP)
		if err != nil {
			return err
		}
		p, ok := parseIP(s)
		if !ok {
			return item.invalid(wantIP)
		}
		if seen[p.Addr()] {
			return errf(types.ErrInvalidNetworkConfig, "check %q: address %s is given twice", item.path, p.Addr())
		}
		seen[p.Addr()] = true
		ips = append(ips, p)
	}
	// An empty list asks for nothing, and leaves CNI_ARGS its say.
	if len(ips) > 0 {
		r.IPs = ips
	}
	return nil
}

// parseIP reads "address" or "address/length".
func parseIP(s string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" {
			return netip.Prefix{}, false
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	a := p.Addr()
	usable := !a.Is4In6() && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() &&
		a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
	return p, usable && p.Bits() > 0
}

func readMAC(r *Runtime, n node) error {
	s, err := n.text(wantMAC)
	if err != nil {
		return err
	}
	mac, ok := parseMAC(s)
	if !ok {
		return n.invalid(wantMAC)
	}
	r.MAC = mac
	return nil
}

func parseMAC(s string) (net.HardwareAddr, bool) {
	mac, err := net.ParseMAC(s)
	if err != nil || len(mac) != macBytes || mac[0]&1 != 0 {
		return nil, false
	}
	return mac, !slices.Equal(mac, make(net.HardwareAddr, macBytes))
}

func bandwidthKeys() []string {
	return []string{"ingressRate", "ingressBurst", "egressRate", "egressBurst"}
}

func readBandwidth(r *Runtime, n node) error {
	obj, err := n.object()
	if err != nil {
		return err
	}
	// containerd writes the names of its Go fields, IngressRate and so on.
	for _, key := range bandwidthKeys() {
		upper := strings.ToUpper(key[:1]) + key[1:]
		v, ok := obj[upper]
		if !ok {
			continue
		}
		if _, twice := obj[key]; twice {
			return errf(types.ErrInvalidNetworkConfig, "check %q: given as %q too", v.path, join(n.path, key))
		}
		obj[key] = v
		delete(obj, upper)
	}
	if err := checkKeys(n.path, obj, bandwidthKeys()); err != nil {
		return err
	}
	var b Bandwidth
	if b.IngressRate, b.IngressBurst, err = readLimit(n.path, obj, "ingress"); err != nil {
		return err
	}
	if b.EgressRate, b.EgressBurst, err = readLimit(n.path, obj, "egress"); err != nil {
		return err
	}
	if b != (Bandwidth{}) {
		r.Bandwidth = &b
	}
	return nil
}

// readLimit reads the limit of one direction.
func readLimit(path string, obj map[string]node, direction string) (rate, burst uint64, err error) {
	if n, ok := obj[direction+"Rate"]; ok {
		if rate, err = n.integer(0, math.MaxUint64, wantRate); err != nil {
			return 0, 0, err
		}
		if rate > 0 && rate < minRate {
			return 0, 0, n.invalid(wantRate)
		}
	}
	if n, ok := obj[direction+"Burst"]; ok {
		if burst, err = n.integer(0, maxBurst, wantBurst); err != nil {
			return 0, 0, err
		}
		if burst > 0 && burst < minBurst {
			return 0, 0, n.invalid(wantBurst)
		}
	}
	switch {
	case rate == 0 && burst != 0:
		return 0, 0, missing(join(path, direction+"Rate"), "a rate, since a burst is given")
	case rate != 0 && burst == 0:
		burst = defaultBurst(rate)
	}
	return rate, burst, nil
}

// defaultBurst returns the bits of a burst that a token bucket of that rate
// can have and that lets the largest packet through wherever it can.
func defaultBurst(rate uint64) uint64 {
	burst := max(rate/burstRate, burstFloor)
	if rate < maxBurst/burstSeconds {
		burst = min(burst, rate*burstSeconds)
	}
	return min(burst, maxBurst)
}

// readArgs reads CNI_ARGS.
func readArgs(text string) (Runtime, error) {
	if len(text) > maxArgs {
		return Runtime{}, badArgs("%d bytes, want at most %d", len(text), maxArgs)
	}
	if text == "" {
		return Runtime{}, nil
	}
	var r Runtime
	var unknown []string
	ignore := false
	seen := map[string]bool{}
	for pair := range strings.SplitSeq(text, ";") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return Runtime{}, badArgs("%s is not of the form KEY=VALUE", quote(pair))
		}
		known, err := readArg(&r, &ignore, key, value)
		if err != nil {
			return Runtime{}, err
		}
		if !known {
			unknown = append(unknown, key)
			continue
		}
		if seen[key] {
			return Runtime{}, badArgs("%q is given twice", key)
		}
		seen[key] = true
	}
	if len(unknown) > 0 && !ignore {
		return Runtime{}, badArgs("unknown key %s, want one of %s, or IgnoreUnknown=1 beside it",
			quote(unknown[0]), strings.Join(argKeys(), ", "))
	}
	return r, nil
}

func argKeys() []string {
	return []string{
		"IP", "MAC", "FAST_PATH", "IgnoreUnknown",
		"K8S_POD_NAMESPACE", "K8S_POD_NAME", "K8S_POD_INFRA_CONTAINER_ID", "K8S_POD_UID",
	}
}

// readArg reads one pair and says whether its key is known.
func readArg(r *Runtime, ignore *bool, key, value string) (bool, error) {
	if !slices.Contains(argKeys(), key) {
		return false, nil
	}
	want, ok := "", true
	switch key {
	case "IP":
		var p netip.Prefix
		p, ok = parseIP(value)
		r.IPs, want = []netip.Prefix{p}, wantIP
	case "MAC":
		r.MAC, ok = parseMAC(value)
		want = wantMAC
	case "FAST_PATH":
		r.FastPathOff = value == "off"
		ok, want = value == "off" || value == "on", "on or off"
	case "IgnoreUnknown":
		var b types.UnmarshallableBool
		ok = b.UnmarshalText([]byte(value)) == nil
		*ignore, want = bool(b), "1, true, 0 or false"
	}
	if !ok {
		return true, badArgs("check %q: %s is not allowed, want %s", key, quote(value), want)
	}
	return true, nil
}

func badArgs(format string, args ...any) error {
	return errf(types.ErrInvalidEnvironmentVariables, "read CNI_ARGS: "+format, args...)
}
