// SPDX-License-Identifier: Apache-2.0

package ptrring

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/cpu"
)

const (
	// HandBack is how many consumed slots are handed back to the producer at
	// once: two cache lines of 64 bytes with 8-byte pointers, the kernel's value.
	HandBack = 16
	// MaxSize is the largest number of entries of a ring.
	MaxSize = 1 << 26
)

var (
	// ErrSize says that a ring cannot have that many entries.
	ErrSize = errors.New("ring size out of range")
	// ErrClosed says that the ring was closed, and for consumers that it is empty too.
	ErrClosed = errors.New("ring closed")
	// ErrNoWait says that the ring was made without Wait.
	ErrNoWait = errors.New("ring cannot wait")
)

// Options choose what a ring is used for. The zero value is safe for any number
// of producers and consumers.
type Options struct {
	// SingleProducer leaves out the producers' lock: only one goroutine may call
	// Produce, ProduceBatch, ProduceWait and Full, and none while Resize or
	// Unconsume runs.
	SingleProducer bool
	// SingleConsumer leaves out the consumers' lock: only one goroutine may call
	// Consume, ConsumeBatch, ConsumeWait, Peek, Len, Empty and Unconsume, and none
	// while Resize runs.
	SingleConsumer bool
	// Exact hands each slot back as soon as it is consumed, so that Produce fails
	// only when Len equals Cap.
	Exact bool
	// Wait allows ProduceWait and ConsumeWait. It implies Exact: a producer must
	// not sleep while there are slots that only wait to be handed back.
	Wait bool
}

const (
	line = unsafe.Sizeof(cpu.CacheLinePad{})
	// block is what each side of a ring has for itself. Twice what it needs, because some
	// processors fetch lines in pairs.
	block = 4 * line
)

// Ring is a bounded FIFO of pointers to T.
//
// The two sides write to different blocks of cache lines. In each, the lock has a line of its own:
// who waits for it looks at it all the time, and must not take from its holder the line on which
// the work is done.
type Ring[T any] struct {
	_        cpu.CacheLinePad
	prod     producer
	_        [block - unsafe.Sizeof(producer{})]byte
	cons     consumer
	_        [block - unsafe.Sizeof(consumer{})]byte
	slots    []*T   // only Resize changes it
	size     uint64 // len(slots)
	handBack uint64 // consumed slots that are handed back together
	opts     Options
	closed   atomic.Bool
	wait     *waiting // nil without Wait
	_        cpu.CacheLinePad
}

// producer is what only producers write.
type producer struct {
	mu        sync.Mutex
	_         [line - unsafe.Sizeof(sync.Mutex{})]byte
	published atomic.Uint64 // entries ever produced
	// What follows only producers read.

	next  int    // slot that is filled next
	limit uint64 // published may grow to this without another look at given
}

// consumer is what only consumers write.
type consumer struct {
	mu    sync.Mutex
	_     [line - unsafe.Sizeof(sync.Mutex{})]byte
	given atomic.Uint64 // slots ever handed back
	// What follows only consumers read.

	next  int    // slot that is consumed next
	head  uint64 // entries ever consumed (the kernel's consumer_head)
	tail  uint64 // private copy of given (the kernel's consumer_tail)
	limit uint64 // head may grow to this without another look at published
}

// New makes a ring of exactly size entries.
func New[T any](size int, opts Options) (*Ring[T], error) {
	if size < 1 || size > MaxSize {
		return nil, fmt.Errorf("make ring of %d: %w (1 to %d)", size, ErrSize, MaxSize)
	}
	r := &Ring[T]{opts: opts}
	if opts.Wait {
		r.wait = newWaiting()
	}
	r.setSlots(make([]*T, size))
	r.prod.limit = r.size
	return r, nil
}

func (r *Ring[T]) setSlots(slots []*T) {
	r.slots = slots
	r.size = uint64(len(slots))
	r.handBack = HandBack
	// As in the kernel: in a small ring the delay would be too much of the ring.
	if r.opts.Exact || r.opts.Wait || HandBack > len(slots)/2 {
		r.handBack = 1
	}
}

func (r *Ring[T]) lockProducers() {
	if !r.opts.SingleProducer {
		r.prod.mu.Lock()
	}
}

func (r *Ring[T]) unlockProducers() {
	if !r.opts.SingleProducer {
		r.prod.mu.Unlock()
	}
}

func (r *Ring[T]) lockConsumers() {
	if !r.opts.SingleConsumer {
		r.cons.mu.Lock()
	}
}

func (r *Ring[T]) unlockConsumers() {
	if !r.opts.SingleConsumer {
		r.cons.mu.Unlock()
	}
}

// room returns how many entries fit, at most want. Producers only.
func (r *Ring[T]) room(pos uint64, want int) int {
	if r.prod.limit-pos < uint64(want) {
		// Never say "full" from an old copy.
		r.prod.limit = r.cons.given.Load() + r.size
	}
	return int(min(r.prod.limit-pos, uint64(want)))
}

