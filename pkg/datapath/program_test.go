// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"github.com/cilium/ebpf"
)

// A program is identified as the library's Info has it.
func TestIdentify(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for want, p := range map[string]*ebpf.Program{"xv_xdp_in": b.objs.XDP, "xv_tc_in": b.objs.TC, "xv_learn_pod": b.objs.Learn} {
		info, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		wantID, ok := info.ID()
		if !ok {
			t.Fatalf("%s has no id", want)
		}
		id, name, err := identify(p)
		if err != nil || id != wantID || name != want {
			t.Errorf("identify: %d %q %v, want %d %q", id, name, err, wantID, want)
		}
		if name, err := programName(wantID); err != nil || name != want {
			t.Errorf("name of program %d: %q %v, want %q", wantID, name, err, want)
		}
	}
	p, err := b.objs.TC.Clone()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if id, name, err := identify(p); err == nil {
		t.Errorf("a closed program is %d %q", id, name)
	}
}
