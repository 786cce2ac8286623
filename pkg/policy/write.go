// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/pkg/internal/nftlink"
)

// Names in the table.
const (
	tableName      = "xveth-policy"
	baseChain      = "forward"
	untrackedChain = "untracked"
	selfSet        = "self"
	icmpSet        = "icmp-protocols"
)

// priority is just before "filter". Services and node ports are translated by then, which
// is in prerouting, and what a policy denies is not counted, logged or marked by others'
// filters. To accept here ends nothing: their filters are still asked.
const priority = -10

// Limits of what fits into a message and into nft's output.
const (
	elemsPerMessage = 300
	maxComment      = 127
)

// registers are counted in words of four bytes here.
const register = unix.NFT_REG32_00

// writer makes a transaction on our table.
type writer struct {
	nftlink.Batch
	sets uint32 // so far, as their numbers in the transaction
}

// replace makes the table hold the rules, whatever it held.
func (w *writer) replace(r *Rules) {
	w.AddTable(tableName)
	w.DeleteTable(tableName)
	w.AddTable(tableName)
	w.addSet(icmpSet, nftables.TypeInetProto, "protocols of ICMP errors")
	w.addElems(icmpSet, plain([]string{string([]byte{unix.IPPROTO_ICMP}), string([]byte{unix.IPPROTO_ICMPV6})}))
	for _, f := range families {
		for _, d := range []direction{egress, ingress} {
			w.addMap(mapName(d, f), f)
		}
		w.addSet(selfSet+f.suffix(), setType(pairs, f), "a pod may always reach itself")
	}
	w.AddBaseChain(tableName, baseChain, nftables.ChainTypeFilter, nftables.ChainHookForward, priority,
		"nf_tables chains in the kernel (CONFIG_NF_TABLES)")
	w.addChain(untrackedChain)
	w.base()
	w.update(fixed(), r)
}

// fixed is what replace has put into the table before the rules themselves.
func fixed() *Rules {
	r := Compile(Objects{})
	for _, f := range families {
		r.sets[selfSet+f.suffix()] = set{kind: pairs, family: f}
	}
	return r
}

// update turns what the table holds into something else. What is new goes first and what
// is old last, since neither may be missing while something refers to it.
func (w *writer) update(old, now *Rules) {
	for _, name := range sorted(now.sets) {
		s, was := now.sets[name], old.sets[name]
		if _, ok := old.sets[name]; !ok {
			w.addSetOf(name, s)
		}
		w.addElems(name, elemsOf(s, missing(s.elems, was.elems)))
	}
	for _, name := range sorted(now.chains) {
		if _, ok := old.chains[name]; !ok {
			w.addPolicyChain(name, now.chains[name])
		}
	}
	for d := range now.maps {
		w.updateMap(direction(d), old.maps[d], now.maps[d])
	}
	for _, name := range sorted(old.chains) {
		if _, ok := now.chains[name]; !ok {
			w.DeleteChain(tableName, name)
		}
	}
	for _, name := range sorted(old.sets) {
		s, ok := now.sets[name]
		if ok || isFixed(name) {
			w.deleteElems(name, elemsOf(old.sets[name], missing(old.sets[name].elems, s.elems)))
			continue
		}
		w.Add(unix.NFT_MSG_DELSET, 0, nftlink.Step{What: fmt.Sprintf("delete set %q", name)},
			nftlink.Str(unix.NFTA_SET_TABLE, tableName), nftlink.Str(unix.NFTA_SET_NAME, name))
	}
}

