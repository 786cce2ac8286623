// SPDX-License-Identifier: Apache-2.0

// Package metrics turns the state of a node's fast path into Prometheus metrics. What a
// scrape costs depends on the number of pods and not on that of flows, and no metric has
// a label that flows give its values. It serves nothing by itself.
package metrics

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/pkg/status"
)

// Metric describes one metric, for its documentation.
type Metric struct {
	Name   string
	Type   string
	Labels []string
	Help   string

	desc *prometheus.Desc
	kind prometheus.ValueType
}

// newMetric describes a metric; a name that ends in _total is that of a counter.
func newMetric(kind prometheus.ValueType, name, help string, labels ...string) *Metric {
	t := "gauge"
	if kind == prometheus.CounterValue {
		t = "counter"
	}
	return &Metric{
		Name: name, Type: t, Labels: labels, Help: help,
		desc: prometheus.NewDesc(name, help, labels, nil), kind: kind,
	}
}

const (
	counter = prometheus.CounterValue
	gauge   = prometheus.GaugeValue
)

var (
	up = newMetric(gauge, "xveth_up",
		"1 if the state of the fast path could be read, else 0 and all other metrics but xveth_build_info are missing.")
	buildInfo = newMetric(gauge, "xveth_build_info",
		"Always 1; version of the program that answers.", "version")
	loaded = newMetric(gauge, "xveth_loaded",
		"1 if programs and maps are loaded and pinned, else 0 (no pod has been added yet, or the pins are gone).")
	degraded = newMetric(gauge, "xveth_degraded_problems",
		"Problems that xvethctl status lists as degraded; a full flow map is not among them.")
	programsInfo = newMetric(gauge, "xveth_programs_info",
		"Always 1; build of the loaded programs, and of those that the answering program would load.", "build", "own_build")
	revalidate = newMetric(gauge, "xveth_revalidate_interval_seconds",
		"Time for which the kernel's decision on a flow is repeated.")
	maxFlows = newMetric(gauge, "xveth_flow_map_max_entries",
		"Flows that can be learned in each address family.")
	liberal = newMetric(gauge, "xveth_conntrack_tcp_be_liberal",
		"The sysctl nf_conntrack_tcp_be_liberal: while it is 0, no TCP is learned. Missing without conntrack.")
	packets = newMetric(counter, "xveth_packets_total",
		"Packets that came in by armed interfaces, by the way that they took (path: fast, kernel, lost) and why (reason).",
		"path", "reason")
	learned = newMetric(counter, "xveth_learn_total",
		"Packets that the kernel sent out by armed interfaces, by what was learned from them, or why nothing was.",
		"reason")
	lost = newMetric(counter, "xveth_lost_frames_total",
		"Frames that were lost behind a redirect, by the interface that they were on the way to and the cause. Interfaces that do not exist any more are one, (gone).",
		"interface", "cause")
	runs = newMetric(counter, "xveth_program_runs_total",
		"Runs of a program; 0 while kernel.bpf_stats_enabled is 0.", "program")
	runTime = newMetric(counter, "xveth_program_run_seconds_total",
		"Time that a program ran for; 0 while kernel.bpf_stats_enabled is 0.", "program")
	uplink = newMetric(gauge, "xveth_uplink_info",
		"Always 1; the hook that drives an uplink: xdp, tcx or none.", "interface", "driven_by")
	uplinkFast = newMetric(gauge, "xveth_uplink_fast",
		"1 if flows by this uplink can be learned, else 0.", "interface")
	pod = newMetric(gauge, "xveth_pod_info",
		"Always 1; the pod behind a host end.", "interface", "network", "container", "pod_interface")
	podFast = newMetric(gauge, "xveth_pod_fast",
		"1 if flows to or from a pod (direction) can take the fast path, else 0.", "interface", "direction")
)

// Metrics lists all metrics.
func Metrics() []*Metric {
	return []*Metric{
		up, buildInfo, loaded, degraded, programsInfo, revalidate, maxFlows, liberal, packets, learned, lost, runs, runTime,
		uplink, uplinkFast, pod, podFast,
	}
}

