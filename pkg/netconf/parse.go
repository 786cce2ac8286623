// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"bytes"
	"cmp"
	"log/slog"
	"regexp"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
)

const (
	// minMTU is the smallest that IPv4 allows.
	minMTU = 68
	// minLocalMTU is the smallest that IPv6 allows.
	minLocalMTU = 1280
	// maxMTU is the largest that a veth can have.
	maxMTU = 65535
	// maxFileName is NAME_MAX; names of networks and plugins become file names.
	maxFileName = 255
	// maxPath is PATH_MAX without the final zero.
	maxPath = 4095
	// specMissing is the version that the spec reads into a configuration
	// without one.
	specMissing = "0.1.0"
)

const (
	wantMTU      = "0 (the uplink's) or an integer from 68 to 65535"
	wantLocalMTU = `"auto", "off" or an integer from 1280 to 65535`
	wantName     = "a network name: at most 255 letters, digits and _ . - with a letter or digit first"
	wantPlugin   = "the name of a plugin binary: at most 255 letters, digits and _ . - with a letter or digit first"
	wantLogFile  = "an absolute path of a file"
)

var pluginName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$`)

// Versions returns the versions of the CNI spec that a configuration may have,
// oldest first.
func Versions() []string { return []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} }

// Parse reads a configuration and the CNI_ARGS that came with it. Every error
// is a *types.Error with a code of the spec. When nothing but prevResult cannot
// be read, the configuration without it comes with the error.
func Parse(stdin []byte, cniArgs string) (*Conf, error) {
	return parse(stdin, cniArgs, topFields(), needsIPAM)
}

// ParseChained is Parse for xveth-chain, which runs behind the plugin that makes the
// interface.
func ParseChained(stdin []byte, cniArgs string) (*Conf, error) {
	return parse(stdin, cniArgs, chainedFields(), nil)
}

func parse(stdin []byte, cniArgs string, fields []field[Conf], require func(*Conf) error) (*Conf, error) {
	if err := checkText(stdin); err != nil {
		return nil, err
	}
	top, err := readTop(stdin)
	if err != nil {
		return nil, err
	}
	args, argsErr := readArgs(cniArgs)
	conf := defaults()
	conf.Runtime = args
	conf.Raw = bytes.Clone(stdin)

	// A version that is not supported may well have keys that are not known,
	// so it is looked at first.
	if n, ok := top["cniVersion"]; ok {
		if err := readVersion(conf, n); err != nil {
			return nil, err
		}
	}
	if err := readKeys(conf, "", top, fields); err != nil {
		return nil, err
	}
	if err := checkRequired(conf); err != nil {
		return nil, err
	}
	if require != nil {
		if err := require(conf); err != nil {
			return nil, err
		}
	}
	var unreadable error
	if n, ok := top["prevResult"]; ok && !n.isNull() {
		unreadable = readPrevResult(conf, n)
	}
	if argsErr != nil {
		return nil, cmp.Or(unreadable, argsErr)
	}
	return conf, unreadable
}

func defaults() *Conf {
	return &Conf{
		FastPath: FastPath{
			Mode:       ModeAuto,
			Revalidate: defaultRevalidate,
			MaxFlows:   defaultMaxFlows,
		},
		LogLevel: slog.LevelInfo,
	}
}

// commonFields lists the keys of every configuration: the spec's, those that libcni puts
// in, and our own.
func commonFields() []field[Conf] {
	return []field[Conf]{
		{key: "cniVersion", read: readVersion},
		{key: "name", null: true, read: readName},
		{key: "type", read: readType},
		{key: "args", null: true, read: readAnyObject},
		{key: "capabilities", null: true, read: readCapabilities},
		{key: "runtimeConfig", null: true, read: readRuntimeConfig},
		// Read last, by readPrevResult: it needs the version.
		{key: "prevResult", null: true, read: func(*Conf, node) error { return nil }},
		// Only the first of the two counts where both are lists, but both are
		// checked: a runtime that is confused must not lead to a removal.
		{key: attachmentsOld, null: true, read: readAttachments},
		{key: attachments, null: true, read: readAttachments},
		{key: "uplinks", read: readUplinks},
		{key: "fastPath", read: func(c *Conf, n node) error { return readObject(&c.FastPath, n, fastPathFields()) }},
		{key: "logLevel", read: readLogLevel},
		{key: "logFile", read: readLogFile},
	}
}

// topFields lists the keys of the plugin that makes the interface.
func topFields() []field[Conf] {
	return append(commonFields(),
		field[Conf]{key: "ipam", null: true, read: readIPAM},
		field[Conf]{key: "dns", null: true, read: func(c *Conf, n node) error { return readObject(&c.DNS, n, dnsFields()) }},
		field[Conf]{key: "ipMasq", read: func(c *Conf, n node) (err error) { c.IPMasq, err = n.boolean(); return err }},
		field[Conf]{key: "mtu", read: readMTU},
		field[Conf]{key: "localMTU", read: readLocalMTU},
	)
}

// chainedFields lists those of the plugin that runs behind another.
func chainedFields() []field[Conf] {
	return append(commonFields(),
		field[Conf]{key: "required", read: func(c *Conf, n node) (err error) { c.Required, err = n.boolean(); return err }},
	)
}

// knownKeys lists the path of every key whose spelling is checked.
func knownKeys() []string {
	var keys []string
	add := func(path string, names []string) {
		for _, name := range names {
			keys = append(keys, join(path, name))
		}
	}
	add("", fieldKeys(topFields()))
	add("fastPath", fieldKeys(fastPathFields()))
	add("uplinks[]", fieldKeys(uplinkFields()))
	add("ipam", []string{"type"})
	add("dns", fieldKeys(dnsFields()))
	add("runtimeConfig", fieldKeys(runtimeFields()))
	add("runtimeConfig.bandwidth", bandwidthKeys())
	return keys
}

// checkRequired runs after all else, so that a misspelt key is reported as
// what it is and not as a missing one.
func checkRequired(c *Conf) error {
	switch {
	case c.CNIVersion == "":
		return unsupportedVersion(specMissing, " (none is given)")
	case c.Name == "":
		return missing("name", wantName)
	case c.Type == "":
		return missing("type", wantPlugin)
	}
	return nil
}

func needsIPAM(c *Conf) error {
	if c.IPAMType == "" {
		return missing("ipam.type", wantPlugin)
	}
	return nil
}

func readVersion(c *Conf, n node) error {
	if n.isNull() {
		return unsupportedVersion(specMissing, " (none is given)")
	}
	if !n.isString() {
		// The code that the spec has for a version that cannot be decoded,
		// and that skel answers with before a plugin is asked.
		return errf(types.ErrDecodingFailure, "check \"cniVersion\": %s is not allowed, want a string", n.show())
	}
	v, err := n.text("")
	if err != nil {
		return err
	}
	if v == "" {
		return unsupportedVersion(specMissing, " (none is given)")
	}
	if !slices.Contains(Versions(), v) {
		return unsupportedVersion(v, "")
	}
	c.CNIVersion = v
	return nil
}

func unsupportedVersion(v, why string) error {
	return errf(types.ErrIncompatibleCNIVersion, "check \"cniVersion\": %s%s is not supported, want one of %s",
		quote(v), why, strings.Join(Versions(), ", "))
}

func readName(c *Conf, n node) error {
	if !n.isString() {
		// As for the version, skel answers with this code.
		return errf(types.ErrDecodingFailure, "check \"name\": %s is not allowed, want %s", n.show(), wantName)
	}
	name, err := n.text(wantName)
	if err != nil {
		return err
	}
	if len(name) > maxFileName || utils.ValidateNetworkName(name) != nil {
		return n.invalid(wantName)
	}
	c.Name = name
	return nil
}

func readType(c *Conf, n node) (err error) {
	c.Type, err = readPluginName(n)
	return err
}

func readPluginName(n node) (string, error) {
	name, err := n.text(wantPlugin)
	if err == nil && (len(name) > maxFileName || !pluginName.MatchString(name)) {
		err = n.invalid(wantPlugin)
	}
	return name, err
}

func readAnyObject(_ *Conf, n node) error {
	_, err := n.object()
	return err
}

func readCapabilities(_ *Conf, n node) error {
	obj, err := n.object()
	if err != nil {
		return err
	}
	for _, key := range sortedKeys(obj) {
		if _, err := obj[key].boolean(); err != nil {
			return err
		}
	}
	return nil
}

// readIPAM leaves all but the type to the address manager.
func readIPAM(c *Conf, n node) error {
	obj, err := n.object()
	if err != nil {
		return err
	}
	kind, ok := obj["type"]
	if !ok {
		return missing("ipam.type", wantPlugin)
	}
	c.IPAMType, err = readPluginName(kind)
	return err
}

func readMTU(c *Conf, n node) error {
	v, err := n.integer(0, maxMTU, wantMTU)
	if err == nil && v != 0 && v < minMTU {
		err = n.invalid(wantMTU)
	}
	c.MTU = int(v)
	return err
}

func readLocalMTU(c *Conf, n node) error {
	if !n.isString() {
		v, err := n.integer(minLocalMTU, maxMTU, wantLocalMTU)
		c.LocalMTU = LocalMTU{Bytes: int(v)}
		return err
	}
	s, err := n.text(wantLocalMTU)
	if err == nil && s != "auto" && s != "off" {
		err = n.invalid(wantLocalMTU)
	}
	c.LocalMTU = LocalMTU{Off: s == "off"}
	return err
}

func readLogLevel(c *Conf, n node) error {
	s, err := n.oneOf("debug", "info", "warn", "error")
	if err != nil {
		return err
	}
	c.LogLevel = map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
	}[s]
	return nil
}

// readLogFile takes an empty path for none.
func readLogFile(c *Conf, n node) error {
	s, err := n.text(wantLogFile)
	if err != nil {
		return err
	}
	if s != "" && (s[0] != '/' || strings.HasSuffix(s, "/") || len(s) > maxPath || !printable(s)) {
		return n.invalid(wantLogFile)
	}
	c.LogFile = s
	return nil
}
