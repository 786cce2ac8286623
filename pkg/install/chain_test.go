// SPDX-License-Identifier: Apache-2.0

package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// TestInsertAndCut changes no byte but those of the entry, however the list is laid out.
func TestInsertAndCut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, text, want string }{
		{
			"indented", "{\n  \"name\": \"n\",\n  \"plugins\": [\n    {\n      \"type\": \"ptp\"\n    }\n  ]\n}\n",
			"{\n  \"name\": \"n\",\n  \"plugins\": [\n    {\n      \"type\": \"ptp\"\n    },\n    {\"type\": \"xveth-chain\"}\n  ]\n}\n",
		},
		{"compact", `{"plugins":[{"type":"ptp"}],"name":"n"}`, `{"plugins":[{"type":"ptp"},{"type":"xveth-chain"}],"name":"n"}`},
		{"one line", `{ "plugins": [ {"type": "ptp"}, {"type": "a"} ] }`, `{ "plugins": [ {"type": "ptp"}, {"type": "a"}, {"type": "xveth-chain"} ] }`},
		{
			"tabs and returns", "{\r\n\t\"plugins\" : [\r\n\t\t{\"type\":\"ptp\"}\r\n\t]\r\n}",
			"{\r\n\t\"plugins\" : [\r\n\t\t{\"type\":\"ptp\"},\r\n\t\t{\"type\": \"xveth-chain\"}\r\n\t]\r\n}",
		},
		{
			"brackets in strings", `{"x": "]}\"plugins\":[", "plugins": [{"type": "a", "y": "},{]\\\""}], "z": [[]]}`,
			`{"x": "]}\"plugins\":[", "plugins": [{"type": "a", "y": "},{]\\\""},{"type":"xveth-chain"}], "z": [[]]}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := insert([]byte(c.text), chainPlugin)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, string(got)); diff != "" {
				t.Errorf("want - got +: %s", diff)
			}
			back, err := cut(got, chainPlugin)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.text, string(back)); diff != "" {
				t.Errorf("want - got +: %s", diff)
			}
		})
	}
}

// TestCut takes the entry out wherever it stands now, and refuses what it cannot.
func TestCut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want, says string }{
		{text: `{"plugins": [{"type": "ptp"}, {"required": true, "type": "xveth-chain"}, {"type": "a"}]}`, want: `{"plugins": [{"type": "ptp"}, {"type": "a"}]}`},
		{text: `{"plugins": [ {"type": "xveth-chain"}, {"type": "a"}]}`, want: `{"plugins": [ {"type": "a"}]}`},
		{text: `{"plugins": [{"type": "ptp"}]}`, says: "none"},
		{text: `{"plugins": [{"type": "xveth-chain"}]}`, says: "only plugin"},
		{text: `{"plugins": [{"type": "a"}, {"type": "xveth-chain"}, {"type": "xveth-chain"}]}`, says: "several"},
		{text: `{"type": "xveth-chain"}`, says: "not a network list"},
		{text: `[]`, says: "not a network list"},
		{text: `{"plugins": {}}`, says: "not a network list"},
		{text: `{"plugins": [1]}`, says: "cannot unmarshal"},
		{text: `{"plugins": [`, says: "not JSON"},
		{text: ``, says: "not JSON"},
	} {
		got, err := cut([]byte(c.text), chainPlugin)
		if c.says == "" && err == nil {
			if diff := cmp.Diff(c.want, string(got)); diff != "" {
				t.Errorf("%s: want - got +: %s", c.text, diff)
			}
			continue
		}
		if err == nil || c.says == "" || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %q, %v, want an error that says %q", c.text, got, err, c.says)
		}
	}
}

// FuzzInsertAndCut has any list that libcni can read come back byte for byte, and xveth-chain
// be its last plugin in between.
func FuzzInsertAndCut(f *testing.F) {
	f.Add([]byte(ptpText))
	f.Add([]byte(`{"name":"n","plugins":[{"type":"a"}]}`))
	f.Add([]byte("{\"name\":\"n\",\"plugins\":\n[\t{\"type\":\"a\",\"b\":[{}]} ,{\"type\":\"c\"}\n]}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		old, err := libcni.NetworkConfFromBytes(text)
		if err != nil {
			return
		}
		for _, p := range old.Plugins {
			if p.Network.Type == chainPlugin {
				return
			}
		}
		with, err := insert(text, chainPlugin)
		if err != nil {
			return // it has no plugins, or twice
		}
		list, err := libcni.NetworkConfFromBytes(with)
		if err != nil || len(list.Plugins) != len(old.Plugins)+1 || list.Plugins[len(old.Plugins)].Network.Type != chainPlugin {
			t.Fatalf("%s became %s: %v", text, with, err)
		}
		back, err := cut(with, chainPlugin)
		if err != nil || string(back) != string(text) {
			t.Fatalf("%s came back as %s: %v", text, back, err)
		}
	})
}

func (p place) chainOptions() Options {
	return Options{BinDir: p.bin, ConfDir: p.conf, From: p.from, Chain: ptpName}
}

// TestChain appends xveth-chain to somebody else's list and takes it out again: the file
// is then as it was, with its mode and owner.
func TestChain(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	path := filepath.Join(p.conf, ptpName)
	put(t, path, ptpText, 0o600)
	const owner = 4242
	isRoot := os.Geteuid() == 0
	if isRoot {
		if err := os.Chown(path, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	put(t, filepath.Join(p.bin, "ptp"), "theirs", 0o755)
	rep := mustInstall(t, p.chainOptions())
	wantDid(t, rep, "write xveth", "write xveth-chain", "chain "+ptpName)
	wantSays(t, warnings(rep), `"portmap", which is not in`)
	wantSays(t, read(t, path), "{\"type\": \"portmap\", \"capabilities\": {\"portMappings\": true}},\n        {\"type\": \"xveth-chain\"}\n    ]")
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Mode&0o777 != 0o600 || isRoot && (st.Uid != owner || st.Gid != owner) {
		t.Errorf("mode %o, owner %d, %d, %v", st.Mode, st.Uid, st.Gid, err)
	}
	wantDid(t, mustInstall(t, p.chainOptions()), "same xveth", "same xveth-chain", "same "+ptpName)

	rep = p.uninstall(t)
	wantDid(t, rep, "unchain "+ptpName, "remove xveth", "remove xveth-chain")
	if diff := cmp.Diff(map[string]string{"net.d/" + ptpName: ptpText, "bin/ptp": "theirs"}, p.content(t)); diff != "" {
		t.Errorf("want - got +: %s", diff)
	}
}

// TestChainByHand leaves alone what somebody else appended.
func TestChainByHand(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	byHand := strings.Replace(ptpText, `{"type": "portmap"`, `{"type": "xveth-chain"}, {"type": "portmap"`, 1)
	put(t, filepath.Join(p.conf, ptpName), byHand, 0o644)
	wantDid(t, mustInstall(t, p.chainOptions()), "write xveth", "write xveth-chain", "same "+ptpName)
	wantDid(t, p.uninstall(t), "remove xveth", "keep xveth-chain")
	if got := read(t, filepath.Join(p.conf, ptpName)); got != byHand {
		t.Errorf("the list became %s", got)
	}
}

// TestChainChangedSince takes xveth-chain out of what the list has become.
func TestChainChangedSince(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(string) string
		did    []string
		want   string
	}{
		{"a key more", func(s string) string {
			return strings.Replace(s, `"xveth-chain"}`, `"xveth-chain", "required": true}`, 1)
		}, []string{"unchain " + ptpName, "remove xveth", "remove xveth-chain"}, ptpText},
		{"written anew", func(string) string { return ptpText }, []string{"same " + ptpName, "remove xveth", "remove xveth-chain"}, ptpText},
		{"broken", func(s string) string { return s[:len(s)-3] }, []string{"keep " + ptpName, "remove xveth", "keep xveth-chain"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			path := filepath.Join(p.conf, ptpName)
			put(t, path, ptpText, 0o644)
			mustInstall(t, p.chainOptions())
			changed := c.change(read(t, path))
			put(t, path, changed, 0o644)
			wantDid(t, p.uninstall(t), c.did...)
			if c.want == "" {
				c.want = changed
			}
			if diff := cmp.Diff(c.want, read(t, path)); diff != "" {
				t.Errorf("want - got +: %s", diff)
			}
		})
	}
}

// TestChainGone forgets a list that its owner has removed.
func TestChainGone(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	put(t, filepath.Join(p.conf, ptpName), ptpText, 0o644)
	mustInstall(t, p.chainOptions())
	os.Remove(filepath.Join(p.conf, ptpName))
	wantDid(t, p.uninstall(t), "same "+ptpName, "remove xveth", "remove xveth-chain")
	if got := p.content(t); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

// TestChainLink changes the file that a link leads to, where that is, and leaves the link.
func TestChainLink(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	elsewhere := filepath.Join(filepath.Dir(p.conf), "elsewhere")
	target, at := filepath.Join(elsewhere, "theirs"), filepath.Join(p.conf, ptpName)
	put(t, target, ptpText, 0o644)
	put(t, filepath.Join(elsewhere, tempName), "half", 0o600)
	link(t, target, at)
	wantDid(t, mustInstall(t, p.chainOptions()), "write xveth", "write xveth-chain", "chain "+ptpName)
	wantSays(t, read(t, target), chainPlugin)
	wantDid(t, p.uninstall(t), "unchain "+ptpName, "remove xveth", "remove xveth-chain")
	if to, err := os.Readlink(at); to != target {
		t.Errorf("the link leads to %q, %v", to, err)
	}
	entries, err := os.ReadDir(elsewhere)
	if err != nil || len(entries) != 1 || read(t, target) != ptpText {
		t.Errorf("elsewhere: %v, %v", entries, err)
	}
}

// TestChainRefuses finds what cannot be chained before anything is changed.
func TestChainRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, file, text, says string }{
		{"no such list", ptpName, "", "no such file"},
		{"a single plugin", "10-ptp.conf", `{"name": "n", "cniVersion": "1.0.0", "type": "ptp"}`, "not a network list"},
		{"a single plugin under a list's name", ptpName, `{"name": "n", "cniVersion": "1.0.0", "type": "ptp"}`, "0 keys"},
		{"xveth itself", ptpName, string(listOf(t, "10.8.0.0/24")), "needs no"},
		{"broken", ptpName, ptpText[:20], "read "},
		{"no plugins", ptpName, `{"name": "n", "cniVersion": "1.0.0", "plugins": []}`, "no plugins"},
		{"plugins elsewhere", ptpName, `{"name": "n", "cniVersion": "1.0.0"}`, "0 keys"},
		{"an old version", ptpName, strings.Replace(ptpText, "1.0.0", "0.2.0", 1), `"cniVersion"`},
		{"plugins twice", ptpName, strings.Replace(ptpText, `"x-owner"`, `"plugins": [{"type": "a"}], "x-owner"`, 1), "2 keys"},
		{"a path", "../net.d/" + ptpName, ptpText, "not a network list"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			if c.text != "" {
				put(t, filepath.Join(p.conf, c.file), c.text, 0o644)
			}
			o := p.chainOptions()
			o.Chain = c.file
			before := p.content(t)
			_, err := Install(o)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want an error that says %q", err, c.says)
			}
			if diff := cmp.Diff(before, p.content(t)); diff != "" {
				t.Errorf("before - after +: %s", diff)
			}
		})
	}
}
