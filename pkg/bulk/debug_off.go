// SPDX-License-Identifier: Apache-2.0

//go:build !xveth_debug

package bulk

const debug = false
