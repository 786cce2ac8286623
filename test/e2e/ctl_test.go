// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/containernetworking/plugins/pkg/netlinksafe"

	"github.com/xveth/xveth/pkg/demo"
	"github.com/xveth/xveth/pkg/masq"
	"github.com/xveth/xveth/pkg/status"
	"github.com/xveth/xveth/pkg/veth"
	"github.com/xveth/xveth/test/rig"
)

// ctl runs xvethctl on the node and wants an exit status; it returns what was printed.
func ctl(t *testing.T, r *rig.Rig, want int, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, errOut strings.Builder
	cmd := exec.CommandContext(ctxOf(t), filepath.Join(plugins, "xvethctl"), args...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := r.Node.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != want {
		text, _ := r.Node.Run(ctxOf(t), filepath.Join(plugins, "xvethctl"), "status")
		t.Fatalf("xvethctl %v: exit status %d, want %d: %s\nstatus:\n%s", args, got, want, errOut.String(), text)
	}
	return out.String(), errOut.String()
}

// ctlJSON runs xvethctl on the node and reads its answer.
func ctlJSON[T any](t *testing.T, r *rig.Rig, want int, args ...string) (v T) {
	t.Helper()
	out, _ := ctl(t, r, want, append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatalf("xvethctl %v: %v:\n%s", args, err, out)
	}
	return v
}

// hostPort sends connections to a port of the node to a pod, as the portmap plugin does.
func hostPort(t *testing.T, r *rig.Rig, port uint16, to netip.AddrPort) {
	t.Helper()
	node(t, r, fmt.Sprintf(`nft 'table ip ctl { chain pre { type nat hook prerouting priority -100;
		ip daddr %s tcp dport %d dnat to %s; }; }'`, rig.NodeAddr4, port, to))
	t.Cleanup(func() { node(t, r, "nft delete table ip ctl") })
}

// warmHostPort makes a rig on which a DNATed flow from the remote host to a pod is warm.
func warmHostPort(t *testing.T) (*rig.Rig, *rig.Pod, func()) {
	t.Helper()
	r := newRig(t, nil)
	p := addPod(t, r, "a", nil)
	at := netip.AddrPortFrom(p.Addr4, 80)
	hostPort(t, r, 8080, at)
	echo(t, p.Host, "tcp", at)
	conn := dial(t, r.Ext, "tcp", netip.AddrPortFrom(rig.NodeAddr4, 8080))
	talk := func() { warm(t, r, conn) }
	talk()
	return r, p, talk
}

// TestCtlFlows finds a translated flow by every filter that it fits and by none other.
func TestCtlFlows(t *testing.T) {
	t.Parallel()
	r, p, talk := warmHostPort(t)
	all := ctlJSON[[]status.Flow](t, r, 0, "flows")
	i := slices.IndexFunc(all, func(f status.Flow) bool { return f.In == rig.Uplink })
	if i < 0 {
		t.Fatalf("no flow from the uplink: %+v", all)
	}
	f := all[i]
	if f.Proto != "tcp" || f.Src.Addr() != rig.ExtAddr4 || f.Dst != netip.AddrPortFrom(rig.NodeAddr4, 8080) ||
		f.NewSrc != f.Src || f.NewDst != netip.AddrPortFrom(p.Addr4, 80) || f.Out != p.HostDev ||
		!f.NAT || !f.Routed || !f.ToPod || !f.Live || f.Left <= 0 || f.Packets == 0 || f.Bytes == 0 {
		t.Errorf("the flow is shown as %+v", f)
	}
	for _, c := range []struct {
		args string
		want bool
	}{
		{"--all", true},
		{"--pod " + p.Addr4.String(), true},
		{"--pod 10.88.0.99", false},
		{"--port 80", true},
		{"--port 8080 --proto tcp", true},
		{"--port 81", false},
		{"--proto udp", false},
		{"--sort packets", true},
	} {
		talk()
		got := ctlJSON[[]status.Flow](t, r, 0, append([]string{"flows"}, strings.Fields(c.args)...)...)
		if (len(got) > 0) != c.want {
			t.Errorf("flows %s: %d flows", c.args, len(got))
		}
	}
	talk()
	text, _ := ctl(t, r, 0, "flows")
	if want := fmt.Sprintf("= > %s:80", p.Addr4); !strings.Contains(text, want) {
		t.Errorf("no %q in:\n%s", want, text)
	}
}

// TestCtlWatch sees the table again and again until it is told to stop.
func TestCtlWatch(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	addPod(t, r, "a", nil)
	cmd := exec.CommandContext(ctxOf(t), filepath.Join(plugins, "xvethctl"), "flows", "--watch=100ms")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Node.Start(cmd); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for range 3 {
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), "PROTO") {
			t.Fatalf("line %q", lines.Text())
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("interrupted: %v", err)
	}
}

