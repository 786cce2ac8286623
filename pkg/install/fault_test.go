// SPDX-License-Identifier: Apache-2.0

package install

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// The environment of a process that is to be killed in the midst of an install.
const (
	killAt   = "XVETH_TEST_KILL_AT"
	killWhat = "XVETH_TEST_KILL_WHAT"
	killDir  = "XVETH_TEST_KILL_DIR"
)

func TestMain(m *testing.M) {
	if os.Getenv(killAt) != "" {
		if err := runKilled(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runKilled does one of the changes, and kills itself at one of its steps.
func runKilled() error {
	var left int
	if _, err := fmt.Sscan(os.Getenv(killAt), &left); err != nil {
		return err
	}
	return placeIn(os.Getenv(killDir)).change(os.Getenv(killWhat), func(string) {
		if left--; left < 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until it is delivered
		}
	})
}

// change installs a list, chains or uninstalls.
func (p place) change(what string, at func(string)) error {
	if what == "uninstall" {
		o := p.leave()
		o.at = at
		_, err := Uninstall(o)
		return err
	}
	o := Options{BinDir: p.bin, ConfDir: p.conf, From: p.from, at: at}
	if what == "chain" {
		o.Chain = ptpName
	} else {
		text, err := os.ReadFile(filepath.Join(p.from, listName))
		if err != nil {
			return err
		}
		o.List, o.File = text, listName
	}
	_, err := Install(o)
	return err
}

// killedAt runs a change in a process of its own that dies at a step, and says whether it
// came to its end before.
func killedAt(t *testing.T, p place, what string, step int) bool {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", killAt, step), killWhat+"="+what, killDir+"="+filepath.Dir(p.bin))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return false
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return true
}

// TestKilled kills a change at each of its steps. Every file is then the old or the new,
// the list is new only beside new plugins, the same change once more completes it, and
// uninstall leaves nothing.
func TestKilled(t *testing.T) {
	t.Parallel()
	old, fresh := string(listOf(t, "10.7.0.0/24")), string(listOf(t, "10.8.0.0/24"))
	chained, err := insert([]byte(ptpText), chainPlugin)
	if err != nil {
		t.Fatal(err)
	}
	both := map[string]string{"net.d/" + ptpName: ptpText}
	for _, c := range []struct {
		name, what    string
		before, after map[string]string
	}{
		{"fresh", "install", both, installed("v2", []byte(fresh), both)},
		{"upgrade", "install", installed("v1", []byte(old), both), installed("v2", []byte(fresh), both)},
		{"chain", "chain", both, installed("v2", nil, map[string]string{"net.d/" + ptpName: string(chained)})},
		{"uninstall", "uninstall", installed("v1", []byte(old), map[string]string{"net.d/" + ptpName: string(chained)}), both},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			const tooMany = 200
			for step := range tooMany {
				p := newPlace(t)
				put(t, filepath.Join(p.conf, ptpName), ptpText, 0o644)
				if _, ok := c.before["bin/"+mainPlugin]; ok {
					mustInstall(t, p.options(t, "10.7.0.0/24"))
				}
				if c.what == "uninstall" {
					mustInstall(t, p.chainOptions())
				}
				p.build(t, "v2")
				put(t, filepath.Join(p.from, listName), fresh, 0o644)
				ended := killedAt(t, p, c.what, step)
				wantOldOrNew(t, step, p.visible(t), c.before, c.after)
				if err := p.change(c.what, nil); err != nil {
					t.Fatalf("step %d, the second time: %v", step, err)
				}
				if diff := cmp.Diff(c.after, p.visible(t)); diff != "" {
					t.Fatalf("step %d, the second time: want - got +: %s", step, diff)
				}
				p.uninstall(t)
				if diff := cmp.Diff(both, p.content(t)); diff != "" {
					t.Fatalf("step %d, uninstalled: want - got +: %s", step, diff)
				}
				if ended {
					if step < 10 {
						t.Errorf("only %d steps", step)
					}
					return
				}
			}
			t.Fatal("it does not end")
		})
	}
}

