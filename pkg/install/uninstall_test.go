// SPDX-License-Identifier: Apache-2.0

package install

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// startShell starts a copy of sh, and returns what gives it a command and wants its answer.
func startShell(t *testing.T, path string) func(command, want string) {
	t.Helper()
	cmd := exec.Command(path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	return func(command, want string) {
		t.Helper()
		if _, err := io.WriteString(in, command+"\n"); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(out, got); err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v", command, got, err)
		}
	}
}

const inUse = "2 pods need it"

// changedList is what somebody has made of ours; it still needs xveth.
const changedList = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "xveth", "ipam": {"type": "dhcp"}}]}`

var uninstallCases = []struct {
	name    string
	prepare func(*testing.T, place)
	change  func(*UninstallOptions)
	did     []string
	why     string
	left    map[string]string
	// again is what a second run does once nothing is in use.
	again []string
}{
	{name: "all", did: []string{"remove " + listName, "remove xveth", "remove xveth-chain"}},
	{
		name: "pods run", change: func(o *UninstallOptions) { o.InUse = func() (string, error) { return inUse, nil } },
		did: []string{"remove " + listName, "keep xveth", "keep xveth-chain"}, why: inUse,
		left:  installed("v1", nil, nil),
		again: []string{"remove xveth", "remove xveth-chain"},
	},
	{
		name: "pods run, forced", change: func(o *UninstallOptions) {
			o.InUse, o.Force = func() (string, error) { return inUse, nil }, true
		},
		did: []string{"remove " + listName, "remove xveth", "remove xveth-chain"},
	},
	{
		name: "the list was changed",
		prepare: func(t *testing.T, p place) {
			put(t, filepath.Join(p.conf, listName), changedList, 0o644)
		},
		did: []string{"keep " + listName, "keep xveth", "remove xveth-chain"}, why: "was changed",
		left: map[string]string{
			"bin/xveth": binary(mainPlugin, "v1"), "net.d/" + listName: changedList,
		},
		again: []string{"keep " + listName, "keep xveth"},
	},
	{
		name:    "the list was changed, forced",
		prepare: func(t *testing.T, p place) { put(t, filepath.Join(p.conf, listName), "{}", 0o644) },
		change:  func(o *UninstallOptions) { o.Force = true },
		did:     []string{"remove " + listName, "remove xveth", "remove xveth-chain"},
	},
	{
		name:    "a plugin was changed",
		prepare: func(t *testing.T, p place) { put(t, filepath.Join(p.bin, chainPlugin), "theirs", 0o755) },
		did:     []string{"remove " + listName, "remove xveth", "keep xveth-chain"}, why: "was changed",
		left:  map[string]string{"bin/xveth-chain": "theirs"},
		again: []string{"keep xveth-chain"},
	},
	{
		name: "somebody made a link of it",
		prepare: func(t *testing.T, p place) {
			os.Rename(filepath.Join(p.bin, mainPlugin), filepath.Join(p.from, "real"))
			link(t, filepath.Join(p.from, "real"), filepath.Join(p.bin, mainPlugin))
		},
		did: []string{"remove " + listName, "keep xveth", "remove xveth-chain"}, why: "was changed",
		left:  map[string]string{"bin/xveth": "real"},
		again: []string{"keep xveth"},
	},
	{
		name: "somebody made a folder of it",
		prepare: func(t *testing.T, p place) {
			os.Remove(filepath.Join(p.bin, mainPlugin))
			os.Mkdir(filepath.Join(p.bin, mainPlugin), 0o755)
		},
		change: func(o *UninstallOptions) { o.Force = true },
		did:    []string{"remove " + listName, "keep xveth", "remove xveth-chain"}, why: "no file any more",
		left:  map[string]string{"bin/xveth": "d---------"},
		again: []string{"keep xveth"},
	},
	{
		name: "some of it is gone",
		prepare: func(t *testing.T, p place) {
			os.Remove(filepath.Join(p.conf, listName))
			os.Remove(filepath.Join(p.bin, mainPlugin))
		},
		did: []string{"same " + listName, "same xveth", "remove xveth-chain"}, why: "it is gone",
	},
	{
		name: "another list delegates to xveth",
		prepare: func(t *testing.T, p place) {
			put(t, filepath.Join(p.conf, "00.conf"), `{"name": "n", "type": "flannel", "delegate": {"type": "xveth"}}`, 0o644)
		},
		did: []string{"remove " + listName, "keep xveth", "remove xveth-chain"}, why: `00.conf" needs it`,
		left:  map[string]string{"bin/xveth": binary(mainPlugin, "v1"), "net.d/00.conf": `{"name": "n", "type": "flannel", "delegate": {"type": "xveth"}}`},
		again: []string{"keep xveth"},
	},
	{
		name:    "a broken list names xveth-chain",
		prepare: func(t *testing.T, p place) { put(t, filepath.Join(p.conf, "00.conf"), `{"type": "xveth-chain"`, 0o644) },
		did:     []string{"remove " + listName, "remove xveth", "keep xveth-chain"}, why: `00.conf" needs it`,
		left:  map[string]string{"bin/xveth-chain": binary(chainPlugin, "v1"), "net.d/00.conf": `{"type": "xveth-chain"`},
		again: []string{"keep xveth-chain"},
	},
	{
		name: "other files",
		prepare: func(t *testing.T, p place) {
			put(t, filepath.Join(p.conf, ptpName), ptpText, 0o644)
			put(t, filepath.Join(p.bin, "ptp"), "theirs", 0o755)
		},
		did:  []string{"remove " + listName, "remove xveth", "remove xveth-chain"},
		left: map[string]string{"bin/ptp": "theirs", "net.d/" + ptpName: ptpText},
	},
}

