// SPDX-License-Identifier: Apache-2.0

package result

import (
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine is what the figures depend on.
type Machine struct {
	Kernel string `json:"kernel"`
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	// Congestion is the kernel's default congestion control, which TCP uses here.
	Congestion string `json:"congestion"`
}

// ThisMachine describes the machine that it runs on.
func ThisMachine() Machine {
	m := Machine{CPU: runtime.GOARCH, Cores: runtime.NumCPU()}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
	}
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			m.CPU = strings.TrimSpace(value)
			break
		}
	}
	congestion, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
	m.Congestion = strings.TrimSpace(string(congestion))
	return m
}
