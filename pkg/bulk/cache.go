// SPDX-License-Identifier: Apache-2.0

package bulk

import "golang.org/x/sys/cpu"

// Cache is a worker's own stock of a pool's frames, so that most allocations take no
// lock. It is refilled and emptied in bulk. One goroutine uses it.
type Cache struct {
	_     cpu.CacheLinePad
	pool  *Pool
	batch int
	n     int
	items []*Frame
	_     cpu.CacheLinePad
}

// NewCache makes an empty cache that holds up to two batches. A batch is what moves
// between cache and pool at once; below 1 it is [TxBatch].
func (p *Pool) NewCache(batch int) *Cache {
	if batch < 1 {
		batch = TxBatch
	}
	batch = min(batch, p.Frames())
	return &Cache{pool: p, batch: batch, items: make([]*Frame, 2*batch)}
}

// Len returns how many frames the cache holds.
func (c *Cache) Len() int { return c.n }

// Pool returns the pool that the cache draws on.
func (c *Cache) Pool() *Pool { return c.pool }

// Alloc returns a fresh frame, or nil if cache and pool are empty.
func (c *Cache) Alloc() *Frame {
	if c.n == 0 && !c.refill(1) {
		return nil
	}
	c.n--
	f := c.items[c.n]
	f.head, f.size = c.pool.headroom, 0
	if c.pool.states != nil {
		c.pool.markOut(f)
	}
	return f
}

// AllocBulk fills dst with fresh frames and returns how many it got.
func (c *Cache) AllocBulk(dst []*Frame) int {
	got := 0
	for {
		n := min(len(dst)-got, c.n)
		c.n -= n
		copy(dst[got:], c.items[c.n:c.n+n])
		got += n
		if got == len(dst) || !c.refill(len(dst)-got) {
			break
		}
	}
	c.pool.prepare(dst[:got])
	return got
}

// refill draws a batch from the pool into the empty cache. A pool that cannot give even
// what is wanted has that counted as short.
func (c *Cache) refill(want int) bool {
	want = min(want, c.batch)
	n := c.pool.free.takeSome(c.items[:c.batch], want)
	c.n = n
	return n > 0
}

// Free returns a frame, with its fragments: one of the cache's pool to the cache, any
// other to its own pool.
func (c *Cache) Free(f *Frame) {
	if fragments && f.next != nil {
		c.freeChain(f)
		return
	}
	c.put(f)
}

// FreeBulk returns frames, with their fragments, as Free does.
func (c *Cache) FreeBulk(frames []*Frame) {
	for _, f := range frames {
		if fragments && f.next != nil {
			c.freeChain(f)
			continue
		}
		c.put(f)
	}
}

func (c *Cache) freeChain(f *Frame) {
	for f != nil {
		next := f.next
		f.next = nil
		c.put(f)
		f = next
	}
}

func (c *Cache) put(f *Frame) {
	if p := f.owner(); p != c.pool {
		p.put1(f)
		return
	}
	if c.pool.states != nil && !c.pool.markFree(f) {
		return
	}
	if c.n == len(c.items) {
		// The half that was freed first is the colder one.
		c.giveBack(c.batch)
	}
	c.items[c.n] = f
	c.n++
}

// giveBack moves the n oldest frames into the pool. They are marked free already.
func (c *Cache) giveBack(n int) {
	if !c.pool.free.put(c.items[:n]) {
		c.pool.misuse(ErrDoubleFree)
	}
	copy(c.items, c.items[n:c.n])
	c.n -= n
}

// Flush returns all frames of the cache to the pool, for example before the worker ends.
func (c *Cache) Flush() { c.giveBack(c.n) }
