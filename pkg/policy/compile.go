// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Objects are what the rules of a node follow from.
type Objects struct {
	// Node is the name of this node.
	Node       string
	Pods       []*corev1.Pod
	Namespaces []*corev1.Namespace
	Policies   []*networkingv1.NetworkPolicy
	// Early has addresses of pods of this node that their status may not have yet.
	Early map[types.NamespacedName][]netip.Addr
}

// Compile works out the rules. It changes nothing, and the same objects in any order give
// equal rules.
func Compile(o Objects) *Rules {
	c := &compiler{
		rules: &Rules{
			maps:   [2]map[netip.Addr]string{{}, {}},
			sets:   map[string]set{},
			chains: map[string]chain{},
		},
		namespaces: map[string]labels.Set{},
		byNS:       map[string][]*pod{},
		compiled:   map[*networkingv1.NetworkPolicy]*compiled{},
	}
	c.pods, c.rules.Problems = livePods(o)
	for _, ns := range o.Namespaces {
		c.namespaces[ns.Name] = ns.Labels
	}
	for _, p := range c.pods {
		c.byNS[p.namespace] = append(c.byNS[p.namespace], p)
		for _, a := range p.addrs {
			if f := familyOf(a); !slices.Contains(c.families, f) {
				c.families = append(c.families, f)
			}
		}
	}
	slices.Sort(c.families)
	c.compile(o.Policies)
	return c.rules
}

// compiler holds what Compile knows and what it has worked out so far.
type compiler struct {
	rules      *Rules
	pods       []*pod
	byNS       map[string][]*pod
	families   []family // that pods have
	namespaces map[string]labels.Set
	compiled   map[*networkingv1.NetworkPolicy]*compiled
}

// compiled is what a policy allows, by direction.
type compiled [2][]allow

func (c *compiler) problem(policy *networkingv1.NetworkPolicy, format string, args ...any) {
	c.rules.Problems = append(c.rules.Problems,
		fmt.Errorf("network policy %s/%s: "+format, append([]any{policy.Namespace, policy.Name}, args...)...))
}

