// SPDX-License-Identifier: Apache-2.0

package netbench

// scenarios in the order in which they are listed.
var scenarios = []*scenario{
	uplinkToPod,
}
