// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// atOnce is how many datagrams one system call takes or gives.
const atOnce = 64

// datagramMax is the largest datagram that is read.
const datagramMax = 2048

// mmsghdr is the kernel's struct mmsghdr on 64-bit machines.
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   [4]byte
}

// messages are buffers for recvmmsg and sendmmsg, which the libraries offer only together
// with Go's poller and an allocation for each datagram.
type messages struct {
	hdrs  [atOnce]mmsghdr
	iovs  [atOnce]unix.Iovec
	names [atOnce]unix.RawSockaddrAny
	bufs  [atOnce][datagramMax]byte
}

// newMessages prepares messages of some size; with names, each has an address.
func newMessages(size int, names bool) *messages {
	m := &messages{}
	for i := range m.hdrs {
		m.iovs[i].Base = &m.bufs[i][0]
		m.iovs[i].SetLen(size)
		m.hdrs[i].hdr.Iov = &m.iovs[i]
		m.hdrs[i].hdr.SetIovlen(1)
		if names {
			m.hdrs[i].hdr.Name = (*byte)(unsafe.Pointer(&m.names[i]))
		}
	}
	m.reset()
	return m
}

// reset makes room for addresses after a call that has written shorter ones.
func (m *messages) reset() {
	for i := range m.hdrs {
		if m.hdrs[i].hdr.Name != nil {
			m.hdrs[i].hdr.Namelen = unix.SizeofSockaddrAny
		}
	}
}

// receive waits for a datagram and takes what else is there.
func (m *messages) receive(fd int) (int, error) {
	return m.call(unix.SYS_RECVMMSG, fd, atOnce, unix.MSG_WAITFORONE)
}

// send sends the first n messages.
func (m *messages) send(fd, n int) (int, error) {
	return m.call(unix.SYS_SENDMMSG, fd, n, 0)
}

func (m *messages) call(trap uintptr, fd, n, flags int) (int, error) {
	return retry(func() (int, error) {
		r, _, errno := unix.Syscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(&m.hdrs[0])), uintptr(n), uintptr(flags), 0, 0)
		if errno != 0 {
			return 0, errno
		}
		return int(r), nil
	})
}
