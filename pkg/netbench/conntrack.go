// SPDX-License-Identifier: Apache-2.0

package netbench

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// The settings of conntrack that all network namespaces share.
const (
	conntrackMax     = "/proc/sys/net/netfilter/nf_conntrack_max"
	conntrackBuckets = "/sys/module/nf_conntrack/parameters/hashsize"
)

// roomForFlows lets conntrack hold all flows of all paths, as an operator with so many
// would, if it does not: its table is one for the machine. What was set comes back.
func roomForFlows(o *Options) (undo func() error, err error) {
	undo = func() error { return nil }
	if !o.rules.Masquerade {
		return undo, nil
	}
	// The limit is one of each node; the table is shared by the nodes of all paths.
	for _, s := range []struct {
		file string
		want int
	}{{conntrackMax, 2 * o.Flows}, {conntrackBuckets, len(o.Paths) * o.Flows}} {
		before := undo
		restore, err := raise(s.file, s.want)
		if err != nil {
			return nil, fmt.Errorf("make room for %d flows: %w", o.Flows, errors.Join(err, before()))
		}
		undo = func() error { return errors.Join(restore(), before()) }
	}
	return undo, nil
}

// raise sets a number of the kernel's that is less than what is wanted.
func raise(file string, want int) (restore func() error, err error) {
	restore = func() error { return nil }
	text, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return restore, nil // conntrack is not loaded yet, or built without
	}
	if err != nil {
		return nil, err
	}
	have, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	if have >= want {
		return restore, nil
	}
	set := func(n int) error { return os.WriteFile(file, []byte(strconv.Itoa(n)), 0o644) }
	if err := set(want); err != nil {
		return nil, err
	}
	return func() error { return set(have) }, nil
}
