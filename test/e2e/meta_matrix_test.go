// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// Ports of the matrix. On every host a server listens on the ports below metaClosed.
const (
	metaOpen    = 80   // nothing stands in the way until the cut
	metaDropped = 81   // dropped when it is forwarded
	metaRefused = 82   // rejected when it is forwarded
	metaInput   = 83   // dropped on its way to the node itself
	metaClosed  = 84   // nobody listens
	metaToOpen  = 8080 // hostPorts of pod a
	metaToDrop  = 8081
	metaBound   = 8085 // a hostPort of one address of the node
	metaUnused  = 8086 // no hostPort
)

// metaWorld is a bed with servers everywhere, and what talks to them.
type metaWorld struct {
	*metaBed
	a, b   *rig.Pod
	probes []metaProbe
	mu     sync.Mutex
	talks  map[string]*metaTalk
	roles  map[string]string
}

// metaLearned is a hostPort that is left alone by the rules.
var metaLearned = [2]int{8090, 90}

// newMetaWorld adds two pods and the rules of an administrator.
func newMetaWorld(t *testing.T, bed *metaBed, rules string) *metaWorld {
	t.Helper()
	w := &metaWorld{metaBed: bed, talks: map[string]*metaTalk{}}
	caps := metaPorts([2]int{metaToOpen, metaOpen}, metaLearned)
	caps["portMappings"] = append(caps["portMappings"].([]map[string]any),
		map[string]any{"hostPort": metaToDrop, "containerPort": metaDropped, "protocol": "udp"},
		map[string]any{"hostPort": metaBound, "containerPort": metaOpen, "protocol": "tcp", "hostIP": rig.NodeAddr4.String()},
	)
	for _, h := range []*rig.Host{bed.r.Node, bed.r.Ext} {
		metaUnlimited(t, h)
	}
	w.a, w.b = bed.add(t, "a", caps), bed.add(t, "b", nil)
	metaUnlimited(t, w.a.Host)
	metaUnlimited(t, w.b.Host)
	node(t, bed.r, rules)
	w.roles = map[string]string{}
	for _, fam := range families {
		for name, addr := range map[string]netip.Addr{
			"the pod a": addrsOf(w.a)[fam], "the pod b": addrsOf(w.b)[fam], "the node": nodeAddr(fam),
			"the remote host": extAddr(fam), "the gateway": w.gateway(t, fam),
		} {
			w.roles[addr.String()] = name
		}
		for h, addr := range map[*rig.Host]netip.Addr{
			w.a.Host: addrsOf(w.a)[fam], w.b.Host: addrsOf(w.b)[fam], bed.r.Ext: extAddr(fam), bed.r.Node: nodeAddr(fam),
		} {
			for port := uint16(metaOpen); port < metaClosed; port++ {
				metaServe(t, h, netip.AddrPortFrom(addr, port))
			}
		}
		metaServe(t, bed.r.Node, netip.AddrPortFrom(w.gateway(t, fam), metaOpen))
		w.probes = append(w.probes, w.list(t, fam)...)
	}
	return w
}

// metaRules adds rules to the filter table of both families, in iptables' own form, and sets
// the policy of forwarding.
func metaRules(policy string, rules ...string) string {
	var b strings.Builder
	for _, ipt := range []string{"iptables", "ip6tables"} {
		fmt.Fprintf(&b, "%s-restore -n <<'END'\n*filter\n:FORWARD %s\n", ipt, policy)
		for _, r := range rules {
			for _, proto := range []string{"tcp", "udp"} {
				fmt.Fprintln(&b, strings.ReplaceAll(r, "PROTO", "-p "+proto))
			}
		}
		b.WriteString("COMMIT\nEND\n")
	}
	return b.String()
}

// metaForwardRules are those of an administrator: some for a chain of the FORWARD hook, and
// one that keeps a port of the node itself shut.
func metaForwardRules(policy, chain string, more ...string) string {
	return metaRules(policy, append([]string{
		fmt.Sprintf("-A INPUT PROTO --dport %d -j DROP", metaInput),
		fmt.Sprintf("-A %s PROTO --dport %d -j DROP", chain, metaDropped),
		fmt.Sprintf("-A %s PROTO --dport %d -j REJECT", chain, metaRefused),
	}, more...)...)
}

