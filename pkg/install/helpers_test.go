// SPDX-License-Identifier: Apache-2.0

package install

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	listName = "05-xveth.conflist"
	ptpName  = "10-ptp.conflist"
)

// ptpText is somebody else's list, laid out as people do, with keys that we do not know.
const ptpText = `{
    "name": "theirs",   "cniVersion": "1.0.0",
	"x-owner": {"revision": 12345678901234567890, "e": 1.50},
    "plugins": [
        {
            "type": "ptp",
            "mtu": 1500, "é": "<&>",
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.99.0.0/24"}]]}
        },
        {"type": "portmap", "capabilities": {"portMappings": true}}
    ]
}
`

// place is a node with new binaries to be had and folders to put them in.
type place struct{ from, bin, conf string }

func newPlace(t *testing.T) place {
	t.Helper()
	p := placeIn(inMemory(t))
	p.build(t, "v1")
	return p
}

// inMemory is a folder in which it takes no time to bring a file to the disk.
func inMemory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "xveth-install-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func placeIn(dir string) place {
	return place{filepath.Join(dir, "from"), filepath.Join(dir, "bin"), filepath.Join(dir, "net.d")}
}

// build puts a version of the plugins where they are to be taken from.
func (p place) build(t *testing.T, version string) {
	t.Helper()
	for _, name := range Plugins() {
		put(t, filepath.Join(p.from, name), binary(name, version), 0o755)
	}
}

func binary(name, version string) string { return strings.Repeat(name+" "+version+"\n", 1000) }

func (p place) options(t *testing.T, subnet string) Options {
	t.Helper()
	o := Options{BinDir: p.bin, ConfDir: p.conf, From: p.from}
	if subnet != "" {
		o.List, o.File = listOf(t, subnet), listName
	}
	return o
}

func listOf(t *testing.T, subnets ...string) []byte {
	t.Helper()
	var all []netip.Prefix
	for _, s := range subnets {
		all = append(all, netip.MustParsePrefix(s))
	}
	text, err := Generate(ListOptions{Name: "pods", Subnets: all, Masquerade: true})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func mustInstall(t *testing.T, o Options) *Report {
	t.Helper()
	rep, err := Install(o)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// uninstall takes away what is on a node without pods.
func (p place) uninstall(t *testing.T) *Report {
	t.Helper()
	rep, err := Uninstall(p.leave())
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

func (p place) leave() UninstallOptions {
	return UninstallOptions{BinDir: p.bin, ConfDir: p.conf, InUse: func() (string, error) { return "", nil }}
}

func put(t *testing.T, path, text string, mode fs.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// content is what the two folders hold: the content of files, where links lead, and of
// what is neither only that it is there.
func (p place) content(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, dir := range []string{p.bin, p.conf} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			key := filepath.Base(dir) + "/" + e.Name()
			switch {
			case e.Type().IsRegular():
				all[key] = read(t, path)
			case e.Type() == fs.ModeSymlink:
				all[key], _ = os.Readlink(path)
			default:
				all[key] = e.Type().String()
			}
		}
	}
	return all
}

// visible is content without what only install looks at.
func (p place) visible(t *testing.T) map[string]string {
	t.Helper()
	all := p.content(t)
	delete(all, "bin/"+recordName)
	delete(all, "net.d/"+recordName)
	return all
}

// installed is what visible is with this version and this list, and more.
func installed(version string, list []byte, more map[string]string) map[string]string {
	all := map[string]string{}
	for _, name := range Plugins() {
		all["bin/"+name] = binary(name, version)
	}
	if list != nil {
		all["net.d/"+listName] = string(list)
	}
	for k, v := range more {
		all[k] = v
	}
	return all
}

// did lists what a report says that was done to which file.
func did(rep *Report) []string {
	var all []string
	for _, s := range rep.Steps {
		all = append(all, s.Do+" "+filepath.Base(s.What))
	}
	return all
}

func wantDid(t *testing.T, rep *Report, want ...string) {
	t.Helper()
	if got := did(rep); !slices.Equal(got, want) {
		t.Errorf("did %q, want %q", got, want)
	}
}

// wantSays checks that a text has all of the fragments.
func wantSays(t *testing.T, text string, fragments ...string) {
	t.Helper()
	for _, f := range fragments {
		if !strings.Contains(text, f) {
			t.Errorf("%q does not say %q", text, f)
		}
	}
}

func warnings(rep *Report) string { return strings.Join(rep.Warnings, "\n") }
