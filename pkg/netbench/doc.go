// SPDX-License-Identifier: Apache-2.0

// Package netbench measures xveth beside its peers: the same traffic over the reference
// plugins, over xveth in its modes, and over redirects that check nothing, in alternate
// runs on one machine. Everything is in network namespaces of this process and gone when
// it ends. The host-side library has benchmarks of its own in pkg/bench.
//
// # How it measures
//
// Every path gets a rig of its own: a remote host, a wire that delivers real xdp_frames, a
// node and its pods. The paths of a scenario take turns (A B C A B C ...), and ratios are
// taken round by round, so that a machine that is slow for a while is slow for all. One
// machine plays all parts: the figures depend on it, the ratios much less.
//
// A ratio is marked as noisy when its rounds do not tell its median to within 5 %.
package netbench
