// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/pkg/top"
	"github.com/xveth/xveth/test/rig"
)

// topRevalidate keeps many flows fast that have few packets each.
const topRevalidate = "1m"

// topFlows makes a pod to which a number of flows from the remote host are fast, and what
// sends one packet on each of them.
func topFlows(t *testing.T, flows int) (*rig.Rig, *rig.Pod, *rig.Generator) {
	t.Helper()
	r := newRig(t, withFast(nil, map[string]any{"revalidate": topRevalidate}))
	p := addPod(t, r, "a", nil)
	if flows == 0 {
		return r, p, nil
	}
	dst := netip.AddrPortFrom(p.Addr4, 7)
	swallow(t, p.Host, "udp", dst)
	g, err := r.NewGenerator(rig.UDPFlows{
		Src: netip.AddrPortFrom(rig.ExtAddr4, 10000), Dst: dst, Flows: flows, Size: 80,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	d := open(t, r)
	eventually(t, 30*time.Second, "all flows are fast", func() bool {
		if err := g.Send(flows); err != nil {
			t.Fatal(err)
		}
		live := 0
		for _, f := range everyFlow(t, d) {
			if f.Live() {
				live++
			}
		}
		return live == flows
	})
	return r, p, g
}

// ratesOf takes the rates of what happens on a node.
func ratesOf(t *testing.T, r *rig.Rig, happens func()) *top.Rates {
	t.Helper()
	var (
		s     *top.Sampler
		rates *top.Rates
	)
	sample := func() (err error) {
		s, err = top.NewSampler(r.Node.Path(datapath.DefaultDir))
		return err
	}
	if err := r.Node.Do(sample); err != nil {
		t.Fatal(err)
	}
	happens()
	err := r.Node.Do(func() (err error) { rates, err = s.Rates(); return err })
	if err != nil {
		t.Fatal(err)
	}
	return rates
}

// TestTopSums sends a known number of packets and finds it in every sum: of the node, the
// uplink, the pod and the flows.
func TestTopSums(t *testing.T) {
	t.Parallel()
	const flows, rounds, ipLen = 100, 20, 80 - 14
	r, p, g := topFlows(t, flows)
	rates := ratesOf(t, r, func() {
		for range rounds {
			if err := g.Send(flows); err != nil {
				t.Fatal(err)
			}
		}
	})
	want := float64(flows * rounds)
	same := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got*rates.Seconds-want) > 0.001*want {
			t.Errorf("%s: %.0f, want %.0f", what, got*rates.Seconds, want)
		}
	}
	same("fast packets", rates.Fast, want)
	same("fast bits", rates.FastBits, want*ipLen*8)
	var packets, bits float64
	for _, f := range rates.Flows {
		packets, bits = packets+f.Packets, bits+f.Bits
		same("packets of "+f.Src.String(), f.Packets, rounds)
	}
	same("packets of flows", packets, want)
	same("bits of flows", bits, want*ipLen*8)
	if len(rates.Flows) != flows || rates.Live != flows || rates.Known != flows {
		t.Errorf("%d flows are listed, %d live, %d known; want %d", len(rates.Flows), rates.Live, rates.Known, flows)
	}
	for _, i := range rates.Interfaces {
		dir := i.To
		if i.Uplink {
			dir = i.From
		}
		same("packets of "+i.Name, dir.Packets, want)
		same("bits of "+i.Name, dir.Bits, want*ipLen*8)
		same("fast bits of "+i.Name, dir.FastBits, want*ipLen*8)
		if share, ok := i.Share(); !ok || share < 0.99 {
			t.Errorf("share of %s: %v, %v", i.Name, share, ok)
		}
	}
	if len(rates.Interfaces) != 2 || !slices.ContainsFunc(rates.Interfaces, func(i top.Interface) bool {
		return i.Name == p.HostDev && i.Pod == "rig a eth0"
	}) {
		t.Errorf("interfaces %+v", rates.Interfaces)
	}
}

