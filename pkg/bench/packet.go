// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/test/rig"
)

const (
	// packetBuffer is that of the receiving socket: what a veth may hold, many times.
	packetBuffer = 16 << 20
	// packetWait is how long a receiver sleeps before it looks whether it shall end.
	packetWait = time.Millisecond
)

// mmsghdr is struct mmsghdr.
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   [4]byte
}

// packetCrossing is a packet socket at each end, sendmmsg and recvmmsg.
type packetCrossing struct {
	w         *wire
	near, far int
	out, in   []mmsghdr
	frames    atomic.Uint64
	overflows uint64 // frames that found the receiving socket's buffer full
}

func openPacket(w *wire) (crossing, error) {
	p := &packetCrossing{w: w, near: -1, far: -1}
	if err := p.open(); err != nil {
		return nil, errors.Join(err, p.close())
	}
	packet := wirePacket()
	p.out = messages(func() []byte { return packet })
	p.in = messages(func() []byte { return make([]byte, frameSize) })
	return p, nil
}

func (p *packetCrossing) open() (err error) {
	if p.near, err = packetSocket(p.w.from, p.w.near, 0); err != nil {
		return err
	}
	if p.far, err = packetSocket(p.w.to, p.w.far, etherType); err != nil {
		return err
	}
	wait := unix.NsecToTimeval(int64(packetWait))
	err = errors.Join(
		// As an AF_XDP socket does. The queueing discipline of a veth does nothing.
		unix.SetsockoptInt(p.near, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1),
		unix.SetsockoptInt(p.far, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, packetBuffer),
		unix.SetsockoptTimeval(p.far, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait))
	if err != nil {
		return fmt.Errorf("prepare packet sockets: %w", err)
	}
	return nil
}

// packetSocket opens one on an interface of a host. With protocol 0 it receives nothing.
func packetSocket(h *rig.Host, device string, protocol uint16) (fd int, err error) {
	err = h.Do(func() error {
		i, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		var order [2]byte
		binary.BigEndian.PutUint16(order[:], protocol)
		to := &unix.SockaddrLinklayer{Ifindex: i.Index, Protocol: binary.NativeEndian.Uint16(order[:])}
		if err := unix.Bind(fd, to); err != nil {
			return errors.Join(err, unix.Close(fd))
		}
		return nil
	})
	if err != nil {
		return -1, fmt.Errorf("open packet socket on %q: %w", device, err)
	}
	return fd, nil
}

// messages makes a batch of messages of one buffer each.
func messages(buffer func() []byte) []mmsghdr {
	list := make([]mmsghdr, wireBatch)
	for i := range list {
		b := buffer()
		v := &unix.Iovec{Base: unsafe.SliceData(b)}
		v.SetLen(len(b))
		list[i].hdr.Iov = v
		list[i].hdr.SetIovlen(1)
	}
	return list
}

// mmsg is sendmmsg or recvmmsg: it returns how many messages it moved.
func mmsg(call uintptr, fd int, list []mmsghdr, flags int) (int, error) {
	n, _, errno := unix.Syscall6(call, uintptr(fd),
		uintptr(unsafe.Pointer(unsafe.SliceData(list))), uintptr(len(list)), uintptr(flags), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

func (p *packetCrossing) send(ctx context.Context) (uint64, error) {
	before, err := p.attempts()
	if err != nil {
		return 0, err
	}
	for ctx.Err() == nil {
		_, err := mmsg(unix.SYS_SENDMMSG, p.near, p.out, 0)
		switch {
		case err == nil, errors.Is(err, unix.EINTR), errors.Is(err, unix.ENOBUFS):
			// ENOBUFS is a frame that the veth dropped. It stays hidden if another one of
			// the batch went out, so it is the device that counts.
		default:
			return 0, fmt.Errorf("send on %q: %w", p.w.near, err)
		}
	}
	after, err := p.attempts()
	return after - before, err
}

// attempts is how many frames the device has sent or dropped.
func (p *packetCrossing) attempts() (uint64, error) {
	sent, dropped, err := p.w.counts()
	return sent + dropped, err
}

func (p *packetCrossing) receive(ctx context.Context) error {
	for ctx.Err() == nil {
		n, err := mmsg(unix.SYS_RECVMMSG, p.far, p.in, unix.MSG_WAITFORONE)
		if err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return fmt.Errorf("receive on %q: %w", p.w.far, err)
		}
		for i := range p.in[:n] {
			if p.in[i].len != wireFrame {
				return fmt.Errorf("received a frame of %d bytes on %q: not ours", p.in[i].len, p.w.far)
			}
		}
		p.frames.Add(uint64(n))
	}
	return nil
}

func (p *packetCrossing) received() uint64 { return p.frames.Load() }

func (p *packetCrossing) lost() (uint64, error) {
	// Reading the statistics sets them to zero.
	s, err := unix.GetsockoptTpacketStats(p.far, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return 0, fmt.Errorf("read statistics of the packet socket: %w", err)
	}
	p.overflows += uint64(s.Drops)
	_, dropped, err := p.w.counts()
	return p.overflows + dropped, err
}

func (p *packetCrossing) close() error {
	var errs []error
	for _, fd := range []int{p.near, p.far} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	return errors.Join(errs...)
}
