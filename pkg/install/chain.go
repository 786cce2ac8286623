// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"
)

var errNotList = errors.New("it is not a network list")

// element is one plugin in the text of a network list.
type element struct {
	start, end int
	kind       string
}

// elements finds the plugins in a text, so that the rest of it can stay as it is.
func elements(text []byte) ([]element, error) {
	if !json.Valid(text) {
		return nil, fmt.Errorf("%w: it is not JSON", errNotList)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		return nil, errors.Join(errNotList, err)
	}
	var all []element
	found := 0
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		if key == "plugins" {
			found++
			all, err = elementsOf(dec)
		} else {
			var skip json.RawMessage
			err = dec.Decode(&skip)
		}
		if err != nil {
			return nil, err
		}
	}
	if found != 1 {
		return nil, fmt.Errorf("%w: it has %d keys %q", errNotList, found, "plugins")
	}
	return all, nil
}

// elementsOf reads a list of plugins.
func elementsOf(dec *json.Decoder) ([]element, error) {
	if tok, err := dec.Token(); err != nil || tok != json.Delim('[') {
		return nil, errors.Join(errNotList, err)
	}
	var all []element
	for dec.More() {
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return nil, err
		}
		var p struct {
			Type string `json:"type"`
		}
		if err := json.Unmarshal(raw, &p); err != nil {
			return nil, err
		}
		end := int(dec.InputOffset())
		all = append(all, element{start: end - len(raw), end: end, kind: p.Type})
	}
	_, err := dec.Token()
	return all, err
}

// insert appends a plugin to the text of a network list, laid out as the plugin before
// it. All other bytes stay.
func insert(text []byte, kind string) ([]byte, error) {
	all, err := elements(text)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: it has no plugins", errNotList)
	}
	last := all[len(all)-1]
	// The white space before the last plugin, which begins after "[" or ",".
	gap := last.start - len(bytes.TrimRight(text[:last.start], " \t\r\n"))
	colon := ":"
	if gap > 0 {
		colon = ": "
	}
	entry := append([]byte(","), text[last.start-gap:last.start]...)
	entry = fmt.Appendf(entry, `{"type"%s%q}`, colon, kind)
	return slices.Concat(text[:last.end], entry, text[last.end:]), nil
}

// cut removes the only plugin of a kind, with the comma that it came with.
func cut(text []byte, kind string) ([]byte, error) {
	all, err := elements(text)
	if err != nil {
		return nil, err
	}
	isKind := func(e element) bool { return e.kind == kind }
	i := slices.IndexFunc(all, isKind)
	switch {
	case i < 0:
		return nil, errNotThere
	case slices.ContainsFunc(all[i+1:], isKind):
		return nil, fmt.Errorf("it has several plugins %q: take them out by hand", kind)
	case len(all) == 1:
		return nil, fmt.Errorf("%q is its only plugin: take it out by hand", kind)
	case i == 0:
		return slices.Concat(text[:all[0].start], text[all[1].start:]), nil
	}
	return slices.Concat(text[:all[i-1].end], text[all[i].end:]), nil
}

var errNotThere = errors.New("there is none to take out")

// foreignList is somebody else's network list.
type foreignList struct {
	name string
	// in and file are where it really is.
	in   *folder
	file string
	text []byte
	attributes
}

// foreign opens a list of the folder of networks. Where that is a link, it stays one, and
// what it leads to is replaced.
func (n *node) foreign(name string) (*foreignList, error) {
	path := filepath.Join(n.conf.path, name)
	file, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	info, err := statRegular(file)
	if err != nil {
		return nil, err
	}
	l := &foreignList{name: name, file: filepath.Base(file), attributes: attributes{mode: info.Mode().Perm(), uid: -1, gid: -1}}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		l.uid, l.gid = int(st.Uid), int(st.Gid)
	}
	if l.in, err = n.folder(filepath.Dir(file)); err != nil {
		return nil, err
	}
	l.text, err = readRegular(file, maxList)
	return l, err
}

func (l *foreignList) write(text []byte) error { return l.in.write(l.file, text, l.attributes) }

// planChain plans to append xveth-chain to somebody else's list, once the result was read
// as runtime and plugins will.
func (n *node) planChain(name string) ([]Step, changes, error) {
	path := filepath.Join(n.conf.path, name)
	if !isName(name) || filepath.Ext(name) != listExt {
		return nil, nil, fmt.Errorf("%q is not a network list: its name does not end in %q", path, listExt)
	}
	l, err := n.foreign(name)
	if err != nil {
		return nil, nil, err
	}
	old := readNetwork(path, l.text, nil)
	switch {
	case old.Error != "":
		return nil, nil, fmt.Errorf("read %q: %s", path, old.Error)
	case slices.Contains(old.Plugins, chainPlugin):
		return []Step{{Do: Same, What: path}}, changes{name: l.text}, nil
	case slices.Contains(old.Plugins, mainPlugin):
		return nil, nil, fmt.Errorf("%q has the plugin %q, which needs no %q", path, mainPlugin, chainPlugin)
	}
	text, err := insert(l.text, chainPlugin)
	if err == nil {
		err = checkList(text)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("append %q to %q: %w", chainPlugin, path, err)
	}
	apply := func() error {
		if !slices.Contains(n.conf.rec.Chained, name) {
			n.conf.rec.Chained = append(n.conf.rec.Chained, name)
			if err := n.conf.saveRecord(); err != nil {
				return err
			}
		}
		return l.write(text)
	}
	return []Step{{Do: Chain, What: path, apply: apply}}, changes{name: text}, nil
}

// planUnchain plans to take xveth-chain out of a list that it was appended to.
func (n *node) planUnchain(name string, c changes) Step {
	path := filepath.Join(n.conf.path, name)
	forget := func() error {
		n.conf.rec.Chained = slices.DeleteFunc(n.conf.rec.Chained, func(s string) bool { return s == name })
		return n.conf.saveRecord()
	}
	l, err := n.foreign(name)
	if errors.Is(err, fs.ErrNotExist) {
		return Step{Do: Same, What: path, Why: "it is gone", apply: forget}
	}
	var text []byte
	if err == nil {
		text, err = cut(l.text, chainPlugin)
	}
	if errors.Is(err, errNotThere) {
		return Step{Do: Same, What: path, Why: "its owner has taken " + chainPlugin + " out", apply: forget}
	}
	if err != nil {
		return Step{Do: Keep, What: path, Why: err.Error()}
	}
	c[name] = text
	return Step{Do: Unchain, What: path, apply: func() error {
		if err := l.write(text); err != nil {
			return err
		}
		return forget()
	}}
}
