/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
#pragma once

#include "const.h"
#include "types.h"

/* Learned flows, one map for each family; user space sets the size (maxFlows). */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct xv_key4);
	__type(value, struct xv_flow4);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} xv_flows4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct xv_key6);
	__type(value, struct xv_flow6);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} xv_flows6 SEC(".maps");

/*
 * By the hash of a flow's key: whether the flow maps have to be asked for it, and flows on
 * their way to be learned, kept apart so that a flood evicts nothing.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, XV_SLOTS);
	__type(key, __u32);
	__type(value, struct xv_slot);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} xv_slots SEC(".maps");

/* Interfaces that XDP may redirect to, by ifindex. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} xv_devs SEC(".maps");

/* MAC addresses of the interfaces on which XDP runs, by ifindex. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct xv_port);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} xv_ports SEC(".maps");

/* The ports of bridges that pods are behind, by ifindex. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct xv_member);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} xv_members SEC(".maps");

/* Where the packet of a bridge port came from: a bridge forgets it on the way to egress. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct xv_origin);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} xv_origins SEC(".maps");

/* Interfaces that nothing is redirected to until a coarse monotonic time in ns. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} xv_blocked SEC(".maps");

/* Frames lost behind a redirect, by interface and cause. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct xv_loss_key);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} xv_losses SEC(".maps");

/* Why XDP was refused, by ifindex; for user space alone. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct xv_refusal);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} xv_refusals SEC(".maps");

/* Packets by enum xv_reason. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, XV_REASON_MAX);
	__type(key, __u32);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} xv_counters SEC(".maps");

/* The NAPI poll that a CPU is in: a number that no other poll has. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} xv_polls SEC(".maps");

/* Settings of the node. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct xv_settings);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} xv_config SEC(".maps");

/* Puts the enum into the object's type information, from which the Go side takes it. */
const volatile enum xv_reason xv_reasons = XV_REASON_MAX;

/* Keys the hash of keys; the same in all programs that share the maps. */
const volatile __u32 xv_seed;

static __always_inline struct xv_settings *xv_get_settings(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&xv_config, &zero);
}

static __always_inline struct xv_origin *xv_this_origin(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&xv_origins, &zero);
}

static __always_inline __u64 *xv_this_poll(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&xv_polls, &zero);
}

static __always_inline void xv_count(enum xv_reason reason)
{
	__u32 i = reason;
	__u64 *n = bpf_map_lookup_elem(&xv_counters, &i);

	if (n)
		(*n)++;
}
