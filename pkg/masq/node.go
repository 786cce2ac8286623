// SPDX-License-Identifier: Apache-2.0

package masq

import (
	"fmt"
	"net/netip"
)

// A network's name is never empty: these stand for the node itself.
const (
	node        = ""
	nodeChain   = "masq-node"
	nodeComment = "xveth node"
)

// ReplaceNode makes source NAT work for the pods of a cluster's node: a packet from one of
// the sources leaves with the node's address unless it goes to one of the others, to
// another of the sources or is multicast. Unlike Ensure it knows all of them: what it was
// called with before is replaced, in one transaction. When there is nothing to do, nothing
// is written.
func ReplaceNode(sources, except []netip.Prefix) error {
	from, err := prepare("node", sources)
	if err != nil {
		return fmt.Errorf("masquerade the pods of the node: %w", err)
	}
	if len(from) == 0 {
		return RemoveNode()
	}
	to, err := prepare("node", append(append([]netip.Prefix{}, sources...), except...))
	if err != nil {
		return fmt.Errorf("masquerade the pods of the node: %w", err)
	}
	want := rulesFor(from, merge(to))
	err = untilStable(func() error {
		return look(node, func(s *session, now *state) error { return now.replace(s, want) })
	})
	if err != nil {
		return fmt.Errorf("masquerade the pods of the node: %w", err)
	}
	return nil
}

// RemoveNode takes away what ReplaceNode made. It succeeds when there is nothing.
func RemoveNode() error {
	err := untilStable(func() error { return look(node, removeOnce) })
	if err = ignore(err, ErrNotSupported); err != nil {
		return fmt.Errorf("remove the masquerade of the node's pods: %w", err)
	}
	return nil
}

// merge returns the fewest prefixes that cover what these cover, of a list that canonical
// has sorted: the pod ranges of a cluster's nodes are neighbours, and each is a rule that a
// flow's first packet has to pass.
func merge(sorted []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range sorted {
		if n := len(out); n > 0 && out[n-1].Overlaps(p) {
			continue // the wider one of two comes first
		}
		out = append(out, p)
		for len(out) > 1 {
			whole, ok := joined(out[len(out)-2], out[len(out)-1])
			if !ok {
				break
			}
			out = append(out[:len(out)-2], whole)
		}
	}
	return out
}

// joined returns the prefix of which two are the halves.
func joined(a, b netip.Prefix) (netip.Prefix, bool) {
	if a.Bits() != b.Bits() || a.Bits() == 0 || a == b || a.Addr().BitLen() != b.Addr().BitLen() {
		return netip.Prefix{}, false
	}
	whole := netip.PrefixFrom(a.Addr(), a.Bits()-1).Masked()
	return whole, whole.Contains(b.Addr())
}
