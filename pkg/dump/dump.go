// SPDX-License-Identifier: Apache-2.0

// Package dump repeats netlink dumps that changes interrupted.
package dump

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// attempts bounds the repetition.
const attempts = 10

// All repeats a netlink dump that a change interrupted, because its answer may lack
// entries. Unlike the reference's netlinksafe it never returns such an answer: who removes
// what is not listed, or checks whether something is there, must not act on half a list.
func All[T any](what string, list func() ([]T, error)) ([]T, error) {
	err := error(netlink.ErrDumpInterrupted)
	var all []T
	for i := 0; i < attempts && errors.Is(err, netlink.ErrDumpInterrupted); i++ {
		all, err = list()
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", what, err)
	}
	return all, nil
}