// Collector reads the state of a node whenever it is asked for metrics. It looks at the
// network namespace of the calling thread, so it is for processes that stay in one.
type Collector struct {
	dir, version string

	mu  sync.Mutex
	err error
}

// NewCollector makes a collector of the node whose programs are pinned below dir, for a
// program of some version.
func NewCollector(dir, version string) *Collector { return &Collector{dir: dir, version: version} }

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range Metrics() {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	n, err := status.Brief(c.dir)
	c.mu.Lock()
	c.err = err
	c.mu.Unlock()
	out := sink{ch}
	out.send(buildInfo, 1, c.version)
	out.send(up, flag(err == nil))
	if err == nil {
		out.node(n)
	}
}

// Err is why the state could not be read the last time; nil if it could.
func (c *Collector) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Handler answers scrapes.
func (c *Collector) Handler() http.Handler {
	return promhttp.HandlerFor(c.registry(), promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes})
}

// gone stands for all interfaces that do not exist any more.
const gone = "(gone)"

// maxScrapes bounds what scrapes can cost at a time.
const maxScrapes = 2

// Write prints the metrics once, in the text format.
func (c *Collector) Write(w io.Writer) error {
	families, err := c.registry().Gather()
	if err != nil {
		return fmt.Errorf("collect metrics: %w", err)
	}
	if err := c.Err(); err != nil {
		return err
	}
	e := expfmt.NewEncoder(w, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range families {
		if err := e.Encode(f); err != nil {
			return fmt.Errorf("write metrics: %w", err)
		}
	}
	return nil
}

func (c *Collector) registry() *prometheus.Registry {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(c)
	return r
}

// sink takes samples.
type sink struct{ ch chan<- prometheus.Metric }

// send hands on one sample. Names of interfaces are any bytes; labels have to be text.
func (s sink) send(m *Metric, value float64, labels ...string) {
	for i := range labels {
		labels[i] = strings.ToValidUTF8(labels[i], "?")
	}
	s.ch <- prometheus.MustNewConstMetric(m.desc, m.kind, value, labels...)
}

func (s sink) node(n *status.Node) {
	s.send(loaded, flag(n.Loaded))
	s.send(degraded, float64(len(n.Degraded)))
	if n.Liberal != "" {
		s.send(liberal, flag(n.Liberal != "0"))
	}
	for _, u := range n.Uplinks {
		s.send(uplink, 1, u.Name, string(u.Drive))
		s.send(uplinkFast, flag(u.Drive != datapath.DriveNone && len(u.Obstacles) == 0), u.Name)
	}
	for _, a := range n.Attachments {
		s.send(pod, 1, a.HostDev, a.Network, a.ContainerID, a.IfName)
		s.send(podFast, flag(a.ToPod.Fast), a.HostDev, "to_pod")
		s.send(podFast, flag(a.FromPod.Fast), a.HostDev, "from_pod")
	}
	if n.Loaded {
		s.counters(n)
	}
}

func (s sink) counters(n *status.Node) {
	s.send(programsInfo, 1, n.Build, n.OwnBuild)
	s.send(revalidate, n.Settings.Interval.Seconds())
	s.send(maxFlows, float64(n.Settings.MaxFlows))
	for _, c := range n.Counters {
		if path := status.PathOf(c.Reason); path == status.Learning {
			s.send(learned, float64(c.Packets), c.Reason)
		} else {
			s.send(packets, float64(c.Packets), string(path), c.Reason)
		}
	}
	type way struct{ dev, cause string }
	sum := map[way]uint64{}
	for _, l := range n.Losses {
		if l.Interface == status.NameOfGone(l.Index) {
			l.Interface = gone // as many series as pods that have come and gone are too many
		}
		sum[way{l.Interface, l.Cause}] += l.Frames
	}
	for w, frames := range sum {
		s.send(lost, float64(frames), w.dev, w.cause)
	}
	for _, p := range n.Programs {
		s.send(runs, float64(p.Runs), p.Name)
		s.send(runTime, float64(p.Nanos)/1e9, p.Name)
	}
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
