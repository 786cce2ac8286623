// SPDX-License-Identifier: Apache-2.0

package masq

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netns"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// inNamespace moves the test into a network namespace of its own and returns
// a handle for other goroutines. The test's thread is never unlocked, so it
// ends with the test, and the namespace with it.
func inNamespace(t *testing.T) netns.NsHandle {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs the nft command to look at the rules")
	}
	runtime.LockOSThread()
	ns, err := netns.New()
	if err != nil {
		t.Fatalf("make network namespace: %v", err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// enter is for the goroutines of a test.
func enter(t *testing.T, ns netns.NsHandle) {
	runtime.LockOSThread()
	if err := netns.Set(ns); err != nil {
		t.Errorf("enter namespace: %v", err)
	}
}

func nft(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("nft", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("nft %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".nft")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("rules differ from %s\ngot:\n%s\nwant:\n%s", path, got, want)
	}
}

func prefixes(ss ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, s := range ss {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func generation(t *testing.T) uint32 {
	t.Helper()
	s, err := open()
	must(t, err)
	defer s.Close()
	gen, err := s.Generation()
	must(t, err)
	return gen
}

func TestEnsureRules(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, network string
		subnets       []netip.Prefix
	}{
		{"ipv4", "pods", prefixes("10.1.0.0/16")},
		{"ipv6", "pods6", prefixes("fd00:1::/64")},
		{"dual", "a-network.with_a-long.name", prefixes("fd00:1::/64", "10.2.0.0/16", "10.1.2.3/16", "10.1.0.0/16", "192.0.2.1/32")},
		{"odd", "odd", prefixes("10.0.0.0/9", "0.0.0.0/0", "::/0", "fd00::1/128", "fd00::/7")},
		{"long", strings.Repeat("x", maxNetworkName), prefixes("10.1.0.0/16")},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			inNamespace(t)
			must(t, Ensure(c.network, c.subnets))
			golden(t, c.name, nft(t, "list", "table", "inet", "xveth"))
			must(t, Check(c.network, c.subnets))
			before := generation(t)
			must(t, Ensure(c.network, c.subnets))
			if after := generation(t); after != before {
				t.Errorf("second Ensure wrote: generation %d, was %d", after, before)
			}
			names, err := Networks()
			must(t, err)
			if !slices.Equal(names, []string{c.network}) {
				t.Errorf("Networks() = %q", names)
			}
		})
	}
}

func TestEnsureIsUnion(t *testing.T) {
	t.Parallel()
	inNamespace(t)
	must(t, Ensure("pods", prefixes("10.1.0.0/16")))
	must(t, Ensure("pods", prefixes("10.3.0.0/16", "fd00:1::/64")))
	must(t, Ensure("pods", prefixes("10.2.0.0/16")))
	must(t, Ensure("pods", prefixes("10.1.0.0/16"))) // a subset drops nothing
	must(t, Ensure("pods", nil))
	must(t, Ensure("other", prefixes("10.4.0.0/16")))
	golden(t, "union", nft(t, "list", "table", "inet", "xveth"))
	must(t, Check("pods", prefixes("10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16", "fd00:1::/64")))
}

func TestEnsureRepairs(t *testing.T) {
	t.Parallel()
	subnets := prefixes("10.1.0.0/16", "fd00:1::/64")
	chain := chainName("pods")
	for _, c := range []struct {
		name  string
		spoil []string
		want  string // in the error of Check
	}{
		{"table", []string{"delete", "table", "inet", "xveth"}, "table inet xveth"},
		{"chain", []string{"delete", "chain", "inet", "xveth", chain}, "chain"},
		{"flushed", []string{"flush", "chain", "inet", "xveth", chain}, "ip daddr 10.1.0.0/16 return"},
		{"rule", []string{"delete", "rule", "inet", "xveth", chain, "handle", "7"}, "ip6 saddr fd00:1::/64 masquerade"},
		{"return", []string{"delete", "rule", "inet", "xveth", chain, "handle", "3"}, "ip6 daddr fd00:1::/64 return"},
		{"dormant", []string{"add", "table", "inet", "xveth", "{", "flags", "dormant", ";", "}"}, "dormant"},
		{"policy", []string{"add", "chain", "inet", "xveth", chain, "{", "type", "nat", "hook", "postrouting", "priority", "100", ";", "policy", "drop", ";", "}"}, "hook nat postrouting"},
		{"filter chain", []string{fmt.Sprintf("delete chain inet xveth %s; add chain inet xveth %s { type filter hook forward priority 0; }", chain, chain)}, "hook nat postrouting"},
		{"plain chain", []string{fmt.Sprintf("delete chain inet xveth %s; add chain inet xveth %s", chain, chain)}, "hook nat postrouting"},
		{"foreign rule", []string{"insert", "rule", "inet", "xveth", chain, "tcp", "dport", "22", "accept", "comment", `"mine"`}, ""},
		{"order", []string{fmt.Sprintf("insert rule inet xveth %s ip saddr 10.1.0.0/16 masquerade; delete rule inet xveth %s handle 6", chain, chain)}, "ip saddr 10.1.0.0/16 masquerade"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			inNamespace(t)
			must(t, Ensure("pods", subnets))
			good := nft(t, "list", "table", "inet", "xveth")
			if c.name == "rule" || c.name == "return" || c.name == "order" {
				handles(t, chain)
			}
			nft(t, c.spoil...)
			err := Check("pods", subnets)
			if (err == nil) != (c.want == "") || err != nil && (!errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("Check says %v, want %q", err, c.want)
			}
			must(t, Ensure("pods", subnets[:1]))
			if c.name == "rule" || c.name == "return" {
				must(t, Check("pods", subnets)) // half a pair is enough to know the subnet
			}
			must(t, Ensure("pods", subnets))
			if got := nft(t, "list", "table", "inet", "xveth"); got != good {
				t.Errorf("not repaired:\n%s\nwant:\n%s", got, good)
			}
			must(t, Check("pods", subnets))
		})
	}
}

// handles fails when the handles that TestEnsureRepairs deletes by are not
// what it thinks they are.
func handles(t *testing.T, chain string) {
	t.Helper()
	out := nft(t, "-a", "list", "chain", "inet", "xveth", chain)
	for want, h := range map[string]string{
		"ip6 daddr fd00:1::/64 return": "3", "ip saddr 10.1.0.0/16 masquerade": "6", "ip6 saddr fd00:1::/64 masquerade": "7",
	} {
		ok := slices.ContainsFunc(strings.Split(out, "\n"), func(l string) bool {
			return strings.Contains(l, want) && strings.HasSuffix(l, "handle "+h)
		})
		if !ok {
			t.Fatalf("handle of %q is not %s:\n%s", want, h, out)
		}
	}
}

// B015, B016: parallel first ADDs race on shared rules.
func TestConcurrentEnsuresB015(t *testing.T) {
	t.Parallel()
	ns := inNamespace(t)
	const adds = 50
	var want []netip.Prefix
	for i := range adds {
		want = append(want, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), 0, 0}), 16))
	}
	ensureAll := func() {
		var wg sync.WaitGroup
		for i := range adds {
			wg.Go(func() {
				enter(t, ns)
				if err := Ensure("pods", want[i:i+1]); err != nil {
					t.Errorf("Ensure %d: %v", i, err)
				}
			})
		}
		wg.Wait()
	}

	// No update is lost, and nothing is there twice.
	ensureAll()
	must(t, Check("pods", want))
	if got := strings.Count(nft(t, "list", "table", "inet", "xveth"), "masquerade"); got != adds {
		t.Errorf("%d masquerade rules, want %d", got, adds)
	}

	// Again while another deletes the table under them.
	var stop atomic.Bool
	var deleted int
	var wg sync.WaitGroup
	wg.Go(func() {
		enter(t, ns)
		for !stop.Load() {
			if exec.Command("nft", "delete", "table", "inet", "xveth").Run() == nil {
				deleted++
			}
		}
	})
	ensureAll()
	stop.Store(true)
	wg.Wait()
	if deleted == 0 {
		t.Error("the table was never deleted under Ensure")
	}
	ensureAll()
	must(t, Check("pods", want))
	out := nft(t, "list", "ruleset")
	if strings.Count(out, "table ") != 1 || strings.Count(out, "chain ") != 1 || strings.Count(out, "masquerade") != adds {
		t.Errorf("not exactly one table, chain and rule for each subnet:\n%s", out)
	}
}

