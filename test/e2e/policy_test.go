// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// policyCase is a set of policies, in namespace shop unless they say another, and what the
// API's documentation says about connections then.
type policyCase struct {
	name     string
	policies string
	change   func(*policyObjects)
	allowed  []string
	denied   []string
}

// TestPolicy compares what passes with what the API says, with the fast path and without
// it. B142, B145, B146
func TestPolicy(t *testing.T) {
	t.Parallel()
	for name, conf := range map[string]map[string]any{"fast": nil, "kernel": {"fastPath": map[string]any{"mode": "off"}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bed := newPolicyBed(t, conf)
			for _, c := range policyCases {
				t.Run(c.name, func(t *testing.T) {
					o := bed.cluster(t, c.policies)
					if c.change != nil {
						c.change(o)
					}
					_, _, end := bed.enforce(t, o.list())
					end()
					bed.check(t, c.allowed, c.denied)
				})
			}
			if name == "fast" && len(everyFlow(t, open(t, bed.r))) == 0 {
				t.Error("no flow has taken the fast path")
			}
		})
	}
}

var policyCases = []policyCase{
	{
		name:     "no policy",
		policies: "",
		allowed: []string{
			"a>b tcp/80", "c>b udp/53", "out>b tcp/80", "a>out tcp/80", "a>far udp/53", "a>b icmp", "a>b sctp/80", "out>b sctp/80",
			"a>svc tcp/80", "out>nodeport tcp/30080",
		},
	},
	{
		name:     "deny all ingress",
		policies: `spec: {podSelector: {}, policyTypes: [Ingress]}`,
		allowed:  []string{"node>a tcp/80", "node>b udp/53", "node>b icmp", "a>c tcp/80", "a>out tcp/80", "b>far udp/53", "a>c sctp/80", "a>a tcp/80"},
		denied: []string{
			"a>b tcp/80", "b>a udp/53", "c>b udp/53", "out>b tcp/80", "far>b tcp/80", "hostnet>b tcp/80", "a>b icmp", "a>b sctp/80",
			"out>a sctp/80", "a>svc tcp/80", "out>nodeport tcp/30080", "far>nodeport tcp/30080",
		},
	},
	{
		name:     "no ingress rule is none",
		policies: `spec: {podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress], ingress: []}`,
		allowed:  []string{"c>a tcp/80", "b>a tcp/80"},
		denied:   []string{"a>b tcp/80", "c>b udp/53"},
	},
	{
		name:     "deny all egress",
		policies: `spec: {podSelector: {}, policyTypes: [Egress]}`,
		allowed:  []string{"c>b tcp/80", "node>a udp/53", "out>b tcp/80", "far>a sctp/80", "a>node tcp/80"},
		denied:   []string{"a>b tcp/80", "a>c udp/53", "b>out tcp/80", "a>far icmp", "a>far sctp/80", "a>svc tcp/80"},
	},
	{
		name:     "deny all both ways",
		policies: `spec: {podSelector: {}, policyTypes: [Ingress, Egress]}`,
		allowed:  []string{"c>far tcp/80", "far>c udp/53", "node>b tcp/80"},
		denied:   []string{"a>b tcp/80", "c>b tcp/80", "a>c tcp/80", "out>a udp/53", "b>out udp/53"},
	},
	{
		name:     "an empty rule allows all",
		policies: `spec: {podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{}], egress: [{}]}`,
		allowed:  []string{"a>b tcp/80", "c>b udp/53", "out>b sctp/80", "a>out tcp/80", "a>b icmp", "hostnet>a tcp/80"},
	},
	{
		name:     "an empty from is everybody",
		policies: `spec: {podSelector: {}, policyTypes: [Ingress], ingress: [{from: [], ports: [{port: 80}]}]}`,
		allowed:  []string{"a>b tcp/80", "out>b tcp/80", "c>a tcp/80"},
		denied:   []string{"a>b tcp/8080", "a>b udp/80", "a>b icmp"},
	},
	{
		name:     "empty ports are all",
		policies: `spec: {podSelector: {}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: client}}}], ports: []}]}`,
		allowed:  []string{"a>b tcp/8080", "a>b udp/53", "a>b icmp", "a>b sctp/7999"},
		denied:   []string{"c>b tcp/8080", "out>b udp/53", "b>a tcp/80"},
	},
	{
		name:     "podSelector is of the policy's namespace",
		policies: `spec: {podSelector: {matchLabels: {app: server}}, ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]}`,
		allowed:  []string{"a>b tcp/80", "b>a tcp/80", "c>a tcp/80"},
		denied:   []string{"c>b tcp/80", "hostnet>b tcp/80", "far>b tcp/80"},
	},
	{
		name:     "namespaceSelector",
		policies: `spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: blue}}}]}]}`,
		allowed:  []string{"c>b tcp/80", "far>b udp/53", "c>a sctp/80"},
		denied:   []string{"a>b tcp/80", "out>b tcp/80", "hostnet>b udp/53"},
	},
	{
		name: "both selectors in one element",
		policies: `spec: {podSelector: {}, ingress: [{from: [
			{namespaceSelector: {matchLabels: {team: blue}}, podSelector: {matchLabels: {app: far}}}]}]}`,
		allowed: []string{"far>b tcp/80", "far>a udp/53"},
		denied:  []string{"c>b tcp/80", "a>b tcp/80"},
	},
	{
		name: "both selectors in two elements",
		policies: `spec: {podSelector: {}, ingress: [{from: [
			{namespaceSelector: {matchLabels: {team: blue}}}, {podSelector: {matchLabels: {app: client}}}]}]}`,
		allowed: []string{"far>b tcp/80", "c>b tcp/80", "a>b tcp/80"},
		denied:  []string{"b>a tcp/80", "out>b tcp/80"},
	},
	{
		name:     "every pod of every namespace",
		policies: `spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {}}]}]}`,
		allowed:  []string{"a>b tcp/80", "c>b tcp/80", "far>a udp/53"},
		denied:   []string{"out>b tcp/80", "hostnet>b tcp/80"},
	},
	{
		name:     "every pod of the namespace",
		policies: `spec: {podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}`,
		allowed:  []string{"a>b tcp/80", "b>a udp/53"},
		denied:   []string{"c>b tcp/80", "far>b tcp/80", "hostnet>b tcp/80", "out>b udp/53"},
	},
	{
		name:     "ipBlock",
		policies: `spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 198.51.100.0/24}}]}]}`,
		allowed:  []string{"out>b tcp/80 v4", "out>a udp/53 v4"},
		denied:   []string{"out>b tcp/80 v6", "hostnet>b tcp/80", "a>b tcp/80"},
	},
	{
		name: "ipBlock with exceptions",
		policies: `spec: {podSelector: {}, ingress: [{from: [
			{ipBlock: {cidr: 0.0.0.0/0, except: [198.51.100.0/25, 10.88.9.0/24]}},
			{ipBlock: {cidr: "2001:db8::/32", except: ["2001:db8:ffff::/64", "2001:db8:1::2/128"]}}]}]}`,
		allowed: []string{"hostnet>b tcp/80 v4", "a>b tcp/80", "far>b tcp/80 v6"},
		denied:  []string{"out>b tcp/80", "far>b udp/53 v4", "hostnet>b tcp/80 v6"},
	},
	{
		name:     "pods of the host's network match by ipBlock",
		policies: `spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 192.0.2.2/32}}, {ipBlock: {cidr: "2001:db8:1::2/128"}}]}]}`,
		allowed:  []string{"hostnet>b tcp/80", "hostnet>a udp/53"},
		denied:   []string{"out>b tcp/80", "far>b tcp/80"},
	},
	{
		name:     "the default protocol is TCP",
		policies: `spec: {podSelector: {}, ingress: [{ports: [{port: 53}]}]}`,
		allowed:  []string{"a>b tcp/53", "out>a tcp/53"},
		denied:   []string{"a>b udp/53", "a>b sctp/53", "a>b tcp/80"},
	},
	{
		name:     "a protocol without a port",
		policies: `spec: {podSelector: {}, ingress: [{ports: [{protocol: UDP}]}]}`,
		allowed:  []string{"a>b udp/53", "out>b udp/8011"},
		denied:   []string{"a>b tcp/53", "a>b sctp/53"},
	},
	{
		name:     "named port, another of each pod",
		policies: `spec: {podSelector: {}, ingress: [{ports: [{port: http}]}]}`,
		allowed:  []string{"a>b tcp/8080", "b>a tcp/80", "out>a tcp/80"},
		denied:   []string{"a>b tcp/80", "b>a tcp/8080", "a>b udp/8080"},
	},
	{
		name:     "named port of UDP",
		policies: `spec: {podSelector: {}, ingress: [{ports: [{port: dns, protocol: UDP}, {port: dns}]}]}`,
		allowed:  []string{"a>b udp/53"},
		denied:   []string{"a>b tcp/53", "b>a udp/53"},
	},
	{
		name:     "named port of the destination, egress",
		policies: `spec: {podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], egress: [{ports: [{port: http}]}]}`,
		allowed:  []string{"a>b tcp/8080", "a>c tcp/8005", "a>far tcp/8000", "a>svc tcp/80"},
		denied:   []string{"a>b tcp/80", "a>c tcp/8080", "a>out tcp/8080", "a>hostnet tcp/80"},
	},
	{
		name: "named port and selector, egress",
		policies: `spec: {podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], egress: [
			{to: [{namespaceSelector: {matchLabels: {team: blue}}}], ports: [{port: http}]}]}`,
		allowed: []string{"a>c tcp/8005", "a>far tcp/8000"},
		denied:  []string{"a>b tcp/8080", "a>c tcp/80"},
	},
	{
		name: "endPort of TCP, UDP and SCTP",
		policies: `spec: {podSelector: {}, ingress: [{ports: [
			{port: 8000, endPort: 8010}, {port: 8000, endPort: 8010, protocol: UDP}, {port: 8000, endPort: 8010, protocol: SCTP}]}]}`,
		allowed: []string{
			"a>b tcp/8000", "a>b tcp/8005", "a>b tcp/8010", "a>b udp/8000", "a>b udp/8005", "a>b udp/8010",
			"a>b sctp/8000", "a>b sctp/8005", "out>b sctp/8010",
		},
		denied: []string{
			"a>b tcp/7999", "a>b tcp/8011", "a>b udp/7999", "a>b udp/8011", "a>b sctp/7999", "out>b sctp/8011",
		},
	},
	{
		name: "endPort, egress",
		policies: `spec: {podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], egress: [{ports: [
			{port: 8000, endPort: 8010}, {port: 8000, endPort: 8010, protocol: UDP}, {port: 8000, endPort: 8010, protocol: SCTP}]}]}`,
		allowed: []string{"a>b tcp/8000", "a>out tcp/8005", "a>far tcp/8010", "a>b udp/8000", "a>out udp/8010", "a>b sctp/8000", "a>far sctp/8010"},
		denied:  []string{"a>b tcp/7999", "a>out tcp/8011", "a>far udp/7999", "a>b udp/8011", "a>b sctp/7999", "a>far sctp/8011"},
	},
	{
		name:     "one port of SCTP",
		policies: `spec: {podSelector: {}, ingress: [{ports: [{port: 8000, protocol: SCTP}]}]}`,
		allowed:  []string{"a>b sctp/8000", "out>b sctp/8000"},
		denied:   []string{"a>b sctp/8005", "a>b tcp/8000", "a>b udp/8000"},
	},
	{
		name: "two policies are a union",
		policies: `
spec: {podSelector: {matchLabels: {app: server}}, ingress: [{from: [{podSelector: {}}], ports: [{port: 80}]}]}
---
spec: {podSelector: {matchLabels: {tier: back}}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: blue}}}], ports: [{port: 53, protocol: UDP}]}]}
`,
		allowed: []string{"a>b tcp/80", "c>b udp/53", "far>b udp/53"},
		denied:  []string{"a>b udp/53", "c>b tcp/80", "out>b tcp/80"},
	},
	{
		name: "a policy that allows all wins",
		policies: `
spec: {podSelector: {}, policyTypes: [Ingress]}
---
spec: {podSelector: {matchLabels: {app: server}}, ingress: [{}]}
`,
		allowed: []string{"a>b tcp/80", "out>b udp/53"},
		denied:  []string{"b>a tcp/80", "out>a tcp/80"},
	},
	{
		name: "both ends must allow",
		policies: `
spec: {podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: server}}}], ports: [{port: 80}, {port: 8080}]}]}
---
spec: {podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress], ingress: [{ports: [{port: 80}, {port: 8000}]}]}
`,
		allowed: []string{"a>b tcp/80", "c>b tcp/8000"},
		denied:  []string{"a>b tcp/8080", "a>b tcp/8000", "c>b tcp/8080", "a>c tcp/80"},
	},
	{
		name: "names only",
		policies: `spec: {podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], egress: [
			{to: [{namespaceSelector: {matchLabels: {team: blue}}}], ports: [{port: 53, protocol: UDP}, {port: 53}]}]}`,
		allowed: []string{"a>c udp/53", "a>far udp/53", "a>c tcp/53"},
		denied:  []string{"a>b udp/53", "a>c udp/80", "a>out udp/53"},
	},
	{
		name:     "one family only",
		policies: `spec: {podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: "::/0"}}]}]}`,
		allowed:  []string{"a>b tcp/80 v6", "a>out udp/53 v6", "a>far sctp/80 v6"},
		denied:   []string{"a>b tcp/80 v4", "a>out udp/53 v4", "a>far sctp/80 v4"},
	},
	{
		name: "behind a Service",
		policies: `
spec: {podSelector: {matchLabels: {app: server}}, ingress: [{from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: 8080}]}]}
---
spec: {podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: server}}}], ports: [{port: 8080}]}]}
`,
		allowed: []string{"a>svc tcp/80", "a>b tcp/8080"},
		denied:  []string{"c>svc tcp/80", "out>nodeport tcp/30080"},
	},
	{
		name:     "a Service's own address and port do not count",
		policies: `spec: {podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.96.0.0/16}}]}, {ports: [{port: 80}]}]}`,
		allowed:  []string{"a>b tcp/80"},
		denied:   []string{"a>svc tcp/80"},
	},
	{
		name:     "a node port has its client's address",
		policies: `spec: {podSelector: {matchLabels: {app: server}}, ingress: [{from: [{ipBlock: {cidr: 198.51.100.0/24}}, {ipBlock: {cidr: "2001:db8:ffff::/48"}}], ports: [{port: 8080}]}]}`,
		allowed:  []string{"out>nodeport tcp/30080"},
		denied:   []string{"hostnet>nodeport tcp/30080", "far>nodeport tcp/30080"},
	},
	{
		name:     "a pod reaches itself by its Service",
		policies: `spec: {podSelector: {}, policyTypes: [Ingress, Egress]}`,
		allowed:  []string{"b>svc tcp/80", "b>b tcp/80"},
		denied:   []string{"a>svc tcp/80"},
	},
	{
		name:     "policyTypes by default, without egress",
		policies: `spec: {podSelector: {}}`,
		allowed:  []string{"a>out tcp/80", "a>c tcp/80"},
		denied:   []string{"a>b tcp/80", "out>a tcp/80"},
	},
	{
		name:     "policyTypes by default, with egress",
		policies: `spec: {podSelector: {matchLabels: {app: client}}, egress: [{to: [{podSelector: {}}]}]}`,
		allowed:  []string{"a>b tcp/80"},
		denied:   []string{"a>out tcp/80", "b>a tcp/80", "c>a tcp/80"},
	},
	{
		name:     "rules of a type that is not named",
		policies: `spec: {podSelector: {}, policyTypes: [Egress], ingress: [{from: [{podSelector: {}}]}], egress: [{}]}`,
		allowed:  []string{"c>b tcp/80", "out>b tcp/80", "a>out tcp/80"},
	},
	{
		name: "matchExpressions",
		policies: `spec:
  podSelector: {matchExpressions: [{key: tier, operator: Exists}]}
  ingress:
  - from: [{podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [far, server]}, {key: tier, operator: DoesNotExist}]}}]
    ports: [{port: 80}]
  - from: [{namespaceSelector: {matchExpressions: [{key: team, operator: In, values: [blue, green]}]}}]
    ports: [{port: 8080}]`,
		allowed: []string{"a>b tcp/80", "c>b tcp/8080", "far>b tcp/8080", "out>a tcp/80"},
		denied:  []string{"a>b tcp/8080", "c>b tcp/80", "out>b tcp/80"},
	},
	{
		name:     "a namespace gets other labels",
		policies: `spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: blue}}}]}]}`,
		change: func(o *policyObjects) {
			o.namespaces["other"].Labels = map[string]string{"team": "green"}
			o.namespaces["shop"].Labels = map[string]string{"team": "blue"}
		},
		allowed: []string{"a>b tcp/80"},
		denied:  []string{"c>b tcp/80", "far>b tcp/80"},
	},
	{
		name:     "pods get other labels",
		policies: `spec: {podSelector: {matchLabels: {app: server}}, ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]}`,
		change: func(o *policyObjects) {
			o.pods["a"].Labels = map[string]string{"app": "server"}
			o.pods["b"].Labels = map[string]string{"app": "client"}
		},
		allowed: []string{"b>a tcp/80", "out>b tcp/80"},
		denied:  []string{"c>a tcp/80", "out>a tcp/80"},
	},
	{
		name:     "policies of another namespace",
		policies: `{metadata: {namespace: other}, spec: {podSelector: {}, policyTypes: [Ingress, Egress]}}`,
		allowed:  []string{"a>b tcp/80", "out>b tcp/80", "a>out udp/53"},
		denied:   []string{"c>b tcp/80", "a>c tcp/80", "out>c udp/53", "c>out udp/53"},
	},
	{
		name:     "a finished pod has no address",
		policies: `spec: {podSelector: {matchLabels: {app: job}}, ingress: [{from: [{podSelector: {matchLabels: {app: job}}}]}]}`,
		change: func(o *policyObjects) {
			for name, twin := range map[string]string{"job1": "b", "job2": "far"} {
				job := o.pods[twin].DeepCopy()
				job.Name, job.Namespace, job.Labels = name, "shop", map[string]string{"app": "job"}
				job.Status.Phase = map[string]corev1.PodPhase{"job1": corev1.PodSucceeded, "job2": corev1.PodFailed}[name]
				job.CreationTimestamp = metav1.NewTime(time.Now())
				o.pods[name] = job
			}
			o.pods["a"].Labels = map[string]string{"app": "job"}
		},
		allowed: []string{"c>b tcp/80", "out>b tcp/80"},
		denied:  []string{"far>a tcp/80", "c>a tcp/80", "b>a tcp/80"},
	},
	{
		name:     "of two pods the one that stays has the address",
		policies: `spec: {podSelector: {matchLabels: {app: old}}, policyTypes: [Ingress]}`,
		change: func(o *policyObjects) {
			old := o.pods["b"].DeepCopy()
			old.Name, old.Labels = "old", map[string]string{"app": "old"}
			old.DeletionTimestamp, old.Finalizers = &metav1.Time{Time: time.Now()}, []string{"example.com/wait"}
			o.pods["old"] = old
			o.pods["a"].Labels = map[string]string{"app": "old"}
		},
		allowed: []string{"c>b tcp/80", "out>b tcp/80"},
		denied:  []string{"c>a tcp/80", "out>a tcp/80"},
	},
	{
		name:     "a pod that ends is still a pod",
		policies: `spec: {podSelector: {matchLabels: {app: server}}, ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]}`,
		change: func(o *policyObjects) {
			for _, name := range []string{"a", "b"} {
				o.pods[name].DeletionTimestamp, o.pods[name].Finalizers = &metav1.Time{Time: time.Now()}, []string{"example.com/wait"}
			}
		},
		allowed: []string{"a>b tcp/80"},
		denied:  []string{"c>b tcp/80", "out>b tcp/80"},
	},
}
