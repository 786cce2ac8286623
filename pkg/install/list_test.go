// SPDX-License-Identifier: Apache-2.0

package install

import (
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"

	"github.com/xveth/xveth/pkg/ipam"
	"github.com/xveth/xveth/pkg/netconf"
)

// TestGenerate has the parsers of runtime and plugin read what was asked for.
func TestGenerate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		subnets []string
		routes  int
	}{
		{"IPv4", []string{"10.8.0.0/24"}, 1},
		{"IPv6", []string{"fd00:8::/64"}, 1},
		{"both", []string{"10.8.0.0/24", "fd00:8::/64"}, 2},
		{"several of one family", []string{"10.8.0.0/24", "fd00:8::/64", "10.9.0.0/24"}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			text := listOf(t, c.subnets...)
			if err := checkList(text); err != nil {
				t.Fatal(err)
			}
			list, err := libcni.NetworkConfFromBytes(text)
			if err != nil {
				t.Fatal(err)
			}
			if list.CNIVersion != "1.1.0" {
				t.Errorf("libcni takes version %s", list.CNIVersion)
			}
			p, err := libcni.InjectConf(list.Plugins[0], map[string]any{"name": list.Name, "cniVersion": list.CNIVersion})
			if err != nil {
				t.Fatal(err)
			}
			conf, err := netconf.Parse(p.Bytes, "")
			if err != nil {
				t.Fatal(err)
			}
			if conf.Name != "pods" || conf.Type != mainPlugin || !conf.IPMasq {
				t.Errorf("got %+v", conf)
			}
			got, err := ipam.Subnets(conf)
			if err != nil {
				t.Fatal(err)
			}
			want := map[netip.Prefix]bool{}
			for _, s := range c.subnets {
				want[netip.MustParsePrefix(s)] = true
			}
			for _, s := range got {
				delete(want, s)
			}
			if len(want) > 0 || len(got) != len(c.subnets) {
				t.Errorf("got subnets %v for %v", got, c.subnets)
			}
		})
	}
}

// TestRanges tells networks that share addresses from those that only look like it.
func TestRanges(t *testing.T) {
	t.Parallel()
	const head = `{"cniVersion": "1.0.0", "name": "`
	one := func(name, section string) []byte {
		return []byte(head + name + `", "plugins": [{"type": "ptp", "ipam": {"type": "host-local", ` + section + `}}]}`)
	}
	const whole = `"ranges": [[{"subnet": "10.8.0.0/24"}], [{"subnet": "fd00:8::/64"}]]`
	for _, c := range []struct {
		name    string
		a, b    []byte
		collide bool
	}{
		{"the same addresses", one("a", whole), one("b", whole), true},
		{"of one name", one("a", whole), one("a", whole), false},
		{"of one name, kept elsewhere", one("a", whole), one("a", `"dataDir": "/var/lib/b", `+whole), true},
		{"kept in the default place", one("a", whole), one("a", `"dataDir": "/var/lib/cni/networks/", `+whole), false},
		{"a part of them", one("a", whole), one("b", `"subnet": "10.8.0.128/25"`), true},
		{"the other family", one("a", whole), one("b", `"subnet": "fd00::/16"`), true},
		{"others", one("a", whole), one("b", `"subnet": "10.9.0.0/24"`), false},
		{"the rest", one("a", `"subnet": "10.8.0.0/24", "rangeEnd": "10.8.0.99"`), one("b", `"subnet": "10.8.0.0/24", "rangeStart": "10.8.0.100"`), false},
		{"the rest and one more", one("a", `"subnet": "10.8.0.0/24", "rangeEnd": "10.8.0.100"`), one("b", `"subnet": "10.8.0.0/24", "rangeStart": "10.8.0.100"`), true},
		{"another manager", one("a", whole), []byte(head + `b", "plugins": [{"type": "ptp", "ipam": {"type": "static", ` + whole + `}}]}`), false},
		{"nonsense", one("a", whole), one("b", `"ranges": [[null, {"subnet": "x"}], null]`), false},
		{"unreadable", one("a", whole), one("b", whole)[:60], false},
	} {
		all := []Network{readNetwork("/x/a.conflist", c.a, nil), readNetwork("/x/b.conflist", c.b, nil)}
		if err := checkRanges(all, "a.conflist"); (err != nil) != c.collide {
			t.Errorf("%s: got %v", c.name, err)
		}
		if err := checkRanges(all, "b.conflist"); (err != nil) != c.collide {
			t.Errorf("%s, the other way: got %v", c.name, err)
		}
	}
}

// TestNetworks lists what runtimes look at, in their order.
func TestNetworks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	single := `{"name": "single", "cniVersion": "1.0.0", "type": "bridge"}`
	for name, text := range map[string]string{
		"20.conf": single, "10.json": single, "10-b.conflist": ptpText, "Z.conflist": ptpText, "gone.conflist": ptpText,
		"05.conflist.bak": "x", "README": "x", tempName: "x", recordName: "x", "00.conflist.d/00.conf": "x",
		"30.conflist": `{"name": "empty", "cniVersion": "1.0.0", "plugins": []}`,
	} {
		put(t, filepath.Join(dir, name), text, 0o644)
	}
	link(t, "nowhere", filepath.Join(dir, "40.conflist"))
	all, err := networks(dir, changes{"new.conflist": []byte(ptpText), "gone.conflist": nil})
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		File, Name string
		Plugins    []string
		Broken     bool
	}
	theirs := []string{"ptp", "portmap"}
	want := []row{
		{"10-b.conflist", "theirs", theirs, false},
		{"10.json", "single", []string{"bridge"}, false},
		{"20.conf", "single", []string{"bridge"}, false},
		{"30.conflist", "", []string{}, true},
		{"40.conflist", "", []string{}, true},
		{"Z.conflist", "theirs", theirs, false},
		{"new.conflist", "theirs", theirs, false},
	}
	var got []row
	for _, n := range all {
		got = append(got, row{filepath.Base(n.File), n.Name, n.Plugins, n.Error != ""})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want - got +: %s", diff)
	}
}
