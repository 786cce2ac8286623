// SPDX-License-Identifier: Apache-2.0

package ptrring

import "fmt"

// Unconsume puts entries back to the front, as if they had not been consumed: batch[0]
// is consumed next. If there is no room for all, the last ones of batch go in and
// destroy, unless it is nil, is called for the others, without a lock held. It
// returns how many were not put back. Nil entries are left out.
func (r *Ring[T]) Unconsume(batch []*T, destroy func(*T)) int {
	left := r.unconsume(batch)
	lost := 0
	for i := left - 1; i >= 0; i-- {
		if batch[i] == nil {
			continue
		}
		lost++
		if destroy != nil {
			destroy(batch[i])
		}
	}
	return lost
}

// unconsume returns how many of batch, from its start, found no room.
func (r *Ring[T]) unconsume(batch []*T) int {
	r.lockConsumers()
	r.lockProducers()
	c := &r.cons
	room := r.size - (r.prod.published.Load() - c.head)
	n := len(batch)
	for n > 0 && room > 0 {
		n--
		if batch[n] == nil {
			continue
		}
		room--
		if c.next--; c.next < 0 {
			c.next = len(r.slots) - 1
		}
		c.head--
		r.slots[c.next] = batch[n]
	}
	// The producer's copy may promise slots that are in use again.
	c.tail = c.head
	r.cons.given.Store(c.head)
	r.prod.limit = c.head + r.size
	r.unlockProducers()
	r.unlockConsumers()
	if r.wait != nil {
		r.wait.items.notify()
		r.wait.space.notify()
	}
	return n
}

// Resize changes the number of entries the ring holds and keeps their order. If the
// ring becomes too small for what is in it, the first entries stay, and destroy,
// unless it is nil, is called for the others, without a lock held. It returns how
// many these were.
func (r *Ring[T]) Resize(size int, destroy func(*T)) (int, error) {
	if size < 1 || size > MaxSize {
		return 0, fmt.Errorf("resize ring to %d: %w (1 to %d)", size, ErrSize, MaxSize)
	}
	lost := r.swap(make([]*T, size))
	if destroy != nil {
		for _, p := range lost {
			destroy(p)
		}
	}
	return len(lost), nil
}

// swap moves the entries into fresh slots and returns those that do not fit.
func (r *Ring[T]) swap(fresh []*T) []*T {
	r.lockConsumers()
	r.lockProducers()
	c := &r.cons
	n := int(r.prod.published.Load() - c.head)
	held := make([]*T, 0, n)
	first := min(n, len(r.slots)-c.next)
	held = append(held, r.slots[c.next:c.next+first]...)
	held = append(held, r.slots[:n-first]...)
	kept := copy(fresh, held)

	r.setSlots(fresh)
	c.next = 0
	r.prod.next = kept % len(fresh)
	// published must never seem to go back behind given.
	pos := c.head + uint64(kept)
	c.tail, c.limit = c.head, pos
	r.prod.published.Store(pos)
	r.cons.given.Store(c.head)
	r.prod.limit = c.head + r.size
	r.unlockProducers()
	r.unlockConsumers()
	if r.wait != nil {
		r.wait.space.notify()
	}
	return held[kept:]
}
