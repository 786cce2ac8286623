// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// network is the name of the network that the runtimes are given.
const network = "rig"

// netFile is the name of its configuration's file.
const netFile = "10-rig.conflist"

// second is another network, beside the rig's.
const second = "second"

var (
	secondNet4 = netip.MustParsePrefix("10.88.2.0/24")
	secondNet6 = netip.MustParsePrefix("2001:db8:89::/64")
)

// bed is a rig whose node runs daemons.
type bed struct {
	*rig.Rig
	machine *rig.Machine
	// confDir and binDir are the runtimes' folders of networks and of plugins.
	confDir, binDir string
}

// newBed builds a bed. When the test ends, what is left on the node must be what was
// there before.
func newBed(t *testing.T) *bed {
	t.Helper()
	if testing.Short() {
		t.Skip("needs root and network namespaces; not in short mode")
	}
	r, err := rig.New(rig.Options{Plugins: bins.own})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	b := &bed{Rig: r, confDir: t.TempDir(), binDir: t.TempDir()}
	b.boot(t)
	t.Cleanup(func() { b.down(t) })
	for _, name := range []string{"xveth", "xveth-chain"} {
		b.link(t, filepath.Join(bins.own, name), name)
	}
	for _, name := range []string{"bandwidth", "bridge", "firewall", "host-local", "loopback", "portmap", "ptp", "tuning"} {
		b.link(t, tool(t, name), name)
	}
	for _, addr := range []netip.Addr{rig.ExtAddr4, rig.ExtAddr6} {
		at := netip.AddrPortFrom(addr, extPort)
		if err := errors.Join(r.Ext.EchoUDP(t.Context(), at), r.Ext.EchoTCP(t.Context(), at)); err != nil {
			t.Fatal(err)
		}
	}
	before := b.state(t)
	t.Cleanup(func() {
		b.wantState(t, before)
		b.wantNoFlows(t)
	})
	return b
}

func (b *bed) boot(t *testing.T) {
	t.Helper()
	var err error
	if b.machine, err = b.Node.Boot(exec.Command(bins.guest, "init")); err != nil {
		t.Fatal(err)
	}
}

func (b *bed) down(t *testing.T) {
	t.Helper()
	if err := b.machine.Close(); err != nil {
		t.Error(err)
	}
}

// reboot removes what a reboot removes: all processes, and with them namespaces and mounts,
// /run, rules, programs and pins.
func (b *bed) reboot(t *testing.T) {
	t.Helper()
	b.down(t)
	_, err := b.Node.Run(ctxOf(t), "sh", "-c", "ip link set "+rig.Uplink+" xdp off; nft flush ruleset && "+
		"rm -r "+datapath.DefaultDir+" && find /run -mindepth 1 -maxdepth 1 -exec rm -r {} +")
	if err != nil {
		t.Fatal(err)
	}
	b.boot(t)
	b.sh(t, "mkdir -p /run/netns")
	eventually(t, startWait, "the pods' interfaces are gone", func() bool {
		return !strings.Contains(b.sh(t, "ip -o link"), ": xv")
	})
}

// link makes a program a plugin of the runtimes'.
func (b *bed) link(t *testing.T, program, name string) {
	t.Helper()
	if err := os.Symlink(program, filepath.Join(b.binDir, name)); err != nil {
		t.Fatal(err)
	}
}

// writeNet writes the network list of a version: xveth with the rig's configuration, some
// keys of it changed, and more plugins behind it.
func (b *bed) writeNet(t *testing.T, version string, changes map[string]any, more ...map[string]any) {
	t.Helper()
	b.writeNetAs(t, netFile, network, version, changes, more...)
}

func (b *bed) writeNetAs(t *testing.T, file, name, version string, changes map[string]any, more ...map[string]any) {
	t.Helper()
	var first map[string]any
	if err := json.Unmarshal(b.Conf(changes), &first); err != nil {
		t.Fatal(err)
	}
	delete(first, "cniVersion")
	delete(first, "name")
	b.writeList(t, file, name, version, append([]map[string]any{first}, more...)...)
}

