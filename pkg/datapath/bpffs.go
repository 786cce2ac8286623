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

// onBPFFS looks at the nearest directory above dir that exists.
func onBPFFS(dir string) (bool, error) {
	for {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if err == nil {
			return st.Type == unix.BPF_FS_MAGIC, nil
		}
		if !errors.Is(err, os.ErrNotExist) || dir == "/" {
			return false, fmt.Errorf("look at %q: %w", dir, err)
		}
		dir = filepath.Dir(dir)
	}
}