func (c *compiler) compile(policies []*networkingv1.NetworkPolicy) {
	policies = slices.SortedFunc(slices.Values(policies), func(a, b *networkingv1.NetworkPolicy) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	selected := map[*pod][2][]*networkingv1.NetworkPolicy{}
	for _, np := range policies {
		s, err := metav1.LabelSelectorAsSelector(&np.Spec.PodSelector)
		if err != nil {
			c.problem(np, "spec.podSelector: %w", err)
			continue
		}
		isolates := isolates(np)
		for _, p := range c.byNS[np.Namespace] {
			if !p.local || len(p.addrs) == 0 || !s.Matches(p.labels) {
				continue
			}
			of := selected[p]
			for d := range isolates {
				if isolates[d] {
					of[d] = append(of[d], np)
				}
			}
			selected[p] = of
		}
	}
	chains := map[string]string{}
	for _, p := range c.pods { // in this order, so that problems come in one
		for d, of := range selected[p] {
			if len(of) > 0 {
				c.subject(p, direction(d), c.chain(chains, direction(d), of))
			}
		}
	}
}

// isolates says for which directions a policy isolates the pods that it selects. The API
// server fills policyTypes in; the rule by which it does is here for those who do not.
func isolates(np *networkingv1.NetworkPolicy) (by [2]bool) {
	if len(np.Spec.PolicyTypes) == 0 {
		return [2]bool{egress: len(np.Spec.Egress) > 0, ingress: true}
	}
	return [2]bool{
		egress:  slices.Contains(np.Spec.PolicyTypes, networkingv1.PolicyTypeEgress),
		ingress: slices.Contains(np.Spec.PolicyTypes, networkingv1.PolicyTypeIngress),
	}
}

// subject puts a pod under a chain.
func (c *compiler) subject(p *pod, d direction, chain string) {
	for _, a := range p.addrs {
		c.rules.maps[d][a] = chain
		name := selfSet + familyOf(a).suffix()
		s := c.rules.sets[name]
		s.kind, s.family, s.comment = pairs, familyOf(a), "a pod may always reach itself"
		s.elems = sortedInsert(s.elems, pairKey(a))
		c.rules.sets[name] = s
	}
}

func sortedInsert(s []string, e string) []string {
	at, found := slices.BinarySearch(s, e)
	if found {
		return s
	}
	return slices.Insert(s, at, e)
}

// chain returns the name of the chain of some policies, which it makes the first time.
func (c *compiler) chain(known map[string]string, d direction, policies []*networkingv1.NetworkPolicy) string {
	var names []string
	for _, np := range policies {
		names = append(names, np.Namespace+"/"+np.Name)
	}
	key := fmt.Sprint(d, " ", names)
	if name, ok := known[key]; ok {
		return name
	}
	ch := chain{direction: d, policies: strings.Join(names, " ")}
	meaning := []string{ch.policies}
	for _, np := range policies {
		ch.allows = append(ch.allows, c.policy(np)[d]...)
	}
	for _, a := range ch.allows {
		meaning = append(meaning, fmt.Sprintf("%#v", a))
	}
	name := hashName(d.String()+"-", meaning...)
	c.rules.chains[name], known[key] = ch, name
	return name
}

// policy works out what a policy allows, once.
func (c *compiler) policy(np *networkingv1.NetworkPolicy) *compiled {
	if done, ok := c.compiled[np]; ok {
		return done
	}
	done := &compiled{}
	c.compiled[np] = done
	isolates := isolates(np)
	if isolates[ingress] {
		for i, r := range np.Spec.Ingress {
			at := fmt.Sprintf("spec.ingress[%d]", i)
			done[ingress] = append(done[ingress], c.rule(np, ingress, at, r.From, r.Ports)...)
		}
	}
	if isolates[egress] {
		for i, r := range np.Spec.Egress {
			at := fmt.Sprintf("spec.egress[%d]", i)
			done[egress] = append(done[egress], c.rule(np, egress, at, r.To, r.Ports)...)
		}
	}
	return done
}

// rule works out one rule: every peer with every port.
func (c *compiler) rule(np *networkingv1.NetworkPolicy, d direction, at string,
	from []networkingv1.NetworkPolicyPeer, on []networkingv1.NetworkPolicyPort,
) (all []allow) {
	peers := c.peers(np, d, at, from)
	targets := c.ports(np, at, on)
	for _, peer := range peers {
		peer.policy = np.Namespace + "/" + np.Name
		for _, t := range targets {
			a := peer
			a.proto, a.ports = t.proto, t.ports
			if t.named == "" {
				all = append(all, a)
				continue
			}
			for _, f := range c.families {
				if peer.family == 0 || peer.family == f {
					a.family, a.named = f, c.namedPort(t.proto, t.named, f)
					all = append(all, a)
				}
			}
		}
		if len(on) > 0 && len(targets) > 0 {
			a := peer
			a.errors = true
			all = append(all, a)
		}
	}
	return all
}

// peers works out who the other end may be, as unfinished rules.
func (c *compiler) peers(np *networkingv1.NetworkPolicy, d direction, at string, peers []networkingv1.NetworkPolicyPeer) (all []allow) {
	if len(peers) == 0 {
		return []allow{{}}
	}
	field := [...]string{egress: "to", ingress: "from"}[d]
	for i, p := range peers {
		var found []allow
		var err error
		switch {
		case p.IPBlock != nil && (p.PodSelector != nil || p.NamespaceSelector != nil):
			err = errors.New("ipBlock together with a selector")
		case p.IPBlock != nil:
			found, err = c.block(p.IPBlock)
		case p.PodSelector == nil && p.NamespaceSelector == nil:
			err = errors.New("neither a selector nor an ipBlock")
		default:
			found, err = c.podPeers(np.Namespace, p)
		}
		if err != nil {
			c.problem(np, "%s.%s[%d]: %w", at, field, i, err)
		}
		all = append(all, found...)
	}
	return all
}

// podPeers makes the sets of the pods that two selectors choose.
func (c *compiler) podPeers(namespace string, p networkingv1.NetworkPolicyPeer) (all []allow, err error) {
	pods, err := selector(p.PodSelector)
	if err != nil {
		return nil, fmt.Errorf("podSelector: %w", err)
	}
	where := "namespace " + namespace
	var spaces labels.Selector
	if p.NamespaceSelector != nil {
		if spaces, err = selector(p.NamespaceSelector); err != nil {
			return nil, fmt.Errorf("namespaceSelector: %w", err)
		}
		where = "namespaces {" + spaces.String() + "}"
	}
	comment := "pods {" + pods.String() + "} of " + where
	name := hashName("pods-", comment)
	for _, f := range c.families {
		all = append(all, allow{family: f, peers: name + f.suffix()})
	}
	if len(all) == 0 {
		return nil, nil
	}
	if _, ok := c.rules.sets[all[0].peers]; ok {
		return all, nil
	}
	elems := map[family][]string{}
	add := func(ps []*pod) {
		for _, pod := range ps {
			if len(pod.addrs) > 0 && pods.Matches(pod.labels) {
				for _, a := range pod.addrs {
					elems[familyOf(a)] = append(elems[familyOf(a)], string(a.AsSlice()))
				}
			}
		}
	}
	if spaces == nil {
		add(c.byNS[namespace])
	} else {
		for ns, l := range c.namespaces {
			if spaces.Matches(l) {
				add(c.byNS[ns])
			}
		}
	}
	for _, a := range all {
		c.rules.sets[a.peers] = set{addrs, a.family, comment, sortedUnique(elems[a.family])}
	}
	return all, nil
}

// selector reads a selector; none selects everything.
func selector(s *metav1.LabelSelector) (labels.Selector, error) {
	if s == nil {
		return labels.Everything(), nil
	}
	return metav1.LabelSelectorAsSelector(s)
}

// block makes the set of a block without its exceptions.
func (c *compiler) block(b *networkingv1.IPBlock) ([]allow, error) {
	cidr, err := parseCIDR(b.CIDR)
	if err != nil {
		return nil, fmt.Errorf("ipBlock.cidr: %w", err)
	}
	var left netipx.IPSetBuilder
	left.AddPrefix(cidr)
	for i, e := range b.Except {
		out, err := parseCIDR(e)
		if err != nil {
			return nil, fmt.Errorf("ipBlock.except[%d]: %w", i, err)
		}
		left.RemovePrefix(out)
	}
	ranges, err := left.IPSet()
	if err != nil {
		return nil, fmt.Errorf("ipBlock: %w", err)
	}
	f := familyOf(cidr.Addr())
	var elems []string
	for _, r := range ranges.Ranges() {
		elems = append(elems, string(r.From().AsSlice())+string(r.To().AsSlice()))
	}
	switch {
	case len(elems) == 0:
		return nil, nil
	case cidr.Bits() == 0 && len(b.Except) == 0:
		return []allow{{family: f}}, nil
	}
	name := hashName("block-", elems...) + f.suffix()
	comment := cidr.String()
	if len(b.Except) > 0 {
		comment += " except " + strings.Join(b.Except, " ")
	}
	if _, ok := c.rules.sets[name]; !ok {
		c.rules.sets[name] = set{blocks, f, comment, elems}
	}
	return []allow{{family: f, peers: name}}, nil
}

func parseCIDR(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, err
	}
	if p.Addr().Is4In6() {
		return p, fmt.Errorf("%q is an IPv4 address written as IPv6", s)
	}
	return p.Masked(), nil
}