// writeList writes a network list.
func (b *bed) writeList(t *testing.T, file, name, version string, plugins ...map[string]any) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"cniVersion": version, "name": name, "plugins": plugins})
	if err != nil {
		t.Fatal(err)
	}
	// Renamed, so that nobody reads half of it.
	fresh := filepath.Join(b.confDir, file+".new")
	if err := os.WriteFile(fresh, text, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(fresh, filepath.Join(b.confDir, file)); err != nil {
		t.Fatal(err)
	}
}

// writeSecond writes the second network and gives the remote host routes to it.
func (b *bed) writeSecond(t *testing.T, version string) {
	t.Helper()
	b.writeNetAs(t, "20-second.conflist", second, version, map[string]any{"ipam": map[string]any{
		"type":   "host-local",
		"ranges": [][]map[string]string{{{"subnet": secondNet4.String()}}, {{"subnet": secondNet6.String()}}},
		"routes": []map[string]string{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}},
	}})
	err := b.Ext.Do(func() error {
		return errors.Join(rig.AddRoute(secondNet4, rig.NodeAddr4), rig.AddRoute(secondNet6, rig.NodeAddr6))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// state lists what an attachment could leave on the node.
func (b *bed) state(t *testing.T) string {
	t.Helper()
	return b.machine.State("grep nsfs /proc/mounts | cut -d' ' -f2 | sort",
		"find /var/lib/cni -type f -not -name last_reserved_ip.* -not -name lock | sort")
}

// wantState compares the node with an earlier look at it.
func (b *bed) wantState(t *testing.T, before string) {
	t.Helper()
	if after := b.state(t); after != before {
		t.Errorf("left on the node: %s", rig.StateDiff(before, after))
	}
}

// sh runs a shell command on the machine.
func (b *bed) sh(t *testing.T, command string) string {
	t.Helper()
	out, err := b.machine.Run(ctxOf(t), "sh", "-c", command)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// datapath gives access to what the plugin has loaded.
func (b *bed) datapath(t *testing.T) *datapath.Datapath {
	t.Helper()
	d, err := datapath.Open(b.Node.Path(datapath.DefaultDir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// wantNoFlows checks that no flow of a pod that is gone is left.
func (b *bed) wantNoFlows(t *testing.T) {
	t.Helper()
	d, err := datapath.Open(b.Node.Path(datapath.DefaultDir))
	if err != nil {
		return // never loaded
	}
	defer d.Close()
	for f, err := range d.Flows() {
		if err != nil {
			t.Fatal(err)
		}
		t.Errorf("a flow is left: %+v", f)
	}
}

// reserved lists the reserved addresses of a network.
func (b *bed) reserved(t *testing.T, name string) []string {
	t.Helper()
	all, err := b.machine.Reserved(name)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// daemon is a program that runs on the machine until it is stopped.
type daemon struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan error
}

// startDaemon starts a program whose output is shown when the test fails.
func (b *bed) startDaemon(t *testing.T, log string, args ...string) *daemon {
	t.Helper()
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	d := &daemon{name: filepath.Base(args[0]), cmd: exec.Command(args[0], args[1:]...), log: log, done: make(chan error, 1)}
	d.cmd.Stdout, d.cmd.Stderr = out, out
	if err := b.machine.Start(d.cmd); err != nil {
		t.Fatal(err)
	}
	go func() { d.done <- d.cmd.Wait() }()
	return d
}

// end sends a signal and waits for the end.
func (d *daemon) end(t *testing.T, sig os.Signal) {
	t.Helper()
	if err := d.cmd.Process.Signal(sig); err != nil {
		t.Errorf("signal %s: %v", d.name, err)
		return
	}
	select {
	case <-d.done:
	case <-time.After(30 * time.Second):
		t.Errorf("%s does not end after %v", d.name, sig)
	}
}

// showLog shows the complaints of a daemon that logs in logrus' format.
func (d *daemon) showLog(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(d.log)
	if err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, "level=info") {
			t.Log(strings.TrimSpace(line))
		}
	}
}
