// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

const thisNode = "n1"

// sample is a small cluster with most of what policies can say.
func sample(t testing.TB) Objects {
	t.Helper()
	return Objects{
		Node: thisNode,
		Pods: parse[corev1.Pod](t, samplePods), Namespaces: parse[corev1.Namespace](t, sampleNamespaces),
		Policies: parse[networkingv1.NetworkPolicy](t, samplePolicies),
	}
}
