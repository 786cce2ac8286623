// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"time"
)

// fakeCrossing sends a number of frames, of which some arrive and some are counted as lost.
type fakeCrossing struct {
	sent, arrive, count uint64
	err                 error
	n, gone             atomic.Uint64
}

func (f *fakeCrossing) send(ctx context.Context) (uint64, error) {
	f.n.Add(f.arrive)
	f.gone.Add(f.count)
	<-ctx.Done()
	return f.sent, f.err
}

func (f *fakeCrossing) receive(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (f *fakeCrossing) received() uint64      { return f.n.Load() }
func (f *fakeCrossing) lost() (uint64, error) { return f.gone.Load(), nil }
func (f *fakeCrossing) close() error          { return nil }

// Every frame arrives or is counted, or the run fails.
func TestCross(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name string
		f    *fakeCrossing
		ok   bool
		lost float64
	}{
		{"all arrive", &fakeCrossing{sent: 10, arrive: 10}, true, 0},
		{"some lost", &fakeCrossing{sent: 10, arrive: 6, count: 4}, true, 0.4},
		{"all lost", &fakeCrossing{sent: 10, count: 10}, false, 0},
		{"one vanishes", &fakeCrossing{sent: 10, arrive: 6, count: 3}, false, 0},
		{"one too many", &fakeCrossing{sent: 10, arrive: 7, count: 4}, false, 0},
		{"sending fails", &fakeCrossing{sent: 10, arrive: 10, err: broken}, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			// Twice: the counts of the first turn are not those of the second.
			for range 2 {
				n, lost, err := cross(c.f, func() bool { return time.Since(start) > time.Millisecond })
				if (err == nil) != c.ok || (c.f.err != nil && !errors.Is(err, c.f.err)) {
					t.Fatal(err)
				}
				if c.ok && (uint64(n) != c.f.arrive || math.Abs(lost-c.lost) > 1e-9) {
					t.Errorf("%d frames, %v lost", n, lost)
				}
			}
		})
	}
}
