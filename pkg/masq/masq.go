// SPDX-License-Identifier: Apache-2.0

// Package masq hides the pods of a network behind the node's address when
// they talk to anything outside their own subnets. It keeps one nftables table,
// inet xveth, with one nat chain for each network, and speaks netlink: it
// starts no process, and it neither reads nor changes what others have in
// nftables.
//
// All functions work in the network namespace of the calling thread.
package masq

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/nftables"

	"github.com/xveth/xveth/pkg/internal/nftlink"
)

// tableName is our table, of family inet.
const tableName = "xveth"

// A transaction is refused when anything in the namespace's nftables changed
// after we had looked, so a busy neighbour (kube-proxy, 50 ADDs at once) costs
// another round. All rounds together take about two seconds.
const (
	maxRounds = 80
	maxPause  = 30 * time.Millisecond
)

// Lock names the lock (package lock) to hold while the last attachment of a network and
// its rules go, or while an attachment gets them.
const Lock = "masquerade"

var (
	// ErrMissing says that something Check looked for is not there.
	ErrMissing = errors.New("missing")
	// ErrNotSupported says that the kernel lacks a part of nftables.
	ErrNotSupported = nftlink.ErrNotSupported
	// ErrNotOwner says that the chain's name is taken by another network.
	ErrNotOwner = errors.New("chain belongs to another network")
)

// Ensure makes source NAT of the network's subnets work: a packet from one of
// them leaves with the node's address unless it goes to one of them or is
// multicast.
//
// Ensure adds and never removes: subnets that the network already has stay,
// also when the list does not name them, because a caller with a delegated
// address manager knows no more than its own pod's subnet. Only Remove
// removes. Anything else in the network's chain is put right. When there is
// nothing to do, nothing is written; when there is, the chain is replaced in
// one transaction. An empty list needs nothing.
func Ensure(network string, subnets []netip.Prefix) error {
	want, err := prepare(network, subnets)
	if err != nil {
		return fmt.Errorf("masquerade network %q: %w", network, err)
	}
	if len(want) == 0 {
		return nil
	}
	if err := untilStable(func() error { return ensureOnce(network, want) }); err != nil {
		return fmt.Errorf("masquerade network %q: %w", network, err)
	}
	return nil
}

// Check returns nil only when every rule that the subnets need is there and
// has effect; the error wraps ErrMissing and names the first that is not.
func Check(network string, subnets []netip.Prefix) error {
	want, err := prepare(network, subnets)
	if err != nil {
		return fmt.Errorf("check masquerade of network %q: %w", network, err)
	}
	if len(want) == 0 {
		return nil
	}
	err = untilStable(func() error {
		return look(network, func(_ *session, now *state) error { return now.check(want) })
	})
	if err != nil {
		return fmt.Errorf("check masquerade of network %q: %w", network, err)
	}
	return nil
}

// Remove takes the network's chain away, and the table when nothing is left in
// it. It succeeds when there is none, and leaves a chain that belongs to
// another network alone.
func Remove(network string) error {
	err := untilStable(func() error { return look(network, removeOnce) })
	if err = ignore(err, ErrNotSupported, ErrNotOwner); err != nil {
		return fmt.Errorf("remove masquerade of network %q: %w", network, err)
	}
	return nil
}

// Has says whether there may be something for Remove to take away. It asks for less than
// Remove does, and needs no lock: whoever adds rules meanwhile needs them.
func Has(network string) (bool, error) {
	s, err := openIfSupported()
	if s == nil {
		return false, err
	}
	defer s.Close()
	t, err := s.table()
	if err != nil || t == nil {
		return false, ignore(err, ErrNotSupported)
	}
	c, err := s.chain(chainName(network))
	if err != nil {
		return false, fmt.Errorf("look for the masquerade of network %q: %w", network, err)
	}
	return c != nil || t.Use == 0, nil
}

