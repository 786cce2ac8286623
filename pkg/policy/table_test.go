// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netns"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// inNamespace moves the test into a network namespace of its own, which ends with the
// test's thread.
func inNamespace(t testing.TB) netns.NsHandle {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs the nft command to look at the rules")
	}
	runtime.LockOSThread()
	ns, err := netns.New()
	if err != nil {
		t.Fatalf("make network namespace: %v", err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	return ns
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func nft(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command("nft", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("nft %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".nft")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("rules differ from %s\ngot:\n%s\nwant:\n%s", path, got, want)
	}
}

// openTestTable is the table of the test's namespace.
func openTestTable(t testing.TB) *table {
	t.Helper()
	tab := &table{}
	t.Cleanup(tab.close)
	return tab
}

func write(t testing.TB, tab *table, r *Rules, want wrote) {
	t.Helper()
	did, err := tab.write(r)
	must(t, err)
	if did != want {
		t.Errorf("wrote %v, want %v", did, want)
	}
}

// TestGolden shows a table in nft's words, and that nft takes them back: a node's rules may
// be saved and loaded by its administrator.
func TestGolden(t *testing.T) {
	inNamespace(t)
	tab := openTestTable(t)
	write(t, tab, Compile(sample(t)), everything)
	out := nft(t, "list", "table", "inet", tableName)
	golden(t, "sample", out)
	saved := filepath.Join(t.TempDir(), "saved.nft")
	must(t, os.WriteFile(saved, []byte(out), 0o600))
	nft(t, "delete", "table", "inet", tableName)
	nft(t, "-f", saved)
	if again := nft(t, "list", "table", "inet", tableName); again != out {
		t.Errorf("saved and loaded, the rules are others:\n%s\nwere:\n%s", again, out)
	}
}
