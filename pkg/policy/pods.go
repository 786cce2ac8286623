// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// pod is a pod that runs in the pod network.
type pod struct {
	namespace string
	name      string
	labels    labels.Set
	local     bool
	addrs     []netip.Addr // those that are nobody else's
	ports     []corev1.ContainerPort
}

// livePods lists the pods that count, as subjects and as peers: not those that have
// finished, nor those in the network of their node. An address belongs to one pod only.
func livePods(o Objects) (pods []*pod, problems []error) {
	type claim struct {
		api *corev1.Pod
		pod *pod
	}
	owner := map[netip.Addr]claim{}
	for _, p := range o.Pods {
		if finished(p) || p.Spec.HostNetwork {
			continue
		}
		mine := &pod{
			namespace: p.Namespace, name: p.Name, labels: p.Labels,
			local: p.Spec.NodeName == o.Node, ports: containerPorts(p),
		}
		pods = append(pods, mine)
		found, err := podAddrs(p)
		if err != nil {
			problems = append(problems, err)
		}
		if mine.local {
			found = append(found, o.Early[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}]...)
		}
		for _, a := range found {
			if other, ok := owner[a]; !ok || newer(p, other.api) {
				owner[a] = claim{p, mine}
			}
		}
	}
	for a, c := range owner {
		c.pod.addrs = append(c.pod.addrs, a)
	}
	for _, p := range pods {
		slices.SortFunc(p.addrs, netip.Addr.Compare)
	}
	return pods, problems
}

func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// newer says which of two pods with one address has it. One that is being deleted has
// given it back when another gets it.
func newer(a, b *corev1.Pod) bool {
	if ad, bd := a.DeletionTimestamp != nil, b.DeletionTimestamp != nil; ad != bd {
		return bd
	}
	if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
		return c > 0
	}
	return cmp.Compare(a.UID, b.UID) > 0
}

func podAddrs(p *corev1.Pod) (found []netip.Addr, err error) {
	ips := p.Status.PodIPs
	if len(ips) == 0 && p.Status.PodIP != "" {
		ips = []corev1.PodIP{{IP: p.Status.PodIP}}
	}
	for _, ip := range ips {
		a, bad := netip.ParseAddr(ip.IP)
		if bad != nil || a.Is4In6() || a.Zone() != "" {
			err = fmt.Errorf("pod %s/%s: status.podIPs: %q is no address", p.Namespace, p.Name, ip.IP)
			continue
		}
		found = append(found, a)
	}
	return found, err
}

// containerPorts are the ports that policies may name: those of what runs beside each
// other in the pod.
func containerPorts(p *corev1.Pod) (all []corev1.ContainerPort) {
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			all = append(all, c.Ports...)
		}
	}
	for _, c := range p.Spec.Containers {
		all = append(all, c.Ports...)
	}
	return slices.DeleteFunc(all, func(c corev1.ContainerPort) bool { return c.Name == "" })
}