// metaShut lets in only what has a hostPort.
var metaShut = metaForwardRules("DROP", "CNI-ADMIN", "-A CNI-ADMIN PROTO -m conntrack --ctstate DNAT -j ACCEPT")

// metaUnlimited makes a host answer everything that it refuses.
func metaUnlimited(t *testing.T, h *rig.Host) {
	t.Helper()
	for _, name := range []string{"net.ipv4.icmp_ratelimit", "net.ipv6.icmp.ratelimit"} {
		if err := h.Sysctl(name, "0"); err != nil {
			t.Fatal(err)
		}
	}
}

// gateway is the node's address as the pods know it.
func (w *metaWorld) gateway(t *testing.T, fam int) netip.Addr {
	t.Helper()
	for _, ip := range w.a.Result.IPs {
		if gw, ok := netip.AddrFromSlice(ip.Gateway); ok && gw.Unmap().Is4() == (fam == 4) {
			return gw.Unmap()
		}
	}
	t.Fatalf("no gateway for IPv%d", fam)
	return netip.Addr{}
}

// list makes the probes of a family.
func (w *metaWorld) list(t *testing.T, fam int) (all []metaProbe) {
	t.Helper()
	a, b, ext, n := addrsOf(w.a)[fam], addrsOf(w.b)[fam], extAddr(fam), nodeAddr(fam)
	podA, podB, remote, self := w.a.Host, w.b.Host, w.r.Ext, w.r.Node
	local := netip.MustParseAddr(map[int]string{4: "127.0.0.1", 6: "::1"}[fam])
	for _, c := range []struct {
		name   string
		from   *rig.Host
		to     netip.Addr
		ports  []uint16
		routed bool
	}{
		{"pod a to pod b", podA, b, []uint16{metaOpen, metaDropped, metaRefused, metaClosed}, true},
		{"pod b to pod a", podB, a, []uint16{metaOpen, metaDropped}, true},
		{"pod a to remote host", podA, ext, []uint16{metaOpen, metaDropped, metaRefused, metaClosed}, true},
		{"remote host to pod a", remote, a, []uint16{metaOpen, metaDropped, metaRefused, metaClosed}, true},
		{"remote host to pod b", remote, b, []uint16{metaOpen}, true},
		{"pod a to node", podA, n, []uint16{metaOpen, metaInput, metaClosed}, false},
		{"pod a to gateway", podA, w.gateway(t, fam), []uint16{metaOpen, metaInput}, false},
		{"node to pod a", self, a, []uint16{metaOpen, metaDropped, metaClosed}, false},
		{"remote host to node", remote, n, []uint16{metaOpen, metaInput, metaUnused}, false},
		{"remote host to hostPort", remote, n, []uint16{metaToOpen, metaToDrop, metaBound}, true},
		{"pod b to hostPort", podB, n, []uint16{metaToOpen, metaToDrop, metaBound}, true},
		{"pod a to its hostPort", podA, n, []uint16{metaToOpen, metaToDrop}, true},
		{"node to hostPort", self, n, []uint16{metaToOpen, metaToDrop, metaUnused}, false},
		{"node to localhost", self, local, []uint16{metaToOpen, metaUnused}, false},
	} {
		for _, port := range c.ports {
			for proto := range protos {
				name := fmt.Sprintf("v%d %s %s port %d", fam, proto, c.name, port)
				all = append(all, metaProbe{
					name: name, from: c.from, proto: proto, to: netip.AddrPortFrom(c.to, port),
					routed: c.routed, turned: strings.HasPrefix(c.name, "pod") && strings.HasSuffix(c.name, "hostPort"),
				})
			}
		}
		if !strings.Contains(c.name, "hostPort") {
			name := fmt.Sprintf("v%d icmp %s", fam, c.name)
			all = append(all, metaProbe{name: name, from: c.from, proto: "icmp", to: netip.AddrPortFrom(c.to, 0)})
		}
	}
	return all
}

