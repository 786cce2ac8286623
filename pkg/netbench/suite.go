// SPDX-License-Identifier: Apache-2.0

package netbench

import "time"

// Setting is a scenario with options.
type Setting struct {
	Scenario string
	Options
}

// many flows need a turn in which each of them is met several times.
const (
	manyFlows    = 1_000_000
	manyDuration = 5 * time.Second
	// manyRevalidate is long enough for each flow to be met several times within it.
	manyRevalidate = time.Minute
)

// kernelAndXveth are for questions that need no other path.
var kernelAndXveth = []string{pathPTP, pathXveth}

// Suite lists what the published figures are made of, scenario by scenario. Rounds and
// durations are the caller's, unless a setting has its own.
func Suite() []Setting {
	var all []Setting
	add := func(name string, options ...Options) {
		for _, o := range options {
			all = append(all, Setting{name, o})
		}
	}
	add(uplinkToPod.name,
		Options{Flows: 1}, Options{Flows: 1000}, Options{Flows: 30_000},
		Options{Flows: manyFlows, Duration: manyDuration, Paths: kernelAndXveth},
		Options{Flows: manyFlows, Duration: manyDuration, Paths: kernelAndXveth, Revalidate: manyRevalidate},
		Options{Flows: 1000, Size: 512}, Options{Flows: 1000, Size: 1500},
		Options{Flows: 1000, Rules: "none"},
		Options{Flows: 1000, Rules: "services=5000", Paths: kernelAndXveth},
		Options{Flows: 1, Sink: SinkSocket}, Options{Flows: 8, Sink: SinkSocket}, Options{Flows: 1000, Sink: SinkSocket},
	)
	add(forwardRules.name, Options{})
	add(podToUplink.name, Options{Flows: 1}, Options{Flows: 1000})
	for _, congestion := range []string{"", "cubic"} {
		add(podToPodTCP.name, Options{Flows: 1, Congestion: congestion}, Options{Flows: 8, Congestion: congestion},
			Options{Flows: 1, Cores: 2, Congestion: congestion})
	}
	add(podToPodRR.name, Options{}, Options{Rules: "none"})
	add(uplinkRR.name, Options{}, Options{Rules: "none"})
	add(connRate.name, Options{}, Options{Rules: "services=5000"})
	add(udpOneshot.name, Options{})
	add(hostPort.name, Options{})
	add(clusterIP.name, Options{})
	for _, c := range []*scenario{chainPTP, chainBridge, chainFlannel, chainMeta} {
		add(c.name, Options{})
	}
	for _, pods := range []int{1, 100, 250} {
		add(cniAddDel.name, Options{Pods: pods, Rules: "none", Duration: manyDuration, Paths: []string{pathPTP, pathXvethOff, pathXveth}})
	}
	add(cniAddDel.name, Options{Pods: 1, Duration: manyDuration}, Options{Pods: 1, Parallel: 16, Duration: manyDuration})
	add(scale.name, Options{})
	add(memory.name, Options{})
	add(cpuPerGbit.name, Options{})
	add(twoCore.name, Options{})
	add(seedXDPPass.name, Options{})
	add(seedRedirectDrop.name, Options{})
	add(seedXDPTx.name, Options{})
	add(seedMultibuffer.name, Options{})
	return all
}
