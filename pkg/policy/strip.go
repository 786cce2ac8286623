// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Strip is a transform for the informers (informers.WithTransform) that keeps what the
// controller reads and lets go of the rest, which in a large cluster is most of the
// memory:
//   - of every object, its name, namespace, uid, resource version and labels,
//   - of pods, the times of creation and deletion, spec.nodeName, spec.hostNetwork, the
//     named ports of containers, status.phase and status.podIPs,
//   - of NetworkPolicies, the spec.
//
// Objects of other types are left as they are.
func Strip(obj any) (any, error) {
	switch o := obj.(type) {
	case *corev1.Pod:
		return &corev1.Pod{
			ObjectMeta: stripMeta(&o.ObjectMeta),
			Spec: corev1.PodSpec{
				NodeName: o.Spec.NodeName, HostNetwork: o.Spec.HostNetwork,
				Containers: []corev1.Container{{Ports: containerPorts(o)}},
			},
			Status: corev1.PodStatus{Phase: o.Status.Phase, PodIP: o.Status.PodIP, PodIPs: o.Status.PodIPs},
		}, nil
	case *corev1.Namespace:
		return &corev1.Namespace{ObjectMeta: stripMeta(&o.ObjectMeta)}, nil
	case *networkingv1.NetworkPolicy:
		return &networkingv1.NetworkPolicy{ObjectMeta: stripMeta(&o.ObjectMeta), Spec: o.Spec}, nil
	}
	return obj, nil
}

func stripMeta(m *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion, Labels: m.Labels,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
	}
}

// alike says whether a change of a pod cannot change the rules. A node's pods change their
// status all the time.
func alike(a, b *corev1.Pod) bool {
	return a.UID == b.UID && maps.Equal(a.Labels, b.Labels) && a.Spec.NodeName == b.Spec.NodeName &&
		finished(a) == finished(b) && (a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil) &&
		a.Status.PodIP == b.Status.PodIP && slices.Equal(a.Status.PodIPs, b.Status.PodIPs) &&
		reflect.DeepEqual(containerPorts(a), containerPorts(b))
}
