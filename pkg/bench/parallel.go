// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// disturbLimit is how much of a turn on several goroutines other work may take, and turnTries how
// often such a turn is made to stay below.
const (
	disturbLimit = 0.05
	turnTries    = 4
)

// calm makes turns until one has not been disturbed: with one processor for two goroutines nothing
// is contended. The least disturbed turn is the one that counts, not the fastest.
func calm(pair func() (turn, error)) (turn, error) {
	var best turn
	for i := range turnTries {
		t, err := pair()
		if err != nil {
			return t, err
		}
		if i == 0 || t.disturbed < best.disturbed {
			best = t
		}
		if best.disturbed <= disturbLimit {
			break
		}
	}
	return best, nil
}

// inParallel runs f on n goroutines until stop returns true.
func inParallel(n int, d time.Duration, f func(i int, stop func() bool) int) (turn, error) {
	var items int
	var all time.Duration
	took, waited, err := watch(func() error {
		start := time.Now()
		stop := func() bool { return time.Since(start) >= d }
		items, all = together(n, func(i int) int { return f(i, stop) })
		return nil
	})
	// A thread that waits for a processor all the time is seen by its goroutine's late start.
	return turn{
		rate:      float64(items) / took.Seconds(),
		disturbed: max(waited, took-all).Seconds() / took.Seconds(),
	}, err
}

// watch runs f and returns how long it took, and how long threads of the process were ready
// to run and had no processor meanwhile.
func watch(f func() error) (took, waited time.Duration, err error) {
	before, err := waitTime()
	if err != nil {
		return 0, 0, err
	}
	start := time.Now()
	if err := f(); err != nil {
		return 0, 0, err
	}
	took = time.Since(start)
	after, err := waitTime()
	// A thread that has ended took its time along.
	return took, max(0, after-before), err
}

// waitTime is how long all threads of the process have been ready to run without running. A
// kernel that does not count it makes it 0.
func waitTime() (time.Duration, error) {
	files, err := filepath.Glob("/proc/self/task/*/schedstat")
	if err != nil {
		return 0, fmt.Errorf("find threads: %w", err)
	}
	var sum time.Duration
	for _, name := range files {
		b, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return 0, fmt.Errorf("read waiting time of a thread: %w", err)
		}
		// Time on a processor, time waiting for one, number of turns.
		if f := strings.Fields(string(b)); len(f) > 1 {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read waiting time of a thread: %w", err)
			}
			sum += time.Duration(n)
		}
	}
	return sum, nil
}

// together runs f on n goroutines and returns the sum of what they return, and for how long all
// of them were at it.
func together(n int, f func(i int) int) (sum int, all time.Duration) {
	type result struct {
		items      int
		begin, end time.Time
	}
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	results := make([]result, n)
	ready.Add(n)
	for i := range n {
		done.Go(func() {
			ready.Done()
			<-start
			begin := time.Now()
			items := f(i)
			results[i] = result{items, begin, time.Now()}
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
	begin, end := results[0].begin, results[0].end
	for _, r := range results {
		sum += r.items
		if r.begin.After(begin) {
			begin = r.begin
		}
		if r.end.Before(end) {
			end = r.end
		}
	}
	return sum, max(0, end.Sub(begin))
}
