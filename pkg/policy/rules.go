// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// Rules are what the kernel is to hold. The names of sets and chains follow from what they
// mean: of two Rules, chains of the same name are the same, and so are sets of blocks and
// of ports; sets of pods differ in their elements alone.
type Rules struct {
	// Problems are the parts of policies that mean nothing and so allow nothing. The API
	// server refuses such policies.
	Problems []error

	// maps have the chain of each address of an isolated pod of this node.
	maps   [2]map[netip.Addr]string // by direction
	sets   map[string]set
	chains map[string]chain
}

// direction is that of a connection, as its local pod sees it.
type direction int

const (
	egress direction = iota
	ingress
)

func (d direction) String() string { return [...]string{"egress", "ingress"}[d] }

// family is that of an address; 0 is any.
type family int

const (
	v4 family = 4
	v6 family = 6
)

var families = []family{v4, v6}

func familyOf(a netip.Addr) family {
	if a.Is4() {
		return v4
	}
	return v6
}

// suffix tells the sets of a family apart.
func (f family) suffix() string { return map[family]string{v4: "-4", v6: "-6"}[f] }

// setKind says what a set's elements are.
type setKind int

const (
	addrs     setKind = iota // addresses
	blocks                   // ranges of addresses
	ports                    // ranges of ports
	endpoints                // address and port
	pairs                    // address and address
)

// set is a named set. Elements are keys as the kernel has them; ranges are the first key
// and the last. They are sorted, and ranges do not overlap.
type set struct {
	kind    setKind
	family  family
	comment string
	elems   []string
}

// chain is the rules for the pods to which the same policies apply.
type chain struct {
	direction direction
	policies  string // their names, for the operator
	allows    []allow
}

// allow is a rule that lets something pass. Empty parts match everything.
type allow struct {
	policy string // for the operator
	family family
	peers  string // set of the other end's addresses
	proto  uint8
	ports  string // set of ports of the connection's destination
	named  string // set of endpoints
	// errors lets the ICMP errors of connections pass that others of the policy's rules
	// allow: such a packet's own protocol is not that of its connection.
	errors bool
}

// Equal says whether both mean the same to the kernel.
func (r *Rules) Equal(other *Rules) bool {
	return reflect.DeepEqual(r.maps, other.maps) && reflect.DeepEqual(r.sets, other.sets) &&
		reflect.DeepEqual(r.chains, other.chains)
}

// Empty says whether no pod of this node is isolated.
func (r *Rules) Empty() bool { return len(r.maps[egress])+len(r.maps[ingress]) == 0 }

// Subjects counts the addresses of isolated pods of this node.
func (r *Rules) Subjects() int {
	all := maps.Clone(r.maps[egress])
	maps.Copy(all, r.maps[ingress])
	return len(all)
}

// hashName is a name for what the parts say. Nobody can find two meanings for a name:
// whoever may write policies of his own namespace would else change those of others.
func hashName(prefix string, parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		_ = binary.Write(h, binary.BigEndian, uint32(len(p))) // a hash takes everything
		h.Write([]byte(p))
	}
	const enough = 16
	sum := h.Sum(nil)[:enough]
	return prefix + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum))
}

func portKey(port uint16) string { return string(binary.BigEndian.AppendUint16(nil, port)) }

// endpointKey is the key of an address and a port; fields are padded to four bytes.
func endpointKey(addr netip.Addr, port uint16) string {
	return string(addr.AsSlice()) + portKey(port) + "\x00\x00"
}

func pairKey(a netip.Addr) string { return string(a.AsSlice()) + string(a.AsSlice()) }

func sortedUnique(s []string) []string {
	slices.Sort(s)
	return slices.Compact(s)
}
