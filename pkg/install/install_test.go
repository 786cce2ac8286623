// SPDX-License-Identifier: Apache-2.0

package install

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// TestPlugins has the list of the plugins agree with the source tree.
func TestPlugins(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir(filepath.Join("..", "..", "plugins"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if diff := cmp.Diff(names, Plugins()); diff != "" {
		t.Errorf("plugins/ and Plugins() differ: %s", diff)
	}
}

const (
	oldSubnet = "10.7.0.0/24"
	subnet    = "10.8.0.0/24"
)

var wroteAll = []string{"write xveth", "write xveth-chain", "write " + listName}

// installCases are what can be there when install comes.
var installCases = []struct {
	name    string
	prepare func(*testing.T, place)
	change  func(*Options)
	did     []string
	warned  []string
	first   string
	more    map[string]string
}{
	{name: "fresh", did: wroteAll, first: listName},
	{
		name:    "twice",
		prepare: func(t *testing.T, p place) { mustInstall(t, p.options(t, subnet)) },
		did:     []string{"same xveth", "same xveth-chain", "same " + listName}, first: listName,
	},
	{
		name: "upgrade",
		prepare: func(t *testing.T, p place) {
			p.build(t, "v0")
			mustInstall(t, p.options(t, oldSubnet))
			p.build(t, "v1")
		},
		did: []string{"replace xveth", "replace xveth-chain", "replace " + listName}, first: listName,
	},
	{
		name: "lost its mode",
		prepare: func(t *testing.T, p place) {
			mustInstall(t, p.options(t, subnet))
			if err := os.Chmod(filepath.Join(p.bin, chainPlugin), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		did: []string{"same xveth", "replace xveth-chain", "same " + listName}, first: listName,
	},
	{
		name: "another list comes first",
		prepare: func(t *testing.T, p place) {
			put(t, filepath.Join(p.conf, "00-a.conf"), `{"name": "a", "cniVersion": "1.0.0", "type": "ptp"}`, 0o644)
		},
		did: wroteAll, first: "00-a.conf", warned: []string{"00-a.conf", "comes before"},
		more: map[string]string{"net.d/00-a.conf": `{"name": "a", "cniVersion": "1.0.0", "type": "ptp"}`},
	},
	{
		name:    "a broken list comes first",
		prepare: func(t *testing.T, p place) { put(t, filepath.Join(p.conf, "00.conflist"), `{"name": `, 0o644) },
		did:     wroteAll, first: "00.conflist", warned: []string{"cannot be read", "containerd stops there"},
		more: map[string]string{"net.d/00.conflist": `{"name": `},
	},
	{
		name:    "another list comes after",
		prepare: func(t *testing.T, p place) { put(t, filepath.Join(p.conf, ptpName), ptpText, 0o644) },
		did:     wroteAll, first: listName, more: map[string]string{"net.d/" + ptpName: ptpText},
	},
	{
		name: "a package put the plugins there",
		prepare: func(t *testing.T, p place) {
			put(t, filepath.Join(p.bin, mainPlugin), binary(mainPlugin, "v1"), 0o755)
		},
		did: []string{"same xveth", "write xveth-chain", "write " + listName}, first: listName,
	},
	{
		name: "they lie where they are taken from",
		prepare: func(t *testing.T, p place) {
			if err := os.Rename(p.from, p.bin); err != nil {
				t.Fatal(err)
			}
		},
		change: func(o *Options) { o.From = o.BinDir + "/." },
		did:    []string{"same xveth", "same xveth-chain", "write " + listName}, first: listName,
	},
	{
		name:    "another's plugin, forced",
		prepare: func(t *testing.T, p place) { put(t, filepath.Join(p.bin, mainPlugin), "theirs", 0o755) },
		change:  func(o *Options) { o.Force = true },
		did:     []string{"replace xveth", "write xveth-chain", "write " + listName}, first: listName,
	},
	{
		name:    "what a killed install left",
		prepare: func(t *testing.T, p place) { put(t, filepath.Join(p.conf, tempName), "half", 0o600) },
		did:     wroteAll, first: listName,
	},
}

func TestInstall(t *testing.T) {
	t.Parallel()
	for _, c := range installCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			if c.prepare != nil {
				c.prepare(t, p)
			}
			o := p.options(t, subnet)
			if c.change != nil {
				c.change(&o)
			}
			rep := mustInstall(t, o)
			wantDid(t, rep, c.did...)
			wantSays(t, warnings(rep), c.warned...)
			if (len(rep.Warnings) > 0) != (len(c.warned) > 0) {
				t.Errorf("warnings: %q", rep.Warnings)
			}
			if rep.First == nil || filepath.Base(rep.First.File) != c.first {
				t.Errorf("first is %+v, want %s", rep.First, c.first)
			}
			if diff := cmp.Diff(installed("v1", o.List, c.more), p.visible(t)); diff != "" {
				t.Errorf("want - got +: %s", diff)
			}
			wantModes(t, p)
		})
	}
}

func wantModes(t *testing.T, p place) {
	t.Helper()
	for path, mode := range map[string]fs.FileMode{
		filepath.Join(p.bin, mainPlugin): 0o755, filepath.Join(p.bin, chainPlugin): 0o755, filepath.Join(p.conf, listName): 0o644,
	} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s has mode %v (%v), want %v", path, info.Mode(), err, mode)
		}
	}
}

