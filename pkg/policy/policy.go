// SPDX-License-Identifier: Apache-2.0

// Package policy enforces Kubernetes' NetworkPolicy for the pods of this node, by rules of
// nftables in the forward path. It decides before a flow is learned and again whenever one
// is renewed, and knows nothing of the fast path.
package policy
