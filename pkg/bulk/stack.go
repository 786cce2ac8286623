// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/cpu"
)

// stack is a last-in first-out free list of pointers behind a mutex. Whatever is
// used last is warm in the cache and used next. A batch is one step under the lock.
//
// A list without locks was rejected: one step for a batch then needs a linked list
// of batches and a defence against ABA, and a lock that is taken once for sixteen
// frames is not what costs.
type stack[T any] struct {
	_     cpu.CacheLinePad
	mu    sync.Mutex
	n     int
	items []*T
	short atomic.Uint64 // how many were asked for and not there
	_     cpu.CacheLinePad
}

// newStack makes a full stack of objects.
func newStack[T any](objects []T) *stack[T] {
	s := &stack[T]{n: len(objects), items: make([]*T, len(objects))}
	for i := range objects {
		// The first object ends up on top.
		s.items[len(objects)-1-i] = &objects[i]
	}
	return s
}

// take moves up to len(dst) objects into dst and returns how many.
func (s *stack[T]) take(dst []*T) int { return s.takeSome(dst, len(dst)) }

// takeSome is take for one who has a use for len(dst) but misses only want.
func (s *stack[T]) takeSome(dst []*T, want int) int {
	s.mu.Lock()
	n := min(len(dst), s.n)
	s.n -= n
	copy(dst, s.items[s.n:s.n+n])
	s.mu.Unlock()
	if n < want {
		s.short.Add(uint64(want - n))
	}
	return n
}

// take1 takes one object, or returns nil.
func (s *stack[T]) take1() *T {
	s.mu.Lock()
	if s.n == 0 {
		s.mu.Unlock()
		s.short.Add(1)
		return nil
	}
	s.n--
	p := s.items[s.n]
	s.mu.Unlock()
	return p
}

// put gives objects back. It returns false, and takes none, if there would be more
// than the stack was made with: then some were freed twice.
func (s *stack[T]) put(src []*T) bool {
	s.mu.Lock()
	ok := len(src) <= len(s.items)-s.n
	if ok {
		copy(s.items[s.n:], src)
		s.n += len(src)
	}
	s.mu.Unlock()
	return ok
}

// put1 gives one object back.
func (s *stack[T]) put1(p *T) bool {
	s.mu.Lock()
	ok := s.n < len(s.items)
	if ok {
		s.items[s.n] = p
		s.n++
	}
	s.mu.Unlock()
	return ok
}

func (s *stack[T]) free() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}
