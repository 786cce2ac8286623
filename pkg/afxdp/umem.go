// SPDX-License-Identifier: Apache-2.0

package afxdp

import (
	"fmt"
	"math/bits"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/pkg/bulk"
)

// CopyMode says who moves packets between the UMEM and the device.
type CopyMode int

const (
	// Auto takes zero-copy where the driver has it, else copies.
	Auto CopyMode = iota
	// Copy has the kernel copy each packet. Every device can do that.
	Copy
	// ZeroCopy fails where the driver has no zero-copy.
	ZeroCopy
)

// minFrame is the smallest chunk of a UMEM (XDP_UMEM_MIN_CHUNK_SIZE).
const minFrame = 2048

// minData is the shortest frame of Ethernet: a UMEM that cannot receive that is a mistake.
const minData = 64

// Mode is what all sockets of a UMEM have in common. The kernel takes it from the first
// socket that is opened.
type Mode struct {
	// Copy says who moves packets.
	Copy CopyMode
	// MultiBuffer allows packets larger than a frame: they have fragments.
	MultiBuffer bool
	// AlwaysWake wakes the kernel for every batch, and not only when it asks for it.
	AlwaysWake bool
}

// UMEM is the memory of a pool, for sockets to receive into and send from. It needs no
// Close: the kernel lets go of the memory with the last socket.
type UMEM struct {
	pool   *bulk.Pool
	mode   Mode
	frames []*bulk.Frame
	shift  uint   // an address shifted by it is the frame's number
	mask   uint64 // the part of an address that lies in the frame
	// headroom is what the kernel adds to its own 256 bytes.
	headroom uint32

	mu      sync.Mutex
	sockets []*Socket
}

// NewUMEM checks that the memory of a pool can be a UMEM. Received frames have a headroom of at
// least XDP_PACKET_HEADROOM (256 bytes) and at least the pool's.
func NewUMEM(p *bulk.Pool, m Mode) (*UMEM, error) {
	size := p.FrameSize()
	start := uintptr(unsafe.Pointer(unsafe.SliceData(p.Memory())))
	switch {
	case m.Copy < Auto || m.Copy > ZeroCopy:
		return nil, fmt.Errorf("make umem: %w: copy mode %d", ErrConfig, m.Copy)
	case size < minFrame || size > os.Getpagesize() || size&(size-1) != 0:
		return nil, fmt.Errorf("make umem: %w: frames of %d bytes: take a power of two from %d to %d, "+
			"and MultiBuffer for larger packets", ErrConfig, size, minFrame, os.Getpagesize())
	case start%uintptr(os.Getpagesize()) != 0:
		return nil, fmt.Errorf("make umem: %w: the pool's memory does not start on a page: let the pool map it",
			ErrConfig)
	}
	u := &UMEM{pool: p, mode: m, shift: uint(bits.TrailingZeros(uint(size))), mask: uint64(size - 1)}
	u.headroom = uint32(max(0, p.Headroom()-unix.XDP_PACKET_HEADROOM))
	if room := size - int(u.headroom) - unix.XDP_PACKET_HEADROOM; room < minData {
		return nil, fmt.Errorf("make umem: %w: a headroom of %d leaves %d bytes for data: take less",
			ErrConfig, p.Headroom(), room)
	}
	u.frames = make([]*bulk.Frame, p.Frames())
	for i := range u.frames {
		u.frames[i] = p.FrameAt(uint64(i) << u.shift)
	}
	return u, nil
}

// Pool returns the pool that the UMEM lies in.
func (u *UMEM) Pool() *bulk.Pool { return u.pool }

// index is a frame's number.
func (u *UMEM) index(f *bulk.Frame) uint32 { return uint32(f.Addr() >> u.shift) }

// at returns the frame that an address from the kernel lies in, and its number, or nil.
func (u *UMEM) at(addr uint64) (*bulk.Frame, uint32) {
	i := addr >> u.shift
	if i >= uint64(len(u.frames)) {
		return nil, 0
	}
	return u.frames[i], uint32(i)
}

// register makes the pool's memory the UMEM of a socket.
func (u *UMEM) register(fd int) error {
	reg := unix.XDPUmemReg{
		Addr:     uint64(uintptr(unsafe.Pointer(unsafe.SliceData(u.pool.Memory())))),
		Len:      uint64(u.pool.Frames()) << u.shift,
		Size:     uint32(u.pool.FrameSize()),
		Headroom: u.headroom,
	}
	if err := setOption(fd, unix.XDP_UMEM_REG, &reg); err != nil {
		return umemError(err, u.pool)
	}
	return nil
}

// bindFlags are those of the first socket; the others inherit them.
func (u *UMEM) bindFlags() uint16 {
	var flags uint16
	switch u.mode.Copy {
	case Copy:
		flags |= unix.XDP_COPY
	case ZeroCopy:
		flags |= unix.XDP_ZEROCOPY
	case Auto:
	}
	if !u.mode.AlwaysWake {
		flags |= unix.XDP_USE_NEED_WAKEUP
	}
	if u.mode.MultiBuffer {
		flags |= unix.XDP_USE_SG
	}
	return flags
}

// Open makes a socket. The interface is looked for in the network namespace of the calling
// thread; the socket stays in it.
func (u *UMEM) Open(c Config) (*Socket, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	s, err := u.newSocket(c)
	if err != nil {
		return nil, err
	}
	if err := s.open(c); err != nil {
		s.tx.mu.Lock()
		s.rx.mu.Lock()
		s.closed.Store(true)
		_ = s.destroy()
		s.rx.mu.Unlock()
		s.tx.mu.Unlock()
		return nil, err
	}
	u.sockets = append(u.sockets, s)
	return s, nil
}

// forget takes a socket out of the list of those that new ones can share with.
func (u *UMEM) forget(s *Socket) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i, t := range u.sockets {
		if t == s {
			u.sockets = append(u.sockets[:i], u.sockets[i+1:]...)
			return
		}
	}
}

// taken finds a queue that a socket of this UMEM has already. The kernel would let both share the fill
// ring, which each of them would then take for its own.
func (u *UMEM) taken(at place, queue int) error {
	for _, t := range u.sockets {
		if t.place == at && t.queue == queue {
			return fmt.Errorf("open af_xdp socket: %s: %w: the umem has a socket there: take another queue",
				t.name, ErrBusy)
		}
	}
	return nil
}
