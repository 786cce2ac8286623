// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// events makes "go test -json" lines of "action test output" triples for the package pkg/a.
func events(lines ...string) string {
	var b strings.Builder
	for _, line := range lines {
		f := strings.SplitN(line, " ", 3)
		for len(f) < 3 {
			f = append(f, "")
		}
		fmt.Fprintf(&b, `{"Action":%q,"Package":"github.com/xveth/xveth/pkg/a","Test":%q,"Output":%q}`+"\n",
			f[0], f[1], f[2])
	}
	return b.String()
}

func TestRun(t *testing.T) {
	t.Parallel()
	build := `{"ImportPath":"p [p.test]","Action":"build-output","Output":"x.go:1: undefined: y\n"}` + "\n" +
		`{"Action":"fail","Package":"p","FailedBuild":"p [p.test]"}` + "\n"
	for _, tc := range []struct {
		name, in, skips string
		ok              bool
		want            []string
	}{
		{
			name: "subtests count, their parent does not",
			in:   events("run T", "run T/a", "run T/b", "pass T/a", "pass T/b", "pass T", "pass"),
			ok:   true,
			want: []string{"ok   pkg/a", "\n2 passed, 0 failed, 0 skipped\n"},
		},
		{
			name: "failed subtest counts once",
			in: events("run T", "run T/a", "output T/a     x_test.go:3: want 1", "fail T/a",
				"fail T", "fail"),
			want: []string{"--- FAIL pkg/a:T/a\n    x_test.go:3: want 1", "\n0 passed, 1 failed, 0 skipped\n"},
		},
		{
			name: "panic",
			in:   events("run T", "pass T", "run U", "output U panic: oh", "fail"),
			want: []string{"--- FAIL pkg/a:U\npanic: oh", "\n1 passed, 1 failed, 0 skipped\n"},
		},
		{
			name: "TestMain fails after the tests",
			in:   events("run T", "pass T", "output  leaked 1 map", "fail"),
			want: []string{"leaked 1 map", "pkg/a: the package", "\n1 passed, 1 failed, 0 skipped\n"},
		},
		{
			name: "build fails",
			in:   build,
			want: []string{"x.go:1: undefined: y", "\n0 passed, 1 failed, 0 skipped\n"},
		},
		{
			name:  "skip on the list",
			in:    events("run T", "pass T", "run U", "run U/v6", "output U/v6 no ipv6", "skip U/v6", "pass U", "pass"),
			skips: "# comment\n\npkg/a:U/* needs IPv6\n",
			ok:    true,
			want:  []string{"skip pkg/a:U/v6: no ipv6", "\n1 passed, 0 failed, 1 skipped\n"},
		},
		{
			name:  "skip not on the list",
			in:    events("run T", "pass T", "run U", "skip U", "pass"),
			skips: "pkg/a:Unit needs this\n",
			want:  []string{"SKIP, not on the list of skips: pkg/a:U"},
		},
		{
			name: "nothing ran",
			in:   events("skip"),
			want: []string{"no test ran", "\n0 passed, 0 failed, 0 skipped\n"},
		},
		{
			name: "not an event",
			in:   "go: no such tool\n" + events("run T", "pass T", "pass"),
			ok:   true,
			want: []string{"go: no such tool\n"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "skips.txt")
			if err := os.WriteFile(file, []byte(tc.skips), 0o600); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			ok, err := run(strings.NewReader(tc.in), &out, file)
			if err != nil {
				t.Fatal(err)
			}
			if ok != tc.ok {
				t.Errorf("ok is %v, want %v", ok, tc.ok)
			}
			for _, want := range tc.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q in\n%s", want, out.String())
				}
			}
		})
	}
}

func TestParseSkipsWantsAReason(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"pkg/a:T", "T reason", "pkg/a:T   "} {
		if _, err := parseSkips(strings.NewReader(in)); err == nil {
			t.Errorf("no error for %q", in)
		}
	}
}