// change makes something wrong before an install.
type change func(*testing.T, place, *Options)

func withList(text string) change {
	return func(_ *testing.T, _ place, o *Options) { o.List = []byte(text) }
}

// ourList is a list with a mark where more keys can be put.
const ourList = `{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "xveth", ` +
	`"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.8.0.0/24"}]]}%}]}`

func withKeys(more string) change { return withList(strings.Replace(ourList, "%", more, 1)) }

func without(old, replacement string) change {
	return withList(strings.ReplaceAll(strings.Replace(ourList, "%", "", 1), old, replacement))
}

func withFile(name string) change { return func(_ *testing.T, _ place, o *Options) { o.File = name } }

// there puts a file into one of the folders of a place, named as content does.
func there(path, text string) change {
	return func(t *testing.T, p place, _ *Options) { put(t, filepath.Join(filepath.Dir(p.bin), path), text, 0o755) }
}

var refusals = []struct {
	name   string
	change change
	says   []string
}{
	{"another's plugin", there("bin/xveth-chain", "theirs"), []string{"bin/xveth-chain", "was not put there by install", "--force"}},
	{"another's list", there("net.d/"+listName, "theirs"), []string{listName, "was not put there by install", "--force"}},
	{"an empty plugin", there("from/xveth", ""), []string{"from/xveth", "empty"}},
	{"no plugin", func(t *testing.T, p place, _ *Options) { os.Remove(filepath.Join(p.from, "xveth")) }, []string{"from/xveth", "no such file"}},
	{"a plugin that is no program", func(t *testing.T, p place, _ *Options) { os.Chmod(filepath.Join(p.from, "xveth"), 0o644) }, []string{"from/xveth", "cannot be executed"}},
	{"no plugins where they are to be", func(t *testing.T, p place, o *Options) { o.From = "" }, []string{"bin/xveth", "no such file"}},
	{"one folder for both", func(_ *testing.T, p place, o *Options) { o.BinDir = p.conf + "/../net.d" }, []string{"two folders"}},
	{"a file for a folder", func(t *testing.T, p place, o *Options) { put(t, p.conf, "", 0o644) }, []string{"not a directory"}},
	{"a folder in the way", func(t *testing.T, p place, o *Options) { os.MkdirAll(filepath.Join(p.conf, listName), 0o755) }, []string{"neither a file nor a link"}},
	{"a pipe in the way", func(t *testing.T, p place, o *Options) {
		os.MkdirAll(p.conf, 0o755)
		if err := unix.Mkfifo(filepath.Join(p.conf, listName), 0o644); err != nil {
			t.Fatal(err)
		}
	}, []string{"neither a file nor a link"}},
	{"a link in the way", func(t *testing.T, p place, o *Options) {
		put(t, filepath.Join(p.from, "real"), "theirs", 0o755)
		link(t, filepath.Join(p.from, "real"), filepath.Join(p.bin, "xveth"))
	}, []string{"bin/xveth", "was not put there by install"}},
	{"a link to nothing in the way", func(t *testing.T, p place, o *Options) {
		link(t, filepath.Join(p.from, "nothing"), filepath.Join(p.conf, listName))
	}, []string{listName, "was not put there by install"}},
	{"file name upwards", withFile("../05-xveth.conflist"), []string{"file name", `"../05-xveth.conflist"`}},
	{"file name with a folder", withFile("a/05-xveth.conflist"), []string{"file name"}},
	{"file name that no runtime reads", withFile("05-xveth.txt"), []string{"file name", ".conflist"}},
	{"file name of a single plugin", withFile("05-xveth.conf"), []string{"file name", ".conflist"}},
	{"file name without a name", withFile(".conflist"), []string{"file name"}},
	{"empty file name", withFile(""), []string{"file name"}},
	{"file name with a line break", withFile("a\n.conflist"), []string{"file name", `a\n.conflist`}},
	{"file name that ends a terminal", withFile("\x1b[2J.conflist"), []string{"file name", `\x1b`}},
	{"file name with a zero", withFile("a\x00.conflist"), []string{"file name", `\x00`}},
	{"file name that is too long", withFile(strings.Repeat("a", maxFileName) + listExt), []string{"file name"}},
	{"unknown key", withKeys(`, "mut": 9`), []string{"plugins[0]", `"mut"`, "unknown key", `did you mean "mtu"`}},
	{"value out of range", withKeys(`, "mtu": 70000`), []string{"plugins[0]", `"mtu"`, "70000"}},
	{"key twice", withKeys(`, "mtu": 1500, "mtu": 1400`), []string{"plugins[0]", `"mtu" twice`}},
	{"wrong address range", without("10.8.0.0/24", "10.8.0.0/33"), []string{"plugins[0]", "10.8.0.0/33"}},
	{"no version", without(`"cniVersion": "1.1.0", `, ""), []string{`"cniVersion"`}},
	{"version of the future", without("1.1.0", "9.9.9"), []string{`"cniVersion"`, "9.9.9"}},
	{"no name", without(`"name": "pods", `, ""), []string{"no name"}},
	{"no plugins", withList(`{"cniVersion": "1.1.0", "name": "pods"}`), []string{`"plugins"`, "xveth"}},
	{"none of ours", withList(ptpText), []string{`"plugins"`, "xveth"}},
	{"chain with an old version", withList(`{"cniVersion": "0.2.0", "name": "pods", "plugins": [{"type": "ptp"}, {"type": "xveth-chain"}]}`), []string{"plugins[1]", `"cniVersion"`, "0.2.0"}},
	{"chain with an unknown key", withList(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp"}, {"type": "xveth-chain", "requird": true}]}`), []string{"plugins[1]", `"requird"`, `"required"`}},
	{"half a list", withList(`{"cniVersion": "1.1.0", "name": "pods", "plugins": [`), []string{"network list"}},
	{"text behind the list", without("]}", "]}}"), []string{"network list"}},
	{"a list too large", withKeys(strings.Repeat(" ", maxList)), []string{"bytes, want at most"}},
	{"addresses that another gives out", there("net.d/"+ptpName, strings.ReplaceAll(ptpText, "10.99.0.0/24", "10.8.0.0/16")), []string{`"theirs"`, ptpName, "same name"}},
	{"a record that cannot be read", there("net.d/"+recordName, "{"), []string{recordName, "by hand"}},
	{"a record that leads elsewhere", there("net.d/"+recordName, `{"files": {"../../etc/passwd": ["x"]}}`), []string{recordName, "../../etc/passwd"}},
	{"a record of chains that leads elsewhere", there("bin/"+recordName, `{"chained": [".."]}`), []string{recordName, `".."`}},
}

// TestInstallRefuses has everything that is wrong found before anything is changed.
func TestInstallRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range refusals {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			o := p.options(t, "10.8.0.0/24")
			c.change(t, p, &o)
			info, _ := os.Stat(p.conf)
			isFile := info != nil && !info.IsDir()
			var before map[string]string
			if !isFile {
				before = p.content(t)
			}
			rep, err := Install(o)
			if err == nil {
				t.Fatalf("did %q", did(rep))
			}
			wantSays(t, err.Error(), c.says...)
			if strings.ContainsAny(err.Error(), "\x00\x1b\n") {
				t.Errorf("%q is not fit for a terminal", err)
			}
			if isFile {
				return
			}
			if diff := cmp.Diff(before, p.content(t)); diff != "" {
				t.Errorf("before - after +: %s", diff)
			}
		})
	}
}