// target is what a rule says about the port of a connection: of a protocol any, some of a
// set, or one that the destination has a name for.
type target struct {
	proto uint8
	ports string
	named string
}

var protocols = map[corev1.Protocol]uint8{
	corev1.ProtocolTCP:  unix.IPPROTO_TCP,
	corev1.ProtocolUDP:  unix.IPPROTO_UDP,
	corev1.ProtocolSCTP: unix.IPPROTO_SCTP,
}

// ports works out the targets of a rule, one of each protocol and one of each name.
func (c *compiler) ports(np *networkingv1.NetworkPolicy, at string, list []networkingv1.NetworkPolicyPort) (all []target) {
	if len(list) == 0 {
		return []target{{}}
	}
	ranges := map[uint8][]portRange{}
	for i, p := range list {
		proto, err := protocol(p.Protocol)
		var r portRange
		if err == nil && p.Port != nil && p.Port.Type == intstr.String && p.EndPort == nil {
			all = append(all, target{proto: proto, named: p.Port.StrVal})
			continue
		}
		if err == nil {
			r, err = numbers(p)
		}
		if err != nil {
			c.problem(np, "%s.ports[%d]: %w", at, i, err)
			continue
		}
		ranges[proto] = append(ranges[proto], r)
	}
	for _, proto := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP} {
		if merged := merge(ranges[proto]); len(merged) == 1 && merged[0] == anyPort {
			all = append(all, target{proto: proto})
		} else if len(merged) > 0 {
			all = append(all, target{proto: proto, ports: c.portSet(merged)})
		}
	}
	return all
}

