// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/google/go-cmp/cmp"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/pkg/install"
	"github.com/xveth/xveth/test/rig"
)

const (
	ptpFile   = "10-ptp.conflist"
	xvethFile = "05-xveth.conflist"
)

// runtimeNode is a node whose runtime, cnitool, looks for plugins and networks in two
// folders. It begins with the reference ptp plugin.
type runtimeNode struct {
	*rig.Rig
	bin, conf string
	// kept has the networks as a runtime keeps them with the pods that it added.
	kept string
}

func newRuntimeNode(t *testing.T) *runtimeNode {
	t.Helper()
	n := &runtimeNode{Rig: newRig(t, nil), bin: t.TempDir(), conf: t.TempDir(), kept: t.TempDir()}
	for _, name := range []string{"ptp", "host-local"} {
		if err := os.Symlink(filepath.Join(testBin(t), name), filepath.Join(n.bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	var plugin map[string]any
	if err := json.Unmarshal(ptpConf(n.Rig), &plugin); err != nil {
		t.Fatal(err)
	}
	delete(plugin, "name")
	delete(plugin, "cniVersion")
	text, err := json.MarshalIndent(map[string]any{
		"cniVersion": "1.0.0", "name": "rig", "x-owner": "somebody else", "plugins": []any{plugin},
	}, "", "    ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.conf, ptpFile), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return n
}

// ctl runs xvethctl install or uninstall.
func (n *runtimeNode) ctl(t *testing.T, args ...string) install.Report {
	t.Helper()
	return ctlJSON[install.Report](t, n.Rig, 0, append(args, "--bin-dir", n.bin, "--conf-dir", n.conf)...)
}

// tool runs cnitool with the networks of a folder.
func (n *runtimeNode) tool(t *testing.T, conf, verb, id string) rig.Output {
	t.Helper()
	env := []string{"NETCONFPATH=" + conf, "CNI_PATH=" + n.bin}
	out, err := runOn(ctxOf(t), n.Node, env, nil, filepath.Join(testBin(t), "cnitool"), verb, "rig", "/run/netns/"+id)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// add connects pods by the network that the runtime takes now.
func (n *runtimeNode) add(t *testing.T, ids ...string) []*rig.Pod {
	t.Helper()
	var all []*rig.Pod
	for _, id := range ids {
		p, err := n.NewNetns(id)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Destroy)
		p.Result = resultOf(t, n.tool(t, n.conf, "add", id).Stdout)
		p.HostDev = p.Result.Interfaces[0].Name
		p.TakeAddrs()
		all = append(all, p)
	}
	addrsUsable(t, n.Node)
	return all
}

// del disconnects a pod, by the networks of now or by those that were kept with it.
func (n *runtimeNode) del(t *testing.T, conf string, p *rig.Pod) {
	t.Helper()
	n.tool(t, conf, "del", p.ID)
	n.tool(t, conf, "del", p.ID)
	p.Destroy()
}

// keep copies a network to where DEL finds it when it is gone from its place.
func (n *runtimeNode) keep(t *testing.T, file string) {
	t.Helper()
	if err := os.RemoveAll(n.kept); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(n.kept, 0o755); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(n.conf, file))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.kept, file), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// files lists what the two folders hold, with the content of networks.
func (n *runtimeNode) files(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, dir := range []string{n.bin, n.conf} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			text := ""
			if dir == n.conf {
				content, err := os.ReadFile(filepath.Join(dir, e.Name()))
				if err != nil {
					t.Fatal(err)
				}
				text = string(content)
			}
			all[e.Name()] = text
		}
	}
	return all
}

// wantFast has a connection from the remote host to a pod take the fast path, and returns
// it.
func (n *runtimeNode) wantFast(t *testing.T, p *rig.Pod) net.Conn {
	t.Helper()
	at := netip.AddrPortFrom(p.Addr4, 80)
	echo(t, p.Host, "tcp", at)
	conn := dial(t, n.Ext, "tcp", at)
	warm(t, n.Rig, conn)
	return conn
}

// steady uses a connection until it is stopped, and wants every message answered. The
// function that it returns waits for some more messages first.
func steady(t *testing.T, what string, conn net.Conn) (stop func()) {
	t.Helper()
	var count atomic.Int64
	var stopped atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for !stopped.Load() {
			if _, err := rig.RoundTrip(conn, []byte("0123456789abcdef"), 10*time.Second); err != nil {
				t.Errorf("%s: %v", what, err)
				return
			}
			count.Add(1)
			time.Sleep(time.Millisecond) // a user, not a load
		}
	}()
	return func() {
		t.Helper()
		until := count.Load() + 20
		eventually(t, 20*time.Second, what+" goes on", func() bool { return count.Load() >= until || t.Failed() })
		stopped.Store(true)
		<-ended
	}
}

