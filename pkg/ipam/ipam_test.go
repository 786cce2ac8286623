// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"

	"github.com/xveth/xveth/pkg/netconf"
)

// fixture is a network called pods with a store of its own.
type fixture struct {
	*testing.T
	dataDir string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return &fixture{t, filepath.Join(t.TempDir(), "networks")}
}

// conf makes a configuration from the members of the ipam section and of the
// top level.
func (f *fixture) conf(ipam string, top ...string) *netconf.Conf {
	raw := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"pods","type":"xveth","ipam":{"type":"host-local","dataDir":%q,%s}%s}`,
		f.dataDir, ipam, strings.Join(append([]string{""}, top...), ","))
	return &netconf.Conf{CNIVersion: "1.1.0", Name: "pods", IPAMType: "host-local", Raw: []byte(raw)}
}

func args(id, ifname string) *skel.CmdArgs {
	return &skel.CmdArgs{ContainerID: id, IfName: ifname, Netns: "/run/netns/is-not-read"}
}

func (f *fixture) add(c *netconf.Conf, id, ifname string) *current.Result {
	f.Helper()
	r, err := Add(f.Context(), c, args(id, ifname))
	if err != nil {
		f.Fatalf("Add %s %s: %v", id, ifname, err)
	}
	return r
}

func (f *fixture) del(c *netconf.Conf, id, ifname string) {
	f.Helper()
	if err := Del(f.Context(), c, args(id, ifname)); err != nil {
		f.Fatalf("Del %s %s: %v", id, ifname, err)
	}
}

// store returns the store's files, all but the lock, with their contents.
func (f *fixture) store() map[string]string {
	f.Helper()
	m := map[string]string{}
	err := filepath.WalkDir(f.dataDir, func(path string, d os.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) || err == nil && (d.IsDir() || d.Name() == "lock") {
			return nil
		}
		data, err := os.ReadFile(path)
		rel, _ := filepath.Rel(f.dataDir, path)
		m[rel] = string(data)
		return err
	})
	if err != nil {
		f.Fatal(err)
	}
	return m
}

func (f *fixture) write(rel, content string) {
	f.Helper()
	path := filepath.Join(f.dataDir, rel)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		f.Fatal(err)
	}
}

// taken lists the reserved addresses.
func (f *fixture) taken() []string {
	f.Helper()
	var out []string
	for rel := range f.store() {
		if _, err := netip.ParseAddr(filepath.Base(rel)); err == nil {
			out = append(out, filepath.Base(rel))
		}
	}
	slices.Sort(out)
	return out
}

func (f *fixture) wantTaken(want ...string) {
	f.Helper()
	if got := f.taken(); !slices.Equal(got, want) {
		f.Errorf("reserved addresses are %v, want %v", got, want)
	}
}

func wantCode(t *testing.T, err error, code uint, text string) {
	t.Helper()
	ce, ok := err.(*types.Error) //nolint:errorlint // skel asserts the type in the same way
	if !ok || ce.Code != code || !strings.Contains(err.Error(), text) {
		t.Errorf("error %#v, want code %d with %q", err, code, text)
	}
}

func addrs(r *current.Result) []string {
	var out []string
	for _, i := range r.IPs {
		out = append(out, i.Address.String()+" via "+i.Gateway.String())
	}
	return out
}

const one = `"subnet":"10.1.0.0/24"`

func TestAddResult(t *testing.T) {
	t.Parallel()
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	err := os.WriteFile(resolv, []byte("# x\nnameserver 192.0.2.53\n search a.example b.example\noptions ndots:2\ndomain c.example\n;\nbad\n"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t)
	c := f.conf(fmt.Sprintf(`"resolvConf":%q,"routes":[{"dst":"0.0.0.0/0"},{"dst":"fd00:9::/64","gw":"fd00:1::9","mtu":1400}],
		"ranges":[[{"subnet":"10.1.0.0/30"},{"subnet":"10.2.0.0/24","rangeStart":"10.2.0.7","gateway":"10.2.0.254"}],[{"subnet":"fd00:1::/64"}]]`, resolv))
	for i, want := range [][]string{
		{"10.1.0.2/30 via 10.1.0.1", "fd00:1::2/64 via fd00:1::1"},
		{"10.2.0.7/24 via 10.2.0.254", "fd00:1::3/64 via fd00:1::1"},
	} {
		r := f.add(c, fmt.Sprintf("c%d", i), "eth0")
		if !slices.Equal(addrs(r), want) {
			t.Errorf("addresses %v, want %v", addrs(r), want)
		}
		if len(r.Routes) != 2 || r.Routes[1].MTU != 1400 || r.Routes[1].GW.String() != "fd00:1::9" || r.Routes[0].GW != nil {
			t.Errorf("routes %v", r.Routes)
		}
		dns := types.DNS{
			Nameservers: []string{"192.0.2.53"}, Domain: "c.example",
			Search: []string{"a.example", "b.example"}, Options: []string{"ndots:2"},
		}
		if !reflect.DeepEqual(r.DNS, dns) {
			t.Errorf("dns %+v", r.DNS)
		}
	}
	want := map[string]string{
		"pods/10.1.0.2": "c0\r\neth0", "pods/10.2.0.7": "c1\r\neth0", "pods/fd00:1::2": "c0\r\neth0", "pods/fd00:1::3": "c1\r\neth0",
		"pods/last_reserved_ip.0": "10.2.0.7", "pods/last_reserved_ip.1": "fd00:1::3",
	}
	if got := f.store(); !reflect.DeepEqual(got, want) {
		t.Errorf("store %q, want %q", got, want)
	}
}

// A machine can move from the reference plugins to xveth and back.
func TestReferenceStore(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.conf(one)
	ref, err := disk.New("pods", f.dataDir)
	if err != nil {
		t.Fatal(err)
	}
	defer ref.Close()
	if ok, err := ref.Reserve("theirs", "eth0", []byte{10, 1, 0, 2}, "0"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if got := addrs(f.add(c, "ours", "eth0")); got[0] != "10.1.0.3/24 via 10.1.0.1" {
		t.Errorf("address %v", got)
	}
	if err := Check(t.Context(), c, args("theirs", "eth0")); err != nil {
		t.Error(err)
	}
	if !ref.FindByID("ours", "eth0") {
		t.Error("the reference does not find our reservation")
	}
	f.del(c, "theirs", "eth0")
	f.wantTaken("10.1.0.3")
	if err := ref.ReleaseByID("ours", "eth0"); err != nil {
		t.Fatal(err)
	}
	f.wantTaken()
}

func TestRequestedAddresses(t *testing.T) {
	t.Parallel()
	ranges := `"ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]]`
	for _, tc := range []struct {
		name, envArgs, top string
		want               []string
		code               uint
		text               string
	}{
		{"args", "IgnoreUnknown=1;IP=10.1.0.9", "", []string{"10.1.0.9", "fd00:1::2"}, 0, ""},
		{"args with xveth's own", "IP=10.1.0.9;FAST_PATH=off", "", []string{"10.1.0.9", "fd00:1::2"}, 0, ""},
		{"args empty", "IP=", "", []string{"10.1.0.2", "fd00:1::2"}, 0, ""},
		{"capability", "", `"runtimeConfig":{"ips":["fd00:1::9/64","10.1.0.8"]}`, []string{"10.1.0.8", "fd00:1::9"}, 0, ""},
		{"cni args", "", `"args":{"cni":{"ips":["fd00:1::9"]}}`, []string{"10.1.0.2", "fd00:1::9"}, 0, ""},
		{"the same twice", "IP=10.1.0.9", `"runtimeConfig":{"ips":["10.1.0.9/24"]}`, []string{"10.1.0.9", "fd00:1::2"}, 0, ""},
		{"range by capability", "", `"runtimeConfig":{"ipRanges":[[{"subnet":"10.7.0.0/24"}]]}`, []string{"10.1.0.2", "10.7.0.2", "fd00:1::2"}, 0, ""},
		{"outside", "IP=10.9.0.9", "", nil, types.ErrInvalidNetworkConfig, "10.9.0.9"},
		{"gateway", "IP=10.1.0.1", "", nil, types.ErrInvalidNetworkConfig, "gateway"},
		{"two of one range", "", `"runtimeConfig":{"ips":["10.1.0.8","10.1.0.9"]}`, nil, types.ErrInvalidNetworkConfig, "10.1.0.8 and 10.1.0.9"},
		{"no address", "IP=ten", "", nil, types.ErrInvalidEnvironmentVariables, "ten"},
		{"null", "", `"runtimeConfig":{"ips":[null]}`, nil, types.ErrInvalidNetworkConfig, "null"},
		{"null in args", "", `"args":{"cni":{"ips":["10.1.0.9",null]}}`, nil, types.ErrInvalidNetworkConfig, "null"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			var top []string
			if tc.top != "" {
				top = append(top, tc.top)
			}
			a := args("c", "eth0")
			a.Args = tc.envArgs
			_, err := Add(t.Context(), f.conf(ranges, top...), a)
			if tc.code != 0 {
				wantCode(t, err, tc.code, tc.text)
				if _, err := os.Stat(f.dataDir); err == nil {
					t.Error("a bad request made the store")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			f.wantTaken(tc.want...)
		})
	}
}

