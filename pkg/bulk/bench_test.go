// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"fmt"
	"testing"

	"github.com/xveth/xveth/pkg/ptrring"
)

func benchPool(b *testing.B) *Pool {
	b.Helper()
	p, err := NewPool(Config{Frames: 1024, FrameSize: 2048, Headroom: 256})
	if err != nil {
		b.Fatal(err)
	}
	return p
}

// BenchmarkPool allocates and frees; ns/op is for one frame. Batch 0 stands for Alloc and
// Free.
func BenchmarkPool(b *testing.B) {
	for _, batch := range []int{0, 1, 4, 8, 16, 32, 64} {
		frames := make([]*Frame, batch)
		b.Run(fmt.Sprintf("pool/batch=%d", batch), func(b *testing.B) {
			p := benchPool(b)
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i += max(1, batch) {
				if batch == 0 {
					p.Alloc().Free()
					continue
				}
				FreeBulk(frames[:p.AllocBulk(frames)])
			}
		})
		b.Run(fmt.Sprintf("cache/batch=%d", batch), func(b *testing.B) {
			c := benchPool(b).NewCache(64)
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i += max(1, batch) {
				if batch == 0 {
					c.Free(c.Alloc())
					continue
				}
				c.FreeBulk(frames[:c.AllocBulk(frames)])
			}
		})
	}
}

// BenchmarkTxQueue sends frames into a ring and takes them out, in batches or a lock for each;
// ns/op is for one frame.
func BenchmarkTxQueue(b *testing.B) {
	for _, batch := range []int{1, TxBatch} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			ring, err := ptrring.New[Frame](256, ptrring.Options{})
			if err != nil {
				b.Fatal(err)
			}
			q := NewTxQueue(ToRing(ring))
			frames := make([]*Frame, 64)
			p := benchPool(b)
			p.AllocBulk(frames)
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i += len(frames) {
				for _, f := range frames {
					if batch == 1 {
						ring.Produce(f)
					} else {
						q.Add(f)
					}
				}
				q.Flush()
				ring.ConsumeBatch(frames)
			}
		})
	}
}

// BenchmarkPoll takes frames from a ring to delivered packets; ns/op is for one frame.
func BenchmarkPoll(b *testing.B) {
	for _, batch := range []int{1, 4, 8, 16, 32, 64} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			ring, err := ptrring.New[Frame](256, ptrring.Options{})
			if err != nil {
				b.Fatal(err)
			}
			packets, err := NewPacketPool(256)
			if err != nil {
				b.Fatal(err)
			}
			poller, err := NewPoller(PollConfig{
				Ring: ring, Verdict: func(*Frame) Verdict { return Pass }, Packets: packets,
				Deliver: FreePackets, Batch: batch,
			})
			if err != nil {
				b.Fatal(err)
			}
			frames := make([]*Frame, 64)
			p := benchPool(b)
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i += len(frames) {
				ring.ProduceBatch(frames[:p.AllocBulk(frames)])
				poller.Poll(len(frames))
			}
		})
	}
}
