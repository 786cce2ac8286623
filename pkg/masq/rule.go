// SPDX-License-Identifier: Apache-2.0

package masq

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/netip"
	"reflect"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
)

const (
	chainPrefix = "masq-"
	// ownerPrefix begins the comment of each of our rules; the network's name
	// follows.
	ownerPrefix = "xveth network "
	// maxNetworkName is what is left of the 254 bytes that a comment can have,
	// its final NUL among them.
	maxNetworkName = 254 - len(ownerPrefix) - 1
	// readableName is how much of the network's name a chain's name shows.
	readableName = 16
)

const (
	protoIPv4 = 2  // NFPROTO_IPV4
	protoIPv6 = 10 // NFPROTO_IPV6
	register  = 1  // NFT_REG_1
)

var multicast = []netip.Prefix{netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("ff00::/8")}

// rule is one of ours: a destination that is left alone or, if masquerade, a
// source that is translated.
type rule struct {
	prefix     netip.Prefix
	masquerade bool
}

// String writes the rule as nft does.
func (r rule) String() string {
	family := "ip6"
	if r.prefix.Addr().Is4() {
		family = "ip"
	}
	if r.masquerade {
		return family + " saddr " + r.prefix.String() + " masquerade"
	}
	return family + " daddr " + r.prefix.String() + " return"
}

// rulesFor returns a chain that translates what comes from the sources and does not go to
// one of the others.
func rulesFor(sources, except []netip.Prefix) []rule {
	var rs []rule
	for _, p := range except {
		rs = append(rs, rule{prefix: p})
	}
	for _, p := range multicast {
		rs = append(rs, rule{prefix: p})
	}
	for _, p := range sources {
		rs = append(rs, rule{prefix: p, masquerade: true})
	}
	return rs
}

// exprs returns the rule as the kernel executes it.
func (r rule) exprs() []expr.Any {
	proto, offset, size := byte(protoIPv6), uint32(8), uint32(net.IPv6len)
	if r.prefix.Addr().Is4() {
		proto, offset, size = protoIPv4, 12, net.IPv4len
	}
	if !r.masquerade {
		offset += size
	}
	es := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: register},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: []byte{proto}},
	}
	bits := r.prefix.Bits()
	if bits > 0 {
		es = append(es, &expr.Payload{
			DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size,
		})
		if bits < int(size)*8 {
			es = append(es, &expr.Bitwise{
				SourceRegister: register, DestRegister: register, Len: size,
				Mask: net.CIDRMask(bits, int(size)*8), Xor: make([]byte, size),
			})
		}
		es = append(es, &expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: r.prefix.Addr().AsSlice()})
	}
	if r.masquerade {
		return append(es, &expr.Masq{})
	}
	return append(es, &expr.Verdict{Kind: expr.VerdictReturn})
}

// parseRule tells which rule of ours the kernel's is. It collects what a rule
// of ours has in its expressions and compares the result as a whole, so that
// nothing that differs in any way is taken for ours.
func parseRule(kr *nftables.Rule) (rule, bool) {
	var r rule
	var addr netip.Addr
	bits := -1
	for i, e := range kr.Exprs {
		switch e := e.(type) {
		case *expr.Cmp:
			if i == 1 && len(e.Data) == 1 { // nothing else tells the family of a /0
				addr, bits = netip.IPv6Unspecified(), 0
				if e.Data[0] == protoIPv4 {
					addr = netip.IPv4Unspecified()
				}
			} else {
				addr, _ = netip.AddrFromSlice(e.Data)
				if bits <= 0 {
					bits = addr.BitLen()
				}
			}
		case *expr.Bitwise:
			bits, _ = net.IPMask(e.Mask).Size()
		case *expr.Masq:
			r.masquerade = true
		}
	}
	r.prefix = netip.PrefixFrom(addr, bits)
	if !r.prefix.IsValid() {
		return rule{}, false
	}
	return r, sameExprs(kr.Exprs, r.exprs())
}

func sameExprs(a, b []expr.Any) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		x, ok := a[i].(*expr.Bitwise)
		y, ok2 := b[i].(*expr.Bitwise)
		if ok && ok2 { // net.IPMask and []byte are different types to DeepEqual
			if x.SourceRegister != y.SourceRegister || x.DestRegister != y.DestRegister || x.Len != y.Len ||
				!bytes.Equal(x.Mask, y.Mask) || !bytes.Equal(x.Xor, y.Xor) {
				return false
			}
			continue
		}
		if !reflect.DeepEqual(a[i], b[i]) {
			return false
		}
	}
	return true
}

// chainName is stable, readable and a valid nft identifier. The hash keeps
// apart names that look alike after cleaning; the comments, not this name, say
// whose the chain is.
func chainName(network string) string {
	if network == node {
		return nodeChain
	}
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '.' {
			return r
		}
		return '-'
	}, network)
	sum := sha256.Sum256([]byte(network))
	return chainPrefix + clean[:min(len(clean), readableName)] + "-" + hex.EncodeToString(sum[:4])
}

// comment is the rule's user data, which nft shows as a comment.
func comment(network string) []byte {
	if network == node {
		return userdata.AppendString(nil, userdata.TypeComment, nodeComment)
	}
	return userdata.AppendString(nil, userdata.TypeComment, ownerPrefix+network)
}

// ownerOf returns the network that the first rule of ours among these names.
func ownerOf(rules []*nftables.Rule) string {
	for _, r := range rules {
		// userdata.Get panics on user data that is cut off, and anybody may
		// have put a rule into the chain.
		u := r.UserData
		for len(u) >= 2 && len(u) >= 2+int(u[1]) {
			value := u[2 : 2+int(u[1])]
			if userdata.Type(u[0]) == userdata.TypeComment {
				if name, ok := strings.CutPrefix(strings.TrimRight(string(value), "\x00"), ownerPrefix); ok {
					return name
				}
			}
			u = u[2+int(u[1]):]
		}
	}
	return ""
}
