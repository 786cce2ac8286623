// SPDX-License-Identifier: Apache-2.0

package ptrring

import (
	"fmt"
	"sync/atomic"
	"testing"
)

const benchSize = 256 // entries of a veth's ring

type item struct{ n uint64 }

func newItems(n int) []*item {
	items := make([]item, n)
	ptrs := make([]*item, n)
	for i := range ptrs {
		items[i].n = uint64(i)
		ptrs[i] = &items[i]
	}
	return ptrs
}

var variants = []struct {
	name string
	opts Options
}{
	{"spsc", Options{SingleProducer: true, SingleConsumer: true}},
	{"spsc-exact", Options{SingleProducer: true, SingleConsumer: true, Exact: true}},
	{"mpsc", Options{SingleConsumer: true}},
	{"spmc", Options{SingleProducer: true}},
	{"mpmc", Options{}},
	{"mpmc-exact", Options{Exact: true}},
	{"mpmc-wait", Options{Wait: true}},
}

// BenchmarkOneCore moves entries through the ring on one goroutine; ns/op is for one
// entry. Batch 0 stands for Produce and Consume.
func BenchmarkOneCore(b *testing.B) {
	for _, v := range variants {
		for _, batch := range []int{0, 1, 4, 8, 16, 32, 64} {
			b.Run(fmt.Sprintf("%s/batch=%d", v.name, batch), func(b *testing.B) {
				r, err := New[item](benchSize, v.opts)
				if err != nil {
					b.Fatal(err)
				}
				src, dst := newItems(64), make([]*item, 64)
				b.ReportAllocs()
				b.ResetTimer()
				if batch == 0 {
					for i := range b.N {
						r.Produce(src[i&63])
						r.Consume()
					}
					return
				}
				for i := 0; i < b.N; i += batch {
					r.ProduceBatch(src[:batch])
					r.ConsumeBatch(dst[:batch])
				}
			})
		}
	}
}

// atomicSlots is the kernel's scheme word for word: the nil in the slot is the
// message. In Go each store to a slot then is a locked instruction.
type atomicSlots struct {
	slots            []atomic.Pointer[item]
	producer         int
	_                [128]byte
	head, tail, give int
}

func (r *atomicSlots) produce(p *item) bool {
	if r.slots[r.producer].Load() != nil {
		return false
	}
	r.slots[r.producer].Store(p)
	if r.producer++; r.producer == len(r.slots) {
		r.producer = 0
	}
	return true
}

func (r *atomicSlots) consume() *item {
	p := r.slots[r.head].Load()
	if p == nil {
		return nil
	}
	r.head++
	if r.head-r.tail >= r.give || r.head == len(r.slots) {
		for i := r.head - 1; i >= r.tail; i-- {
			r.slots[i].Store(nil)
		}
		r.tail = r.head
	}
	if r.head == len(r.slots) {
		r.head, r.tail = 0, 0
	}
	return p
}

// BenchmarkAtomicSlots is what the package would cost with atomic slots, to be held
// against BenchmarkOneCore/spsc.
func BenchmarkAtomicSlots(b *testing.B) {
	for _, batch := range []int{1, 16} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			r := &atomicSlots{slots: make([]atomic.Pointer[item], benchSize), give: HandBack}
			src := newItems(64)
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i += batch {
				for j := range batch {
					r.produce(src[j])
				}
				for range batch {
					r.consume()
				}
			}
		})
	}
}

// BenchmarkChannel is the same with a channel of pointers.
func BenchmarkChannel(b *testing.B) {
	ch := make(chan *item, benchSize)
	src := newItems(64)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		ch <- src[i&63]
		<-ch
	}
}
