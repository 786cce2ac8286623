/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Incremental Internet checksums (RFC 1624, equation 3). */
#pragma once

#include "const.h"

static __always_inline __u32 xv_csum_add(__u32 sum, __u32 value)
{
	sum += value;
	return sum + (sum < value);
}

/* Adds what changes in a sum when a 32-bit word is replaced. */
static __always_inline __u32 xv_csum_replace(__u32 sum, __u32 from, __u32 to)
{
	return xv_csum_add(xv_csum_add(sum, ~from), to);
}

static __always_inline __u16 xv_csum_fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* The checksum field after the words that it covers have changed by diff. */
static __always_inline __u16 xv_csum_apply(__u16 check, __u32 diff)
{
	return xv_csum_fold(xv_csum_add((__u16)~check, diff));
}
