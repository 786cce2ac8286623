// SPDX-License-Identifier: Apache-2.0

//go:build xveth_debug

package bulk

// debug makes every pool a checked one.
const debug = true
