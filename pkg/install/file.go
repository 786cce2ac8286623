// SPDX-License-Identifier: Apache-2.0

package install

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// makeDir makes a directory, and brings it to the disk: a list must not survive a power
// cut that its plugins do not.
func makeDir(path string) error {
	var parents []string
	for p := filepath.Dir(path); ; p = filepath.Dir(p) {
		parents = append(parents, p)
		if _, err := os.Stat(p); err == nil || p == filepath.Dir(p) {
			break
		}
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	for _, p := range parents {
		if err := syncDir(p); err != nil {
			return err
		}
	}
	return nil
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return syncFolder(dir)
}

// syncFolder brings the names in a folder to the disk. Some file systems cannot, and need
// not.
func syncFolder(dir *os.File) error {
	if err := dir.Sync(); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

// statRegular follows links.
func statRegular(path string) (fs.FileInfo, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%q is not a regular file", path)
	}
	return info, err
}

// openRegular does not wait for a pipe to have a writer.
func openRegular(path string) (*os.File, error) {
	if _, err := statRegular(path); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
}

func readRegular(path string, limit int64) ([]byte, error) {
	in, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("%q has more than %d bytes", path, limit)
	}
	return text, err
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

func isName(name string) bool {
	return filepath.IsLocal(name) && filepath.Base(name) == name && name != "."
}

// sameFile says whether two paths lead to one file.
func sameFile(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}
