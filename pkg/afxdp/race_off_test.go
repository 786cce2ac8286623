// SPDX-License-Identifier: Apache-2.0

//go:build !race

package afxdp

// raceEnabled says that the race detector, which slows everything down, is on.
const raceEnabled = false
