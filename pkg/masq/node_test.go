// SPDX-License-Identifier: Apache-2.0

package masq

import (
	"net/netip"
	"slices"
	"testing"
)

// TestReplaceNode has the ranges of a cluster change beside a network's rules.
func TestReplaceNode(t *testing.T) {
	inNamespace(t)
	if err := Ensure("pods", prefixes("10.88.0.0/24")); err != nil {
		t.Fatal(err)
	}
	before := nft(t, "list", "ruleset")
	own := prefixes("10.244.0.0/24", "fd00:244::/64")
	if err := ReplaceNode(own, prefixes("10.244.1.0/24", "10.244.2.0/24", "192.168.0.0/16")); err != nil {
		t.Fatal(err)
	}
	golden(t, "node", nft(t, "list", "ruleset"))
	names, err := Networks()
	if err != nil || !slices.Equal(names, []string{"pods"}) {
		t.Errorf("networks are %q, %v; the node is none", names, err)
	}
	if err := ReplaceNode(own[:1], prefixes("10.244.1.0/24")); err != nil {
		t.Fatal(err)
	}
	golden(t, "node-less", nft(t, "list", "ruleset"))
	again := nft(t, "-a", "list", "ruleset")
	if err := ReplaceNode(own[:1], prefixes("10.244.1.0/24")); err != nil {
		t.Fatal(err)
	}
	if got := nft(t, "-a", "list", "ruleset"); got != again {
		t.Errorf("rules were written although nothing has changed:\n%s", got)
	}
	for range 2 {
		if err := RemoveNode(); err != nil {
			t.Fatal(err)
		}
		if got := nft(t, "list", "ruleset"); got != before {
			t.Errorf("removal leaves\n%s\nwant\n%s", got, before)
		}
	}
}

func TestMerge(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, want []netip.Prefix }{
		{prefixes("10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24", "10.0.3.0/24"), prefixes("10.0.0.0/22")},
		{prefixes("10.0.1.0/24", "10.0.2.0/24"), prefixes("10.0.1.0/24", "10.0.2.0/24")},
		{prefixes("10.0.0.0/8", "10.0.1.0/24", "11.0.0.0/8"), prefixes("10.0.0.0/7")},
		{prefixes("0.0.0.0/0", "fd00::/64", "fd00:0:0:1::/64"), prefixes("0.0.0.0/0", "fd00::/63")},
		{prefixes("10.0.0.0/24", "10.0.0.0/24"), prefixes("10.0.0.0/24")},
		{nil, nil},
	} {
		if got := merge(c.in); !slices.Equal(got, c.want) {
			t.Errorf("merge(%v) = %v, want %v", c.in, got, c.want)
		}
	}
}