func TestRequestedAddressTaken(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.conf(`"ranges":[[{"subnet":"fd00:1::/64"}],[{"subnet":"10.1.0.0/24"}]]`)
	f.add(c, "a", "eth0")
	b := args("b", "eth0")
	b.Args = "IP=10.1.0.2"
	_, err := Add(t.Context(), c, b)
	wantCode(t, err, types.ErrTryAgainLater, "10.1.0.2")
	f.wantTaken("10.1.0.2", "fd00:1::2")
}

func TestAddReleasesWhenSecondRangeIsFull(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.conf(`"ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"10.2.0.0/30"}]]`)
	f.add(c, "a", "eth0")
	f.write("pods/10.200.0.1", "b\r\neth0") // left from another configuration
	_, err := Add(t.Context(), c, args("b", "eth0"))
	wantCode(t, err, types.ErrTryAgainLater, "range set 1")
	f.wantTaken("10.1.0.2", "10.2.0.2", "10.200.0.1")
	f.del(c, "b", "eth0")
	f.wantTaken("10.1.0.2", "10.2.0.2")
}

// The reference reserves the address and fails when it cannot note it as the
// last one.
func TestAddReleasesWhenStoreFails(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.conf(`"ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"10.2.0.0/24"}]]`)
	f.write("pods/last_reserved_ip.1/in-the-way", "")
	_, err := Add(t.Context(), c, args("a", "eth0"))
	wantCode(t, err, types.ErrIOFailure, "last_reserved_ip.1")
	f.wantTaken()
}