// wantOldOrNew checks what a killed change has left; a file that is not there has no content.
func wantOldOrNew(t *testing.T, step int, got, before, after map[string]string) {
	t.Helper()
	names := map[string]bool{}
	for _, m := range []map[string]string{got, before, after} {
		for name := range m {
			names[name] = filepath.Base(name) != tempName
		}
	}
	for name, looked := range names {
		if looked && got[name] != before[name] && got[name] != after[name] {
			t.Errorf("step %d: %s is neither old nor new: %.40q", step, name, got[name])
		}
	}
	for _, list := range []string{"net.d/" + listName, "net.d/" + ptpName} {
		// A runtime can read what names our plugins only while they are there.
		for _, name := range Plugins() {
			if strings.Contains(got[list], `"`+name+`"`) && got["bin/"+name] == "" {
				t.Errorf("step %d: %s is there and %s is not", step, list, name)
			}
			if got[list] != before[list] && after["bin/"+name] != "" && got["bin/"+name] != after["bin/"+name] {
				t.Errorf("step %d: %s is new and %s is not", step, list, name)
			}
		}
	}
}

// mountOn gives the calling test a file system of its own, of some bytes, on a folder.
func mountOn(t *testing.T, dir string, size int) {
	t.Helper()
	if testing.Short() || os.Geteuid() != 0 {
		t.Skip("needs root for a mount namespace")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// Never unlocked: the thread ends with the test, and its namespace with it.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// TestDiskFull has the disk full at the plugins or at the list: what was there stays, and
// once there is room the same install completes it.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	for _, which := range []string{"bin", "net.d"} {
		t.Run(which, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			dir := filepath.Join(filepath.Dir(p.bin), which)
			mountOn(t, dir, 1<<20)
			mustInstall(t, p.options(t, "10.7.0.0/24"))
			before := p.content(t)
			fill := filepath.Join(dir, "fill")
			if err := os.WriteFile(fill, make([]byte, 1<<20), 0o644); !errors.Is(err, unix.ENOSPC) {
				t.Errorf("filled it: %v", err)
			}
			p.build(t, "v2")
			_, err := Install(p.options(t, "10.8.0.0/24"))
			if !errors.Is(err, unix.ENOSPC) {
				t.Errorf("got %v", err)
			}
			want := installed("v1", listOf(t, "10.7.0.0/24"), nil)
			if which == "net.d" { // the plugins are there by then
				want = installed("v2", listOf(t, "10.7.0.0/24"), nil)
			}
			os.Remove(fill)
			if diff := cmp.Diff(want, p.visible(t)); diff != "" {
				t.Errorf("want - got +: %s", diff)
			}
			if got := p.content(t); len(got) != len(before) {
				t.Errorf("left: %v", keys(got))
			}
			mustInstall(t, p.options(t, "10.8.0.0/24"))
			wantDid(t, p.uninstall(t), "remove "+listName, "remove xveth", "remove xveth-chain")
		})
	}
}

func keys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

// TestReadOnly has a folder that cannot be written to: the error names the file, and what
// was there stays.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	for _, which := range []string{"bin", "net.d"} {
		t.Run(which, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			dir := filepath.Join(filepath.Dir(p.bin), which)
			mountOn(t, dir, 1<<20)
			mustInstall(t, p.options(t, "10.7.0.0/24"))
			before := p.content(t)
			if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
				t.Error(err)
			}
			// What changes nothing needs no leave to.
			wantDid(t, mustInstall(t, p.options(t, "10.7.0.0/24")), "same xveth", "same xveth-chain", "same "+listName)
			p.build(t, "v2")
			_, err := Install(p.options(t, "10.8.0.0/24"))
			if !errors.Is(err, unix.EROFS) || !strings.Contains(fmt.Sprint(err), dir) {
				t.Errorf("install: got %v", err)
			}
			if _, err := Uninstall(p.leave()); !errors.Is(err, unix.EROFS) {
				t.Errorf("uninstall: got %v", err)
			}
			if got := p.content(t); which == "bin" && got["bin/"+mainPlugin] != before["bin/"+mainPlugin] {
				t.Error("the plugin was changed")
			}
		})
	}
}

// TestManyAtOnce has several installs of different versions at once: they take turns, and
// what is there at the end is whole, of one of them, and on record.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	const many = 8
	p := newPlace(t)
	var wg sync.WaitGroup
	lists := map[string]bool{}
	for i := range many {
		o := p.options(t, fmt.Sprintf("10.%d.0.0/24", i))
		lists[string(o.List)] = true
		wg.Go(func() {
			if _, err := Install(o); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	got := read(t, filepath.Join(p.conf, listName))
	if !lists[got] {
		t.Errorf("the list is none of those: %s", got)
	}
	if diff := cmp.Diff(installed("v1", []byte(got), nil), p.visible(t)); diff != "" {
		t.Errorf("want - got +: %s", diff)
	}
	wantDid(t, p.uninstall(t), "remove "+listName, "remove xveth", "remove xveth-chain")
}
