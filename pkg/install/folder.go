// SPDX-License-Identifier: Apache-2.0

package install

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// recordName and tempName end in nothing that a runtime takes for a network.
	recordName = ".xveth-installed"
	tempName   = ".xveth-install.tmp"

	maxRecord = 1 << 20
	// patience is how long another install is waited for.
	patience = 30 * time.Second
	again    = 2 * time.Millisecond
)

// record says what was put in a folder.
type record struct {
	// Files by name, with the digests of what was put there last and, until that had
	// happened, before.
	Files map[string][]string `json:"files,omitempty"`
	// Chained are the lists of others that xveth-chain was appended to.
	Chained []string `json:"chained,omitempty"`
}

// folder is a directory that is ours until close: nobody else installs there.
type folder struct {
	path string
	// dir is nil where there is no such directory and none is to be made.
	dir *os.File
	rec record
	at  func(string)
}

// purpose says what a folder is opened for.
type purpose int

const (
	toLook   purpose = iota // nothing is changed
	toChange                // what a killed install left is removed
	toFill                  // and the folder is made where there is none
)

// openFolder waits for whoever installs there.
func openFolder(path string, to purpose, at func(string)) (*folder, error) {
	f := &folder{path: path, at: at}
	// A pipe in its place is not waited for.
	open := func() (err error) {
		f.dir, err = os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
		return err
	}
	err := open()
	if errors.Is(err, fs.ErrNotExist) {
		if to != toFill {
			return f, nil
		}
		if err = makeDir(path); err == nil {
			err = open()
		}
	}
	if err != nil {
		return nil, err
	}
	if err := f.prepare(to); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

func (f *folder) prepare(to purpose) error {
	if err := f.lock(); err != nil {
		return err
	}
	if err := f.readRecord(); err != nil || to == toLook {
		return err
	}
	temp := filepath.Join(f.path, tempName)
	// Not without a look: a read-only file system answers for a file that is not there.
	if _, err := os.Lstat(temp); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return os.Remove(temp)
}

// lock makes two installs take turns. It ends with the process.
func (f *folder) lock() error {
	for end := time.Now().Add(patience); ; time.Sleep(again) {
		err := unix.Flock(int(f.dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
		case !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("lock %q: %w", f.path, err)
		case time.Now().After(end):
			return fmt.Errorf("lock %q: another process has held it for %v", f.path, patience)
		}
	}
}

func (f *folder) close() {
	if f.dir != nil {
		_ = f.dir.Close()
	}
}

func (f *folder) readRecord() error {
	path := filepath.Join(f.path, recordName)
	text, err := readRegular(path, maxRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, &f.rec)
	}
	if err != nil {
		return fmt.Errorf("read what was installed from %q: %w: remove it, and what was installed by hand", path, err)
	}
	for name := range f.rec.Files {
		if !isName(name) {
			return fmt.Errorf("read what was installed from %q: %q is not the name of a file", path, name)
		}
	}
	for _, name := range f.rec.Chained {
		if !isName(name) {
			return fmt.Errorf("read what was installed from %q: %q is not the name of a file", path, name)
		}
	}
	return nil
}

func (f *folder) saveRecord() error {
	if len(f.rec.Files) == 0 && len(f.rec.Chained) == 0 {
		return f.remove(recordName)
	}
	text, err := json.MarshalIndent(f.rec, "", "  ")
	if err != nil {
		return err
	}
	return f.write(recordName, append(text, '\n'), attributes{mode: 0o644, uid: -1, gid: -1})
}

// attributes of a file; an owner of -1 is the caller.
type attributes struct {
	mode     fs.FileMode
	uid, gid int
}

// found is what is there under a name.
type found struct {
	exists bool
	// plain is a regular file, link a symbolic link to one or to nothing.
	plain, link bool
	mode        fs.FileMode
	digest      string
}

func (f *folder) look(name string) (found, error) {
	path := filepath.Join(f.path, name)
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return found{}, nil
	}
	if err != nil {
		return found{}, err
	}
	have := found{exists: true, plain: info.Mode().IsRegular(), link: info.Mode().Type() == fs.ModeSymlink}
	if !have.plain && !have.link {
		return have, nil
	}
	if info, err = statRegular(path); err != nil {
		return have, nil // a link that leads to no file
	}
	have.mode = info.Mode()
	in, err := openRegular(path)
	if err != nil {
		return have, err
	}
	defer in.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, in); err != nil {
		return have, fmt.Errorf("read %q: %w", path, err)
	}
	have.digest = hex.EncodeToString(sum.Sum(nil))
	return have, nil
}

// owns says whether what is there is what was put there.
func (f *folder) owns(name string, have found) bool {
	return have.plain && slices.Contains(f.rec.Files[name], have.digest)
}

// put writes a file that from now on is ours, and before that the record.
func (f *folder) put(name string, text []byte, mode fs.FileMode) error {
	have, err := f.look(name)
	if err != nil {
		return err
	}
	digests := []string{digest(text)}
	if f.owns(name, have) && have.digest != digests[0] {
		digests = append(digests, have.digest)
	}
	if !slices.Equal(f.rec.Files[name], digests) {
		if f.rec.Files == nil {
			f.rec.Files = map[string][]string{}
		}
		f.rec.Files[name] = digests
		if err := f.saveRecord(); err != nil {
			return err
		}
	}
	return f.write(name, text, attributes{mode: mode, uid: -1, gid: -1})
}

// drop removes a file of ours, and after that takes it off the record.
func (f *folder) drop(name string) error {
	if err := f.remove(name); err != nil {
		return err
	}
	delete(f.rec.Files, name)
	return f.saveRecord()
}

// write replaces a file by one rename, so that whoever looks sees the old or the new. It
// never writes through a link or into a program that runs.
func (f *folder) write(name string, text []byte, a attributes) error {
	temp := filepath.Join(f.path, tempName)
	f.step("create " + name)
	defer os.Remove(temp) // where a step fails; else it is gone by then
	err := f.fill(temp, text, a)
	if err == nil {
		f.step("rename " + name)
		err = os.Rename(temp, filepath.Join(f.path, name))
	}
	if err == nil {
		f.step("sync " + name)
		err = syncFolder(f.dir)
	}
	if err != nil {
		return fmt.Errorf("write %q: %w", filepath.Join(f.path, name), err)
	}
	return nil
}

func (f *folder) fill(path string, text []byte, a attributes) error {
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer out.Close() // again, where a step fails
	f.step("write " + path)
	if _, err := out.Write(text); err != nil {
		return err
	}
	// Not the mode of OpenFile, which the umask changes.
	if err := out.Chmod(a.mode); err != nil {
		return err
	}
	if err := out.Chown(a.uid, a.gid); err != nil {
		return err
	}
	f.step("sync " + path)
	if err := out.Sync(); err != nil {
		return err
	}
	return out.Close()
}

// remove removes a file for good; one that is gone already is fine.
func (f *folder) remove(name string) error {
	f.step("remove " + name)
	if err := os.Remove(filepath.Join(f.path, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if f.dir == nil {
		return nil
	}
	return syncFolder(f.dir)
}

// step lets a test stop the process here.
func (f *folder) step(name string) {
	if f.at != nil {
		f.at(name)
	}
}
