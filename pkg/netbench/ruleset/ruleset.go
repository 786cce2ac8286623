// SPDX-License-Identifier: Apache-2.0

// Package ruleset puts rules into a node as they are found on real ones, for the demo and
// the benchmarks. It is no part of the datapath, which makes no such rules.
package ruleset

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"

	"github.com/xveth/xveth/test/rig"
)

// Limits of the numbers that Parse takes.
const (
	maxServices = 50_000
	maxForward  = 50_000
)

// Rules are the rules of a node.
type Rules struct {
	// Masquerade has the plugin hide pods behind the node, and conntrack judge every
	// forwarded packet, as on nearly every node. The others imply it.
	Masquerade bool
	// Services is how many Services iptables translates, as kube-proxy writes them.
	Services int
	// Forward is how many rules that do not match stand in front of that which accepts
	// established flows.
	Forward int
	// forward says that they stand there, even if there are none.
	forward bool
}

// Parse reads "none", "masquerade", "services=N" or "forward=N".
func Parse(s string) (Rules, error) {
	key, value, counted := strings.Cut(s, "=")
	switch {
	case s == "none":
		return Rules{}, nil
	case s == "masquerade":
		return Rules{Masquerade: true}, nil
	case counted && key == "services":
		n, err := number(value, maxServices)
		return Rules{Masquerade: true, Services: n}, err
	case counted && key == "forward":
		n, err := number(value, maxForward)
		return Rules{Masquerade: true, Forward: n, forward: true}, err
	}
	return Rules{}, fmt.Errorf("rules %q: want none, masquerade, services=N or forward=N", s)
}

func number(s string, most int) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > most {
		return 0, fmt.Errorf("number of rules %q: want 0 to %d", s, most)
	}
	return n, nil
}

// Apply puts the rules into a node. They go with its network namespace.
func (r Rules) Apply(ctx context.Context, node *rig.Host) error {
	if r.Masquerade && !r.forward {
		if err := node.Do(Firewall); err != nil {
			return fmt.Errorf("add the firewall: %w", err)
		}
	}
	switch {
	case r.Services > 0:
		return restore(ctx, node, services(r.Services))
	case r.forward:
		return restore(ctx, node, forward(r.Forward))
	}
	return nil
}

// Firewall puts the two rules into the forward chain that nearly every node has, in the
// calling thread's network namespace.
func Firewall() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	t := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "firewall"})
	chain := c.AddChain(&nftables.Chain{
		Name: "forward", Table: t, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
	})
	for _, r := range []struct {
		states  uint32
		verdict expr.VerdictKind
	}{
		{expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED, expr.VerdictAccept},
		{expr.CtStateBitINVALID, expr.VerdictDrop},
	} {
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: []expr.Any{
			&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
			&expr.Bitwise{
				SourceRegister: 1, DestRegister: 1, Len: 4,
				Mask: binaryutil.NativeEndian.PutUint32(r.states), Xor: make([]byte, 4),
			},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
			&expr.Verdict{Kind: r.verdict},
		}})
	}
	return c.Flush()
}

// Service translates one address and port of UDP to another, as kube-proxy would.
func Service(ctx context.Context, node *rig.Host, from, to netip.AddrPort) error {
	return restore(ctx, node, fmt.Sprintf(`*nat
:BENCH-SERVICES - [0:0]
-A PREROUTING -j BENCH-SERVICES
-A BENCH-SERVICES -d %s/32 -p udp -m udp --dport %d -j DNAT --to-destination %s
COMMIT
`, from.Addr(), from.Port(), to))
}

// Masquerade hides a network behind the node, by iptables.
func Masquerade(ctx context.Context, node *rig.Host, subnet string) error {
	return restore(ctx, node, fmt.Sprintf("*nat\n-A POSTROUTING -s %s ! -d %s -j MASQUERADE\nCOMMIT\n", subnet, subnet))
}

// services are Services with one endpoint each, none of which the traffic is for.
func services(n int) string {
	var chains, jumps, targets strings.Builder
	for i := range n {
		fmt.Fprintf(&chains, ":BENCH-SVC-%d - [0:0]\n", i)
		fmt.Fprintf(&jumps, "-A BENCH-SERVICES -d 10.97.%d.%d/32 -p tcp -m tcp --dport 80 -j BENCH-SVC-%d\n", i>>8, i&0xff, i)
		fmt.Fprintf(&targets, "-A BENCH-SVC-%d -p tcp -m tcp -j DNAT --to-destination 198.51.100.%d:8080\n", i, i&0xff)
	}
	return "*nat\n:BENCH-SERVICES - [0:0]\n" + chains.String() +
		"-A PREROUTING -j BENCH-SERVICES\n-A OUTPUT -j BENCH-SERVICES\n" + jumps.String() + targets.String() + "COMMIT\n"
}

// forward are rules of the forward chain that the traffic passes one by one.
func forward(n int) string {
	var b strings.Builder
	b.WriteString("*filter\n")
	for i := range n {
		fmt.Fprintf(&b, "-A FORWARD -s 203.0.113.%d/32 -p udp -m udp --dport %d -j DROP\n", i&0xff, 1+i%65535)
	}
	b.WriteString("-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n")
	b.WriteString("-A FORWARD -m conntrack --ctstate INVALID -j DROP\nCOMMIT\n")
	return b.String()
}

// restore hands rules to iptables-restore on the node.
func restore(ctx context.Context, node *rig.Host, rules string) error {
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, "iptables-restore", "--noflush", "--wait")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(rules), &said, &said
	err := node.Start(cmd)
	if errors.Is(err, exec.ErrNotFound) {
		return errors.New("iptables-restore is not installed: these rules need it (package iptables)")
	}
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("iptables-restore: %w: %s", err, bytes.TrimSpace(said.Bytes()))
	}
	return nil
}
