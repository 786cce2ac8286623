// SPDX-License-Identifier: Apache-2.0

package netbench

// scenarios in the order in which they are listed.
var scenarios = []*scenario{
	uplinkToPod, forwardRules, podToUplink, podToPodTCP, podToPodRR, uplinkRR, connRate, udpOneshot, hostPort, clusterIP,
	chainPTP, chainBridge, chainFlannel, chainMeta,
	cniAddDel, scale, memory, cpuPerGbit, twoCore,
	seedXDPPass, seedRedirectDrop, seedXDPTx, seedMultibuffer,
}

// networks are the paths of whole networks, without limits.
var networks = []string{pathPTP, pathBridge, pathXvethOff, pathXveth, pathXvethTCX}

// withLimits are those and the redirects that they are held against.
var withLimits = []string{
	pathPTP, pathBridge, pathXvethOff, pathXveth, pathXvethTCX, pathRedirect, pathRedirectDst, pathRedirectPeer,
}
