// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"strings"
	"testing"
)

// TestStartStaysShort keeps packages out whose initialisation every call of the runtime
// would pay for: most of an ADD is the start of its process.
func TestStartStaysShort(t *testing.T) {
	t.Parallel()
	for _, plugin := range []string{"xveth", "xveth-chain"} {
		out, err := exec.Command("go", "list", "-deps", "github.com/xveth/xveth/plugins/"+plugin).Output()
		if err != nil {
			t.Fatalf("list what %s depends on: %v", plugin, err)
		}
		has := map[string]bool{}
		for _, p := range strings.Fields(string(out)) {
			has[p] = true
		}
		if !has["github.com/xveth/xveth/pkg/plugin"] {
			t.Errorf("the list of what %s depends on lacks its own packages: %d are in it", plugin, len(has))
		}
		for p, why := range map[string]string{
			"net/http":                       "a plugin serves and asks nobody by HTTP; with TLS it takes 40 pages and 2 ms of each start",
			"crypto/tls":                     "a plugin encrypts nothing; its self-tests run at each start",
			"go.opentelemetry.io/otel/trace": "nobody traces a call of 20 ms; it brings net/http along",
			"github.com/containernetworking/cni/pkg/invoke": "it brings tracing and net/http along; pkg/ipam calls plugins itself",
			"github.com/cilium/ebpf/rlimit":                 "it tries out at each start what kernels with tcx need not be asked",
		} {
			if has[p] {
				t.Errorf("%s depends on %s: %s (go mod why -m finds the way)", plugin, p, why)
			}
		}
	}
}
