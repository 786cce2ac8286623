// SPDX-License-Identifier: Apache-2.0

package install

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

// node is the two folders, and those that links in them lead to.
type node struct {
	bin, conf *folder
	more      []*folder
	to        purpose
}

func openNode(binDir, confDir string, to purpose, at func(string)) (*node, error) {
	if sameFile(binDir, confDir) || filepath.Clean(binDir) == filepath.Clean(confDir) {
		return nil, fmt.Errorf("%q is to hold plugins as well as networks: want two folders", binDir)
	}
	n := &node{to: to}
	for _, f := range []struct {
		to   **folder
		path string
	}{{&n.bin, binDir}, {&n.conf, confDir}} {
		path, err := filepath.Abs(f.path)
		if err == nil {
			*f.to, err = openFolder(path, to, at)
		}
		if err != nil {
			n.close()
			return nil, err
		}
	}
	return n, nil
}

// folder opens the folder that a link leads to.
func (n *node) folder(path string) (*folder, error) {
	for _, f := range append([]*folder{n.bin, n.conf}, n.more...) {
		if sameFile(f.path, path) {
			return f, nil
		}
	}
	f, err := openFolder(path, min(n.to, toChange), n.conf.at)
	if err != nil {
		return nil, err
	}
	if f.dir == nil {
		return nil, fmt.Errorf("open %q: %w", path, fs.ErrNotExist)
	}
	n.more = append(n.more, f)
	return f, nil
}

func (n *node) close() {
	for _, f := range append([]*folder{n.bin, n.conf}, n.more...) {
		if f != nil {
			f.close()
		}
	}
}

var (
	// ErrNotOurs says that something is in the way that Install did not put there.
	ErrNotOurs = errors.New("it was not put there by install")
	// ErrChanged says that somebody changed what Install had put there.
	ErrChanged = errors.New("it was changed since install put it there")
)
