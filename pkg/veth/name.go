// SPDX-License-Identifier: Apache-2.0

package veth

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
)

const (
	// AliasPrefix starts the alias of every device of ours.
	AliasPrefix = "xveth:v1:"

	hostPrefix   = "xv"
	networkChars = 4
	nameChars    = 9

	// The limits keep the longest alias (9+81+1+129+1+15 bytes) below the 255
	// bytes that the kernel stores.
	maxNetwork     = 81
	maxContainerID = 129
	maxIfName      = 15

	// hashedMark starts a part of an alias that had to be replaced by its hash.
	hashedMark = "#"
)

var base32Lower = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// digest returns the readable hash of a list of strings.
func digest(parts ...string) string {
	return base32Lower.EncodeToString(sum(parts...))
}

// sum hashes strings, each with its length in front so that no two different
// lists look the same.
func sum(parts ...string) []byte {
	h := sha256.New()
	for _, p := range parts {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write([]byte(p))
	}
	return h.Sum(nil)
}

// HostName returns the name of the host's end of one attachment: the same for
// the same three strings, at most 15 bytes.
func HostName(network, containerID, ifname string) string {
	return networkPrefix(network) + digest(network, containerID, ifname)[:nameChars]
}

// networkPrefix returns what the names of all host ends of a network start with.
func networkPrefix(network string) string {
	return hostPrefix + digest(network)[:networkChars]
}

// hostMAC returns the address of the host's end. It is given at creation, since
// managers of devices rewrite only addresses that the kernel chose, and it is
// the same when an attachment is made again.
func hostMAC(network, containerID, ifname string) net.HardwareAddr {
	mac := net.HardwareAddr(sum("mac", network, containerID, ifname)[:6])
	mac[0] = mac[0]&^1 | 2
	return mac
}

// isHostName says whether a name could have been made by HostName.
func isHostName(name string) bool {
	rest, ok := strings.CutPrefix(name, hostPrefix)
	return ok && len(rest) == networkChars+nameChars &&
		strings.Trim(rest, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// Key returns the readable, unambiguous name of an attachment:
// <network>/<containerID>/<ifname>, where a part that is too long or holds a
// character that would be ambiguous is replaced by "#" and its hash.
func Key(network, containerID, ifname string) string {
	return token(network, maxNetwork) + "/" + token(containerID, maxContainerID) + "/" + token(ifname, maxIfName)
}

// NetworkKey returns the part of a key that stands for the network.
func NetworkKey(network string) string { return token(network, maxNetwork) }

// token returns a part of a key.
func token(s string, limit int) string {
	plain := s != "" && len(s) <= limit && !strings.HasPrefix(s, hashedMark)
	for i := 0; plain && i < len(s); i++ {
		plain = s[i] > ' ' && s[i] < 0x7f && s[i] != '/'
	}
	if plain {
		return s
	}
	if full := hashedMark + digest(s); len(full) <= limit {
		return full
	}
	return (hashedMark + digest(s))[:limit]
}

// Alias returns the alias that the host's end of an attachment carries.
func Alias(network, containerID, ifname string) string {
	return AliasPrefix + Key(network, containerID, ifname)
}

// ParseAlias returns the parts of an alias made by Alias. A part that was too
// long comes back as its hash: compare with Attachment.Is or with Alias, not
// with the parts.
func ParseAlias(alias string) (network, containerID, ifname string, err error) {
	key, ok := strings.CutPrefix(alias, AliasPrefix)
	if !ok {
		return "", "", "", fmt.Errorf("parse alias %q: it does not start with %q", alias, AliasPrefix)
	}
	parts := strings.Split(key, "/")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return "", "", "", fmt.Errorf("parse alias %q: want <network>/<containerID>/<ifname>", alias)
	}
	return parts[0], parts[1], parts[2], nil
}