// otherProgram is a program of somebody else's that lets everything pass.
func otherProgram(t *testing.T, kind ebpf.ProgramType, attach ebpf.AttachType) *ebpf.Program {
	t.Helper()
	pass := int32(-1) // of tcx: next
	if kind == ebpf.XDP {
		pass = 2
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "other", Type: kind, AttachType: attach, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, pass), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// attachOther puts a program of somebody else's on an interface of the node.
func attachOther(t *testing.T, r *rig.Rig, dev string, attach ebpf.AttachType) {
	t.Helper()
	kind := ebpf.SchedCLS
	if attach == ebpf.AttachXDP {
		kind = ebpf.XDP
	}
	prog := otherProgram(t, kind, attach)
	var l link.Link
	err := r.Node.Do(func() error {
		dev, err := netlinksafe.LinkByName(dev)
		if err != nil {
			return err
		}
		if kind == ebpf.XDP {
			l, err = link.AttachXDP(link.XDPOptions{Program: prog, Interface: dev.Attrs().Index, Flags: link.XDPDriverMode})
		} else {
			l, err = link.AttachTCX(link.TCXOptions{Program: prog, Interface: dev.Attrs().Index, Attach: attach, Anchor: link.Tail()})
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

// attachmentOf finds a pod in the state of a node.
func attachmentOf(t *testing.T, n status.Node, p *rig.Pod) status.Attachment {
	t.Helper()
	for _, a := range n.Attachments {
		if a.ContainerID == p.ID {
			return a
		}
	}
	t.Fatalf("pod %q is not listed: %+v", p.ID, n.Attachments)
	return status.Attachment{}
}

// TestCtlStatusHealthy reads the state of a node on which all is well: B165.
func TestCtlStatusHealthy(t *testing.T) {
	t.Parallel()
	r, p, _ := warmHostPort(t)
	off := addPod(t, r, "off", map[string]any{"runtimeConfig": map[string]any{"fastPath": "off"}})
	limited := addPod(t, r, "limited", map[string]any{
		"runtimeConfig": map[string]any{"bandwidth": map[string]any{"ingressRate": 1000000, "ingressBurst": 1100000}},
	})
	n := ctlJSON[status.Node](t, r, 0, "status")
	if !n.Loaded || n.Build == "" || n.Build != n.OwnBuild || n.Liberal != "1" || len(n.Degraded) != 0 {
		t.Errorf("not healthy: %+v", n)
	}
	if n.Settings == nil || n.Settings.Revalidate != "1s" || n.Settings.MaxFlows != 65536 {
		t.Errorf("settings: %+v", n.Settings)
	}
	if len(n.Uplinks) != 1 || n.Uplinks[0].Name != rig.Uplink || n.Uplinks[0].Drive != "xdp" {
		t.Errorf("uplinks: %+v", n.Uplinks)
	}
	if n.Flows[0].Used == 0 || n.Flows[0].Max != 65536 {
		t.Errorf("fill: %+v", n.Flows)
	}
	fast := slices.IndexFunc(n.Counters, func(c status.Counter) bool { return c.Reason == "fast_xdp" })
	if fast < 0 || n.Counters[fast].Packets == 0 {
		t.Errorf("counters: %+v", n.Counters)
	}
	for _, c := range []struct {
		pod      *rig.Pod
		to, from string
	}{
		{p, "", ""},
		{off, "not armed", "not armed"},
		{limited, "limited", ""},
	} {
		a := attachmentOf(t, n, c.pod)
		if a.HostDev != c.pod.HostDev || a.Network != "rig" || a.IfName != rig.PodDev || a.PodIndex == 0 {
			t.Errorf("attachment: %+v", a)
		}
		for _, d := range []struct {
			status.Direction
			want string
		}{{a.ToPod, c.to}, {a.FromPod, c.from}} {
			if d.Fast != (d.want == "") || !strings.Contains(d.Why, d.want) {
				t.Errorf("pod %q: %+v, want %q", c.pod.ID, d.Direction, d.want)
			}
		}
	}
	text, _ := ctl(t, r, 0, "status")
	for _, want := range []string{"loaded, build", rig.Uplink, p.HostDev, "redirected by XDP", "xv_learn_pod"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}

// trouble is something that keeps traffic with the kernel.
type trouble struct {
	name     string
	before   func(*testing.T, *rig.Rig)
	after    func(*testing.T, *rig.Rig, *rig.Pod)
	what, do string
}

func troubles() []trouble {
	return []trouble{
		{
			"strict conntrack", nil,
			func(t *testing.T, r *rig.Rig, _ *rig.Pod) {
				if err := r.Node.Sysctl("net.netfilter.nf_conntrack_tcp_be_liberal", "0"); err != nil {
					t.Fatal(err)
				}
			},
			"no TCP is learned", "sysctl -w net.netfilter.nf_conntrack_tcp_be_liberal=1",
		},
		{
			"foreign xdp on the uplink",
			func(t *testing.T, r *rig.Rig) { attachOther(t, r, rig.Uplink, ebpf.AttachXDP) },
			nil,
			`xdp program "other" is somebody else's`, "xdp off",
		},
		{
			"foreign ingress program on the uplink", nil,
			func(t *testing.T, r *rig.Rig, _ *rig.Pod) { attachOther(t, r, rig.Uplink, ebpf.AttachTCXIngress) },
			`tcx program "other" would be skipped by xdp`, "remove it",
		},
		{
			"foreign egress program on a pod", nil,
			func(t *testing.T, r *rig.Rig, p *rig.Pod) { attachOther(t, r, p.HostDev, ebpf.AttachTCXEgress) },
			`tcx program "other" on egress runs behind ours`, "remove it",
		},
		{
			"filter on a pod", nil,
			func(t *testing.T, r *rig.Rig, p *rig.Pod) {
				node(t, r, "tc qdisc add dev "+p.HostDev+" clsact && tc filter add dev "+p.HostDev+
					" ingress protocol all u32 match u32 0 0 flowid 1:1")
			},
			"u32 filter on ingress runs behind ours", "remove it",
		},
		{
			"GRO off in a pod", nil,
			func(t *testing.T, _ *rig.Rig, p *rig.Pod) { on(t, p.Host, "ethtool -K eth0 gro off") },
			"its GRO is off", "ethtool -K eth0 gro on",
		},
	}
}

// TestCtlStatusDegraded wants each thing that is in the way to be named, with what to do:
// B043, B096.
func TestCtlStatusDegraded(t *testing.T) {
	t.Parallel()
	for _, c := range troubles() {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, nil)
			if c.before != nil {
				c.before(t, r)
			}
			p := addPod(t, r, "a", nil)
			if c.after != nil {
				c.after(t, r, p)
			}
			n := ctlJSON[status.Node](t, r, 1, "status")
			if !slices.ContainsFunc(n.Degraded, func(p status.Problem) bool {
				return strings.Contains(p.What, c.what) && strings.Contains(p.Do, c.do)
			}) {
				t.Errorf("degraded: %+v, want %q, %q", n.Degraded, c.what, c.do)
			}
			text, _ := ctl(t, r, 1, "status")
			if !strings.Contains(text, "degraded:") {
				t.Errorf("not in the text:\n%s", text)
			}
		})
	}
}

// TestCtlNotLoaded runs every command on a node on which nothing is loaded.
func TestCtlNotLoaded(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	n := ctlJSON[status.Node](t, r, 3, "status")
	if n.Loaded || n.NotLoaded == "" || len(n.Uplinks) != 1 || n.Uplinks[0].Drive != "none" {
		t.Errorf("status: %+v", n)
	}
	text, _ := ctl(t, r, 3, "status")
	if !strings.Contains(text, "not loaded") {
		t.Errorf("status:\n%s", text)
	}
	for _, cmd := range []string{"flows", "flush"} {
		if _, said := ctl(t, r, 3, cmd); !strings.HasPrefix(said, "xvethctl: the fast path is not loaded") {
			t.Errorf("%s: %q", cmd, said)
		}
	}
	ctl(t, r, 0, "flush", "--maps")
	if out, _ := ctl(t, r, 0, "gc"); out != "nothing to remove\n" {
		t.Errorf("gc: %q", out)
	}
	if out := node(t, r, "find /sys/fs/bpf -mindepth 1 -type d"); out != "" {
		t.Errorf("pinned by looking: %s", out)
	}
}

// TestCtlUsage wants a command line that makes no sense to be refused by its own status.
func TestCtlUsage(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for _, args := range [][]string{
		{"nonsense"},
		{"status", "more"},
		{"status", "-o", "yaml"},
		{"status", "--nonsense"},
		{"flows", "--pod", "x"},
		{"flows", "--proto", "sctp"},
		{"flows", "--port", "65536"},
		{"flows", "--sort", "x"},
		{"flows", "--watch=1ns"},
		{"flush", "--maps", "--port", "1"},
		{"demo", "--rounds", "0"},
		{"demo", "--duration", "1h"},
	} {
		out, said := ctl(t, r, 2, args...)
		if out != "" || !strings.HasPrefix(said, "xvethctl: ") || strings.Count(said, "\n") != 1 {
			t.Errorf("%v: %q %q", args, out, said)
		}
	}
	if out, _ := ctl(t, r, 0, "--version"); !strings.HasPrefix(out, "xvethctl") {
		t.Errorf("--version: %q", out)
	}
}

// TestCtlFlush forgets what it is told to; connections go on.
func TestCtlFlush(t *testing.T) {
	t.Parallel()
	r, p, talk := warmHostPort(t)
	known := func() int { return len(ctlJSON[[]status.Flow](t, r, 0, "flows", "--all")) }
	have := known()
	if out, _ := ctl(t, r, 0, "flush", "--port", "81"); out != "0 flows forgotten\n" || known() != have {
		t.Errorf("flush of another port: %q, %d of %d left", out, known(), have)
	}
	if out, _ := ctl(t, r, 0, "flush", "--pod", p.Addr4.String(), "--proto", "tcp"); out != fmt.Sprintf("%d flows forgotten\n", have) || known() != 0 {
		t.Errorf("flush of the pod: %q, %d of %d left", out, known(), have)
	}
	talk()
	ctl(t, r, 0, "flush")
	if n := known(); n != 0 {
		t.Errorf("%d flows left", n)
	}
	talk()
	ctl(t, r, 0, "flush", "--maps")
	if n := ctlJSON[status.Node](t, r, 3, "status"); len(n.Degraded) != 1 || !strings.Contains(n.Degraded[0].What, "run on") {
		t.Errorf("programs without pins: %+v", n.Degraded)
	}
	addPod(t, r, "b", nil) // makes programs and maps anew, and arms the old pod again
	ctl(t, r, 0, "status")
	talk()
}

// TestCtlGC removes what a killed ADD, a vanished veth and a network without pods leave.
func TestCtlGC(t *testing.T) {
	t.Parallel()
	r, _, talk := warmHostPort(t)
	gone := addPod(t, r, "gone", nil)
	at := netip.AddrPortFrom(gone.Addr4, 7)
	echo(t, gone.Host, "udp", at)
	warm(t, r, dial(t, r.Ext, "udp", at))

	index := attachmentOf(t, ctlJSON[status.Node](t, r, 0, "status"), gone).HostIndex
	node(t, r, "ip link del "+gone.HostDev)
	after := nodeState(t, r)
	leftover := veth.HostName("rig", "killed", "eth0")
	node(t, r, "ip link add "+leftover+" type veth peer name peer0")
	if err := r.Node.Do(func() error { return masq.Ensure("ghost", []netip.Prefix{netip.MustParsePrefix("10.99.0.0/24")}) }); err != nil {
		t.Fatal(err)
	}
	littered := nodeState(t, r)

	want := []string{"entries #" + fmt.Sprint(index), "interface " + leftover, "masquerade ghost"}
	names := func(found []status.Garbage) []string {
		var all []string
		for _, g := range found {
			all = append(all, g.Kind+" "+g.Name)
		}
		slices.Sort(all)
		return all
	}
	if got := names(ctlJSON[[]status.Garbage](t, r, 0, "gc", "--dry-run")); !slices.Equal(got, want) {
		t.Errorf("dry run: %q, want %q", got, want)
	}
	if now := nodeState(t, r); now != littered {
		t.Errorf("a dry run changed something:\n%s\nbefore:\n%s", now, littered)
	}
	if got := names(ctlJSON[[]status.Garbage](t, r, 0, "gc")); !slices.Equal(got, want) {
		t.Errorf("removed %q, want %q", got, want)
	}
	if now := nodeState(t, r); now != after {
		t.Errorf("not as before the litter:\n%s\nbefore:\n%s", now, after)
	}
	if out, _ := ctl(t, r, 0, "gc"); out != "nothing to remove\n" {
		t.Errorf("a second time: %q", out)
	}
	for _, f := range ctlJSON[[]status.Flow](t, r, 0, "flows", "--all") {
		if f.InIndex == index || f.OutIndex == index {
			t.Errorf("a flow of the interface that is gone: %+v", f)
		}
	}
	talk()
	ctl(t, r, 0, "status")
}

// machine lists what a demo could leave behind outside its own namespaces.
func machine(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("sh", "-c", "ip -o link | sed 's/^[0-9]*: //; s/ .*//'; nft list ruleset; ls /run/netns /sys/fs/bpf /var/lib/cni 2>&1; cat /proc/mounts").CombinedOutput()
	if err != nil {
		t.Logf("%v: %s", err, out)
	}
	return string(out)
}

// TestCtlDemo runs a short demo.
func TestCtlDemo(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and network namespaces; not in short mode")
	}
	before := machine(t)
	cmd := exec.CommandContext(ctxOf(t), filepath.Join(plugins, "xvethctl"), "demo", "--json", "--rounds", "1", "--duration", "300ms")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var rep demo.Report
	if err := json.Unmarshal(out, &rep); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if rep.Ratio <= 1 || rep.TCP.Ratio <= 0 {
		t.Errorf("ratio %v, of TCP %v", rep.Ratio, rep.TCP.Ratio)
	}
	if len(rep.Rows) != 2 || rep.Rows[0].Path != "kernel" || rep.Rows[1].Path != "xveth" || rep.Ratio != rep.Rows[1].Mpps/rep.Rows[0].Mpps {
		t.Errorf("rows %+v, ratio %v", rep.Rows, rep.Ratio)
	}
	if len(rep.Pods) != 2 || len(rep.Reached) != 12 || rep.RR.PodToPod.Xveth.Median == 0 || rep.RR.ExtToPod.Kernel.Median == 0 {
		t.Errorf("report %+v", rep)
	}
	if !slices.ContainsFunc(rep.Flows, func(f status.Flow) bool { return f.NAT }) {
		t.Errorf("no translated flow among %+v", rep.Flows)
	}
	if after := machine(t); after != before {
		t.Errorf("left behind:\n%s\nbefore:\n%s", after, before)
	}
}

// TestCtlDemoInterrupted stops a demo half way.
func TestCtlDemoInterrupted(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and network namespaces; not in short mode")
	}
	before := machine(t)
	cmd := exec.CommandContext(ctxOf(t), filepath.Join(plugins, "xvethctl"), "demo", "--duration", "200ms", "--rounds", "500")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if strings.Contains(lines.Text(), "Who reaches whom") {
			_ = cmd.Process.Signal(syscall.SIGINT)
		}
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(said.String(), "interrupted") {
		t.Errorf("%v: %q", err, said.String())
	}
	if after := machine(t); after != before {
		t.Errorf("left behind:\n%s\nbefore:\n%s", after, before)
	}
}

// TestCtlDemoNotRoot says what it needs.
func TestCtlDemoNotRoot(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root; not in short mode")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	// Through descriptors, because the folder of the binary may be closed to others.
	bin, err := os.Open(filepath.Join(plugins, "xvethctl"))
	if err != nil {
		t.Fatal(err)
	}
	defer bin.Close()
	cmd := exec.CommandContext(ctx, "/proc/self/fd/3", "demo", "--plugins", "/proc/self/fd")
	cmd.ExtraFiles = []*os.File{bin}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "run it as root") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestCtlDetach takes the fast path off a node with a pod, and the next ADD arms it again.
func TestCtlDetach(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	a := addPod(t, r, "a", nil)
	out, _ := ctl(t, r, 0, "detach")
	for _, dev := range []string{rig.Uplink, a.HostDev} {
		if !strings.Contains(out, dev+": detached") {
			t.Errorf("%s is not named: %q", dev, out)
		}
	}
	if left := node(t, r, "bpftool net show | grep xv_ || true; find /sys/fs/bpf -name 'xv_*'"); left != "" {
		t.Errorf("left: %s", left)
	}
	canPing(t, a.Host, rig.ExtAddr4)
	if err := a.Check(ctxOf(t)); err != nil {
		t.Errorf("a pod without the fast path is a working pod: %v", err)
	}
	addPod(t, r, "b", nil)
	at := netip.AddrPortFrom(rig.ExtAddr4, 7)
	echo(t, r.Ext, "udp", at)
	warm(t, r, dial(t, r.Pods()[1].Host, "udp", at))
	if err := a.Check(ctxOf(t)); err != nil {
		t.Errorf("a pod that was never armed again: %v", err)
	}
}