// Produce adds p at the end. It returns false if the ring is full or closed, or if
// p is nil.
func (r *Ring[T]) Produce(p *T) bool {
	if p == nil {
		return false
	}
	r.lockProducers()
	pos := r.prod.published.Load()
	if (pos == r.prod.limit && r.room(pos, 1) == 0) || r.closed.Load() {
		r.unlockProducers()
		return false
	}
	i := r.prod.next
	if debug {
		checkFree(r.slots[i : i+1])
	}
	r.slots[i] = p
	if i++; i == len(r.slots) {
		i = 0
	}
	r.prod.next = i
	r.prod.published.Store(pos + 1)
	r.unlockProducers()
	if r.wait != nil {
		r.wait.items.notify()
	}
	return true
}

// ProduceBatch adds entries of src in order until the ring is full or an entry is
// nil, and returns how many. They become visible together.
func (r *Ring[T]) ProduceBatch(src []*T) int {
	for i, p := range src {
		if p == nil {
			src = src[:i]
			break
		}
	}
	r.lockProducers()
	pos := r.prod.published.Load()
	n := r.room(pos, len(src))
	if n == 0 || r.closed.Load() {
		r.unlockProducers()
		return 0
	}
	i := r.prod.next
	first := min(n, len(r.slots)-i)
	if debug {
		checkFree(r.slots[i : i+first])
		checkFree(r.slots[:n-first])
	}
	copy(r.slots[i:], src[:first])
	if i += n; i >= len(r.slots) {
		i -= len(r.slots)
		copy(r.slots, src[first:n])
	}
	r.prod.next = i
	r.prod.published.Store(pos + uint64(n))
	r.unlockProducers()
	if r.wait != nil {
		r.wait.items.notify()
	}
	return n
}

// filled returns how many entries can be consumed, at most want. Finding none, it
// hands back what was consumed. Consumers only.
func (r *Ring[T]) filled(want int) int {
	c := &r.cons
	if c.limit-c.head < uint64(want) {
		c.limit = r.prod.published.Load()
		if c.limit == c.head {
			r.giveBack()
			return 0
		}
	}
	return int(min(c.limit-c.head, uint64(want)))
}

// giveBack announces all consumed slots to the producers. Consumers only.
func (r *Ring[T]) giveBack() {
	if r.cons.tail == r.cons.head {
		return
	}
	r.cons.tail = r.cons.head
	r.cons.given.Store(r.cons.head)
	if r.wait != nil {
		r.wait.space.notify()
	}
}

// Consume takes the first entry, or returns nil if there is none.
func (r *Ring[T]) Consume() *T {
	r.lockConsumers()
	c := &r.cons
	if c.head == c.limit && r.filled(1) == 0 {
		r.unlockConsumers()
		return nil
	}
	i := c.next
	p := r.slots[i]
	r.slots[i] = nil
	c.head++
	if i++; i == len(r.slots) {
		i = 0
	}
	c.next = i
	if c.head-c.tail >= r.handBack || i == 0 {
		r.giveBack()
	}
	r.unlockConsumers()
	return p
}

// ConsumeBatch takes up to len(dst) entries from the front into dst and returns how
// many.
func (r *Ring[T]) ConsumeBatch(dst []*T) int {
	r.lockConsumers()
	n := r.filled(len(dst))
	if n == 0 {
		r.unlockConsumers()
		return 0
	}
	c := &r.cons
	i := c.next
	first := min(n, len(r.slots)-i)
	copy(dst, r.slots[i:i+first])
	clear(r.slots[i : i+first])
	wrapped := false
	if i += n; i >= len(r.slots) {
		i -= len(r.slots)
		copy(dst[first:n], r.slots[:i])
		clear(r.slots[:i])
		wrapped = true
	}
	c.next = i
	c.head += uint64(n)
	if c.head-c.tail >= r.handBack || wrapped {
		r.giveBack()
	}
	r.unlockConsumers()
	return n
}

// Peek returns the first entry and leaves it there, or nil if there is none. With
// several consumers another may have taken it when Peek returns.
func (r *Ring[T]) Peek() *T {
	r.lockConsumers()
	defer r.unlockConsumers()
	if r.filled(1) == 0 {
		return nil
	}
	return r.slots[r.cons.next]
}

// Len returns how many entries can be consumed.
func (r *Ring[T]) Len() int {
	r.lockConsumers()
	defer r.unlockConsumers()
	return int(r.prod.published.Load() - r.cons.head)
}

// Empty says whether there is nothing to consume.
func (r *Ring[T]) Empty() bool { return r.Len() == 0 }

// Used returns how many slots are not free for producers: Len and up to HandBack-1
// consumed slots that have not been handed back. It takes no lock, may be called from
// any goroutine, also with SingleConsumer, and is already old when it returns.
func (r *Ring[T]) Used() int {
	given := r.cons.given.Load()
	// The producer may have gone on since, beyond what fits.
	return int(r.prod.published.Load() - given)
}

// Cap returns how many entries the ring holds. It is not to be called while
// Resize runs.
func (r *Ring[T]) Cap() int { return len(r.slots) }

// Full says whether Produce would fail.
func (r *Ring[T]) Full() bool {
	r.lockProducers()
	defer r.unlockProducers()
	return r.room(r.prod.published.Load(), 1) == 0
}

// checkFree panics if a slot that is about to be filled is not free: then the ring
// would lose an entry.
func checkFree[T any](slots []*T) {
	for _, s := range slots {
		if s != nil {
			panic("ptrring: a slot was to be filled twice")
		}
	}
}
