// SPDX-License-Identifier: Apache-2.0

//go:build xveth_debug

package ptrring

// debug turns on the check that a slot is free before it is filled.
const debug = true
