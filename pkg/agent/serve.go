// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/xveth/xveth/pkg/cluster"
	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/pkg/metrics"
)

const (
	headerWait = 5 * time.Second
	answerWait = 10 * time.Second
	// stuck is how long a round may take before the agent counts as dead.
	stuck = 2 * time.Minute
)

func listen(ctx context.Context, at string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at)
	if err != nil {
		return nil, fmt.Errorf("serve health and metrics: %w", err)
	}
	return l, nil
}

// serve answers /healthz, /readyz and /metrics until the context ends.
func (a *Agent) serve(ctx context.Context, l net.Listener) {
	r := prometheus.NewRegistry()
	r.MustRegister(metrics.NewCollector(datapath.DefaultDir, a.cfg.Version))
	a.count.register(r)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{MaxRequestsInFlight: 2}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, a.healthy()) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, a.isReady()) })
	s := &http.Server{Handler: mux, ReadHeaderTimeout: headerWait, WriteTimeout: answerWait}
	stop := context.AfterFunc(ctx, func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = s.Shutdown(end)
	})
	defer stop()
	slog.Info("Serving health and metrics.", "at", l.Addr())
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		slog.Error("Health and metrics are not served any more.", "error", err)
	}
}

func answer(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

func (a *Agent) healthy() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if d := time.Since(a.alive); d > stuck {
		return fmt.Errorf("the last round ended %s ago", d.Round(time.Second))
	}
	return nil
}

// isReady says why the node is not ready for pods, if it is not.
func (a *Agent) isReady() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ready
}

// counters are the agent's own metrics.
type counters struct {
	rounds  *prometheus.CounterVec
	last    prometheus.Gauge
	took    prometheus.Histogram
	ranges  *prometheus.GaugeVec
	garbage prometheus.Counter
}

func newCounters() *counters {
	return &counters{
		rounds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "xvethd_syncs_total", Help: "Rounds in which the node was brought in line with the API, by result: ok or error.",
		}, []string{"result"}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "xvethd_last_sync_timestamp_seconds", Help: "When the last round without an error ended.",
		}),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "xvethd_sync_duration_seconds", Help: "Time that a round took.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
		}),
		ranges: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "xvethd_pod_ranges", Help: "Pod ranges of other nodes, by the way to them: native, tunnel, left (to the routers between), unknown.",
		}, []string{"way"}),
		garbage: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "xvethd_collected_attachments_total", Help: "Attachments that were removed because the runtime does not know them any more.",
		}),
	}
}

func (c *counters) register(r prometheus.Registerer) {
	r.MustRegister(c.rounds, c.last, c.took, c.ranges, c.garbage)
}

func (c *counters) round(took time.Duration, err error) {
	c.took.Observe(took.Seconds())
	if err != nil {
		c.rounds.WithLabelValues("error").Inc()
		return
	}
	c.rounds.WithLabelValues("ok").Inc()
	c.last.SetToCurrentTime()
}

func (c *counters) ways(r cluster.Result) {
	c.ranges.WithLabelValues("native").Set(float64(r.Native))
	c.ranges.WithLabelValues("tunnel").Set(float64(r.Tunnelled))
	c.ranges.WithLabelValues("left").Set(float64(r.Left))
	c.ranges.WithLabelValues("unknown").Set(float64(len(r.Unknown)))
}