// TestTopShare moves bulk TCP between two pods: tcx redirects packets of many segments past
// the statistics of the host end. What the kernel forwards is seen as such.
func TestTopShare(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	a, b := addPod(t, r, "a", nil), addPod(t, r, "b", nil)
	off := addPod(t, r, "off", map[string]any{"runtimeConfig": map[string]any{"fastPath": "off"}})
	const size = 64 << 20
	for _, c := range []struct {
		to   *rig.Pod
		fast bool
	}{{b, true}, {off, false}} {
		at := netip.AddrPortFrom(c.to.Addr4, 5001)
		swallow(t, c.to.Host, "tcp", at)
		conn := dial(t, a.Host, "tcp", at)
		rates := ratesOf(t, r, func() {
			buf := make([]byte, 1<<16)
			for range size / len(buf) {
				if _, err := conn.Write(buf); err != nil {
					t.Fatal(err)
				}
			}
		})
		conn.Close()
		i := slices.IndexFunc(rates.Interfaces, func(i top.Interface) bool { return i.Name == c.to.HostDev })
		to := rates.Interfaces[i].To
		share, _ := rates.Interfaces[i].Share()
		// What is still in the socket's buffer has not been sent.
		if sent := to.Bits * rates.Seconds / 8; sent < size/2 || sent > size*1.2 {
			t.Errorf("%s: %.0f bytes of %d", c.to.ID, sent, size)
		}
		if c.fast != (share > 0.9) || !c.fast && share != 0 {
			t.Errorf("%s: a share of %.3f is fast: %+v", c.to.ID, share, rates.Interfaces[i])
		}
	}
}

// TestTopOnce prints the rates for scripts.
func TestTopOnce(t *testing.T) {
	t.Parallel()
	r, p, _ := topFlows(t, 10)
	out, _ := ctl(t, r, 0, "top", "--once", "--interval", "100ms")
	for _, want := range []string{"fast  ", "kernel  ", "lost  ", "10 fast now, 10 known", "HOST END", p.HostDev, "PROTO", "192.0.2.2:10009"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	out, _ = ctl(t, r, 0, "top", "--once", "--interval", "100ms", "--json", "--filter", "192.0.2.2:10009", "--sort", "name")
	var rates top.Rates
	if err := json.Unmarshal([]byte(out), &rates); err != nil {
		t.Fatal(err)
	}
	if len(rates.Flows) != 1 || len(rates.Interfaces) != 0 || rates.Live != 10 {
		t.Errorf("filtered: %+v", rates)
	}
	for args, want := range map[string]string{
		"":                         "no terminal",
		"--once --sort nothing":    `sort by "nothing"`,
		"--once --interval 1ms":    "less than 100ms",
		"--json":                   "--once",
		"--once --interval 1parse": "invalid argument",
	} {
		if _, stderr := ctl(t, r, 2, append([]string{"top"}, strings.Fields(args)...)...); !strings.Contains(stderr, want) {
			t.Errorf("top %s: %s", args, stderr)
		}
	}
}

// terminal is a shell on the node in a terminal of some size.
type terminal struct {
	t    *testing.T
	r    *rig.Rig
	sock string
}

// prompt of the shell.
const prompt = "ready$ "

// newTerminal starts a terminal that ends with the test.
func newTerminal(t *testing.T, r *rig.Rig, width, height int) *terminal {
	t.Helper()
	term := &terminal{t, r, filepath.Join(t.TempDir(), "tmux")}
	server := exec.Command("tmux", "-S", term.sock, "-f", "/dev/null", "-D")
	server.Env = append(os.Environ(), "TERM=xterm-256color")
	if err := r.Node.Start(server); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	eventually(t, 10*time.Second, "the terminal can be asked", func() bool {
		_, err := os.Stat(term.sock)
		return err == nil
	})
	term.do("new-session", "-d", "-x", fmt.Sprint(width), "-y", fmt.Sprint(height), "env", "PS1="+prompt, "sh")
	term.shows(`ready\$`)
	return term
}

func (x *terminal) do(args ...string) string {
	x.t.Helper()
	out, err := x.r.Node.Run(ctxOf(x.t), "tmux", append([]string{"-S", x.sock}, args...)...)
	if err != nil {
		x.t.Fatal(err)
	}
	return out
}

func (x *terminal) keys(keys ...string) {
	x.t.Helper()
	x.do(append([]string{"send-keys"}, keys...)...)
}

// screen is the text that is shown.
func (x *terminal) screen() string {
	x.t.Helper()
	return x.do("capture-pane", "-p")
}

// shows waits until the screen has a text that matches, and returns all of it.
func (x *terminal) shows(pattern string) (screen string) {
	x.t.Helper()
	re := regexp.MustCompile(pattern)
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if screen = x.screen(); re.MatchString(screen) {
			return screen
		}
	}
	x.t.Fatalf("no %q on the screen:\n%s", pattern, screen)
	return ""
}

// TestTopScreen looks at the live view as a user does, on screens of two sizes, with no
// flow, a few and many.
func TestTopScreen(t *testing.T) {
	t.Parallel()
	for _, flows := range []int{0, 1, 10_000} {
		r, p, g := topFlows(t, flows)
		for _, size := range [][2]int{{80, 24}, {120, 40}} {
			t.Run(fmt.Sprintf("%d flows, %dx%d", flows, size[0], size[1]), func(t *testing.T) {
				s := topScreen{newTerminal(t, r, size[0], size[1]), size[0], size[1], flows}
				s.look(p, g)
			})
		}
	}
}

