// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

const (
	// headerWait bounds how long a client may take to ask.
	headerWait = 5 * time.Second
	// answerWait bounds an answer, and how long the end waits for those under way.
	answerWait = 10 * time.Second
)

// Serve answers scrapes at http://listen/metrics until the context ends. It calls ready
// with the address once it listens.
func (c *Collector) Serve(ctx context.Context, listen string, ready func(net.Addr)) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", c.Handler())
	s := &http.Server{Handler: mux, ReadHeaderTimeout: headerWait, WriteTimeout: answerWait}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerWait)
		defer cancel()
		_ = s.Shutdown(end)
	})
	ready(l.Addr())
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		stop()
		return fmt.Errorf("serve metrics at %s: %w", l.Addr(), err)
	}
	<-stopped
	return nil
}
