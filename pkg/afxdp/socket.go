// SPDX-License-Identifier: Apache-2.0

package afxdp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultRing is the number of entries of a ring that is not told one.
const DefaultRing = 2048

// releaseTime is how long Open waits for a queue that is in use.
const releaseTime = 300 * time.Millisecond

// Config describes a socket.
type Config struct {
	// Interface is the name of the device, and Queue the number of its queue.
	Interface string
	Queue     int
	// RxRing, TxRing and FillRing are numbers of entries: powers of two from 1 to MaxRing,
	// 0 for DefaultRing. Nothing is rounded. The completion ring is as large as
	// the TX ring. FillRing, at most the pool's frames, is how many frames the socket
	// has lent to the kernel to receive into; its default is smaller in a small pool.
	RxRing, TxRing, FillRing int
	// RxOnly and TxOnly leave the other direction out. One that only sends still lends
	// frames for receiving: some drivers receive nothing at all without.
	RxOnly, TxOnly bool
	// BusyPoll makes Receive, if there is nothing, and Send run the device's poll function
	// themselves, and Poll do so for that long before it sleeps (SO_PREFER_BUSY_POLL,
	// kernel 5.11). The interface needs napi_defer_hard_irqs and gro_flush_timeout for it.
	BusyPoll time.Duration
	// BusyPollBudget is how many packets one such poll handles; 0 is the kernel's default.
	BusyPollBudget int
}

// Socket is an AF_XDP socket on one queue. Any number of goroutines may use it.
type Socket struct {
	umem  *UMEM
	name  string // for messages
	place place
	queue int
	fd    int
	file  *os.File // the socket for the runtime's poller
	raw   syscall.RawConn

	zeroCopy bool
	busy     time.Duration
	closed   atomic.Bool
	closing  chan struct{}
	once     sync.Once
	closeErr error
	gone     atomic.Bool // the interface is
	program  atomic.Pointer[Program]
	final    Stats // after Close

	rx rxSide
	tx txSide
}

// newSocket checks the configuration and makes a socket that the kernel does not know yet.
func (u *UMEM) newSocket(c Config) (*Socket, error) {
	fail := func(err error) (*Socket, error) {
		return nil, fmt.Errorf("open af_xdp socket on queue %d of %q: %w", c.Queue, c.Interface, err)
	}
	fill, err := ringSize("fill ring", c.FillRing, min(DefaultRing, powerOfTwo(u.pool.Frames()/2)))
	if err != nil {
		return fail(err)
	}
	rx, err1 := ringSize("rx ring", c.RxRing, DefaultRing)
	tx, err2 := ringSize("tx ring", c.TxRing, DefaultRing)
	if err := errors.Join(err1, err2); err != nil {
		return fail(err)
	}
	switch {
	case c.Interface == "":
		return fail(fmt.Errorf("%w: no interface given", ErrConfig))
	case c.Queue < 0:
		return fail(ErrNoQueue)
	case c.RxOnly && c.TxOnly:
		return fail(fmt.Errorf("%w: neither receives nor sends", ErrConfig))
	case int(fill) > u.pool.Frames():
		return fail(fmt.Errorf("%w: fill ring of %d entries for a pool of %d frames: enlarge the pool",
			ErrConfig, fill, u.pool.Frames()))
	case c.BusyPoll < 0 || c.BusyPollBudget < 0 || c.BusyPollBudget > maxBudget:
		return fail(fmt.Errorf("%w: busy poll of %v with a budget of %d", ErrConfig, c.BusyPoll, c.BusyPollBudget))
	}
	at, err := find(c.Interface)
	if err != nil {
		return fail(err)
	}
	if err := u.taken(at, c.Queue); err != nil {
		return nil, err
	}
	s := &Socket{
		umem: u, name: fmt.Sprintf("queue %d of %q", c.Queue, c.Interface), place: at,
		queue: c.Queue, fd: -1, closing: make(chan struct{}),
	}
	s.rx.init(s, rx, fill, c.TxOnly)
	s.tx.init(s, tx, c.RxOnly)
	return s, nil
}

// place is an interface, everywhere on the machine: numbers are unique in a namespace only.
type place struct {
	netns   uint64
	ifindex int
}

