// SPDX-License-Identifier: Apache-2.0

package bulk

// This file is all that differs from the two variants that pkg/bench measures
// this package against: one without fragments, and one that looks a frame's pool
// up in a registry, as the kernel did before 2022. They are made from the sources
// here by pkg/bench/internal/variants.

// fragments says that a frame can have more than one buffer.
const fragments = true

// owner returns the pool that a frame belongs to.
func (f *Frame) owner() *Pool { return f.pool }

// register and unregister make a pool known to owner: nothing to do here.
func register(*Pool) {}

func unregister(*Pool) {}
