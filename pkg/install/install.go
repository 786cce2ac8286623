// SPDX-License-Identifier: Apache-2.0

// Package install puts the plugin binaries and a network list where a runtime looks for
// them, and takes them away again. It loads nothing into the kernel and knows no pods.
//
// A runtime may look at any moment, and the machine may stop at any moment, so every
// change is one rename: a file is written under another name in the same folder, brought
// to the disk, and then takes the place of the old one. Binaries come before the list
// that names them, and go after it.
//
// Each of the two folders has a record of what was put there. It names a file together
// with the digests of its content, and is written before the file is: what was killed in
// between, or changed by somebody else since, is told from what is ours.
package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

// The plugins.
const (
	mainPlugin  = "xveth"
	chainPlugin = "xveth-chain"
)

// Plugins lists the names of the plugin binaries.
func Plugins() []string { return []string{mainPlugin, chainPlugin} }

const (
	binMode  = 0o755
	listMode = 0o644
	// maxBinary bounds what is read as a plugin; a real one has some 20 MiB.
	maxBinary = 1 << 28
)

// Options says what to install and where.
type Options struct {
	// BinDir and ConfDir are where the runtime looks for plugins and for networks.
	BinDir, ConfDir string
	// From is the folder of the binaries; "" when they are in BinDir already.
	From string
	// List is the text of a network list to write as File in ConfDir; nil writes none.
	List []byte
	File string
	// Chain is the network list in ConfDir that xveth-chain is appended to; "" for none.
	Chain string
	// Force replaces files that are there and were not put there by Install.
	Force bool
	// DryRun only finds out what would be done.
	DryRun bool

	at func(string) // for tests, called between the steps of a change
}

// Install puts binaries and, if one is given, a network list in place. It changes
// nothing when all of it is there, and no file before all of it was checked. The report is
// that of what was done also where an error comes with it.
func Install(o Options) (*Report, error) {
	rep := newReport(o.DryRun)
	if err := o.check(); err != nil {
		return rep, err
	}
	to := toFill
	if o.DryRun {
		to = toLook
	}
	n, err := openNode(o.BinDir, o.ConfDir, to, o.at)
	if err != nil {
		return rep, err
	}
	defer n.close()
	plan, err := n.planBinaries(o)
	if err != nil {
		return rep, err
	}
	var (
		list    []Step
		changed changes
	)
	switch {
	case o.List != nil:
		var s Step
		s, err = n.conf.planFile(o.File, o.List, listMode, o.Force)
		list, changed = []Step{s}, changes{o.File: o.List}
	case o.Chain != "":
		list, changed, err = n.planChain(o.Chain)
	}
	if err != nil {
		return rep, err
	}
	all, err := networks(n.conf.path, changed)
	if err == nil && o.List != nil {
		err = checkRanges(all, o.File)
	}
	if err != nil {
		return rep, err
	}
	// The binaries first: a runtime may use the list as soon as it is there.
	if err := rep.run(append(plan, list...)); err != nil {
		return rep, err
	}
	n.tellOrder(rep, all, changed)
	return rep, nil
}

// planBinaries plans the copies of all plugins.
func (n *node) planBinaries(o Options) ([]Step, error) {
	var plan []Step
	for _, name := range Plugins() {
		path := filepath.Join(n.bin.path, name)
		if o.From == "" || sameFile(o.From, n.bin.path) {
			if err := checkProgram(path); err != nil {
				return nil, err
			}
			plan = append(plan, Step{Do: Same, What: path})
			continue
		}
		from := filepath.Join(o.From, name)
		if err := checkProgram(from); err != nil {
			return nil, err
		}
		text, err := readRegular(from, maxBinary)
		if err != nil {
			return nil, err
		}
		s, err := n.bin.planFile(name, text, binMode, o.Force)
		if err != nil {
			return nil, err
		}
		plan = append(plan, s)
	}
	return plan, nil
}

func checkProgram(path string) error {
	info, err := statRegular(path)
	if err == nil && (info.Mode()&0o111 == 0 || info.Size() == 0) {
		err = errors.New("it is empty or cannot be executed")
	}
	if err != nil {
		return fmt.Errorf("find the plugin %q: %w", path, err)
	}
	return nil
}

// check finds what is wrong whatever there is on the node. The list is read as runtime and
// plugins will.
func (o *Options) check() error {
	if o.List == nil {
		return nil
	}
	if err := checkFileName(o.File); err != nil {
		return err
	}
	err := checkList(o.List)
	if err == nil {
		err = checkTwice(json.NewDecoder(bytes.NewReader(o.List)), "")
	}
	if err != nil {
		return fmt.Errorf("check the network list: %w", err)
	}
	return nil
}

// planFile decides what has to be done to have a file with this content. One that
// somebody else put there is left alone where it will do, and else is an error.
func (f *folder) planFile(name string, text []byte, mode fs.FileMode, force bool) (Step, error) {
	path := filepath.Join(f.path, name)
	have, err := f.look(name)
	if err != nil {
		return Step{}, err
	}
	s := Step{Do: Write, What: path, apply: func() error { return f.put(name, text, mode) }}
	if !have.exists {
		return s, nil
	}
	s.Do = Replace
	fits := have.digest == digest(text)
	switch {
	case !have.plain && !have.link:
		return Step{}, fmt.Errorf("%q is in the way: it is neither a file nor a link", path)
	case f.owns(name, have) && fits && have.mode.Perm() == mode:
		return Step{Do: Same, What: path}, nil
	case f.owns(name, have):
		return s, nil
	case force:
		s.Why = "forced: " + ErrNotOurs.Error()
		return s, nil
	case fits && have.mode&mode&0o100 == mode&0o100:
		return Step{Do: Same, What: path, Why: ErrNotOurs.Error() + ", and uninstall will leave it"}, nil
	case len(f.rec.Files[name]) > 0:
		return Step{}, fmt.Errorf("%q is in the way: %w (--force replaces it)", path, ErrChanged)
	}
	return Step{}, fmt.Errorf("%q is in the way: %w (--force replaces it)", path, ErrNotOurs)
}