func isFixed(set string) bool {
	return slices.ContainsFunc(families, func(f family) bool { return set == selfSet+f.suffix() })
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// missing lists what sorted b has not of sorted a.
func missing(a, b []string) (out []string) {
	for _, e := range a {
		if _, found := slices.BinarySearch(b, e); !found {
			out = append(out, e)
		}
	}
	return out
}

// updateMap changes the chains of addresses.
func (w *writer) updateMap(d direction, old, now map[netip.Addr]string) {
	del, add := map[family][]elem{}, map[family][]elem{}
	for _, a := range slices.SortedFunc(maps.Keys(old), netip.Addr.Compare) {
		if now[a] != old[a] {
			del[familyOf(a)] = append(del[familyOf(a)], elem{key: string(a.AsSlice())})
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(now), netip.Addr.Compare) {
		if now[a] != old[a] {
			add[familyOf(a)] = append(add[familyOf(a)], elem{key: string(a.AsSlice()), chain: now[a]})
		}
	}
	for _, f := range families {
		w.deleteElems(mapName(d, f), del[f])
		w.addElems(mapName(d, f), add[f])
	}
}

func mapName(d direction, f family) string { return d.String() + f.suffix() }

// setType is nft's name for the keys of a set.
func setType(k setKind, f family) nftables.SetDatatype {
	addr := nftables.TypeIPAddr
	if f == v6 {
		addr = nftables.TypeIP6Addr
	}
	switch k {
	case ports:
		return nftables.TypeInetService
	case endpoints:
		return nftables.MustConcatSetType(addr, nftables.TypeInetService)
	case pairs:
		return nftables.MustConcatSetType(addr, addr)
	default:
		return addr
	}
}

func (w *writer) addSet(name string, t nftables.SetDatatype, comment string, more ...netlink.Attribute) {
	w.sets++
	const bigEndian = 2
	data := userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, bigEndian)
	if comment != "" {
		data = userdata.AppendString(data, userdata.NFTNL_UDATA_SET_COMMENT, short(comment))
	}
	w.Add(unix.NFT_MSG_NEWSET, netlink.Create,
		nftlink.Step{What: fmt.Sprintf("add set %q", name), Needs: "nf_tables sets in the kernel (CONFIG_NF_TABLES)"},
		append([]netlink.Attribute{
			nftlink.Str(unix.NFTA_SET_TABLE, tableName), nftlink.Str(unix.NFTA_SET_NAME, name),
			nftlink.Num(unix.NFTA_SET_ID, w.sets),
			nftlink.Num(unix.NFTA_SET_KEY_TYPE, t.GetNFTMagic()), nftlink.Num(unix.NFTA_SET_KEY_LEN, t.Bytes),
			{Type: unix.NFTA_SET_USERDATA, Data: data},
		}, more...)...)
}

func (w *writer) addSetOf(name string, s set) {
	var flags []netlink.Attribute
	if s.kind == blocks || s.kind == ports {
		flags = append(flags, nftlink.Num(unix.NFTA_SET_FLAGS, unix.NFT_SET_INTERVAL))
	}
	w.addSet(name, setType(s.kind, s.family), s.comment, flags...)
}

// addMap adds a map from addresses to chains.
func (w *writer) addMap(name string, f family) {
	w.addSet(name, setType(addrs, f), "",
		nftlink.Num(unix.NFTA_SET_FLAGS, unix.NFT_SET_MAP),
		nftlink.Num(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT), nftlink.Num(unix.NFTA_SET_DATA_LEN, 0))
}

// elem is an element as a message has it.
type elem struct {
	key   string
	end   bool   // the first key behind a range
	chain string // of a map
}

func plain(keys []string) (es []elem) {
	for _, k := range keys {
		es = append(es, elem{key: k})
	}
	return es
}

// elemsOf turns elements of a set into those of messages: a range is its first key and
// the one behind its last, unless nothing is behind it.
func elemsOf(s set, elems []string) (es []elem) {
	if s.kind != blocks && s.kind != ports {
		return plain(elems)
	}
	for _, e := range elems {
		first, behind := e[:len(e)/2], []byte(e[len(e)/2:])
		es = append(es, elem{key: first})
		for i := len(behind) - 1; i >= 0; i-- {
			behind[i]++
			if behind[i] != 0 {
				es = append(es, elem{key: string(behind), end: true})
				break
			}
		}
	}
	return es
}

func (w *writer) addElems(set string, es []elem) {
	w.elems(unix.NFT_MSG_NEWSETELEM, netlink.Create, "add elements to", set, es)
}

func (w *writer) deleteElems(set string, es []elem) {
	w.elems(unix.NFT_MSG_DELSETELEM, 0, "delete elements of", set, es)
}

func (w *writer) elems(kind uint16, flags netlink.HeaderFlags, what, set string, es []elem) {
	for chunk := range slices.Chunk(es, elemsPerMessage) {
		var list []netlink.Attribute
		for _, e := range chunk {
			attrs := []netlink.Attribute{
				w.Nested(unix.NFTA_SET_ELEM_KEY, netlink.Attribute{Type: unix.NFTA_DATA_VALUE, Data: []byte(e.key)}),
			}
			if e.end {
				attrs = append(attrs, nftlink.Num(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END))
			}
			if e.chain != "" {
				attrs = append(attrs, w.Nested(unix.NFTA_SET_ELEM_DATA, w.Nested(unix.NFTA_DATA_VERDICT,
					nftlink.Num(unix.NFTA_VERDICT_CODE, uint32(expr.VerdictJump&0xffffffff)),
					nftlink.Str(unix.NFTA_VERDICT_CHAIN, e.chain))))
			}
			list = append(list, w.Nested(unix.NFTA_LIST_ELEM, attrs...))
		}
		w.Add(kind, flags, nftlink.Step{What: fmt.Sprintf("%s set %q", what, set)},
			nftlink.Str(unix.NFTA_SET_ELEM_LIST_TABLE, tableName), nftlink.Str(unix.NFTA_SET_ELEM_LIST_SET, set),
			w.Nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, list...))
	}
}

