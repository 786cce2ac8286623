// SPDX-License-Identifier: Apache-2.0

// Package runtime_test runs xveth under the real container runtimes. "make test-runtime"
// installs and builds what it needs.
package runtime_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/xveth/xveth/test/rig"
)

// bins is where the programs are that the tests run.
var bins struct {
	// own has the plugins and commands under test.
	own string
	// guest is the program of the images.
	guest string
	// image is an archive of the image that all containers run.
	image string
}

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

// run builds what is in the tree, unless the caller has done so.
func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "xveth-runtime-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	bins.guest, bins.image = filepath.Join(dir, "guest"), filepath.Join(dir, "image.tar")
	if err = build(bins.guest, "./guest"); err == nil {
		err = writeImage(bins.image, bins.guest)
	}
	if bins.own = os.Getenv("XVETH_BIN"); err == nil && bins.own == "" {
		bins.own = dir
		err = build(dir+"/", "../../plugins/...", "../../cmd/...")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func build(to string, what ...string) error {
	cmd := exec.Command("go", append([]string{"build", "-o", to}, what...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build %v: %w", what, err)
	}
	return nil
}

// tool is the path of a program that "make test-runtime" builds, or installs from Debian.
func tool(t *testing.T, name string) string {
	t.Helper()
	for env, fallback := range map[string]string{"XVETH_RUNTIME_BIN": "runtime", "XVETH_TEST_BIN": "bin"} {
		dir := os.Getenv(env)
		if dir == "" {
			dir = filepath.Join("..", "..", ".cache", fallback)
		}
		path, err := filepath.Abs(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	t.Fatalf("%s is missing: run make test-runtime", name)
	return ""
}

// debian is the path of a program of the distribution.
func debian(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%v (test/deps.sh runtime installs it)", err)
	}
	return path
}

// ctxOf is a context that ends before the test's patience does.
func ctxOf(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits up to some time for a condition.
func eventually(t *testing.T, within time.Duration, what string, cond func() bool) {
	t.Helper()
	if !rig.Within(within, cond) {
		t.Fatalf("not within %v: %s", within, what)
	}
}
