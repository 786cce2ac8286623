// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"net/netip"

	"github.com/xveth/xveth/pkg/bench/result"
	"github.com/xveth/xveth/pkg/status"
)

// Report is all that a run found. Figures are medians of the rounds.
type Report struct {
	Machine result.Machine `json:"machine"`
	// Rounds of each path, and how long one took.
	Rounds       int     `json:"rounds"`
	RoundSeconds float64 `json:"roundSeconds"`

	Pods    []Pod     `json:"pods"`
	Reached []Reached `json:"reached"`

	// Rows and Ratio are the packet rate from the remote host into a pod.
	Rows  []Row   `json:"rows"`
	Ratio float64 `json:"ratio"`
	// Packets is the same with its spread.
	Packets Compared `json:"packets"`
	// TCP is a bulk transfer from pod to pod.
	TCP Compared `json:"tcp"`
	// RR are round trips of one byte over TCP.
	RR struct {
		PodToPod Compared `json:"podToPod"`
		ExtToPod Compared `json:"extToPod"`
	} `json:"rr"`

	// Flows that the node had learned at the end, while all parts talked.
	Flows []status.Flow `json:"flows"`
	// Seconds that all of it took.
	Seconds float64 `json:"seconds"`
}

// Pod is a pod of the demo.
type Pod struct {
	Name    string     `json:"name"`
	Addr4   netip.Addr `json:"addr4"`
	Addr6   netip.Addr `json:"addr6"`
	HostDev string     `json:"hostDev"`
}

// Reached is one thing that another was reached by.
type Reached struct {
	What string     `json:"what"`
	From string     `json:"from"`
	To   string     `json:"to"`
	Addr netip.Addr `json:"addr"`
	// Micros that a round trip took.
	Micros float64 `json:"us"`
}

// Row is the packet rate of one path.
type Row struct {
	Path string  `json:"path"`
	Mpps float64 `json:"mpps"`
}

// Compared is one measurement of both paths.
type Compared struct {
	Unit   string `json:"unit"`
	Kernel Stat   `json:"kernel"`
	Xveth  Stat   `json:"xveth"`
	// Ratio of the medians; more than 1 is in favour of xveth.
	Ratio float64 `json:"ratio"`
}

// Stat sums up the rounds of one path.
type Stat struct {
	result.Spread
	Runs []float64 `json:"runs"`
}

func (c Compared) inUnit(unit string, ratio float64) Compared {
	c.Unit, c.Ratio = unit, ratio
	return c
}

func statOf(runs []float64) Stat { return Stat{result.SpreadOf(runs), runs} }