// Ensure and Remove of different networks at once: the table goes only when
// nobody needs it.
func TestConcurrentRemove(t *testing.T) {
	t.Parallel()
	ns := inNamespace(t)
	must(t, Ensure("stays", prefixes("10.9.0.0/16")))
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			enter(t, ns)
			name := fmt.Sprintf("net%d", i)
			for range 5 {
				if err := Ensure(name, prefixes("10.1.0.0/16")); err != nil {
					t.Error(err)
				}
				if err := Remove(name); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	must(t, Check("stays", prefixes("10.9.0.0/16")))
	must(t, Remove("stays"))
	if out := nft(t, "list", "ruleset"); out != "" {
		t.Errorf("left behind:\n%s", out)
	}
}

func TestRemove(t *testing.T) {
	t.Parallel()
	inNamespace(t)
	wantHas(t, "pods", false)
	must(t, Remove("pods")) // no table
	must(t, Ensure("pods", prefixes("10.1.0.0/16")))
	wantHas(t, "pods", true)
	wantHas(t, "other", false)
	must(t, Ensure("other", prefixes("10.2.0.0/16")))
	must(t, Remove("pods"))
	must(t, Remove("pods"))
	must(t, Check("other", prefixes("10.2.0.0/16")))
	if names, err := Networks(); err != nil || !slices.Equal(names, []string{"other"}) {
		t.Errorf("Networks() = %q, %v", names, err)
	}
	nft(t, "add", "chain", "inet", "xveth", "theirs")
	must(t, Remove("other"))
	golden(t, "theirs", nft(t, "list", "ruleset")) // a foreign chain keeps the table
	wantHas(t, "other", false)
	nft(t, "delete", "chain", "inet", "xveth", "theirs")
	wantHas(t, "other", true)
	must(t, Remove("other")) // an empty table of ours goes
	if out := nft(t, "list", "ruleset"); out != "" {
		t.Errorf("left behind:\n%s", out)
	}
}

// wantHas wants to hear whether there is something for Remove to do.
func wantHas(t *testing.T, network string, want bool) {
	t.Helper()
	if has, err := Has(network); err != nil || has != want {
		t.Errorf("Has(%q) = %t, %v, want %t", network, has, err, want)
	}
}

func TestForeignTablesUntouched(t *testing.T) {
	t.Parallel()
	inNamespace(t)
	nft(t, `table ip nat { chain post { type nat hook postrouting priority 100; ip saddr 10.1.0.0/16 masquerade; }; }; `+
		`table ip xveth { chain c { type filter hook forward priority 0; }; }; table inet xveth-not { chain masq-x { }; }`)
	before := nft(t, "list", "ruleset")
	must(t, Ensure("pods", prefixes("10.1.0.0/16")))
	if names, err := Networks(); err != nil || !slices.Equal(names, []string{"pods"}) {
		t.Errorf("Networks() = %q, %v", names, err)
	}
	must(t, Remove("pods"))
	if after := nft(t, "list", "ruleset"); after != before {
		t.Errorf("foreign rules changed:\n%s\nwas:\n%s", after, before)
	}
}

// A hash collision must not let one network take or remove another's chain.
func TestOwner(t *testing.T) {
	t.Parallel()
	inNamespace(t)
	must(t, Ensure("pods", prefixes("10.1.0.0/16")))
	nft(t, "rename", "chain", "inet", "xveth", chainName("pods"), chainName("twin"))
	before := nft(t, "list", "ruleset")
	if err := Ensure("twin", prefixes("10.2.0.0/16")); !errors.Is(err, ErrNotOwner) {
		t.Errorf("Ensure on another network's chain: %v", err)
	}
	if err := Check("twin", prefixes("10.1.0.0/16")); !errors.Is(err, ErrNotOwner) {
		t.Errorf("Check on another network's chain: %v", err)
	}
	must(t, Remove("twin"))
	if after := nft(t, "list", "ruleset"); after != before {
		t.Errorf("another network's chain changed:\n%s", after)
	}
}

// B155: with 20,000 foreign rules on the node Ensure does not list them.
func TestManyForeignRulesB155(t *testing.T) {
	// Not parallel: closing a socket waits for what other tests delete.
	inNamespace(t)
	var b strings.Builder
	b.WriteString("table ip many { chain c {\n")
	for i := range 20000 {
		fmt.Fprintf(&b, "ip daddr 10.%d.%d.1 drop\n", i/256, i%256)
	}
	b.WriteString("}\n}\n")
	file := filepath.Join(t.TempDir(), "many.nft")
	must(t, os.WriteFile(file, []byte(b.String()), 0o600))
	nft(t, "-f", file)
	must(t, Ensure("pods", prefixes("10.1.0.0/16")))
	// Not testing.Benchmark, which runs on another goroutine: outside of the
	// namespace.
	best := time.Hour
	for range 20 {
		start := time.Now()
		must(t, Ensure("pods", prefixes("10.1.0.0/16")))
		best = min(best, time.Since(start))
	}
	t.Logf("Ensure takes %v", best)

	// The bound is what reading all rules takes here and now, so that a slow
	// machine does not fail.
	start := time.Now()
	nft(t, "list", "ruleset")
	if all := time.Since(start); best > all/4 {
		t.Errorf("Ensure takes %v, listing all rules %v", best, all)
	}
	must(t, Check("pods", prefixes("10.1.0.0/16")))
}

func TestCommitRefusesOldGeneration(t *testing.T) {
	t.Parallel()
	inNamespace(t)
	s, err := open()
	must(t, err)
	defer s.Close()
	gen, err := s.Generation()
	must(t, err)
	nft(t, "add", "table", "ip", "x")
	var b batch
	b.addTable()
	if err := s.Commit(gen, &b.Batch); !errors.Is(err, syscall.ERESTART) {
		t.Errorf("commit on an old generation: %v, want ERESTART", err)
	}
}

func TestStepNamesMissingPart(t *testing.T) {
	t.Parallel()
	var b batch
	b.addTable()
	b.addChain("c")
	b.addRule("c", rule{prefixes("10.1.0.0/16")[0], true}, nil)
	for i, want := range []string{"CONFIG_NF_TABLES_INET", "CONFIG_NFT_NAT", "CONFIG_NFT_MASQ"} {
		err := b.Steps()[i].Explain(syscall.ENOENT)
		if !errors.Is(err, ErrNotSupported) || !strings.Contains(err.Error(), want) || transient(err) {
			t.Errorf("step %d: %v, want %s", i, err, want)
		}
		if err := b.Steps()[i].Explain(syscall.EPERM); errors.Is(err, ErrNotSupported) {
			t.Errorf("step %d: EPERM taken for a missing part: %v", i, err)
		}
	}
}

func TestInvalidArguments(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"no name":   Ensure("", prefixes("10.0.0.0/8")),
		"long name": Ensure(strings.Repeat("x", maxNetworkName+1), prefixes("10.0.0.0/8")),
		"zero":      Ensure("pods", []netip.Prefix{{}}),
		"mapped":    Ensure("pods", prefixes("::ffff:10.0.0.0/104")),
		"multicast": Ensure("pods", prefixes("ff02::/16")),
		"check":     Check("pods", []netip.Prefix{{}}),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestChainName(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, n := range []string{"pods", "Pods", "a b", "a-b", "a;b", strings.Repeat("n", 200), strings.Repeat("n", 201), "ü", "{}"} {
		c := chainName(n)
		if len(c) > 31 {
			t.Errorf("chain of %q is %q: %d bytes", n, c, len(c))
		}
		if strings.Trim(c, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") != "" {
			t.Errorf("chain of %q is %q", n, c)
		}
		if o, ok := seen[c]; ok {
			t.Errorf("%q and %q share %q", n, o, c)
		}
		seen[c] = n
	}
}
