// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/xveth/xveth/pkg/bench/internal/variants"
)

// What the issue, and with it users, know the ratios by.
var ratioNames = map[string][]string{
	"ring":    {"batch16/single", "batch16/channel"},
	"pool":    {"bulk/single", "bulk/syncpool", "owner/registry"},
	"txqueue": {"bulk/lock", "bulk2/lock2"},
	"poll":    {"bulk/single", "frags/nofrags"},
	"afxdp":   {"afxdp/packet"},
}

// A scenario that the tests cannot run says so.
func runnable(err error) bool { return os.Geteuid() == 0 || !errors.Is(err, ErrPrivilege) }

func TestRun(t *testing.T) {
	for _, name := range Scenarios() {
		rounds := 0
		r, err := Run(name, Options{
			Rounds: 2, Duration: 100 * time.Microsecond, Progress: func(n, of int) { rounds += n * of },
		})
		if !runnable(err) {
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if rounds != 2+4 {
			t.Errorf("%s: progress adds up to %d", name, rounds)
		}
		for _, q := range ratioNames[name] {
			if s, ok := r.Ratios[q]; !ok || s.Min <= 0 || s.Min > s.Median || s.Median > s.Max || math.IsInf(s.Max, 0) {
				t.Errorf("%s: ratio %s is %+v", name, q, s)
			}
		}
		b, err := json.Marshal(r)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, key := range []string{
			`"scenario":"` + name, `"params":{`, `"rows":[{"path":"`, `"metric":"rate"`,
			`"unit":"items/s"`, `"median":`, `"min":`, `"max":`, `"samples":[`, `"ratios":{"`,
		} {
			if !bytes.Contains(b, []byte(key)) {
				t.Errorf("%s: no %s in %s", name, key, b)
			}
		}
	}
	if _, err := Run("none", Options{}); !errors.Is(err, ErrScenario) {
		t.Error(err)
	}
}

// The variants that pkg/bulk is measured against are its own source of today.
func TestVariantsAreUpToDate(t *testing.T) {
	t.Parallel()
	for _, v := range variants.Names {
		files, err := variants.Files("..", v)
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range files {
			got, err := os.ReadFile(filepath.Join("internal", name))
			if err != nil {
				t.Error(err)
			} else if !bytes.Equal(got, want) {
				t.Errorf("%s is not up to date: run go generate ./pkg/bench", name)
			}
		}
	}
}

// No path allocates once it runs.
func TestNoAllocation(t *testing.T) {
	forSteps(t, func(name string, p path) {
		if name == "pool/syncpool" {
			return // what lies in a sync.Pool is the garbage collector's
		}
		if n := testing.AllocsPerRun(20, func() { p.step() }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	})
}

func forSteps(t testing.TB, f func(name string, p path)) {
	t.Helper()
	for _, name := range Scenarios() {
		s, err := scenarios[name]()
		if !runnable(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if s.end != nil {
			t.Cleanup(func() {
				if err := s.end(); err != nil {
					t.Error(err)
				}
			})
		}
		for _, p := range s.paths {
			if p.step != nil {
				f(name+"/"+p.name, p)
			}
		}
	}
}

// BenchmarkPaths is one item of each path that runs on one goroutine.
func BenchmarkPaths(b *testing.B) {
	forSteps(b, func(name string, p path) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; {
				i += p.step()
			}
		})
	})
}
