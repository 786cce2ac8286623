// SPDX-License-Identifier: Apache-2.0

package afxdp

import (
	"errors"
	"fmt"

	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/pkg/bulk"
)

var (
	// ErrClosed says that the socket was closed.
	ErrClosed = errors.New("af_xdp socket closed")
	// ErrConfig says that a socket or UMEM cannot be made that way.
	ErrConfig = errors.New("unusable af_xdp configuration")
	// ErrNoQueue says that the interface has no such queue.
	ErrNoQueue = errors.New("no such queue")
	// ErrBusy says that another socket has the queue, or another program the interface.
	ErrBusy = errors.New("in use")
	// ErrPrivilege says that the process may not do that.
	ErrPrivilege = errors.New("not permitted")
	// ErrNotSupported says that the kernel or the driver cannot do that.
	ErrNotSupported = errors.New("not supported")
	// ErrDown says that the interface is down or gone.
	ErrDown = errors.New("interface is down or gone")
	// ErrFull says that frames did not fit into the TX ring. It is a bulk.ErrUnsent.
	ErrFull = fmt.Errorf("tx ring is full: %w", bulk.ErrUnsent)
	// ErrForeignFrame says that a frame lies in another pool than the socket's UMEM.
	ErrForeignFrame = errors.New("frame of another pool")
	// ErrEmptyFrame says that a frame, or a fragment of it, has no data.
	ErrEmptyFrame = errors.New("frame without data")
	// ErrInFlight says that a frame is being sent already.
	ErrInFlight = errors.New("frame is in flight already")
	// ErrTooLarge says that a frame has more buffers than the socket can send at once.
	ErrTooLarge = errors.New("too many buffers in a frame")
	// ErrDirection says that a socket was opened for the other direction only.
	ErrDirection = errors.New("socket not opened for this direction")
)

// socketError explains why there is no AF_XDP socket at all.
func socketError(err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("make af_xdp socket: %w (%w): run as root or with CAP_NET_RAW", ErrPrivilege, err)
	case errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("make af_xdp socket: %w (%w): needs a kernel with CONFIG_XDP_SOCKETS",
			ErrNotSupported, err)
	}
	return fmt.Errorf("make af_xdp socket: %w", err)
}

// umemError explains why the kernel does not take the pool's memory.
func umemError(err error, p *bulk.Pool) error {
	what := fmt.Sprintf("register %d frames of %d bytes as umem", p.Frames(), p.FrameSize())
	if errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%s: %w (%w): raise the limit of locked memory (ulimit -l) or add CAP_IPC_LOCK",
			what, ErrPrivilege, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// bindError explains why a queue cannot be had.
func (s *Socket) bindError(err error, device string) error {
	what := fmt.Sprintf("bind af_xdp socket to queue %d of %q", s.queue, device)
	switch {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%s: %w (%w): close the other socket on that queue, or take another queue",
			what, ErrBusy, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%s: %w (%w): run as root or with CAP_NET_RAW and CAP_NET_ADMIN",
			what, ErrPrivilege, err)
	case errors.Is(err, unix.ENETDOWN):
		return fmt.Errorf("%s: %w (%w): set the interface up", what, ErrDown, err)
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("%s: %w (%w): it went away", what, ErrDown, err)
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTSUP):
		if s.umem.mode.Copy == ZeroCopy {
			return fmt.Errorf("%s: zero-copy %w by the driver (%w): ask for Auto or Copy",
				what, ErrNotSupported, err)
		}
		return fmt.Errorf("%s: %w (%w): the driver has no multi-buffer, or the first socket of the "+
			"umem uses zero-copy and this driver cannot", what, ErrNotSupported, err)
	case errors.Is(err, unix.EINVAL):
		if n := queues(device); n > 0 && s.queue >= n {
			return fmt.Errorf("%s: %w (%w): it has %d: take one from 0 to %d, or add some with ethtool -L",
				what, ErrNoQueue, err, n, n-1)
		}
		if s.umem.mode.MultiBuffer {
			return fmt.Errorf("%s: %w (%w): multi-buffer needs kernel 6.6", what, ErrNotSupported, err)
		}
		return fmt.Errorf("%s: %w (%w): missing queue, or a flag that the kernel is too old for", what, ErrConfig, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// queues is how many queues an interface has, or 0 if it does not tell.
func queues(device string) int {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return 0
	}
	defer e.Close()
	c, err := e.GetChannels(device)
	if err != nil {
		return 0
	}
	return int(max(c.RxCount, c.TxCount) + c.CombinedCount)
}

// sendError explains why the kernel sends nothing.
func (s *Socket) sendError(errno unix.Errno) error {
	if errno == unix.ENETDOWN || errno == unix.ENXIO {
		return fmt.Errorf("send on %s: %w (%w)", s.name, ErrDown, errno)
	}
	return fmt.Errorf("send on %s: %w", s.name, errno)
}
