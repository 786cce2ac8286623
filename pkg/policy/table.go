// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"

	"github.com/xveth/xveth/pkg/internal/nftlink"
)

// table is our table in the network namespace of the calling thread, and what we have put
// into it. What an earlier process left stays in force until the first write.
type table struct {
	session *nftlink.Session // nil until it is needed
	// rules are nil while it is not known what the table holds.
	rules *Rules
	// is tells whether it is still the table that we wrote.
	is identity
}

// identity tells a table from another of its name, and from itself with more or less in it.
type identity struct {
	handle uint64
	use    uint32
}

// wrote says what a write did.
type wrote int

const (
	nothing wrote = iota
	changes
	everything
)

func (w wrote) String() string { return [...]string{"nothing", "changes", "everything"}[w] }

func (t *table) open() (err error) {
	if t.session == nil {
		t.session, err = nftlink.Open()
	}
	return err
}

// close ends the session; the next use opens another.
func (t *table) close() {
	if t.session != nil {
		t.session.Close()
		t.session = nil
	}
}

// write makes the table hold the rules, in one transaction.
func (t *table) write(r *Rules) (wrote, error) {
	if t.rules != nil && t.rules.Equal(r) {
		return nothing, nil
	}
	var w writer
	did := everything
	switch {
	case r.Empty():
		w.remove()
	case t.rules == nil || t.rules.Empty():
		w.replace(r)
	default:
		did = changes
		w.update(t.rules, r)
	}
	t.rules = nil
	if err := t.commit(&w); err != nil {
		return did, fmt.Errorf("write table inet %s: %w", tableName, err)
	}
	var err error
	if t.is, err = t.look(); err != nil {
		return did, err
	}
	t.rules = r
	return did, nil
}

// commit ends the session when the kernel refuses: it may have said more than the one
// error that was read.
func (t *table) commit(w *writer) error {
	err := t.open()
	if err == nil {
		if err = t.session.Commit(0, &w.Batch); err != nil {
			t.close()
		}
	}
	return err
}

// remove deletes the table whether it is there or not.
func (w *writer) remove() {
	w.AddTable(tableName)
	w.DeleteTable(tableName)
}

// look returns the table's identity, which is zero when there is none or it has no effect.
func (t *table) look() (identity, error) {
	if err := t.open(); err != nil {
		return identity{}, err
	}
	now, err := t.session.Table(tableName)
	if err != nil {
		t.close()
		return identity{}, err
	}
	if now == nil || now.Dormant() {
		return identity{}, nil
	}
	return identity{now.Handle, now.Use}, nil
}

// verify forgets what the table holds when somebody else has deleted it, or has put a
// chain or a set into it or out of it. The next write then replaces it. Rules and elements
// that were changed by hand are not seen.
func (t *table) verify() (ours bool, err error) {
	if t.rules == nil {
		return true, nil
	}
	is, err := t.look()
	if err == nil && is != t.is {
		t.rules = nil
		return false, nil
	}
	return true, err
}

// Remove takes all rules away, in the network namespace of the calling thread. It succeeds
// when there are none.
func Remove() error {
	var t table
	defer t.close()
	var w writer
	w.remove()
	if err := t.commit(&w); err != nil && !errors.Is(err, nftlink.ErrNotSupported) {
		return fmt.Errorf("remove table inet %s: %w", tableName, err)
	}
	return nil
}
