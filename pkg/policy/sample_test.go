// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// parse reads objects from a stream of YAML.
func parse[T any](t testing.TB, text string) (out []*T) {
	t.Helper()
	for _, doc := range strings.Split(text, "\n---\n") {
		o := new(T)
		if err := yaml.UnmarshalStrict([]byte(doc), o); err != nil {
			t.Fatalf("%v:\n%s", err, doc)
		}
		out = append(out, o)
	}
	return out
}

const sampleNamespaces = `
metadata: {name: shop, labels: {team: a}}
---
metadata: {name: mon, labels: {team: b}}
`

const samplePods = `
metadata: {namespace: shop, name: web, labels: {app: web}}
spec:
  nodeName: n1
  containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]
status: {phase: Running, podIPs: [{ip: 10.0.1.2}, {ip: "2001:db8:88::2"}]}
---
metadata: {namespace: shop, name: db, labels: {app: db}}
spec: {nodeName: n1, containers: [{name: c}]}
status: {phase: Running, podIPs: [{ip: 10.0.1.3}, {ip: "2001:db8:88::3"}]}
---
metadata: {namespace: shop, name: far, labels: {app: web}}
spec:
  nodeName: n2
  containers: [{name: c, ports: [{name: http, containerPort: 80}]}]
status: {phase: Running, podIPs: [{ip: 10.0.2.2}, {ip: "2001:db8:88:1::2"}]}
---
metadata: {namespace: mon, name: scraper, labels: {app: scraper}}
spec: {nodeName: n2, containers: [{name: c}]}
status: {phase: Running, podIPs: [{ip: 10.0.2.3}, {ip: "2001:db8:88:1::3"}]}
`

const samplePolicies = `
metadata: {namespace: shop, name: web}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Ingress]
  ingress:
  - from:
    - namespaceSelector: {matchLabels: {team: b}}
    ports:
    - {port: http}
    - {port: 9000, endPort: 9010}
    - {port: 9100}
    - {port: 53, protocol: UDP}
    - {protocol: SCTP}
---
metadata: {namespace: shop, name: db}
spec:
  podSelector: {matchLabels: {app: db}}
  policyTypes: [Ingress, Egress]
  ingress:
  - from:
    - podSelector: {matchExpressions: [{key: app, operator: In, values: [web, api]}]}
  egress:
  - to:
    - ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}
    - ipBlock: {cidr: 0.0.0.0/0}
    - ipBlock: {cidr: "2001:db8::/32"}
    ports: [{port: http}, {port: 65535}]
`
