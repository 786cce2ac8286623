// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"
)

const (
	// MaxFrames is the largest number of frames of a pool.
	MaxFrames = 1 << 24
	// MaxFrameSize is the largest size of a buffer in bytes.
	MaxFrameSize = 1 << 16
)

var (
	// ErrConfig says that a pool cannot be made that way.
	ErrConfig = errors.New("unusable pool configuration")
	// ErrBusy says that a pool has frames in flight.
	ErrBusy = errors.New("frames in flight")
	// ErrDoubleFree says that a frame was freed that is free already.
	ErrDoubleFree = errors.New("frame freed twice")
	// ErrForeignFree says that a frame was freed that is not the pool's.
	ErrForeignFree = errors.New("frame of another pool freed")
)

// Config describes a pool of frames.
type Config struct {
	// Frames is the number of buffers.
	Frames int
	// FrameSize is the size of each buffer in bytes. It need not be a power of two
	// (an AF_XDP socket wants one); nothing is rounded.
	FrameSize int
	// Headroom is how many bytes a fresh frame has in front of its data.
	Headroom int
	// Memory, if set, is where the buffers lie, for example a UMEM: at least
	// Frames times FrameSize bytes. The pool keeps using it until Close.
	Memory []byte
	// Mapped takes the memory from the kernel by mmap and not from Go's heap.
	Mapped bool
	// Checked finds frames that are freed twice or to a pool that is not theirs.
	// The build tag xveth_debug turns it on everywhere.
	Checked bool
	// OnMisuse is called for what Checked finds; the frame stays where it is.
	// Without it, misuse panics.
	OnMisuse func(error)
}

// Stats is where the frames of a pool are.
type Stats struct {
	// Total is the number of frames of the pool.
	Total int
	// Free frames lie in the pool.
	Free int
	// Out frames are allocated, or cached by a worker (see Cache.Len).
	Out int
	// Short counts frames that were asked for and not there: drops, for who asked. Frames
	// that TryAllocBulk did not find are not among them.
	Short uint64
}

// Pool is a set of frames over one area of memory. It is safe for any number of
// goroutines.
//
// A pool outlives its frames: each frame points to it. Close refuses while frames
// are out.
type Pool struct {
	free     *stack[Frame]
	frames   []Frame
	headroom uint32
	id       uint32
	size     int // of a buffer
	// states says of each frame whether it is out; nil in a pool without checks.
	states   []atomic.Uint32
	onMisuse func(error)
	memory   []byte
	mapped   []byte
}

// pools numbers the pools of the process.
var pools atomic.Uint32

// NewPool makes a pool.
func NewPool(c Config) (*Pool, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("make pool of %d frames of %d bytes: %w", c.Frames, c.FrameSize, err)
	}
	p := &Pool{
		frames: make([]Frame, c.Frames), headroom: uint32(c.Headroom), size: c.FrameSize,
		onMisuse: c.OnMisuse, id: pools.Add(1),
	}
	switch size := c.Frames * c.FrameSize; {
	case c.Memory != nil:
		p.memory = c.Memory[:size:size]
	case c.Mapped:
		m, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE,
			syscall.MAP_PRIVATE|syscall.MAP_ANONYMOUS|syscall.MAP_POPULATE)
		if err != nil {
			return nil, fmt.Errorf("map %d bytes: %w", size, err)
		}
		p.mapped, p.memory = m, m
	default:
		p.memory = alignedMemory(size)
	}
	for i := range p.frames {
		f := &p.frames[i]
		f.pool, f.index, f.id = p, uint32(i), p.id
		f.buf = p.memory[i*c.FrameSize : (i+1)*c.FrameSize : (i+1)*c.FrameSize]
	}
	if debug || c.Checked {
		p.states = make([]atomic.Uint32, c.Frames)
	}
	p.free = newStack(p.frames)
	register(p)
	return p, nil
}

func (c *Config) check() error {
	switch {
	case c.Frames < 1 || c.Frames > MaxFrames:
		return fmt.Errorf("%w: 1 to %d frames", ErrConfig, MaxFrames)
	case c.FrameSize < 1 || c.FrameSize > MaxFrameSize:
		return fmt.Errorf("%w: a frame has 1 to %d bytes", ErrConfig, MaxFrameSize)
	case c.Headroom < 0 || c.Headroom >= c.FrameSize:
		return fmt.Errorf("%w: a headroom of %d leaves no data", ErrConfig, c.Headroom)
	case c.Memory != nil && len(c.Memory) < c.Frames*c.FrameSize:
		return fmt.Errorf("%w: %d bytes of memory are too few", ErrConfig, len(c.Memory))
	case c.Memory != nil && c.Mapped:
		return fmt.Errorf("%w: memory is given and to be mapped", ErrConfig)
	}
	return nil
}

// alignedMemory returns memory that starts on a page, as a UMEM has to.
func alignedMemory(size int) []byte {
	page := os.Getpagesize()
	m := make([]byte, size+page-1)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(m)))) & (page - 1)
	return m[skip : skip+size : skip+size]
}

