// SPDX-License-Identifier: Apache-2.0

package lock

import (
	"os"
	"testing"
	"time"
)

func need(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 || testing.Short() {
		t.Skip("needs root: the locks are in " + dir)
	}
	name := "test-" + t.Name()
	t.Cleanup(func() { _ = os.Remove(dir + "/" + name) })
	return name
}

func TestExclusive(t *testing.T) {
	name := need(t)
	unlock, err := Exclusive(name)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error)
	go func() {
		second, err := Exclusive(name)
		if err == nil {
			second()
		}
		got <- err
	}()
	select {
	case <-got:
		t.Fatal("two have the lock")
	case <-time.After(50 * time.Millisecond):
	}
	unlock()
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}

func TestShared(t *testing.T) {
	name := need(t)
	for range 2 {
		unlock, err := Shared(name)
		if err != nil {
			t.Fatal(err)
		}
		defer unlock()
	}
	if info, err := os.Stat(dir + "/" + name); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: others must not be able to hold it", info, err)
	}
}
