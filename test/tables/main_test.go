// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestUpToDate finds the pages that go generate would change.
func TestUpToDate(t *testing.T) {
	t.Parallel()
	for page, tables := range pages() {
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", page))
		if err != nil {
			t.Fatal(err)
		}
		want, err := fill(string(text), tables)
		if err != nil {
			t.Errorf("docs/%s: %v", page, err)
		} else if want != string(text) {
			t.Errorf("docs/%s is not up to date: run go generate ./test/tables", page)
		}
	}
}

// TestFill puts a table between its marks and nowhere else.
func TestFill(t *testing.T) {
	t.Parallel()
	const page = "a\n<!-- go generate: x -->\nold\n<!-- end -->\nb\n"
	got, err := fill(page, map[string]string{"x": "new\n"})
	if want := "a\n<!-- go generate: x -->\nnew\n<!-- end -->\nb\n"; err != nil || got != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	for _, bad := range []string{"a\n<!-- end -->\n", "<!-- go generate: x -->\nold\n"} {
		if got, err := fill(bad, map[string]string{"x": "new\n"}); err == nil {
			t.Errorf("%q became %q", bad, got)
		}
	}
}