func TestRepeatedAdd(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.conf(one)
	f.add(c, "a", "eth0")
	for _, envArgs := range []string{"", "IP=10.1.0.2", "IP=10.1.0.77"} {
		a := args("a", "eth0")
		a.Args = envArgs
		_, err := Add(t.Context(), c, a)
		wantCode(t, err, types.ErrInternal, `10.1.0.2 is already reserved for container "a" interface "eth0"`)
	}
	f.wantTaken("10.1.0.2")
}

func TestConcurrentAddAndDel(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.conf(`"ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]]`)
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[string]bool{}
	same := 0
	for i := range 50 {
		wg.Go(func() {
			id := fmt.Sprintf("c%d", i)
			r, err := Add(t.Context(), c, args(id, "eth0"))
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			for _, s := range addrs(r) {
				if seen[s] {
					t.Errorf("%s given twice", s)
				}
				seen[s] = true
			}
			mu.Unlock()
			if i%2 == 0 {
				f.del(c, id, "eth0")
			}
		})
		if i%5 == 0 { // ten Adds of one attachment: one wins
			wg.Go(func() {
				if _, err := Add(t.Context(), c, args("same", "eth0")); err == nil {
					mu.Lock()
					same++
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	if got := len(f.taken()); same != 1 || got != 2*26 {
		t.Errorf("%d Adds of one attachment succeeded, want 1; %d addresses reserved, want 52", same, got)
	}
}

func TestAddGivesUpOnLock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.conf(one)
	ref, err := disk.New("pods", f.dataDir)
	if err != nil {
		t.Fatal(err)
	}
	defer ref.Close()
	if err := ref.Lock(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = Add(ctx, c, args("a", "eth0"))
	wantCode(t, err, types.ErrTryAgainLater, "lock address store")
	f.wantTaken()
	if err := ref.Unlock(); err != nil {
		t.Fatal(err)
	}
	f.add(c, "a", "eth0")
}

// B001, B005: the namespace is gone, also after a reboot; DEL gives the address
// back all the same, as often as it is called.
func TestDelWithoutNetnsB001B005(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.conf(one)
	for i := range 20 {
		f.add(c, fmt.Sprintf("c%d", i), "eth0")
	}
	for range 2 {
		for i := range 20 {
			a := &skel.CmdArgs{ContainerID: fmt.Sprintf("c%d", i), IfName: "eth0"}
			if err := Del(t.Context(), c, a); err != nil {
				t.Error(err)
			}
		}
	}
	f.wantTaken()
}

func TestDelWithoutStore(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.del(f.conf(one), "a", "eth0")
	if err := GC(t.Context(), f.conf(one), args("", ""), []types.GCAttachment{}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(f.dataDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the store was made: %v", err)
	}
}

// DEL works although the ranges became wrong or only ADD was told them.
func TestDelWithBrokenRanges(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.add(f.conf(one), "a", "eth0")
	f.add(f.conf(one), "b", "eth0")
	f.del(f.conf(`"subnet":"10.1.0.0/33"`), "a", "eth0")
	f.del(f.conf(`"ranges":[]`), "b", "eth0")
	f.wantTaken()
}

// B040: two interfaces of one container do not share a reservation.
func TestTwoInterfacesB040(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.conf(one)
	f.add(c, "a", "eth0")
	f.add(c, "a", "net1")
	f.del(c, "a", "net1")
	f.del(c, "a", "net1")
	f.wantTaken("10.1.0.2")
	if err := Check(t.Context(), c, args("a", "net1")); err == nil || !strings.Contains(err.Error(), `"net1"`) {
		t.Errorf("Check of the interface without a reservation: %v", err)
	}
	f.add(c, "a", "net1")
	f.del(c, "a", "eth0")
	f.wantTaken("10.1.0.4")
}

func TestOldReservations(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.conf(one)
	f.write("pods/10.1.0.2", "a\n")
	f.write("pods/10.1.0.3", "b")
	if err := Check(t.Context(), c, args("a", "eth0")); err != nil {
		t.Error(err)
	}
	if _, err := Add(t.Context(), c, args("a", "eth0")); err == nil {
		t.Error("a second address for an old reservation")
	}
	if err := GC(t.Context(), c, args("", ""), []types.GCAttachment{{ContainerID: "a", IfName: "eth0"}}); err != nil {
		t.Error(err)
	}
	f.wantTaken("10.1.0.2")
	f.del(c, "a", "eth0")
	f.wantTaken()
}

// Files that only look like reservations by their content, and the stores of
// networks below this one's, stay.
func TestOtherFilesStay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.conf(one)
	f.write("pods/last_reserved_ip.0", "10.1.0.1")
	f.write("pods/below/10.1.0.2", "10.1.0.1\r\neth0")
	f.write("pods/notes", "10.1.0.1\r\neth0")
	f.write("other/10.1.0.2", "10.1.0.1\r\neth0")
	want := f.store()
	f.del(c, "10.1.0.1", "eth0")
	if err := GC(t.Context(), c, args("", ""), []types.GCAttachment{}); err != nil {
		t.Error(err)
	}
	if err := Check(t.Context(), c, args("10.1.0.1", "eth0")); err == nil {
		t.Error("Check took last_reserved_ip.0 for a reservation")
	}
	if got := f.store(); !reflect.DeepEqual(got, want) {
		t.Errorf("store %q, want %q", got, want)
	}
}

func TestGC(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.conf(`"ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]]`)
	f.add(c, "a", "eth0")
	f.add(c, "a", "net1")
	f.add(c, "b", "eth0")
	f.write("pods/10.1.0.99", "") // power was lost before the owner was written
	gc := func(valid []types.GCAttachment) {
		t.Helper()
		if err := GC(t.Context(), c, args("", ""), valid); err != nil {
			t.Error(err)
		}
	}
	gc(nil)
	if n := len(f.taken()); n != 7 {
		t.Errorf("GC without a list left %d reservations of 7", n)
	}
	gc([]types.GCAttachment{{ContainerID: "a", IfName: "net1"}, {ContainerID: "b", IfName: "other"}})
	f.wantTaken("10.1.0.3", "fd00:1::3")
	gc([]types.GCAttachment{})
	f.wantTaken()
	if got := f.store()["pods/last_reserved_ip.0"]; got != "10.1.0.4" {
		t.Errorf("last_reserved_ip.0 is %q", got)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.conf(`"ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]]`)
	if err := Check(t.Context(), c, args("a", "eth0")); err == nil || !strings.Contains(err.Error(), `container "a"`) {
		t.Errorf("Check without a store: %v", err)
	}
	r := f.add(c, "a", "eth0")
	if err := Check(t.Context(), c, args("a", "eth0")); err != nil {
		t.Error(err)
	}
	zero, one := 0, 1
	r.Interfaces = []*current.Interface{{Name: "eth0", Sandbox: "x"}, {Name: "net9", Sandbox: "x"}}
	for _, i := range r.IPs {
		i.Interface = &zero
	}
	other := *r.IPs[0]
	other.Interface = &one
	other.Address.IP = []byte{10, 1, 0, 200}
	foreign := *r.IPs[0]
	foreign.Address.IP = []byte{192, 0, 2, 1}
	r.IPs = append(r.IPs, &other, &foreign)
	c.PrevResult = r
	if err := Check(t.Context(), c, args("a", "eth0")); err != nil {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(f.dataDir, "pods", "fd00:1::2")); err != nil {
		t.Fatal(err)
	}
	if err := Check(t.Context(), c, args("a", "eth0")); err == nil || !strings.Contains(err.Error(), "fd00:1::2") {
		t.Errorf("Check does not name fd00:1::2: %v", err)
	}
}

// B014: a full range makes STATUS fail, and STATUS changes nothing.
func TestStatusB014(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.conf(`"ranges":[[{"subnet":"fd00:1::/64"}],[{"subnet":"10.1.0.0/30"},{"subnet":"10.2.0.0/29","rangeStart":"10.2.0.4","rangeEnd":"10.2.0.5","gateway":"10.2.0.5"}]]`)
	status := func() error { return Status(t.Context(), c, args("", "")) }
	if err := status(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(f.dataDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Status made the store: %v", err)
	}
	f.add(c, "a", "eth0")
	if err := status(); err != nil {
		t.Error(err)
	}
	f.add(c, "b", "eth0")
	before := f.store()
	wantCode(t, status(), types.ErrPluginNotAvailable, "range set 1")
	_, err := Add(t.Context(), c, args("c", "eth0"))
	wantCode(t, err, types.ErrTryAgainLater, "range set 1") // they agree
	if after := f.store(); !reflect.DeepEqual(filterTaken(after), filterTaken(before)) {
		t.Errorf("store %q, was %q", after, before)
	}
	f.del(c, "a", "eth0")
	if err := status(); err != nil {
		t.Error(err)
	}
}

func filterTaken(m map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range m {
		if !strings.Contains(k, "last_reserved_ip") {
			out[k] = v
		}
	}
	return out
}

func TestStoreUnusable(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if err := os.WriteFile(f.dataDir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := f.conf(one)
	wantCode(t, Status(t.Context(), c, args("", "")), types.ErrPluginNotAvailable, "not a directory")
	_, err := Add(t.Context(), c, args("a", "eth0"))
	wantCode(t, err, types.ErrIOFailure, "open address store")
	_, err = Add(t.Context(), f.conf(one+`,"resolvConf":"/does/not/exist"`), args("a", "eth0"))
	wantCode(t, err, types.ErrIOFailure, "read resolvConf")
}

func TestSubnets(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.conf(`"ranges":[[{"subnet":"10.1.0.0/24","rangeEnd":"10.1.0.9"},{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.20"},{"subnet":"10.2.0.0/24"}],[{"subnet":"fd00:1::/64"}]]`)
	got, err := Subnets(c)
	want := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("10.2.0.0/24"), netip.MustParsePrefix("fd00:1::/64")}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("Subnets() = %v, %v", got, err)
	}
	if got, err := Subnets(&netconf.Conf{Name: "pods", IPAMType: "dhcp"}); got != nil || err != nil {
		t.Errorf("Subnets() of a delegated type = %v, %v", got, err)
	}
}

func TestInvalidConfiguration(t *testing.T) {
	t.Parallel()
	for name, ipam := range map[string]string{
		"no ranges":          `"ranges":[]`,
		"nothing":            `"routes":[]`,
		"empty range set":    `"ranges":[[]]`,
		"null range set":     `"ranges":[null]`,
		"empty range":        `"ranges":[[{}]]`,
		"null range":         `"ranges":[[null]]`,
		"not an address":     `"subnet":"ten"`,
		"a number":           `"subnet":10`,
		"prefix too long":    `"subnet":"10.1.0.0/33"`,
		"too small":          `"subnet":"10.1.0.0/31"`,
		"host bits":          `"subnet":"10.1.0.1/24"`,
		"mapped":             `"subnet":"::ffff:10.1.0.0/120"`,
		"gateway outside":    `"subnet":"10.1.0.0/24","gateway":"10.2.0.1"`,
		"gateway family":     `"subnet":"10.1.0.0/24","gateway":"fd00::1"`,
		"start outside":      `"subnet":"10.1.0.0/24","rangeStart":"10.2.0.1"`,
		"end before start":   `"subnet":"10.1.0.0/24","rangeStart":"10.1.0.9","rangeEnd":"10.1.0.8"`,
		"mixed families":     `"ranges":[[{"subnet":"10.1.0.0/24"},{"subnet":"fd00::/64"}]]`,
		"overlap in a set":   `"ranges":[[{"subnet":"10.1.0.0/24"},{"subnet":"10.1.0.0/16"}]]`,
		"overlap of sets":    `"ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"10.1.0.0/24"}]]`,
		"route is null":      `"subnet":"10.1.0.0/24","routes":[null]`,
		"route is nonsense":  `"subnet":"10.1.0.0/24","routes":[{"dst":"x"}]`,
		"data dir is a list": `"subnet":"10.1.0.0/24","dataDir":[]`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.conf(ipam)
			_, err := Add(t.Context(), c, args("a", "eth0"))
			wantCode(t, err, types.ErrInvalidNetworkConfig, "")
			wantCode(t, Status(t.Context(), c, args("", "")), types.ErrInvalidNetworkConfig, "")
			wantCode(t, Check(t.Context(), c, args("a", "eth0")), types.ErrInvalidNetworkConfig, "")
			_, err = Subnets(c)
			wantCode(t, err, types.ErrInvalidNetworkConfig, "")
			if _, err := os.Stat(f.dataDir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the store was made: %v", err)
			}
		})
	}
	for _, name := range []string{"", ".", "..", "../other", "a/b", "/etc"} {
		f := newFixture(t)
		c := f.conf(one)
		c.Name = name
		_, err := Add(t.Context(), c, args("a", "eth0"))
		wantCode(t, err, types.ErrInvalidNetworkConfig, "")
		wantCode(t, Del(t.Context(), c, args("a", "eth0")), types.ErrInvalidNetworkConfig, "")
		wantCode(t, GC(t.Context(), c, args("", ""), []types.GCAttachment{}), types.ErrInvalidNetworkConfig, "")
	}
}