func (w *writer) addChain(name string) {
	w.Add(unix.NFT_MSG_NEWCHAIN, netlink.Create, nftlink.Step{What: fmt.Sprintf("add chain %q", name)},
		nftlink.Str(unix.NFTA_CHAIN_TABLE, tableName), nftlink.Str(unix.NFTA_CHAIN_NAME, name))
}

// code is encoded expressions, one behind the other.
type code [][]byte

// rule appends a rule.
func (w *writer) rule(chain, comment string, parts ...code) {
	var data []byte
	if comment != "" {
		data = userdata.AppendString(nil, userdata.TypeComment, short(comment))
	}
	w.AddRule(tableName, chain, nftlink.Step{
		What:  fmt.Sprintf("add a rule to chain %q", chain),
		Needs: "nf_tables and its conntrack expression in the kernel (CONFIG_NF_TABLES, CONFIG_NFT_CT, module nft_ct)",
	}, slices.Concat(parts...), data)
}

// short is text that nft can show as a comment.
func short(s string) string {
	if len(s) > maxComment {
		s = s[:maxComment-3] + "..."
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' {
			return '?'
		}
		return r
	}, s)
}

// base writes the rules that every packet meets.
func (w *writer) base() {
	w.rule(baseChain, "", w.state(expr.CtStateBitINVALID|expr.CtStateBitUNTRACKED),
		w.encode(&expr.Verdict{Kind: expr.VerdictGoto, Chain: untrackedChain}))
	for _, d := range []direction{egress, ingress} {
		for _, f := range families {
			w.rule(baseChain, "", w.connAddr(d, f, register), w.chainOf(d, f))
		}
	}
	// Neighbour discovery is never tracked. It comes by here on a bridge only: whatever
	// was routed has a lower hop limit, and goes to no link-local group.
	const hopLimit, destination, icmpType = 7, 24, 0
	w.rule(untrackedChain, "neighbour discovery on a bridge", w.isFamily(v6),
		w.payload(expr.PayloadBaseNetworkHeader, hopLimit, 1), w.equal(255), w.isProto(unix.IPPROTO_ICMPV6),
		w.payload(expr.PayloadBaseTransportHeader, icmpType, 1),
		w.encode(&expr.Range{Op: expr.CmpOpEq, Register: register, FromData: []byte{133}, ToData: []byte{137}}), w.done())
	w.rule(untrackedChain, "link-local groups", w.isFamily(v6),
		w.payload(expr.PayloadBaseNetworkHeader, destination, 2), w.equal(0xff, 0x02), w.done())
	// Without a connection there is the packet. Chains then let pass only what they would
	// from anybody on any port.
	for _, d := range []direction{egress, ingress} {
		for _, f := range families {
			offset, size := packetAddr(d, f)
			w.rule(untrackedChain, "", w.isFamily(f), w.payload(expr.PayloadBaseNetworkHeader, offset, size), w.chainOf(d, f))
		}
	}
}

// packetAddr is where a packet has the address of a direction's local pod.
func packetAddr(d direction, f family) (offset, size uint32) {
	if f == v4 {
		return [...]uint32{egress: 12, ingress: 16}[d], 4
	}
	return [...]uint32{egress: 8, ingress: 24}[d], 16
}

// addPolicyChain writes a chain for pods.
func (w *writer) addPolicyChain(name string, c chain) {
	w.addChain(name)
	for _, a := range c.allows {
		w.rule(name, a.policy, w.allow(c.direction, a))
	}
	for _, f := range families {
		w.rule(name, "itself", w.connAddr(egress, f, register), w.connAddr(ingress, f, register+words(f)),
			w.in(selfSet+f.suffix()), w.done())
	}
	w.rule(name, c.policies, w.encode(&expr.Counter{}), w.encode(&expr.Verdict{Kind: expr.VerdictDrop}))
}

