// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const bpffsRoot = "/sys/fs/bpf"

// ensureBPFFS makes sure that dir will lie in a BPF file system, and mounts one at
// its usual place when there is none, as ip and tc do.
func ensureBPFFS(dir string) error {
	ok, err := onBPFFS(dir)
	if err != nil || ok {
		return err
	}
	if filepath.Dir(dir) != bpffsRoot {
		return fmt.Errorf("pin below %q: not a BPF file system (mount one there: mount -t bpf bpf DIR)", dir)
	}
	if err := unix.Mount("bpf", bpffsRoot, "bpf", 0, "mode=0700"); err != nil {
		return fmt.Errorf("mount a BPF file system on %q: %w", bpffsRoot, err)
	}
	return nil
}

// Probe says why Ensure could not pin anything below dir, if so. It changes nothing.
func Probe(dir string) error {
	ok, err := onBPFFS(dir)
	if err != nil {
		return err
	}
	if !ok {
		if _, err := os.Stat(bpffsRoot); err != nil {
			return fmt.Errorf("no place for a BPF file system: %w", err)
		}
		return nil // the first ADD mounts it
	}
	near, err := nearest(dir)
	if err != nil {
		return err
	}
	if err := unix.Access(near, unix.W_OK); err != nil {
		return fmt.Errorf("pin below %q: %w", near, err)
	}
	return nil
}

// onBPFFS looks at the nearest directory above dir that exists.
func onBPFFS(dir string) (bool, error) {
	near, err := nearest(dir)
	if err != nil {
		return false, err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(near, &st); err != nil {
		return false, fmt.Errorf("look at %q: %w", near, err)
	}
	return st.Type == unix.BPF_FS_MAGIC, nil
}

// nearest is dir, or the nearest directory above it that exists.
func nearest(dir string) (string, error) {
	for {
		_, err := os.Stat(dir)
		if err == nil {
			return dir, nil
		}
		if !errors.Is(err, os.ErrNotExist) || dir == "/" {
			return "", fmt.Errorf("look at %q: %w", dir, err)
		}
		dir = filepath.Dir(dir)
	}
}