func link(t *testing.T, to, at string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(to, at); err != nil {
		t.Fatal(err)
	}
}

// TestDryRun says what the real run then does, and does nothing: it does not even make
// the folders or remove what was left.
func TestDryRun(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	o := p.options(t, "10.8.0.0/24")
	for _, first := range []bool{true, false} {
		if !first {
			p.build(t, "v2")
			o.List = listOf(t, "10.8.0.0/24", "fd00:8::/64")
			put(t, filepath.Join(p.bin, tempName), "half", 0o600)
		}
		before := p.content(t)
		o.DryRun = true
		said := mustInstall(t, o)
		if diff := cmp.Diff(before, p.content(t)); diff != "" {
			t.Errorf("before - after +: %s", diff)
		}
		if _, err := os.Stat(p.bin); first && err == nil {
			t.Error("the folder was made")
		}
		o.DryRun = false
		done := mustInstall(t, o)
		said.DryRun = false
		if diff := cmp.Diff(said, done, cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".apply" || p.Last().String() == ".text" }, cmp.Ignore())); diff != "" {
			t.Errorf("said - done +: %s", diff)
		}
	}
	leave := p.leave()
	leave.DryRun = true
	before := p.content(t)
	said, err := Uninstall(leave)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, p.content(t)); diff != "" {
		t.Errorf("before - after +: %s", diff)
	}
	done := p.uninstall(t)
	wantDid(t, done, did(said)...)
	wantDid(t, done, "remove "+listName, "remove xveth", "remove xveth-chain")
}

// TestUpgradeOfRunningPlugin replaces a program that runs: it runs on, and the next call
// gets the new one.
func TestUpgradeOfRunningPlugin(t *testing.T) {
	t.Parallel()
	p := placeIn(t.TempDir()) // programs may not run in memory's
	p.build(t, "v1")
	mustInstall(t, p.options(t, ""))
	plugin := filepath.Join(p.bin, mainPlugin)
	sh := read(t, "/bin/sh")
	put(t, filepath.Join(p.from, mainPlugin), sh, 0o755)
	mustInstall(t, p.options(t, ""))
	running := startShell(t, plugin)
	p.build(t, "v2")
	mustInstall(t, p.options(t, ""))
	running("echo alive", "alive\n")
	if got := read(t, plugin); got != binary(mainPlugin, "v2") {
		t.Errorf("got %.20q", got)
	}
}
