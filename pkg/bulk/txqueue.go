// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"errors"

	"golang.org/x/sys/cpu"

	"github.com/xveth/xveth/pkg/ptrring"
)

// TxBatch is how many frames a TxQueue collects, as in the kernel
// (VETH_XDP_TX_BULK_SIZE, DEV_MAP_BULK_SIZE).
const TxBatch = 16

// ErrUnsent says that not all frames could be sent.
var ErrUnsent = errors.New("not all frames were sent")

// SendFunc sends frames in order and returns how many it sent. Those belong to whoever
// they were sent to, the others to the caller. It must not keep the slice.
type SendFunc func(frames []*Frame) (int, error)

// ToRing returns a function that sends frames into a ring.
func ToRing(r *ptrring.Ring[Frame]) SendFunc {
	return func(frames []*Frame) (int, error) {
		n := r.ProduceBatch(frames)
		if n < len(frames) {
			return n, ErrUnsent
		}
		return n, nil
	}
}

// TxQueue collects frames and sends them together: one lock or one system call for up to
// TxBatch frames. One goroutine uses it, and flushes it at the end of each poll.
type TxQueue struct {
	_      cpu.CacheLinePad
	send   SendFunc
	n      int
	sent   uint64
	unsent uint64
	frames [TxBatch]*Frame
	_      cpu.CacheLinePad
}

// NewTxQueue makes an empty queue.
func NewTxQueue(send SendFunc) *TxQueue { return &TxQueue{send: send} }

// Add queues a frame, and flushes the queue if it is full then. What it returns is what
// Flush returns.
func (q *TxQueue) Add(f *Frame) ([]*Frame, error) {
	q.frames[q.n] = f
	q.n++
	if q.n < TxBatch {
		return nil, nil
	}
	return q.Flush()
}

// Flush sends what is queued. It returns the frames that could not be sent, which are the
// caller's again, and why. The slice is good until the next Add. The queue is empty
// afterwards in any case.
func (q *TxQueue) Flush() ([]*Frame, error) {
	if q.n == 0 {
		return nil, nil
	}
	frames := q.frames[:q.n]
	q.n = 0
	n, err := q.send(frames)
	q.sent += uint64(n)
	if n == len(frames) {
		return nil, err
	}
	q.unsent += uint64(len(frames) - n)
	if err == nil {
		err = ErrUnsent
	}
	return frames[n:], err
}

// Len returns how many frames are queued.
func (q *TxQueue) Len() int { return q.n }

// Counts returns how many frames were ever sent, and how many could not be.
func (q *TxQueue) Counts() (sent, unsent uint64) { return q.sent, q.unsent }