// find looks for an interface in the network namespace of the calling thread.
func find(device string) (place, error) {
	dev, err := net.InterfaceByName(device)
	if err != nil {
		return place{}, fmt.Errorf("%w: %w", ErrDown, err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return place{}, fmt.Errorf("make a socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	netns, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return place{}, fmt.Errorf("read the namespace's cookie: %w", err)
	}
	return place{netns: netns, ifindex: dev.Index}, nil
}

// maxBudget is what SO_BUSY_POLL_BUDGET can hold.
const maxBudget = 1<<16 - 1

// powerOfTwo returns the largest power of two that is not larger than n, at least 1.
func powerOfTwo(n int) int {
	p := 1
	for p <= n/2 {
		p *= 2
	}
	return p
}

// open makes the kernel's side: socket, memory, rings, first frames, queue. After an error the
// caller destroys what there is.
func (s *Socket) open(c Config) error {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return socketError(err)
	}
	s.fd = fd
	shared := len(s.umem.sockets) > 0
	if !shared {
		if err := s.umem.register(fd); err != nil {
			return err
		}
	}
	if err := s.mapRings(); err != nil {
		return fmt.Errorf("set up %s: %w", s.name, err)
	}
	// Before bind: a driver that finds an empty fill ring then may never look again.
	s.rx.refill()
	if err := s.bind(c.Interface, shared); err != nil {
		return err
	}
	if err := s.setBusyPoll(c); err != nil {
		return err
	}
	var options uint32
	if err := getOption(fd, unix.XDP_OPTIONS, &options); err != nil {
		return fmt.Errorf("read options of %s: %w", s.name, err)
	}
	s.zeroCopy = options&unix.XDP_OPTIONS_ZEROCOPY != 0
	s.file = os.NewFile(uintptr(fd), "af_xdp "+s.name)
	if s.raw, err = s.file.SyscallConn(); err != nil {
		return fmt.Errorf("poll %s: %w", s.name, err)
	}
	if err := s.file.SetDeadline(time.Time{}); err != nil {
		return fmt.Errorf("poll %s: %w", s.name, err)
	}
	return nil
}

// mapRings makes the rings. The kernel wants fill and completion ring of each socket.
func (s *Socket) mapRings() error {
	sizes := []struct {
		option int
		size   uint32
	}{
		{unix.XDP_UMEM_FILL_RING, s.rx.target},
		{unix.XDP_UMEM_COMPLETION_RING, s.tx.size},
		{unix.XDP_RX_RING, s.rx.size},
		{unix.XDP_TX_RING, s.tx.size},
	}
	for _, r := range sizes {
		if r.option == unix.XDP_RX_RING && s.rx.off || r.option == unix.XDP_TX_RING && s.tx.off {
			continue
		}
		if err := setOption(s.fd, r.option, &r.size); err != nil {
			return fmt.Errorf("make a ring of %d entries: %w", r.size, err)
		}
	}
	var off unix.XDPMmapOffsets
	if err := getOption(s.fd, unix.XDP_MMAP_OFFSETS, &off); err != nil {
		return fmt.Errorf("read the layout of the rings: %w", err)
	}
	var err error
	if s.rx.fill, err = mapRing[uint64](s.fd, unix.XDP_UMEM_PGOFF_FILL_RING, off.Fr, s.rx.target); err != nil {
		return err
	}
	if s.tx.comp, err = mapRing[uint64](s.fd, unix.XDP_UMEM_PGOFF_COMPLETION_RING, off.Cr, s.tx.size); err != nil {
		return err
	}
	if !s.rx.off {
		s.rx.ring, err = mapRing[unix.XDPDesc](s.fd, unix.XDP_PGOFF_RX_RING, off.Rx, s.rx.size)
		if err != nil {
			return err
		}
	}
	if !s.tx.off {
		s.tx.ring, err = mapRing[unix.XDPDesc](s.fd, unix.XDP_PGOFF_TX_RING, off.Tx, s.tx.size)
	}
	return err
}

func (s *Socket) bind(device string, shared bool) error {
	a := &unix.SockaddrXDP{Ifindex: uint32(s.place.ifindex), QueueID: uint32(s.queue)}
	if shared {
		// Flags are inherited, and refused.
		a.Flags, a.SharedUmemFD = unix.XDP_SHARED_UMEM, uint32(s.umem.sockets[0].fd)
	} else {
		a.Flags = s.umem.bindFlags()
	}
	// The kernel gives a closed socket's queue up a little later, in a work queue.
	for end := time.Now().Add(releaseTime); ; time.Sleep(shortWait) {
		err := unix.Bind(s.fd, a)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return s.bindError(err, device)
		}
	}
}

func (s *Socket) setBusyPoll(c Config) error {
	if c.BusyPoll == 0 {
		return nil
	}
	options := []struct {
		name          string
		option, value int
	}{
		{"SO_PREFER_BUSY_POLL", unix.SO_PREFER_BUSY_POLL, 1},
		{"SO_BUSY_POLL", unix.SO_BUSY_POLL, int(max(1, c.BusyPoll.Microseconds()))},
		{"SO_BUSY_POLL_BUDGET", unix.SO_BUSY_POLL_BUDGET, c.BusyPollBudget},
	}
	for _, o := range options {
		if o.value == 0 {
			continue
		}
		err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, o.option, o.value)
		switch {
		case errors.Is(err, unix.ENOPROTOOPT):
			return fmt.Errorf("set %s on %s: %w (%w): needs kernel 5.11", o.name, s.name, ErrNotSupported, err)
		case errors.Is(err, unix.EPERM):
			return fmt.Errorf("set %s on %s: %w (%w): run with CAP_NET_ADMIN", o.name, s.name, ErrPrivilege, err)
		case err != nil:
			return fmt.Errorf("set %s on %s: %w", o.name, s.name, err)
		}
	}
	s.busy = c.BusyPoll
	return nil
}

// FD returns the socket's file descriptor, for an XSKMAP of the caller's own. It is good
// until Close.
func (s *Socket) FD() int { return s.fd }

// ZeroCopy tells whether the driver moves packets without a copy.
func (s *Socket) ZeroCopy() bool { return s.zeroCopy }

// Queue returns the number of the queue.
func (s *Socket) Queue() int { return s.queue }

// UMEM returns the memory that the socket works on.
func (s *Socket) UMEM() *UMEM { return s.umem }
