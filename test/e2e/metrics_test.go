// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/xveth/xveth/pkg/metrics"
	"github.com/xveth/xveth/pkg/status"
	"github.com/xveth/xveth/test/rig"
)

// series reads the text format: values by name and labels, as `name{label="value"}`.
func series(t *testing.T, text string) map[string]float64 {
	t.Helper()
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	all := map[string]float64{}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			key := name
			if len(labels) > 0 {
				key += "{" + strings.Join(labels, ",") + "}"
			}
			all[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return all
}

// TestMetrics finds the kernel's counters, the pods and what is degraded in the metrics, and
// as many series with many flows as with few.
func TestMetrics(t *testing.T) {
	t.Parallel()
	r, p, g := topFlows(t, 2000)
	off := addPod(t, r, "off", map[string]any{"runtimeConfig": map[string]any{"fastPath": "off"}})
	before, _ := ctl(t, r, 0, "metrics", "--once")
	const more = 1000
	if err := g.Send(more); err != nil {
		t.Fatal(err)
	}
	after, _ := ctl(t, r, 0, "metrics", "--once")
	was, is := series(t, before), series(t, after)
	const fast = `xveth_packets_total{path="fast",reason="fast_xdp"}`
	if is[fast]-was[fast] != more {
		t.Errorf("%s went from %v to %v, want %d more", fast, was[fast], is[fast], more)
	}
	for key, want := range map[string]float64{
		"xveth_up": 1, "xveth_loaded": 1, "xveth_degraded_problems": 0, "xveth_flow_map_max_entries": 65536,
		"xveth_revalidate_interval_seconds": 60, "xveth_conntrack_tcp_be_liberal": 1,
		`xveth_learn_total{reason="learn_new"}`:               2000,
		`xveth_uplink_info{driven_by="xdp",interface="eth0"}`: 1, `xveth_uplink_fast{interface="eth0"}`: 1,
		`xveth_pod_info{container="a",interface="` + p.HostDev + `",network="rig",pod_interface="eth0"}`: 1,
		`xveth_pod_fast{direction="to_pod",interface="` + p.HostDev + `"}`:                               1,
		`xveth_pod_fast{direction="from_pod",interface="` + off.HostDev + `"}`:                           0,
	} {
		if got, ok := is[key]; !ok || got != want {
			t.Errorf("%s: %v, %v; want %v", key, got, ok, want)
		}
	}
	const most = 120 // reasons, programs, two pods
	if len(is) > most || strings.Contains(after, rig.ExtAddr4.String()) {
		t.Errorf("%d series for 2 pods and 2000 flows:\n%s", len(is), after)
	}
}

// TestMetricsServe scrapes a server, also while the fast path goes away, and stops it.
func TestMetricsServe(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	addPod(t, r, "a", nil)
	on(t, r.Node, "ip link set lo up")
	cmd := exec.CommandContext(ctxOf(t), filepath.Join(plugins, "xvethctl"), "metrics", "--listen", "127.0.0.1:0")
	errOut, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Node.Start(cmd); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(errOut).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "serving ")
	if !ok {
		t.Fatalf("said %q: %v", line, err)
	}
	if is := series(t, scrape(t, r, url)); is["xveth_loaded"] != 1 {
		t.Errorf("xveth_loaded: %v", is["xveth_loaded"])
	}
	ctl(t, r, 0, "detach")
	is := series(t, scrape(t, r, url))
	if loaded, ok := is["xveth_loaded"]; !ok || loaded != 0 || is["xveth_up"] != 1 {
		t.Errorf("detached: xveth_loaded %v, xveth_up %v", loaded, is["xveth_up"])
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("interrupted: %v", err)
	}
}

// scrape reads a page on the node.
func scrape(t *testing.T, r *rig.Rig, url string) (text string) {
	t.Helper()
	at, err := netip.ParseAddrPort(strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/metrics"))
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return r.Node.DialTCP(netip.AddrPort{}, at)
	}}}
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v, %v", url, resp.Status, err)
	}
	return string(body)
}

// metricName is the name of one of our metrics.
var metricName = regexp.MustCompile(`\bxveth_[a-z_]+\b`)

// TestMetricsExamples finds in the dashboard and the rules no metric that does not exist, and
// no reason either.
func TestMetricsExamples(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, m := range metrics.Metrics() {
		known[m.Name] = true
	}
	files, err := filepath.Glob("../../examples/metrics/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range metricName.FindAllString(string(text), -1) {
			if !known[name] {
				t.Errorf("%s names %s, which does not exist", file, name)
			}
		}
		for _, m := range regexp.MustCompile(`reason=~?\\?"([a-z_|]+)`).FindAllStringSubmatch(string(text), -1) {
			for _, reason := range strings.Split(m[1], "|") {
				if status.Meaning(reason) == "" {
					t.Errorf("%s names the reason %s, which does not exist", file, reason)
				}
			}
		}
	}
}