// TestUninstall removes what install put there and nothing else.
func TestUninstall(t *testing.T) {
	t.Parallel()
	for _, c := range uninstallCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			mustInstall(t, p.options(t, "10.8.0.0/24"))
			if c.prepare != nil {
				c.prepare(t, p)
			}
			o := p.leave()
			if c.change != nil {
				c.change(&o)
			}
			rep, err := Uninstall(o)
			if err != nil {
				t.Fatal(err)
			}
			wantDid(t, rep, c.did...)
			if !slices.ContainsFunc(rep.Steps, func(s Step) bool { return c.why == "" || strings.Contains(s.Why, c.why) }) {
				t.Errorf("no step says %q: %+v", c.why, rep.Steps)
			}
			got := p.visible(t)
			if l, ok := got["bin/"+mainPlugin]; ok && filepath.IsAbs(l) {
				got["bin/"+mainPlugin] = filepath.Base(l)
			}
			if diff := cmp.Diff(nonNil(c.left), got); diff != "" {
				t.Errorf("want - got +: %s", diff)
			}
			rep, err = Uninstall(p.leave())
			if err != nil {
				t.Fatal(err)
			}
			wantDid(t, rep, c.again...)
			if c.again == nil && len(p.content(t)) != len(c.left) {
				t.Errorf("a record is left: %v", p.content(t))
			}
		})
	}
}

func nonNil(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// TestUninstallLeavesOthers never removes what was there before install came, whether it
// is the same or not.
func TestUninstallLeavesOthers(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	o := p.options(t, "10.8.0.0/24")
	want := installed("v1", o.List, nil)
	for name := range want {
		dir, base := filepath.Split(name)
		dirs := map[string]string{"bin/": p.bin, "net.d/": p.conf}
		put(t, filepath.Join(dirs[dir], base), want[name], 0o755)
	}
	rep := mustInstall(t, o)
	wantDid(t, rep, "same xveth", "same xveth-chain", "same "+listName)
	wantDid(t, p.uninstall(t))
	if diff := cmp.Diff(want, p.content(t)); diff != "" {
		t.Errorf("want - got +: %s", diff)
	}
}

// TestUninstallWhereNothingIs finds nothing to do, and does not make the folders.
func TestUninstallWhereNothingIs(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	rep := p.uninstall(t)
	wantDid(t, rep)
	wantSays(t, warnings(rep), "no network is configured")
	if _, err := os.Stat(p.bin); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder: %v", err)
	}
}

// TestUninstallAsksLast asks which pods run when no new one can be added any more, and
// keeps the plugins when that cannot be known.
func TestUninstallAsksLast(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	mustInstall(t, p.options(t, "10.8.0.0/24"))
	o := p.leave()
	broken := errors.New("no answer")
	o.InUse = func() (string, error) {
		if _, err := os.Stat(filepath.Join(p.conf, listName)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the list is there: %v", err)
		}
		return "", broken
	}
	rep, err := Uninstall(o)
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	wantDid(t, rep, "remove "+listName)
	if diff := cmp.Diff(installed("v1", nil, nil), p.visible(t)); diff != "" {
		t.Errorf("want - got +: %s", diff)
	}
}