// each asks for a verdict about some probes, all at the same time; without names about all.
func (w *metaWorld) each(names []string, verdict func(metaProbe, *metaTalk) string) map[string]string {
	table := map[string]string{}
	var wg sync.WaitGroup
	for _, p := range w.probes {
		if len(names) > 0 && !slices.Contains(names, p.name) {
			continue
		}
		wg.Go(func() {
			w.mu.Lock()
			talk := w.talks[p.name]
			w.mu.Unlock()
			said := verdict(p, talk)
			w.mu.Lock()
			defer w.mu.Unlock()
			table[p.name] = said
		})
	}
	wg.Wait()
	return table
}

// say names whom the server sees instead of the address.
func (w *metaWorld) say(talk *metaTalk) string {
	if role := w.roles[talk.seen]; role != "" {
		return "answers, sees " + role
	}
	return "answers, sees " + talk.seen
}

// cold makes first contact everywhere. What answers is kept for later.
func (w *metaWorld) cold(t *testing.T, names ...string) map[string]string {
	ctx := ctxOf(t)
	return w.each(names, func(p metaProbe, _ *metaTalk) string {
		talk, said := p.cold(ctx)
		if talk == nil {
			return said
		}
		t.Cleanup(talk.close)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.talks[p.name] = talk
		return w.say(talk)
	})
}

// warm goes on with what answered, with packets of many sizes, and tries the rest again.
func (w *metaWorld) warm(t *testing.T, names ...string) map[string]string {
	ctx := ctxOf(t)
	return w.each(names, func(p metaProbe, talk *metaTalk) string {
		if p.proto == "icmp" {
			return p.ping(ctx, "-c3", "-i0.02", "-s1200")
		}
		if talk == nil {
			again, said := p.cold(ctx)
			if again == nil {
				return said
			}
			again.close()
			return w.say(again)
		}
		talk.wait = metaSureOf
		for round := range 40 {
			if err := talk.again(bytes.Repeat([]byte{byte(round)}, 1+30*round)); err != nil {
				return fmt.Sprintf("round %d: %s", round, metaVerdict(err))
			}
		}
		return w.say(talk)
	})
}

// after asks once more on what is open, when the rules have changed.
func (w *metaWorld) after(_ *testing.T, names ...string) map[string]string {
	return w.each(names, func(p metaProbe, talk *metaTalk) string {
		if talk == nil {
			return "as before"
		}
		talk.wait = metaPatience
		if err := talk.again([]byte("are you there?")); err != nil {
			return metaVerdict(err)
		}
		return w.say(talk)
	})
}

// fast counts the directions of a talk that have taken the fast path.
func (k *metaTalk) fast(flows []datapath.Flow) (directions int) {
	local, remote := addrPortOf(k.conn.LocalAddr()), addrPortOf(k.conn.RemoteAddr())
	for _, f := range flows {
		there := f.Src == local && f.Dst == remote
		back := f.NewSrc == remote && f.NewDst == local
		if f.Proto == protos[k.proto] && f.Packets > 0 && (there || back) {
			directions++
		}
	}
	return directions
}

// missing says which directions of what the node forwards have not been fast yet.
func (w *metaWorld) missing(t *testing.T, d *datapath.Datapath) (names []string) {
	t.Helper()
	flows := everyFlow(t, d)
	for _, name := range slices.Sorted(maps.Keys(w.talks)) {
		k := w.talks[name]
		n := k.fast(flows)
		if !k.routed && n > 0 {
			t.Fatalf("%s: the fast path took what is the node's own", name)
		}
		if k.turned && w.bridged() {
			continue
		}
		if k.routed && n < 2 {
			names = append(names, name)
		}
	}
	return names
}

