// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// metaShown is a network list in docs/chains.md: a link to its file, and the text.
var metaShown = regexp.MustCompile("(?s)\\]\\(\\.\\./examples/conflists/([^)]+)\\)\\n\\n```json\\n(.*?)```\\n")

// TestMetaDocs compares docs/chains.md with the files that the tests use: every list that it
// shows is one of them, it shows all of them, and each is named by a test.
func TestMetaDocs(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/chains.md")
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for _, m := range metaShown.FindAllSubmatch(page, -1) {
		name := string(m[1])
		shown = append(shown, name)
		text, err := os.ReadFile(filepath.Join(metaConflists, name))
		if err != nil {
			t.Error(err)
		} else if string(text) != string(m[2]) {
			t.Errorf("the page shows %s as\n%s\nwhich is\n%s", name, m[2], text)
		}
	}
	if blocks := strings.Count(string(page), "```json"); blocks != len(shown) {
		t.Errorf("%d lists are shown, and %d have a link to their file before them", blocks, len(shown))
	}
	slices.Sort(shown)
	paths, err := filepath.Glob(filepath.Join(metaConflists, "*"))
	if err != nil {
		t.Fatal(err)
	}
	tests := metaSources(t)
	var files []string
	for _, p := range paths {
		files = append(files, filepath.Base(p))
		if !strings.Contains(tests, `"`+filepath.Base(p)+`"`) {
			t.Errorf("no test uses %s", p)
		}
	}
	if !slices.Equal(files, shown) {
		t.Errorf("the page shows %v, the files are %v", shown, files)
	}
}

// metaSources is the text of the tests of chains.
func metaSources(t *testing.T) string {
	t.Helper()
	paths, err := filepath.Glob("meta_*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, p := range paths {
		text, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(text)
	}
	return b.String()
}
