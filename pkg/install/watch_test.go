// SPDX-License-Identifier: Apache-2.0

package install

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"
)

// watch parses all networks of a folder as a runtime does whenever something happens
// there, until stop is called. It returns how often it did.
func watch(t *testing.T, dir string) (stop func() int) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	const all = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_CLOSE_WRITE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE | unix.IN_ATTRIB
	if _, err := unix.InotifyAddWatch(fd, dir, all); err != nil {
		t.Fatal(err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	seen := make(chan int)
	go func() {
		n, buf := 0, make([]byte, 64<<10)
		for {
			size, err := events.Read(buf)
			if err != nil {
				if !errors.Is(err, os.ErrClosed) {
					t.Error(err)
				}
				seen <- n
				return
			}
			for at := 0; at < size; n++ {
				e := (*unix.InotifyEvent)(unsafe.Pointer(&buf[at]))
				at += unix.SizeofInotifyEvent + int(e.Len)
				parseAll(t, dir)
			}
		}
	}()
	return func() int {
		events.Close()
		return <-seen
	}
}

// parseAll reads every file that runtimes take for a network; there always is one.
func parseAll(t *testing.T, dir string) {
	files, err := libcni.ConfFiles(dir, []string{".conf", ".conflist", ".json"})
	if err != nil || len(files) == 0 {
		t.Errorf("found %q, %v", files, err)
	}
	for _, f := range files {
		list, err := libcni.NetworkConfFromFile(f)
		if err != nil || len(list.Plugins) == 0 {
			t.Errorf("read %s: %v", f, err)
		}
	}
}

// TestWatcher is B125: a runtime that reads the networks at each event in their folder
// while a list is rewritten 1,000 times always finds all of them whole.
func TestWatcher(t *testing.T) {
	t.Parallel()
	const times = 1000
	p := newPlace(t)
	put(t, filepath.Join(p.conf, ptpName), ptpText, 0o644)
	lists := [][]byte{listOf(t, "10.7.0.0/24"), listOf(t, "10.8.0.0/24", "fd00:8::/64")}
	o := p.options(t, "10.7.0.0/24")
	mustInstall(t, o)
	stop := watch(t, p.conf)
	start := time.Now()
	for i := range times {
		o.List = lists[(i+1)%len(lists)]
		if did := mustInstall(t, o).Steps[2].Do; did != Replace {
			t.Fatalf("time %d: %s", i, did)
		}
	}
	looks := stop()
	t.Logf("%d looks in %v", looks, time.Since(start))
	if looks < times {
		t.Errorf("only %d looks at %d changes", looks, times)
	}
}

// TestWatcherOfChain does the same with xveth-chain, which comes and goes in the list of
// somebody else.
func TestWatcherOfChain(t *testing.T) {
	t.Parallel()
	const times = 100
	p := newPlace(t)
	put(t, filepath.Join(p.conf, ptpName), ptpText, 0o644)
	stop := watch(t, p.conf)
	for range times {
		mustInstall(t, p.chainOptions())
		p.uninstall(t)
	}
	if looks := stop(); looks < times {
		t.Errorf("only %d looks at %d changes", looks, 2*times)
	}
	if got := read(t, filepath.Join(p.conf, ptpName)); got != ptpText {
		t.Errorf("the list became %s", got)
	}
}
