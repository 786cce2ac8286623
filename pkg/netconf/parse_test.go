// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const fullConf = `{
  "cniVersion": %q, "name": "pods.net_1-a", "type": "xveth",
  "args": {"cni": {"ips": ["192.0.2.9"]}, "MTU": null},
  "capabilities": {"ips": true, "mac": true, "bandwidth": true, "portMappings": false},
  "mtu": 9000, "localMTU": 32768, "ipMasq": true,
  "uplinks": ["eth0", {"name": "bond0.7", "mode": "tcx"}, {"name": "123456789012345"}],
  "fastPath": {"mode": "xdp", "revalidate": "250ms", "maxFlows": 1048576, "excludeMark": "0x80000001"},
  "logLevel": "debug", "logFile": "/var/log/xveth.log",
  "ipam": {"type": "host-local", "Type": "kept", "ranges": [[{"subnet": "192.0.2.0/24"}]]},
  "dns": {"nameservers": ["192.0.2.53", "fe80::1%%eth0"], "domain": "a.example", "search": ["b.example"], "options": ["ndots:5"]},
  "runtimeConfig": {
    "ips": ["192.0.2.5/24", "2001:db8::5"], "mac": "02-00-5e-00-00-01", "fastPath": "off",
    "bandwidth": {"ingressRate": 1000000, "ingressBurst": 80000, "egressRate": 0, "egressBurst": 0},
    "portMappings": [{"hostPort": 80}], "dns": {"Servers": null}
  },
  "prevResult": {
    "cniVersion": %[1]q, "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/a"}],
    "ips": [{"version": "4", "interface": 0, "address": "192.0.2.5/24", "gateway": "192.0.2.1"}],
    "routes": [{"dst": "0.0.0.0/0", "gw": "192.0.2.1"}], "dns": {}
  },
  "cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}, {"containerID": "c2", "ifname": "net1"}],
  "cni.dev/attachments": [{"containerID": "other", "ifname": "eth0"}]
}`

// minimal is the shortest valid configuration, with one more key.
func minimal(extra string) string {
	text := `{"cniVersion":"1.1.0","name":"net1","type":"xveth","ipam":{"type":"host-local"}`
	if extra != "" {
		text += "," + extra
	}
	return text + "}"
}

func mustParse(t *testing.T, text, args string) *Conf {
	t.Helper()
	conf, err := Parse([]byte(text), args)
	if err != nil {
		t.Fatalf("parse %.300s: %v", text, err)
	}
	return conf
}

func diff(want, got *Conf) string {
	return cmp.Diff(want, got,
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
		cmpopts.IgnoreFields(Conf{}, "Raw"))
}

func TestParseFull(t *testing.T) {
	t.Parallel()
	for _, v := range Versions() {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			text := fmt.Sprintf(fullConf, v)
			got := mustParse(t, text, "IgnoreUnknown=1;K8S_POD_NAME=p")
			if string(got.Raw) != text {
				t.Errorf("raw text differs from what was read")
			}
			if got.PrevResult == nil || got.PrevResult.Version() != v {
				t.Errorf("got previous result %v, want one of version %s", got.PrevResult, v)
			}
			want := &Conf{
				CNIVersion: v, Name: "pods.net_1-a", Type: "xveth",
				MTU: 9000, LocalMTU: LocalMTU{Bytes: 32768}, IPMasq: true,
				Uplinks:  []Uplink{{Name: "eth0"}, {Name: "bond0.7", Mode: ModeTCX}, {Name: "123456789012345"}},
				FastPath: FastPath{Mode: ModeXDP, Revalidate: 250 * time.Millisecond, MaxFlows: 1 << 20, ExcludeMark: 0x80000001},
				DNS: types.DNS{
					Nameservers: []string{"192.0.2.53", "fe80::1%eth0"}, Domain: "a.example",
					Search: []string{"b.example"}, Options: []string{"ndots:5"},
				},
				IPAMType: "host-local", LogLevel: slog.LevelDebug, LogFile: "/var/log/xveth.log",
				Runtime: Runtime{
					IPs:         []netip.Prefix{netip.MustParsePrefix("192.0.2.5/24"), netip.MustParsePrefix("2001:db8::5/128")},
					MAC:         net.HardwareAddr{2, 0, 0x5e, 0, 0, 1},
					Bandwidth:   &Bandwidth{IngressRate: 1000000, IngressBurst: 80000},
					FastPathOff: true,
				},
				PrevResult:       got.PrevResult,
				ValidAttachments: []types.GCAttachment{{ContainerID: "c1", IfName: "eth0"}, {ContainerID: "c2", IfName: "net1"}},
			}
			if d := diff(want, got); d != "" {
				t.Errorf("configuration (-want +got):\n%s", d)
			}
		})
	}
}

func base() *Conf {
	return &Conf{
		CNIVersion: "1.1.0", Name: "net1", Type: "xveth", IPAMType: "host-local", LogLevel: slog.LevelInfo,
		FastPath: FastPath{Mode: ModeAuto, Revalidate: time.Second, MaxFlows: 65536},
	}
}

func TestParseValues(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, extra string
		change      func(*Conf)
	}{
		{"defaults", ``, func(*Conf) {}},
		{"mtu of the uplink", `"mtu":0`, func(*Conf) {}},
		{"mtu least", `"mtu":68`, func(c *Conf) { c.MTU = 68 }},
		{"mtu most", `"mtu":65535`, func(c *Conf) { c.MTU = 65535 }},
		{"localMTU auto", `"localMTU":"auto"`, func(*Conf) {}},
		{"localMTU off", `"localMTU":"off"`, func(c *Conf) { c.LocalMTU.Off = true }},
		{"localMTU least", `"localMTU":1280`, func(c *Conf) { c.LocalMTU.Bytes = 1280 }},
		{"localMTU most", `"localMTU":65535`, func(c *Conf) { c.LocalMTU.Bytes = 65535 }},
		{"no uplinks", `"uplinks":[]`, func(*Conf) {}},
		{"empty fastPath", `"fastPath":{}`, func(*Conf) {}},
		{"fastPath off", `"fastPath":{"mode":"off"}`, func(c *Conf) { c.FastPath.Mode = ModeOff }},
		{"revalidate least", `"fastPath":{"revalidate":"10ms"}`, func(c *Conf) { c.FastPath.Revalidate = 10 * time.Millisecond }},
		{"revalidate most", `"fastPath":{"revalidate":"1m0s"}`, func(c *Conf) { c.FastPath.Revalidate = time.Minute }},
		{"maxFlows least", `"fastPath":{"maxFlows":1024}`, func(c *Conf) { c.FastPath.MaxFlows = 1024 }},
		{"maxFlows most", `"fastPath":{"maxFlows":16777216}`, func(c *Conf) { c.FastPath.MaxFlows = 16777216 }},
		{"excludeMark number", `"fastPath":{"excludeMark":4294967295}`, func(c *Conf) { c.FastPath.ExcludeMark = math.MaxUint32 }},
		{"excludeMark text", `"fastPath":{"excludeMark":"0xFFFFFFFF"}`, func(c *Conf) { c.FastPath.ExcludeMark = math.MaxUint32 }},
		{"logLevel", `"logLevel":"error"`, func(c *Conf) { c.LogLevel = slog.LevelError }},
		{"logFile empty", `"logFile":""`, func(*Conf) {}},
		{"nulls of the runtime", `"args":null,"capabilities":null,"runtimeConfig":null,"prevResult":null,"dns":null`, func(*Conf) {}},
		{"nulls of Go slices", `"dns":{"nameservers":null},"runtimeConfig":{"ips":null,"mac":null,"bandwidth":null,"fastPath":null}`, func(*Conf) {}},
		{"key with an escape", `"\u006dtu":1500`, func(c *Conf) { c.MTU = 1500 }},
		{"fastPath on", `"runtimeConfig":{"fastPath":"on"}`, func(*Conf) {}},
		{"foreign capabilities", `"runtimeConfig":{"ipRanges":[[{"Subnet":"x"}]],"IPS":1,"":null}`, func(*Conf) {}},
		{
			"B031 mac", `"runtimeConfig":{"mac":"c2:11:22:33:44:55"}`,
			func(c *Conf) { c.Runtime.MAC = net.HardwareAddr{0xc2, 0x11, 0x22, 0x33, 0x44, 0x55} },
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			want := base()
			tc.change(want)
			if d := diff(want, mustParse(t, minimal(tc.extra), "")); d != "" {
				t.Errorf("configuration (-want +got):\n%s", d)
			}
		})
	}
}

// TestBandwidth is row B030 of the list of known bugs.
func TestBandwidth(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, value string
		want        *Bandwidth
	}{
		{"nothing", `{"ingressRate":0,"ingressBurst":0}`, nil},
		{
			"as containerd writes it", `{"IngressRate":10000000,"IngressBurst":4294967295,"EgressRate":0,"EgressBurst":0}`,
			&Bandwidth{IngressRate: 10000000, IngressBurst: 4294967295},
		},
		{"rate without burst", `{"egressRate":1000000000}`, &Bandwidth{EgressRate: 1000000000, EgressBurst: 4000000}},
		{"rate with burst 0", `{"ingressRate":1000000,"ingressBurst":0}`, &Bandwidth{IngressRate: 1000000, IngressBurst: burstFloor}},
		{
			"huge", `{"ingressRate":18446744073709551615,"ingressBurst":34359738359}`,
			&Bandwidth{IngressRate: math.MaxUint64, IngressBurst: 34359738359},
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := mustParse(t, minimal(`"runtimeConfig":{"bandwidth":`+tc.value+`}`), "").Runtime.Bandwidth
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("bandwidth (-want +got):\n%s", d)
			}
		})
	}
}

func TestCNIArgs(t *testing.T) {
	t.Parallel()
	const runtimeConfig = `"runtimeConfig":{"ips":["192.0.2.7"],"mac":"02:00:00:00:00:07","fastPath":"on"}`
	ip := func(s string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(s)} }
	mac := func(b byte) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, b} }
	tests := []struct {
		name, extra, args string
		want              Runtime
	}{
		{"none", ``, ``, Runtime{}},
		{"address", ``, `IP=192.0.2.5`, Runtime{IPs: ip("192.0.2.5/32")}},
		{"address with length", ``, `IP=2001:db8::5/64`, Runtime{IPs: ip("2001:db8::5/64")}},
		{"all ours", ``, `FAST_PATH=off;MAC=02:00:00:00:00:05;IP=192.0.2.5/24`, Runtime{IPs: ip("192.0.2.5/24"), MAC: mac(5), FastPathOff: true}},
		{"kubelet", ``, `K8S_POD_UID=u;IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;K8S_POD_INFRA_CONTAINER_ID=c`, Runtime{}},
		{"kubelet without IgnoreUnknown", ``, `K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p`, Runtime{}},
		{"unknown before IgnoreUnknown", ``, `FOO=a=b;FOO=c;IgnoreUnknown=true`, Runtime{}},
		{"runtimeConfig wins", runtimeConfig, `FAST_PATH=off;MAC=02:00:00:00:00:05;IP=192.0.2.5`, Runtime{IPs: ip("192.0.2.7/32"), MAC: mac(7)}},
		{"empty list asks for nothing", `"runtimeConfig":{"ips":[]}`, `IP=192.0.2.5`, Runtime{IPs: ip("192.0.2.5/32")}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			want := base()
			want.Runtime = tc.want
			if d := diff(want, mustParse(t, minimal(tc.extra), tc.args)); d != "" {
				t.Errorf("configuration (-want +got):\n%s", d)
			}
		})
	}
}

// TestPrevResultVersions is row B023 of the list of known bugs.
func TestPrevResultVersions(t *testing.T) {
	t.Parallel()
	const result = `"interfaces":[{"name":"eth0","mtu":1500,"socketPath":"/run/s"}],` +
		`"ips":[{"version":"4","address":"192.0.2.5/24"}],"routes":[{"dst":"0.0.0.0/0","table":7,"mtu":1400}]`
	for _, confV := range Versions() {
		for _, resultV := range append(Versions(), "") {
			t.Run(confV+" with "+resultV, func(t *testing.T) {
				t.Parallel()
				text := strings.Replace(minimal(`"prevResult":{"cniVersion":"`+resultV+`",`+result+`}`), "1.1.0", confV, 1)
				conf := mustParse(t, text, "")
				wantV := resultV
				if wantV == "" {
					wantV = confV
				}
				if got := conf.PrevResult.Version(); got != wantV {
					t.Errorf("got version %s, want %s", got, wantV)
				}
				r, err := types100.NewResultFromResult(conf.PrevResult)
				if err != nil {
					t.Fatal(err)
				}
				if len(r.Interfaces) != 1 || len(r.IPs) != 1 || len(r.Routes) != 1 {
					t.Errorf("got %+v, want one interface, one address and one route", r)
				}
				if _, err := conf.PrevResult.GetAsVersion(confV); err != nil {
					t.Errorf("convert to the version of the configuration: %v", err)
				}
			})
		}
	}
}

// TestValidAttachments is rows B011 and B013 of the list of known bugs.
func TestValidAttachments(t *testing.T) {
	t.Parallel()
	const one, two = `[{"containerID":"c1","ifname":"eth0"}]`, `[{"containerID":"c2","ifname":"eth0","new":1}]`
	att := func(id string) []types.GCAttachment { return []types.GCAttachment{{ContainerID: id, IfName: "eth0"}} }
	tests := []struct {
		name, extra string
		want        []types.GCAttachment
	}{
		{"no key", ``, nil},
		{"null", `"cni.dev/valid-attachments":null`, nil},
		{"both null", `"cni.dev/valid-attachments":null,"cni.dev/attachments":null`, nil},
		{"empty", `"cni.dev/valid-attachments":[]`, []types.GCAttachment{}},
		{"empty, old key", `"cni.dev/attachments":[]`, []types.GCAttachment{}},
		{"new key", `"cni.dev/valid-attachments":` + one, att("c1")},
		{"old key", `"cni.dev/attachments":` + two, att("c2")},
		{"both", `"cni.dev/attachments":` + two + `,"cni.dev/valid-attachments":` + one, att("c1")},
		{"new key null", `"cni.dev/valid-attachments":null,"cni.dev/attachments":` + two, att("c2")},
		{"new key empty", `"cni.dev/valid-attachments":[],"cni.dev/attachments":` + two, []types.GCAttachment{}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := mustParse(t, minimal(tc.extra), "").ValidAttachments
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("attachments (-want +got):\n%s", d)
			}
		})
	}
}

func TestDefaultBurst(t *testing.T) {
	t.Parallel()
	tests := []struct{ rate, want uint64 }{
		{8, 2048},
		{1000, 256000},
		{1e6, burstFloor},
		{1e9, 4e6},
		{1e11, 4e8},
		{math.MaxUint64, maxBurst},
	}
	for _, tc := range tests {
		got := defaultBurst(tc.rate)
		if got != tc.want {
			t.Errorf("rate %d: got %d, want %d", tc.rate, got, tc.want)
		}
		// What tc puts into 32 bits: the time that the burst lasts, in ticks.
		if ticks := float64(got) / float64(tc.rate) / 64e-9; ticks > math.MaxUint32 {
			t.Errorf("rate %d: burst %d lasts %g ticks, more than 32 bits hold", tc.rate, got, ticks)
		}
	}
}

func TestNearest(t *testing.T) {
	t.Parallel()
	tests := []struct {
		key, path, want string
		alike           bool
	}{
		{"MTU", "", "mtu", true},
		{"ipmask", "", "ipMasq", true},
		{"uplink", "", "uplinks", true},
		{"revalidate", "", "fastPath.revalidate", true},
		{"fastPaht", "", "fastPath", true},
		{"maxflow", "fastPath", "fastPath.maxFlows", true},
		{"ipam", "fastPath", "ipam", true},
	}
	siblings := map[string][]string{"": fieldKeys(topFields()), "fastPath": fieldKeys(fastPathFields())}
	for _, tc := range tests {
		got, alike := nearest(tc.key, tc.path, siblings[tc.path])
		if got != tc.want || alike != tc.alike {
			t.Errorf("%q in %q: got %q, %v, want %q, %v", tc.key, tc.path, got, alike, tc.want, tc.alike)
		}
	}
	if _, alike := nearest("xyzzyplugh", "", siblings[""]); alike {
		t.Error("got a close match for a word that resembles none")
	}
}

// TestKeys compares the keys that are documented with those that are read: a runtime's own
// are on the page alone.
func TestKeys(t *testing.T) {
	t.Parallel()
	var documented, known []string
	for _, k := range Keys() {
		documented = append(documented, k.Path)
	}
	for _, k := range knownKeys() {
		if !strings.HasPrefix(k, "runtimeConfig") && k != "prevResult" && k != attachments && k != attachmentsOld {
			known = append(known, k)
		}
	}
	slices.Sort(documented)
	slices.Sort(known)
	if !slices.Equal(documented, known) {
		t.Errorf("documented are %q, read are %q", documented, known)
	}
}

// TestDocumented keeps the page in step with the code.
func TestDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(page)
	for _, key := range knownKeys() {
		if !strings.Contains(text, "\n| `"+key+"` |") {
			t.Errorf("docs/configuration.md has no row for `%s`", key)
		}
	}
	for _, key := range argKeys() {
		if !strings.Contains(text, "| `"+key+"` |") {
			t.Errorf("docs/configuration.md has no row for CNI argument `%s`", key)
		}
	}
	for i, block := range strings.Split(text, "```json\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		checkExample(t, i, block)
	}
}

// checkExample parses the plugins of a network list as libcni hands them on.
func checkExample(t *testing.T, i int, text string) {
	t.Helper()
	var list struct {
		CNIVersion, Name string
		Plugins          []map[string]any
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Errorf("example %d: %v", i, err)
		return
	}
	if len(list.Plugins) == 0 {
		t.Errorf("example %d has no plugin", i)
	}
	for _, plugin := range list.Plugins {
		if plugin["type"] != "xveth" {
			continue
		}
		plugin["cniVersion"], plugin["name"] = list.CNIVersion, list.Name
		one, err := json.Marshal(plugin)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(one, ""); err != nil {
			t.Errorf("example %d: %v", i, err)
		}
	}
}

// printAll converts and prints a result in every version.
func printAll(t *testing.T, r types.Result) {
	t.Helper()
	for _, v := range Versions() {
		as, err := r.GetAsVersion(v)
		if err != nil {
			t.Fatalf("convert previous result to %s: %v", v, err)
		}
		if err := as.PrintTo(io.Discard); err != nil {
			t.Fatalf("print previous result as %s: %v", v, err)
		}
	}
}