// Close ends the pool. It fails with ErrBusy, and the pool stays usable, while frames are
// allocated or cached. Mapped memory is unmapped: no slice of it may be used any more.
func (p *Pool) Close() error {
	s := p.free
	s.mu.Lock()
	out := len(p.frames) - s.n
	if out == 0 {
		// From here on nobody can allocate.
		s.n, s.items = 0, nil
		p.frames = nil
	}
	s.mu.Unlock()
	if out != 0 {
		return fmt.Errorf("close pool: %w: %d", ErrBusy, out)
	}
	unregister(p)
	m := p.mapped
	p.mapped, p.memory = nil, nil
	if m != nil {
		if err := syscall.Munmap(m); err != nil {
			return fmt.Errorf("unmap pool: %w", err)
		}
	}
	return nil
}

// Memory returns the area in which the buffers lie.
func (p *Pool) Memory() []byte { return p.memory }

// Frames returns the number of frames of the pool.
func (p *Pool) Frames() int { return len(p.frames) }

// FrameSize returns the size of a buffer in bytes.
func (p *Pool) FrameSize() int { return p.size }

// Headroom returns how many bytes a fresh frame has in front of its data.
func (p *Pool) Headroom() int { return int(p.headroom) }

// FrameAt returns the frame whose buffer addr, counted in bytes from the start of the
// memory, lies in, or nil. Who gets a frame back by its address (a completion ring)
// finds it with this.
func (p *Pool) FrameAt(addr uint64) *Frame {
	i := addr / uint64(p.size)
	if i >= uint64(len(p.frames)) {
		return nil
	}
	return &p.frames[i]
}

// Stats returns where the frames are.
func (p *Pool) Stats() Stats {
	free := p.free.free()
	return Stats{Total: len(p.frames), Free: free, Out: len(p.frames) - free, Short: p.free.short.Load()}
}

// AllocBulk fills dst with fresh frames in one step and returns how many it got. Those
// that it did not get count in Stats.Short.
func (p *Pool) AllocBulk(dst []*Frame) int {
	n := p.free.take(dst)
	p.prepare(dst[:n])
	return n
}

// TryAllocBulk is AllocBulk for one who takes what there is, and asks again later: what it did
// not get is missing nowhere, and counts nowhere.
func (p *Pool) TryAllocBulk(dst []*Frame) int {
	n := p.free.takeSome(dst, 0)
	p.prepare(dst[:n])
	return n
}

// Alloc returns a fresh frame, or nil if there is none.
func (p *Pool) Alloc() *Frame {
	f := p.free.take1()
	if f != nil {
		f.head, f.size = p.headroom, 0
		if p.states != nil {
			p.markOut(f)
		}
	}
	return f
}

// prepare makes frames that come from the pool's list ready for use.
func (p *Pool) prepare(frames []*Frame) {
	for _, f := range frames {
		f.head, f.size = p.headroom, 0
	}
	if p.states != nil {
		for _, f := range frames {
			p.markOut(f)
		}
	}
}

// FreeBulk returns frames, with their fragments, to the pools that they belong to:
// frames of one pool that stand side by side go back in one step.
func FreeBulk(frames []*Frame) {
	for len(frames) > 0 {
		f := frames[0]
		if fragments && f.next != nil {
			freeChain(f)
			frames = frames[1:]
			continue
		}
		p := f.owner()
		n := 1
		for n < len(frames) {
			f := frames[n]
			if f.owner() != p || (fragments && f.next != nil) {
				break
			}
			n++
		}
		p.put(frames[:n])
		frames = frames[n:]
	}
}

// FreeBulk returns frames to the pools that they belong to, as the function does. In a
// checked pool, frames of another one are reported and not freed.
func (p *Pool) FreeBulk(frames []*Frame) {
	if p.states != nil {
		for i, f := range frames {
			if f.owner() != p {
				p.misuse(fmt.Errorf("frame %d of %d: %w", i, len(frames), ErrForeignFree))
				p.FreeBulk(frames[:i])
				p.FreeBulk(frames[i+1:])
				return
			}
		}
	}
	FreeBulk(frames)
}

// freeChain frees a frame that has fragments, buffer by buffer.
func freeChain(f *Frame) {
	for f != nil {
		next := f.next
		// A frame in the free list has no fragments, so that alloc need not look.
		f.next = nil
		f.owner().put1(f)
		f = next
	}
}

// put takes back frames that are the pool's and have no fragments.
func (p *Pool) put(frames []*Frame) {
	if p.states != nil {
		// One by one: what was freed twice must not go in.
		for _, f := range frames {
			p.put1(f)
		}
		return
	}
	if !p.free.put(frames) {
		p.misuse(ErrDoubleFree)
	}
}

func (p *Pool) put1(f *Frame) {
	if p.states != nil && !p.markFree(f) {
		return
	}
	if !p.free.put1(f) {
		p.misuse(ErrDoubleFree)
	}
}

// markOut notes that a frame has left the pool.
func (p *Pool) markOut(f *Frame) { p.states[f.index].Store(1) }

// markFree notes that a frame comes back. It returns false, and reports it, if the frame
// is not out or not the pool's.
func (p *Pool) markFree(f *Frame) bool {
	if int(f.index) >= len(p.frames) || f != &p.frames[f.index] {
		p.misuse(ErrForeignFree)
		return false
	}
	if !p.states[f.index].CompareAndSwap(1, 0) {
		p.misuse(fmt.Errorf("frame %d: %w", f.index, ErrDoubleFree))
		return false
	}
	return true
}

func (p *Pool) misuse(err error) {
	if p.onMisuse == nil {
		panic("bulk: " + err.Error())
	}
	p.onMisuse(err)
}