// words is how many registers an address takes.
func words(f family) uint32 {
	if f == v6 {
		return 4
	}
	return 1
}

// allow is one rule of a policy. The protocol comes first: by it nft knows what ports are.
func (w *writer) allow(d direction, a allow) (out code) {
	if a.errors {
		out = slices.Concat(w.state(expr.CtStateBitRELATED), w.meta(expr.MetaKeyL4PROTO), w.in(icmpSet))
	}
	if a.proto != 0 {
		out = w.isProto(a.proto)
	}
	switch {
	case a.peers != "":
		out = slices.Concat(out, w.connAddr(1-d, a.family, register), w.in(a.peers))
	case a.family != 0 && a.named == "": // which tells the family itself
		out = slices.Concat(out, w.isFamily(a.family))
	}
	if a.ports != "" {
		out = slices.Concat(out, w.connPort(register), w.in(a.ports))
	}
	if a.named != "" {
		out = slices.Concat(out, w.connAddr(ingress, a.family, register), w.connPort(register+words(a.family)), w.in(a.named))
	}
	return slices.Concat(out, w.done())
}

// connAddr loads an address of the connection: where it comes from, which is the local pod
// of egress, or where it goes behind all translations, which is that of ingress.
func (w *writer) connAddr(d direction, f family, reg uint32) code {
	if f == v6 {
		return w.ct(unix.NFT_CT_SRC_IP6, d, reg)
	}
	return w.ct(unix.NFT_CT_SRC_IP, d, reg)
}

// connPort loads the port where the connection goes.
func (w *writer) connPort(reg uint32) code { return w.ct(unix.NFT_CT_PROTO_SRC, ingress, reg) }

// ct loads the source of one of the connection's tuples, of the original or of the reply.
// The library has no direction for these keys.
func (w *writer) ct(key uint32, d direction, reg uint32) code {
	tuple := [...]byte{egress: 0, ingress: 1}[d] // IP_CT_DIR_ORIGINAL, IP_CT_DIR_REPLY
	data, err := netlink.MarshalAttributes([]netlink.Attribute{
		nftlink.Str(unix.NFTA_EXPR_NAME, "ct"),
		w.Nested(unix.NFTA_EXPR_DATA,
			nftlink.Num(unix.NFTA_CT_KEY, key), nftlink.Num(unix.NFTA_CT_DREG, reg),
			netlink.Attribute{Type: unix.NFTA_CT_DIRECTION, Data: []byte{tuple}}),
	})
	w.Fail(err)
	return code{data}
}

func (w *writer) encode(e expr.Any) code { return code{w.Encode(e)} }

// state matches packets in any of some states of conntrack.
func (w *writer) state(bits uint32) code {
	return slices.Concat(
		w.encode(&expr.Ct{Key: expr.CtKeySTATE, Register: register}),
		w.encode(&expr.Bitwise{
			SourceRegister: register, DestRegister: register, Len: 4,
			Mask: binary.NativeEndian.AppendUint32(nil, bits), Xor: make([]byte, 4),
		}),
		w.encode(&expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: make([]byte, 4)}))
}

func (w *writer) meta(key expr.MetaKey) code {
	return w.encode(&expr.Meta{Key: key, Register: register})
}

func (w *writer) equal(data ...byte) code {
	return w.encode(&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: data})
}

func (w *writer) isProto(proto uint8) code {
	return slices.Concat(w.meta(expr.MetaKeyL4PROTO), w.equal(proto))
}

func (w *writer) isFamily(f family) code {
	proto := map[family]byte{v4: unix.NFPROTO_IPV4, v6: unix.NFPROTO_IPV6}[f]
	return slices.Concat(w.meta(expr.MetaKeyNFPROTO), w.equal(proto))
}

func (w *writer) payload(base expr.PayloadBase, offset, size uint32) code {
	return w.encode(&expr.Payload{DestRegister: register, Base: base, Offset: offset, Len: size})
}

// in matches what is loaded when a set has it.
func (w *writer) in(set string) code {
	return w.encode(&expr.Lookup{SourceRegister: register, SetName: set})
}

// chainOf goes to the chain of the address that is loaded, and comes back from it with
// what is allowed.
func (w *writer) chainOf(d direction, f family) code {
	return w.encode(&expr.Lookup{SourceRegister: register, SetName: mapName(d, f), IsDestRegSet: true})
}

// done ends a chain with what is allowed.
func (w *writer) done() code { return w.encode(&expr.Verdict{Kind: expr.VerdictReturn}) }