type topScreen struct {
	*terminal
	width, height, flows int
}

// look starts the view, uses each of its keys, and ends it.
func (s *topScreen) look(p *rig.Pod, g *rig.Generator) {
	t := s.t
	t.Helper()
	s.keys(filepath.Join(plugins, "xvethctl")+" top --interval 200ms", "Enter")
	s.check(s.shows(fmt.Sprintf(`\[Pods 2\]  Flows %d   by bits`, s.flows)), 2)
	if screen := s.screen(); !strings.Contains(screen, p.HostDev) || !strings.Contains(screen, "(uplink)") {
		t.Errorf("the pod or the uplink is missing:\n%s", screen)
	}
	s.keys("Tab")
	s.check(s.shows(fmt.Sprintf(`\[Flows %d\]`, s.flows)), s.flows)
	s.keys("s")
	s.shows("by packets")
	s.keys("s")
	if g != nil {
		s.traffic(g)
	}
	s.keys("p")
	s.shows("PAUSED")
	s.keys("Space")
	s.filter()
	s.end("q")
	s.keys(filepath.Join(plugins, "xvethctl")+" top", "Enter")
	s.shows("tab pods/flows")
	s.end("C-c")
}

// traffic is seen as a rate.
func (s *topScreen) traffic(g *rig.Generator) {
	s.t.Helper()
	done := make(chan struct{})
	sent := make(chan error, 1)
	go func() {
		for {
			select {
			case <-done:
				sent <- nil
				return
			default:
				if err := g.Send(s.flows); err != nil {
					sent <- err
					return
				}
			}
		}
	}()
	s.shows(`(?m)^fast +[1-9].* 100% .*fast_xdp [1-9]`)
	s.shows(`(?m)^udp .*192\.0\.2\.2:1\d{4}.* [1-9][^ ]* +[1-9]`)
	close(done)
	if err := <-sent; err != nil {
		s.t.Fatal(err)
	}
}

func (s *topScreen) filter() {
	s.t.Helper()
	s.keys("/", "1", "0", "0", "0", "0")
	s.shows("filter: 10000_")
	s.keys("Enter")
	s.check(s.shows(fmt.Sprintf(`(?s)\[Flows %d\][^\n]*with "10000".*q quit`, min(s.flows, 1))), min(s.flows, 1))
	s.keys("/", "Escape")
	s.shows(fmt.Sprintf(`\[Flows %d\]  by name\n`, s.flows))
}

// check reads a screen: its size, the totals, the heading and the number of rows.
func (s *topScreen) check(screen string, rows int) {
	t := s.t
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(screen, "\n"), "\n")
	if len(lines) != s.height {
		t.Errorf("%d lines, want %d", len(lines), s.height)
	}
	for _, l := range lines {
		if len(l) > s.width {
			t.Errorf("a line of %d characters: %s", len(l), l)
		}
	}
	for i, want := range []string{
		`^xveth  [0-9:]+  every 200ms$`, `^fast +\S+ pkt/s`, `^kernel +\S+ pkt/s`, `^lost +0 pkt/s`,
		fmt.Sprintf(`^flows +%d fast now, %d known`, s.flows, s.flows), `Pods \d+`, `^(HOST END|PROTO) `,
	} {
		if !regexp.MustCompile(want).MatchString(lines[i]) {
			t.Errorf("line %d does not match %q:\n%s", i, want, screen)
		}
	}
	shown := 0
	for _, l := range lines[7 : len(lines)-1] {
		if l != "" {
			shown++
		}
	}
	if want := min(rows, s.height-8); shown != want {
		t.Errorf("%d rows, want %d:\n%s", shown, want, screen)
	}
	if !strings.Contains(lines[len(lines)-1], "q quit") {
		t.Errorf("no help in the last line:\n%s", screen)
	}
}

// end ends the view: the shell and the terminal are as they were.
func (s *topScreen) end(key string) {
	t := s.t
	t.Helper()
	s.keys(key)
	screen := s.shows(`ready\$ $|ready\$\n*$`)
	if strings.Contains(screen, "pkt/s") {
		t.Errorf("after %s the view is still there:\n%s", key, screen)
	}
	s.keys("clear; echo status $?; stty -a", "Enter")
	screen = s.shows(`(?s)status \d.*ready\$`)
	for _, want := range []string{" icanon", " echo ", " isig", " opost"} {
		if !strings.Contains(strings.ReplaceAll(screen, "\n", " "), want) {
			t.Errorf("after %s the terminal lacks %q:\n%s", key, want, screen)
		}
	}
}