// converse has the remote host and one pod use another pod, over both families.
func converse(t *testing.T, n *runtimeNode, a, b *rig.Pod) (stop func()) {
	t.Helper()
	at4, at6 := netip.AddrPortFrom(a.Addr4, 7), netip.AddrPortFrom(a.Addr6, 7)
	echo(t, a.Host, "tcp", at4)
	echo(t, a.Host, "tcp", at6)
	stops := []func(){
		steady(t, "remote host to "+a.ID, dial(t, n.Ext, "tcp", at4)),
		steady(t, b.ID+" to "+a.ID, dial(t, b.Host, "tcp", at6)),
	}
	return func() {
		t.Helper()
		for _, s := range stops {
			s()
		}
	}
}

// wantSteps compares what was done to which file.
func wantSteps(t *testing.T, rep install.Report, want ...string) {
	t.Helper()
	var got []string
	for _, s := range rep.Steps {
		got = append(got, s.Do+" "+filepath.Base(s.What))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want - got +: %s", diff)
	}
}

// wantUnarmed finds no program of ours on the node any more.
func wantUnarmed(t *testing.T, r *rig.Rig) {
	t.Helper()
	err := r.Node.Do(func() error {
		links, err := netlinksafe.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			h, err := datapath.HooksOf(l)
			if err != nil {
				return err
			}
			if datapath.IsOurs(h.XDP) || slices.ContainsFunc(append(h.Ingress, h.Egress...), datapath.IsOurs) {
				t.Errorf("%s has %+v", l.Attrs().Name, h)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(r.Node.Path(datapath.DefaultDir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the pins: %v", err)
	}
}

// TestInstallMovesNode moves a node with running ptp pods to xveth and back. Connections
// of old pods go on, new pods get the fast path, no address is given twice, and every
// pod can be deleted after each move, by the network of now (containerd) and by that of
// its ADD (CRI-O). Nothing is left: no program, no rule, no file (B099), and what others
// attached stays (B094).
func TestInstallMovesNode(t *testing.T) {
	t.Parallel()
	n := newRuntimeNode(t)
	attachOther(t, n.Rig, rig.Uplink, ebpf.AttachTCXIngress)
	before, files := nodeState(t, n.Rig), n.files(t)
	old := n.add(t, "old0", "old1", "old2", "old3")
	stopOld := converse(t, n, old[0], old[1])

	fresh := n.moveIn(t, old)
	stopFast := steady(t, "remote host to new0", n.wantFast(t, fresh[0]))
	stopNew := converse(t, n, fresh[1], old[1])
	n.del(t, n.conf, old[2])
	n.del(t, n.kept, old[3])
	old = old[:2]

	old = append(old, n.moveOut(t, append(slices.Clone(old), fresh...), fresh[0]))
	atSwitch := counters(t, open(t, n.Rig)).Fast()
	stopFast()
	if now := counters(t, open(t, n.Rig)).Fast(); now <= atSwitch {
		t.Error("the fast path of a running pod went with the list")
	}
	stopNew()
	stopOld()

	n.del(t, n.kept, fresh[0])
	n.del(t, n.kept, fresh[1])
	// The last pod by ptp, which knows nothing of our masquerade: that is left to uninstall.
	n.del(t, n.conf, fresh[2])
	for _, p := range old {
		n.del(t, n.conf, p)
	}
	rep := n.ctl(t, "uninstall")
	wantSteps(t, rep, "remove xveth", "remove xveth-chain", "remove masquerade rig", "remove fast path of "+rig.Uplink)
	if diff := cmp.Diff(files, n.files(t)); diff != "" {
		t.Errorf("files before - after +: %s", diff)
	}
	eventually(t, ctxWait, "all is as before", func() bool { return nodeState(t, n.Rig) == before })
	wantUnarmed(t, n.Rig)
	wantOther(t, n.Rig, rig.Uplink)
	wantSteps(t, n.ctl(t, "uninstall"))
}

// moveIn puts xveth in front of ptp, twice, and adds pods.
func (n *runtimeNode) moveIn(t *testing.T, running []*rig.Pod) []*rig.Pod {
	t.Helper()
	n.keep(t, ptpFile)
	args := []string{"install", "--name", "rig", "--subnet", rig.PodNet4.String(), "--subnet", rig.PodNet6.String()}
	rep := n.ctl(t, args...)
	wantSteps(t, rep, "write xveth", "write xveth-chain", "write "+xvethFile)
	if rep.First == nil || filepath.Base(rep.First.File) != xvethFile || len(rep.Warnings) > 0 {
		t.Errorf("first is %+v, warnings %q", rep.First, rep.Warnings)
	}
	wantSteps(t, n.ctl(t, args...), "same xveth", "same xveth-chain", "same "+xvethFile)
	fresh := n.add(t, "new0", "new1", "new2")
	for _, p := range fresh {
		if !strings.HasPrefix(p.HostDev, "xv") {
			t.Errorf("%s is on %s, not made by xveth", p.ID, p.HostDev)
		}
	}
	wantMesh(t, append(slices.Clone(running), fresh...))
	return fresh
}

// moveOut takes xveth's list away while pods of it run, and adds a pod.
func (n *runtimeNode) moveOut(t *testing.T, running []*rig.Pod, ours *rig.Pod) *rig.Pod {
	t.Helper()
	n.keep(t, xvethFile)
	rep := n.ctl(t, "uninstall")
	wantSteps(t, rep, "remove "+xvethFile, "keep xveth", "keep xveth-chain")
	if why := rep.Steps[len(rep.Steps)-1].Why; !strings.Contains(why, ours.HostDev) || !strings.Contains(why, "--force") {
		t.Errorf("kept because %q", why)
	}
	if rep.First == nil || filepath.Base(rep.First.File) != ptpFile {
		t.Errorf("first is %+v", rep.First)
	}
	late := n.add(t, "late")[0]
	if strings.HasPrefix(late.HostDev, "xv") {
		t.Errorf("late is on %s", late.HostDev)
	}
	wantMesh(t, append([]*rig.Pod{late}, running...))
	return late
}

// wantOther finds the program of attachOther on an interface.
func wantOther(t *testing.T, r *rig.Rig, dev string) {
	t.Helper()
	err := r.Node.Do(func() error {
		l, err := netlinksafe.LinkByName(dev)
		if err != nil {
			return err
		}
		h, err := datapath.HooksOf(l)
		if err == nil && !slices.Equal(h.Ingress, []string{"other"}) {
			t.Errorf("%s has %+v", dev, h)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestInstallChain appends xveth-chain to the list of a node with running ptp pods and
// takes it out again: the list is then what it was, byte for byte.
func TestInstallChain(t *testing.T) {
	t.Parallel()
	n := newRuntimeNode(t)
	before, files := nodeState(t, n.Rig), n.files(t)
	old := n.add(t, "old0", "old1")
	stopOld := converse(t, n, old[0], old[1])

	n.keep(t, ptpFile)
	wantSteps(t, n.ctl(t, "install", "--chain", filepath.Join(n.conf, ptpFile)), "write xveth", "write xveth-chain", "chain "+ptpFile)
	fresh := n.add(t, "new0", "new1")
	wantMesh(t, append(slices.Clone(old), fresh...))
	stopFast := steady(t, "remote host to new0", n.wantFast(t, fresh[0]))
	stopNew := converse(t, n, fresh[1], old[1])

	n.keep(t, ptpFile)
	rep := n.ctl(t, "uninstall")
	wantSteps(t, rep, "unchain "+ptpFile, "keep xveth", "keep xveth-chain")
	got := n.files(t)
	if got[ptpFile] != files[ptpFile] {
		t.Errorf("the list became %s", got[ptpFile])
	}
	late := n.add(t, "late")[0]
	wantMesh(t, append([]*rig.Pod{late}, append(slices.Clone(old), fresh...)...))
	stopFast()
	stopNew()
	stopOld()

	n.del(t, n.kept, fresh[0])
	for _, p := range []*rig.Pod{fresh[1], old[0], old[1], late} {
		n.del(t, n.conf, p)
	}
	eventually(t, ctxWait, "the pods are gone", func() bool { return nodeState(t, n.Rig) == before })
	rep = n.ctl(t, "uninstall")
	if rep.Kept() {
		t.Errorf("kept something: %+v", rep.Steps)
	}
	if diff := cmp.Diff(files, n.files(t)); diff != "" {
		t.Errorf("files before - after +: %s", diff)
	}
	wantUnarmed(t, n.Rig)
}

// TestInstallUsage refuses flags that make no sense together, and changes nothing.
func TestInstallUsage(t *testing.T) {
	t.Parallel()
	n := newRuntimeNode(t)
	files := n.files(t)
	for _, c := range []struct{ args, says string }{
		{"--subnet 10.0.0.0/24 --chain x", "--subnet, --chain"},
		{"--conf x --subnet 10.0.0.0/24", "--subnet, --conf"},
		{"--subnet 10.0.0.1/24", "10.0.0.0/24"},
		{"--subnet 10.0.0.0", "10.0.0.0"},
		{"--subnet ::ffff:10.0.0.0/120", "::ffff:10.0.0.0/120"},
		{"--name x", "--name"},
		{"--file x.conflist", "--file"},
		{"--chain /elsewhere/x.conflist", "--conf-dir"},
		{"--output yaml", "yaml"},
		{"more", "more"},
	} {
		args := append([]string{"install", "--bin-dir", n.bin, "--conf-dir", n.conf}, strings.Fields(c.args)...)
		if _, stderr := ctl(t, n.Rig, 2, args...); !strings.Contains(stderr, c.says) {
			t.Errorf("%s: %s", c.args, stderr)
		}
	}
	// Addresses that ptp gives out as well, by another account.
	args := []string{"install", "--bin-dir", n.bin, "--conf-dir", n.conf, "--subnet", "10.88.0.0/16"}
	if stdout, stderr := ctl(t, n.Rig, 1, args...); !strings.Contains(stderr, ptpFile) || stdout != "" {
		t.Errorf("said %s and %s", stdout, stderr)
	}
	if diff := cmp.Diff(files, n.files(t)); diff != "" {
		t.Errorf("files before - after +: %s", diff)
	}
	wantDryRun(t, n)
}

// wantDryRun reads what would be done, beside a file whose name would clear a terminal.
func wantDryRun(t *testing.T, n *runtimeNode) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(n.conf, "00\x1b[2J\n.conflist"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	text, stderr := ctl(t, n.Rig, 0, "install", "--bin-dir", n.bin, "--conf-dir", n.conf,
		"--dry-run", "--name", "rig", "--subnet", rig.PodNet4.String())
	for _, line := range []string{
		"would write " + filepath.Join(n.bin, "xveth"), "would write " + filepath.Join(n.conf, xvethFile),
		`runtimes take "` + n.conf + `/00\x1b[2J\n.conflist" network "": []`,
	} {
		if !slices.ContainsFunc(strings.Split(text, "\n"), func(s string) bool { return strings.Join(strings.Fields(s), " ") == line }) {
			t.Errorf("no line %q in:\n%s", line, text)
		}
	}
	if strings.Contains(text+stderr, "\x1b") || !strings.Contains(stderr, "cannot be read") {
		t.Errorf("said %q and %q", text, stderr)
	}
}