// wantFast fails unless both directions of everything that the node forwards become fast,
// and nothing else does.
func (w *metaWorld) wantFast(t *testing.T) {
	t.Helper()
	d := w.datapath(t)
	for end := time.Now().Add(5 * time.Second); ; {
		slow := w.missing(t, d)
		if len(slow) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not fast both ways: %s", strings.Join(slow, ", "))
		}
		for _, name := range slow {
			if err := w.talks[name].again([]byte("once more")); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
}

// metaCut stops what is open, in the chain that an administrator would use.
func metaCut(policy, chain string) string {
	return metaRules(policy, fmt.Sprintf("-I %s PROTO --dport %d -j DROP", chain, metaOpen))
}

// TestMetaMatrix asks the same questions of each chain and of the same chain without xveth:
// at first contact, when flows have been learned, and after a rule has cut them. The answers
// are the same. In between, hostPorts are used as in TestMetaHostPort, and in the end every
// verb is called. B089
func TestMetaMatrix(t *testing.T) {
	t.Parallel()
	open := metaForwardRules("ACCEPT", "FORWARD")
	for _, c := range []struct {
		file, rules, cut string
		backend          string // of portmap
	}{
		{"xveth-portmap.conflist", open, metaCut("ACCEPT", "FORWARD"), "nftables"},
		{"xveth-portmap-firewall-tuning.conflist", metaShut, metaCut("DROP", "CNI-ADMIN"), "iptables"},
		{"ptp-portmap-xveth-chain.conflist", open, metaCut("ACCEPT", "FORWARD"), "nftables"},
		{"bridge-portmap-xveth-chain.conflist", open, metaCut("ACCEPT", "FORWARD"), "nftables"},
		{"flannel-xveth-chain.conflist", open, metaCut("ACCEPT", "FORWARD"), "iptables"},
		{"podman-xveth-chain.conflist", metaShut, metaCut("DROP", "CNI-ADMIN"), "nftables"},
	} {
		t.Run(c.file, func(t *testing.T) {
			t.Parallel()
			by := metaPortmapBy(c.backend)
			m := &metaMatrix{
				with: newMetaWorld(t, newMetaBed(t, metaList(t, c.file, by, metaRevalidate, metaVersion("1.1.0"))), c.rules),
				less: newMetaWorld(t, newMetaBed(t, metaList(t, c.file, by, metaWithout)), c.rules),
			}
			m.run(t, c.cut)
			m.with.verbs(t, m.with.a)
		})
	}
}

// metaMatrix is a world with xveth and the same without.
type metaMatrix struct{ with, less *metaWorld }

// run asks everything in all phases.
func (m *metaMatrix) run(t *testing.T, cut string) {
	m.compare(t, "cold", (*metaWorld).cold)
	m.compare(t, "warm", (*metaWorld).warm)
	m.with.wantFast(t)
	m.with.hostPorts(t, m.with.a, m.with.b, metaLearned)
	node(t, m.with.r, cut)
	node(t, m.less.r, cut)
	time.Sleep(cutInterval + grace)
	m.compare(t, metaAfterCut, (*metaWorld).after)
}

// metaAfterCut is the phase in which a rule has cut what was open.
const metaAfterCut = "cut"

// metaAsk asks about some probes; without names about all.
type metaAsk func(w *metaWorld, t *testing.T, names ...string) map[string]string

// ask asks both worlds at the same time.
func (m *metaMatrix) ask(t *testing.T, ask metaAsk, names ...string) (with, less map[string]string) {
	done := make(chan struct{})
	go func() {
		less = ask(m.less, t, names...)
		close(done)
	}()
	with = ask(m.with, t, names...)
	<-done
	return with, less
}

// compare wants the same verdicts from both worlds, and verdicts of several kinds. Where
// only one had no answer it asks once more: a busy machine may have been too slow. But what
// xveth still lets through after a cut it lets through for too long.
func (m *metaMatrix) compare(t *testing.T, phase string, ask metaAsk) {
	t.Helper()
	const atLeast = 40
	with, less := m.ask(t, ask)
	if len(with) < atLeast || len(less) != len(with) {
		t.Fatalf("%s: %d probes with xveth, %d without; want %d or more", phase, len(with), len(less), atLeast)
	}
	var doubts []string
	for name := range with {
		slow := with[name] == metaNothing || less[name] == metaNothing && phase != metaAfterCut
		if with[name] != less[name] && slow {
			doubts = append(doubts, name)
		}
	}
	if len(doubts) > 0 {
		t.Logf("%s: asking once more: %q", phase, doubts)
		more, moreLess := m.ask(t, ask, doubts...)
		maps.Copy(with, more)
		maps.Copy(less, moreLess)
	}
	kinds := map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(with)) {
		if with[name] != less[name] {
			t.Errorf("%s: %s: %q, without xveth %q", phase, name, with[name], less[name])
		}
		kinds[with[name]]++
	}
	if len(kinds) < 4 {
		t.Errorf("%s: the probes tell too little apart: %v", phase, kinds)
	}
	t.Logf("%s: %v", phase, kinds)
}