func protocol(p *corev1.Protocol) (uint8, error) {
	if p == nil {
		return unix.IPPROTO_TCP, nil
	}
	if proto, ok := protocols[*p]; ok {
		return proto, nil
	}
	return 0, fmt.Errorf("protocol %q is none of TCP, UDP and SCTP", *p)
}

type portRange struct{ first, last uint16 }

var anyPort = portRange{0, 65535}

// numbers reads a port, or a range of ports, that is given by numbers.
func numbers(p networkingv1.NetworkPolicyPort) (portRange, error) {
	if p.Port == nil {
		if p.EndPort != nil {
			return portRange{}, errors.New("endPort without port")
		}
		return anyPort, nil
	}
	if p.Port.Type != intstr.Int {
		return portRange{}, fmt.Errorf("endPort together with the named port %q", p.Port.StrVal)
	}
	last := p.Port.IntVal
	if p.EndPort != nil {
		last = *p.EndPort
	}
	if p.Port.IntVal < 1 || last > 65535 || last < p.Port.IntVal {
		return portRange{}, fmt.Errorf("ports %d to %d are no range of ports", p.Port.IntVal, last)
	}
	return portRange{uint16(p.Port.IntVal), uint16(last)}, nil
}

// merge sorts ranges and joins those that touch, as the kernel wants them.
func merge(rs []portRange) (out []portRange) {
	slices.SortFunc(rs, func(a, b portRange) int { return cmp.Compare(a.first, b.first) })
	for _, r := range rs {
		if n := len(out); n > 0 && int(r.first) <= int(out[n-1].last)+1 {
			out[n-1].last = max(out[n-1].last, r.last)
		} else {
			out = append(out, r)
		}
	}
	return out
}

func (c *compiler) portSet(rs []portRange) string {
	var elems []string
	for _, r := range rs {
		elems = append(elems, portKey(r.first)+portKey(r.last))
	}
	name := hashName("ports-", elems...)
	c.rules.sets[name] = set{kind: ports, elems: elems}
	return name
}

// namedPort makes the set of all pods' ports of a name.
func (c *compiler) namedPort(proto uint8, name string, f family) string {
	var protoName corev1.Protocol
	for n, p := range protocols {
		if p == proto {
			protoName = n
		}
	}
	comment := fmt.Sprintf("port %s of %s", name, protoName)
	setName := hashName("port-", comment) + f.suffix()
	if _, ok := c.rules.sets[setName]; ok {
		return setName
	}
	var elems []string
	for _, p := range c.pods {
		for _, port := range p.ports {
			portProto := cmp.Or(port.Protocol, corev1.ProtocolTCP)
			if port.Name != name || portProto != protoName || port.ContainerPort < 1 || port.ContainerPort > 65535 {
				continue
			}
			for _, a := range p.addrs {
				if familyOf(a) == f {
					elems = append(elems, endpointKey(a, uint16(port.ContainerPort)))
				}
			}
		}
	}
	c.rules.sets[setName] = set{endpoints, f, comment, sortedUnique(elems)}
	return setName
}
