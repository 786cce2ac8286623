// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/xveth/xveth/test/rig"
)

const (
	// storeDir holds the reservations of the rig's default network.
	storeDir = "/var/lib/cni/networks/rig"
	// masqTable is what nft calls the plugin's table.
	masqTable = "inet xveth"
	// ctxWait bounds the wait for the kernel to clean up a namespace.
	ctxWait = 5 * time.Second
)

// ipamConf is a host-local section with a range set for each subnet and a default route
// for each family.
func ipamConf(subnets ...string) map[string]any {
	var ranges, routes []any
	defaults := map[string]bool{}
	for _, s := range subnets {
		ranges = append(ranges, []any{map[string]any{"subnet": s}})
		dst := "0.0.0.0/0"
		if strings.Contains(s, ":") {
			dst = "::/0"
		}
		if !defaults[dst] {
			routes = append(routes, map[string]any{"dst": dst})
		}
		defaults[dst] = true
	}
	return map[string]any{"type": "host-local", "ranges": ranges, "routes": routes}
}

// ipamOf is the section of the rig's default network for some families.
func ipamOf(fams ...int) map[string]any {
	var subnets []string
	for _, fam := range fams {
		if fam == 6 {
			subnets = append(subnets, rig.PodNet6.String())
		} else {
			subnets = append(subnets, rig.PodNet4.String())
		}
	}
	return ipamConf(subnets...)
}

// runOn starts a program on a host, with something to read, and waits for its end.
func runOn(ctx context.Context, h *rig.Host, env []string, stdin []byte, name string, args ...string) (rig.Output, error) {
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &errOut
	err := h.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		err = fmt.Errorf("%s %v: %w: %s%s", filepath.Base(name), args, err, out.Bytes(), errOut.Bytes())
	}
	return rig.Output{Stdout: out.Bytes(), Stderr: errOut.Bytes()}, err
}

// callPlugin runs any plugin binary on the node, as a runtime does. What the plugin
// reports on standard output comes back as a *types.Error.
func callPlugin(t *testing.T, r *rig.Rig, bin, verb string, conf []byte, env map[string]string) (rig.Output, error) {
	t.Helper()
	vars := []string{"CNI_COMMAND=" + verb, "CNI_PATH=" + plugins + string(os.PathListSeparator) + testBin(t)}
	for k, v := range env {
		vars = append(vars, k+"="+v)
	}
	out, err := runOn(ctxOf(t), r.Node, vars, conf, bin)
	if err == nil {
		return out, nil
	}
	var said types.Error
	if json.Unmarshal(out.Stdout, &said) == nil && said.Msg != "" {
		return out, &said
	}
	return out, err
}

// podEnv is the environment of a plugin call for one interface of a container.
func podEnv(id, ifname string) map[string]string {
	return map[string]string{"CNI_CONTAINERID": id, "CNI_NETNS": "/run/netns/" + id, "CNI_IFNAME": ifname}
}

// resultOf reads a result of any version.
func resultOf(t *testing.T, stdout []byte) *current.Result {
	t.Helper()
	raw, err := create.CreateFromBytes(stdout)
	if err != nil {
		t.Fatalf("%v in %s", err, stdout)
	}
	return resultAs100(t, raw)
}

// resultAs100 brings a result into the form of the newest version.
func resultAs100(t *testing.T, r types.Result) *current.Result {
	t.Helper()
	res, err := current.NewResultFromResult(r)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// withKeys changes keys of a configuration.
func withKeys(t *testing.T, conf []byte, changes map[string]any) []byte {
	t.Helper()
	var all map[string]any
	if err := json.Unmarshal(conf, &all); err != nil {
		t.Fatal(err)
	}
	for k, v := range changes {
		all[k] = v
	}
	out, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// wantCode checks that a plugin failed with a CNI error of this code that says all of
// the fragments.
func wantCode(t *testing.T, err error, code uint, fragments ...string) {
	t.Helper()
	var said *types.Error
	if !errors.As(err, &said) {
		t.Errorf("got %v (%T), want a CNI error of code %d", err, err, code)
		return
	}
	if said.Code != code {
		t.Errorf("got code %d, want %d: %v", said.Code, code, said)
	}
	for _, f := range fragments {
		if !strings.Contains(said.Msg+"; "+said.Details, f) {
			t.Errorf("got %q, want it to say %q", said.Msg+"; "+said.Details, f)
		}
	}
}

// wantState compares the node with an earlier look at it.
func wantState(t *testing.T, r *rig.Rig, before string) {
	t.Helper()
	if after := nodeState(t, r); after != before {
		t.Errorf("the node has changed: %s", rig.StateDiff(before, after))
	}
}

// reservations lists the reserved addresses of a network.
func reservations(t *testing.T, r *rig.Rig, network string) []string {
	t.Helper()
	all, err := r.Node.Reserved(network)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// newPods makes unconnected namespaces.
func newPods(t *testing.T, r *rig.Rig, prefix string, n int) []*rig.Pod {
	t.Helper()
	all, err := r.NewPods(prefix, n)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// atOnce calls f for each pod, all at the same instant, and reports what fails.
func atOnce(t *testing.T, pods []*rig.Pod, f func(*rig.Pod) error) {
	t.Helper()
	if err := rig.AtOnce(len(pods), func(i int) error { return f(pods[i]) }); err != nil {
		t.Error(err)
	}
}

// addAll connects pods at the same instant.
func addAll(t *testing.T, r *rig.Rig, pods []*rig.Pod, changes map[string]any) {
	t.Helper()
	ctx := ctxOf(t)
	atOnce(t, pods, func(p *rig.Pod) error { return p.Add(ctx, r.Conf(changes)) })
}

// removeAll disconnects pods at the same instant and removes their namespaces.
func removeAll(t *testing.T, pods []*rig.Pod) {
	t.Helper()
	ctx := ctxOf(t)
	atOnce(t, pods, func(p *rig.Pod) error { return p.Remove(ctx) })
}

// wantDistinct checks that no two pods share an address.
func wantDistinct(t *testing.T, pods []*rig.Pod) {
	t.Helper()
	owner := map[netip.Addr]string{}
	for _, p := range pods {
		for _, a := range []netip.Addr{p.Addr4, p.Addr6} {
			if other, taken := owner[a]; taken && a.IsValid() {
				t.Errorf("%s and %s both have %s", other, p.ID, a)
			}
			owner[a] = p.ID
		}
	}
}

// canPing checks that an address answers.
func canPing(t *testing.T, from *rig.Host, to netip.Addr) {
	t.Helper()
	if _, err := from.Run(ctxOf(t), "ping", "-n", "-c1", "-W3", to.String()); err != nil {
		t.Error(err)
	}
}

// background runs a shell command on the node until the function that it returns is
// called, or the test ends. That function returns what the command printed.
func background(t *testing.T, h *rig.Host, command string) func() string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "sh", "-c", "exec 2>&1; "+command)
	cmd.Stdout = &out
	// The shell's children end with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := h.Start(cmd); err != nil {
		cancel()
		t.Fatal(err)
	}
	var once sync.Once
	stop := func() string {
		once.Do(func() {
			cancel()
			_ = cmd.Wait()
		})
		return out.String()
	}
	t.Cleanup(func() { stop() })
	return stop
}
