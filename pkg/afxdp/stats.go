// SPDX-License-Identifier: Apache-2.0

package afxdp

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// KernelStats are the kernel's counts for a socket (XDP_STATISTICS).
type KernelStats struct {
	// RxDropped frames had no buffer, or did not fit into one.
	RxDropped uint64
	// RxRingFull frames came when the RX ring was full.
	RxRingFull uint64
	// RxInvalidDescs are addresses in the fill ring that the kernel did not like: none.
	RxInvalidDescs uint64
	// TxInvalidDescs are entries of the TX ring that it did not like: none.
	TxInvalidDescs uint64
	// FillRingEmpty and TxRingEmpty count how often the kernel found nothing in there.
	FillRingEmpty, TxRingEmpty uint64
}

// Stats says what became of the frames of a socket. Frames count packets; Lent and
// InFlight count buffers.
type Stats struct {
	// RxFrames were handed to the caller, with RxBytes of data.
	RxFrames, RxBytes uint64
	// TooManyFrags packets came in more buffers than a frame can have, and were freed.
	TooManyFrags uint64
	// Unread frames were in the RX ring when the socket was closed.
	Unread uint64
	// TxFrames were given to the kernel, with TxBytes of data.
	TxFrames, TxBytes uint64
	// TxDone frames came back from it. Whether the device then dropped one is in its
	// own statistics.
	TxDone uint64
	// Unsent frames had not come back when the socket was closed.
	Unsent uint64
	// Alien entries named memory that the socket had not lent: a kernel's or driver's bug.
	Alien uint64
	// Lent buffers are with the kernel to receive into, InFlight ones to be sent.
	Lent, InFlight int
	// Kernel has the kernel's own counts.
	Kernel KernelStats
}

// Lost is how many frames reached the socket and never the caller.
func (s Stats) Lost() uint64 {
	return s.Kernel.RxDropped + s.Kernel.RxRingFull + s.TooManyFrags + s.Unread
}

// Stats returns the counts so far, and the last ones of a closed socket.
func (s *Socket) Stats() (Stats, error) {
	s.tx.mu.Lock()
	defer s.tx.mu.Unlock()
	s.rx.mu.Lock()
	defer s.rx.mu.Unlock()
	if s.fd < 0 {
		return s.final, nil
	}
	return s.stats()
}

// stats needs both locks.
func (s *Socket) stats() (Stats, error) {
	r, t := &s.rx, &s.tx
	st := Stats{
		RxFrames: r.frames, RxBytes: r.bytes, TooManyFrags: r.tooMany, Unread: r.unread,
		TxFrames: t.frames, TxBytes: t.bytes, TxDone: t.done, Unsent: t.lost,
		Alien: r.alien + t.alien, Lent: int(r.n), InFlight: int(t.inFlight),
	}
	if s.fd < 0 {
		return st, nil
	}
	var k unix.XDPStatistics
	if err := getOption(s.fd, unix.XDP_STATISTICS, &k); err != nil {
		return st, fmt.Errorf("read statistics of %s: %w", s.name, err)
	}
	st.Kernel = KernelStats{
		RxDropped: k.Rx_dropped, RxRingFull: k.Rx_ring_full, RxInvalidDescs: k.Rx_invalid_descs,
		TxInvalidDescs: k.Tx_invalid_descs, FillRingEmpty: k.Rx_fill_ring_empty_descs,
		TxRingEmpty: k.Tx_ring_empty_descs,
	}
	return st, nil
}
