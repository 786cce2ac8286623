// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"errors"
	"sync"
	"time"
)

// AtOnce calls f n times at the same instant and returns what fails.
func AtOnce(n int, f func(i int) error) error {
	var wg sync.WaitGroup
	start := make(chan struct{})
	failed := make([]error, n)
	for i := range n {
		wg.Go(func() {
			<-start
			failed[i] = f(i)
		})
	}
	close(start)
	wg.Wait()
	return errors.Join(failed...)
}

// Within waits up to some time for a condition, and returns whether it came.
func Within(d time.Duration, cond func() bool) bool {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if cond() {
			return true
		}
	}
	return false
}