// openIfSupported returns nil where there is no nftables at all.
func openIfSupported() (*session, error) {
	s, err := open()
	if err != nil {
		return nil, ignore(err, ErrNotSupported)
	}
	if _, err := s.Generation(); err != nil { // tells whether there is
		s.Close()
		return nil, ignore(err, ErrNotSupported)
	}
	return s, nil
}

// Networks returns the names of the networks that have a chain, sorted.
func Networks() ([]string, error) {
	s, err := openIfSupported()
	if s == nil {
		return nil, err
	}
	defer s.Close()
	chains, err := s.Lib.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("list nftables chains: %w", err)
	}
	var names []string
	for _, ch := range chains {
		if ch.Table == nil || ch.Table.Name != tableName || !strings.HasPrefix(ch.Name, chainPrefix) {
			continue
		}
		rules, err := s.rules(ch.Name)
		if err != nil {
			return nil, err
		}
		if owner := ownerOf(rules); owner != "" {
			names = append(names, owner)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func ignore(err error, targets ...error) error {
	for _, t := range targets {
		if errors.Is(err, t) {
			return nil
		}
	}
	return err
}

// prepare checks the arguments and brings the subnets into canonical form.
func prepare(network string, subnets []netip.Prefix) ([]netip.Prefix, error) {
	if network == "" {
		return nil, errors.New("network has no name")
	}
	if len(network) > maxNetworkName {
		return nil, fmt.Errorf("network name has %d bytes, %d fit into nftables", len(network), maxNetworkName)
	}
	var out []netip.Prefix
	for _, p := range subnets {
		if !p.IsValid() || p.Addr().Is4In6() {
			return nil, fmt.Errorf("subnet %v is invalid", p)
		}
		if p.Addr().IsMulticast() {
			return nil, fmt.Errorf("subnet %v is multicast", p)
		}
		out = append(out, p.Masked())
	}
	return canonical(out), nil
}

// canonical sorts, IPv4 first, and removes what is there twice.
func canonical(ps []netip.Prefix) []netip.Prefix {
	slices.SortFunc(ps, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	return slices.Compact(ps)
}

// state is what the kernel has of one network.
type state struct {
	network string
	gen     uint32
	table   *nftlink.Table
	chain   *chain
	rules   []*nftables.Rule
}

// look reads the network's state and hands it to f. It is an error that
// untilStable repeats on when the rules changed meanwhile: a dump that was
// interrupted by a transaction is neither the old state nor the new one.
func look(network string, f func(*session, *state) error) error {
	s, err := open()
	if err != nil {
		return err
	}
	defer s.Close()
	now, err := s.read(network)
	if err != nil {
		return err
	}
	return f(s, now)
}

func (s *session) read(network string) (*state, error) {
	now := &state{network: network}
	var err error
	if now.gen, err = s.Generation(); err != nil {
		return nil, err
	}
	if now.table, err = s.table(); err != nil {
		return nil, err
	}
	if now.table != nil {
		if now.chain, err = s.chain(chainName(network)); err != nil {
			return nil, err
		}
	}
	if now.chain != nil {
		if now.rules, err = s.rules(chainName(network)); err != nil {
			return nil, err
		}
	}
	gen, err := s.Generation()
	if err != nil {
		return nil, err
	}
	if gen != now.gen {
		return nil, fmt.Errorf("read chain %q: rules keep changing: %w", chainName(network), syscall.ERESTART)
	}
	if owner := ownerOf(now.rules); owner != "" && owner != network {
		return nil, fmt.Errorf("chain %q of network %q: %w", chainName(network), owner, ErrNotOwner)
	}
	return now, nil
}

// rules dumps the rules of one chain, and no other's: a node may have tens
// of thousands.
func (s *session) rules(chain string) ([]*nftables.Rule, error) {
	t := &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}
	rules, err := s.Lib.GetRules(t, &nftables.Chain{Name: chain, Table: t})
	if err != nil {
		return nil, fmt.Errorf("read rules of chain %q: %w", chain, err)
	}
	return rules, nil
}

// subnets returns those that a rule of ours in the chain names: one that has
// lost one of its two rules is still the network's.
func (now *state) subnets() []netip.Prefix {
	var ps []netip.Prefix
	for _, kr := range now.rules {
		r, ok := parseRule(kr)
		if ok && ownerOf([]*nftables.Rule{kr}) == now.network && !r.prefix.Addr().IsMulticast() {
			ps = append(ps, r.prefix.Masked())
		}
	}
	return ps
}

func (now *state) equal(want []rule) bool {
	return slices.EqualFunc(now.rules, want, func(kr *nftables.Rule, w rule) bool {
		r, ok := parseRule(kr)
		return ok && r == w && reflect.DeepEqual(kr.UserData, comment(now.network))
	})
}

func (now *state) check(subnets []netip.Prefix) error {
	switch {
	case now.table == nil:
		return fmt.Errorf("table inet %s: %w", tableName, ErrMissing)
	case now.table.Dormant():
		return fmt.Errorf("table inet %s is dormant: effect of its rules: %w", tableName, ErrMissing)
	case now.chain == nil:
		return fmt.Errorf("chain %q: %w", chainName(now.network), ErrMissing)
	case !now.chain.ok():
		return fmt.Errorf("hook nat postrouting of chain %q: %w", chainName(now.network), ErrMissing)
	}
	// The order counts: a return behind the masquerade does nothing.
	rest := now.rules
	for _, w := range rulesFor(subnets, subnets) {
		i := slices.IndexFunc(rest, func(kr *nftables.Rule) bool {
			r, ok := parseRule(kr)
			return ok && r == w
		})
		if i < 0 {
			return fmt.Errorf("rule %q in chain %q: %w", w, chainName(now.network), ErrMissing)
		}
		rest = rest[i+1:]
	}
	return nil
}

func ensureOnce(network string, subnets []netip.Prefix) error {
	return look(network, func(s *session, now *state) error {
		all := canonical(append(now.subnets(), subnets...))
		return now.replace(s, rulesFor(all, all))
	})
}

// replace puts the rules in the place of those of the chain, unless they are there.
func (now *state) replace(s *session, want []rule) error {
	if now.chain.ok() && !now.table.Dormant() && now.equal(want) {
		return nil
	}
	var b batch
	name := chainName(now.network)
	b.addTable()
	if now.chain != nil && !now.chain.ok() {
		b.deleteChain(name)
	}
	b.addChain(name)
	b.flushChain(name)
	for _, r := range want {
		b.addRule(name, r, comment(now.network))
	}
	return s.Commit(now.gen, &b.Batch)
}

func removeOnce(s *session, now *state) error {
	if now.table == nil {
		return nil
	}
	var b batch
	left := now.table.Use
	if now.chain != nil {
		b.deleteChain(chainName(now.network))
		left--
	}
	// Sets and chains that somebody else put into our table keep it alive.
	if left == 0 {
		b.deleteTable()
	}
	if b.Empty() {
		return nil
	}
	return s.Commit(now.gen, &b.Batch)
}

// untilStable repeats f while others change the rules under it.
func untilStable(f func() error) error {
	pause := time.Millisecond
	for round := 1; ; round++ {
		err := f()
		if err == nil || !transient(err) {
			return err
		}
		if round == maxRounds {
			return fmt.Errorf("give up after %d rounds: %w", round, err)
		}
		// Half of the pause is random, so that many processes that started
		// together do not meet again.
		time.Sleep(pause/2 + rand.N(pause/2))
		pause = min(2*pause, maxPause)
	}
}

func transient(err error) bool {
	if errors.Is(err, ErrNotSupported) {
		return false
	}
	for _, e := range []syscall.Errno{
		syscall.ERESTART, syscall.ENOENT, syscall.EBUSY, syscall.EEXIST, syscall.EINTR, syscall.EAGAIN,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
