// SPDX-License-Identifier: Apache-2.0

//go:build !xveth_debug

package ptrring

const debug = false
