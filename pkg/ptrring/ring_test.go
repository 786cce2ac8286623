// SPDX-License-Identifier: Apache-2.0

package ptrring

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"
	"unsafe"
	"weak"
)

// long returns the second number if the environment asks for the long tests
// (XVETH_LONG=1), otherwise the first.
func long(short, long int) int {
	if os.Getenv("XVETH_LONG") != "" {
		return long
	}
	return short
}

func newRing(t testing.TB, size int, opts Options) *Ring[entry] {
	t.Helper()
	r, err := New[entry](size, opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func entries(from, n int) []*entry {
	e := make([]*entry, n)
	for i := range e {
		e[i] = &entry{byte(from + i)}
	}
	return e
}

func drain(r *Ring[entry]) string {
	dst := make([]*entry, r.Len())
	return ids(dst[:r.ConsumeBatch(dst)])
}

func TestOrderAcrossTheEnd(t *testing.T) {
	t.Parallel()
	for size := 1; size <= 40; size++ {
		r := newRing(t, size, Options{Exact: true})
		var want, got []byte
		next := 1
		dst := make([]*entry, size+1)
		for step := range 200 {
			n := r.ProduceBatch(entries(next, step%(size+2)))
			for i := range n {
				want = append(want, byte(next+i))
			}
			next += n
			k := r.ConsumeBatch(dst[:(step*7)%(size+2)])
			got = append(got, ids(dst[:k])...)
			if r.Len() != len(want)-len(got) || r.Len() > size || r.Full() != (r.Len() == size) {
				t.Fatalf("size %d step %d: %d entries, full %v", size, step, r.Len(), r.Full())
			}
		}
		got = append(got, drain(r)...)
		if !slices.Equal(got, want) {
			t.Fatalf("size %d: got %v, want %v", size, got, want)
		}
	}
}

func TestNilIsRefused(t *testing.T) {
	t.Parallel()
	r := newRing(t, 8, Options{})
	e := entries(1, 3)
	if r.Produce(nil) {
		t.Error("nil went in")
	}
	if n := r.ProduceBatch([]*entry{e[0], nil, e[1]}); n != 1 {
		t.Errorf("%d of a batch with nil in the second place went in, want 1", n)
	}
	if lost := r.Unconsume([]*entry{e[1], nil, e[2]}, nil); lost != 0 {
		t.Errorf("%d entries were lost", lost)
	}
	if got := drain(r); got != "\x02\x03\x01" {
		t.Errorf("got %q", got)
	}
}

func TestPeekLeavesTheEntry(t *testing.T) {
	t.Parallel()
	r := newRing(t, 4, Options{})
	if r.Peek() != nil || !r.Empty() {
		t.Error("an empty ring has an entry")
	}
	e := entries(1, 2)
	r.ProduceBatch(e)
	for range 2 {
		if r.Peek() != e[0] {
			t.Error("peek does not show the first entry")
		}
	}
	if r.Consume() != e[0] || r.Peek() != e[1] {
		t.Error("peek does not show the next entry")
	}
}

func TestUnconsume(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name        string
		opts        Options
		size        int
		in, more    int // produced before and after the first are consumed
		take        int
		want        string
		wantDestroy string
	}{
		{"all fit", Options{}, 8, 5, 0, 3, "\x01\x02\x03\x04\x05", ""},
		{"over the start", Options{}, 8, 8, 2, 5, "\x03\x04\x05\x06\x07\x08\x09\x0a", "\x02\x01"},
		{"none fit", Options{}, 4, 4, 4, 4, "\x05\x06\x07\x08", "\x04\x03\x02\x01"},
		{"not handed back yet", Options{}, 64, 10, 0, 9, "\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a", ""},
		{"single", Options{SingleProducer: true, SingleConsumer: true}, 8, 5, 0, 5, "\x01\x02\x03\x04\x05", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRing(t, tc.size, tc.opts)
			r.ProduceBatch(entries(1, tc.in))
			dst := make([]*entry, tc.take)
			for i := range dst { // one at a time, so that some are not handed back
				dst[i] = r.Consume()
			}
			r.ProduceBatch(entries(1+tc.in, tc.more))
			destroyed := ""
			lost := r.Unconsume(dst, func(e *entry) { destroyed += string([]byte{e.id}) })
			if destroyed != tc.wantDestroy || lost != len(tc.wantDestroy) {
				t.Errorf("destroyed %q, said %d, want %q", destroyed, lost, tc.wantDestroy)
			}
			if r.Used() != r.Len() {
				t.Errorf("%d slots are used by %d entries", r.Used(), r.Len())
			}
			// It has to go on as a ring of its size.
			free := tc.size - r.Len()
			if n := r.ProduceBatch(entries(100, tc.size+1)); n != free {
				t.Errorf("%d entries went into %d free slots", n, free)
			}
			if got := drain(r); got[:len(tc.want)] != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestResize(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 2, 3, 5, 8, 40} {
		for skip := range 9 {
			r := newRing(t, 8, Options{})
			for i := range skip { // so that the entries go round the end
				r.Produce(&entry{byte(200 + i)})
				r.Consume()
			}
			r.ProduceBatch(entries(1, 6))
			var lost []*entry
			n, err := r.Resize(size, func(e *entry) { lost = append(lost, e) })
			if err != nil {
				t.Fatal(err)
			}
			keep := min(size, 6)
			if n != 6-keep || ids(lost) != "\x01\x02\x03\x04\x05\x06"[keep:] {
				t.Errorf("to %d: lost %q, said %d", size, ids(lost), n)
			}
			if r.Cap() != size || r.Len() != keep || r.Full() != (keep == size) {
				t.Errorf("to %d: %d of %d entries, full %v", size, r.Len(), r.Cap(), r.Full())
			}
			more := r.ProduceBatch(entries(7, 2*size))
			if want := "\x01\x02\x03\x04\x05\x06"[:keep] + ids(entries(7, more)); drain(r) != want {
				t.Errorf("to %d: wrong order", size)
			}
		}
	}
}

// A ring keeps nothing alive that was consumed, however its slots are handed back.
func TestNothingIsKeptAlive(t *testing.T) {
	t.Parallel()
	type big [64]byte // larger than what the runtime allocates in groups
	for _, opts := range []Options{{}, {Exact: true}, {SingleProducer: true, SingleConsumer: true}, {Wait: true}} {
		for _, batch := range []int{0, 1, 7, 16} {
			r, err := New[big](64, opts)
			if err != nil {
				t.Fatal(err)
			}
			var consumed, kept []weak.Pointer[big]
			func() {
				dst := make([]*big, 16)
				for i := range 40 {
					p := &big{}
					r.Produce(p)
					if i < 21 {
						consumed = append(consumed, weak.Make(p))
					} else {
						kept = append(kept, weak.Make(p))
					}
				}
				for n := 0; n < 21; {
					if batch == 0 {
						r.Consume()
						n++
						continue
					}
					n += r.ConsumeBatch(dst[:min(batch, 21-n)])
				}
			}()
			runtime.GC()
			runtime.GC()
			for i, w := range consumed {
				if w.Value() != nil {
					t.Errorf("%+v, batch %d: entry %d is alive after it was consumed", opts, batch, i)
				}
			}
			for i, w := range kept {
				if w.Value() == nil {
					t.Errorf("%+v, batch %d: entry %d died in the ring", opts, batch, 21+i)
				}
			}
			runtime.KeepAlive(r)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	for _, opts := range []Options{{}, {Wait: true}, {SingleProducer: true, SingleConsumer: true}} {
		r := newRing(t, 64, opts)
		src, dst := entries(1, 16), make([]*entry, 16)
		n := testing.AllocsPerRun(100, func() {
			r.Produce(src[0])
			r.Peek()
			r.Consume()
			r.ProduceBatch(src)
			r.ConsumeBatch(dst)
			r.Unconsume(dst[:4], nil)
			r.ConsumeBatch(dst)
			r.Full()
		})
		if n != 0 {
			t.Errorf("%+v: %v allocations", opts, n)
		}
	}
}

// Each side works on one cache line, which nobody else writes to. Its lock has another.
func TestNoFalseSharing(t *testing.T) {
	t.Parallel()
	const line = 64
	for range 10 {
		r := newRing(t, 4, Options{})
		start := uintptr(unsafe.Pointer(r))
		prod, cons := unsafe.Offsetof(r.prod), unsafe.Offsetof(r.cons)
		parts := []struct {
			name       string
			start, end uintptr
		}{
			{"producers' lock", prod, prod + unsafe.Sizeof(r.prod.mu)},
			{"producer", prod + unsafe.Offsetof(r.prod.published), prod + unsafe.Sizeof(r.prod)},
			{"consumers' lock", cons, cons + unsafe.Sizeof(r.cons.mu)},
			{"consumer", cons + unsafe.Offsetof(r.cons.given), cons + unsafe.Sizeof(r.cons)},
			{"read-only", unsafe.Offsetof(r.slots), unsafe.Offsetof(r.wait) + unsafe.Sizeof(r.wait)},
		}
		last := start/line - 1
		for _, p := range parts {
			first := (start + p.start) / line
			if first == last {
				t.Errorf("%s shares a line with what is before it", p.name)
			}
			if last = (start + p.end - 1) / line; first != last {
				t.Errorf("%s lies on %d lines", p.name, last-first+1)
			}
		}
		if parts[0].start < line || unsafe.Sizeof(*r)-parts[len(parts)-1].end < line {
			t.Error("the ring shares a line with its neighbours")
		}
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	for _, opts := range []Options{{}, {Wait: true}} {
		r := newRing(t, 4, opts)
		r.Produce(&entry{1})
		r.Close()
		r.Close()
		if r.Produce(&entry{2}) || r.ProduceBatch(entries(2, 2)) != 0 {
			t.Error("a closed ring took an entry")
		}
		if e := r.Consume(); e == nil || e.id != 1 {
			t.Error("what was in the ring is gone")
		}
	}
}

// B176: odd sizes give an error or exactly that size.
func TestB176Sizes(t *testing.T) {
	t.Parallel()
	for _, size := range []int{-1, 0, MaxSize + 1, 1 << 31} {
		if _, err := New[entry](size, Options{}); !errors.Is(err, ErrSize) {
			t.Errorf("size %d: %v", size, err)
		}
		r := newRing(t, 2, Options{})
		if _, err := r.Resize(size, nil); !errors.Is(err, ErrSize) || r.Cap() != 2 {
			t.Errorf("resize to %d: %v", size, err)
		}
	}
	for _, size := range []int{1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 1000} {
		for _, opts := range []Options{{}, {Exact: true}} {
			r := newRing(t, size, opts)
			for range 3 {
				if n := r.ProduceBatch(entries(0, size+5)); n != size || r.Cap() != size || r.Produce(&entry{}) {
					t.Errorf("a ring of %d took %d entries", size, n)
				}
				for i := range size {
					if e := r.Consume(); e == nil || e.id != byte(i) {
						t.Fatalf("size %d: entry %d is wrong", size, i)
					}
				}
				if r.Consume() != nil {
					t.Errorf("a ring of %d gave more than it took", size)
				}
			}
		}
	}
}

func ExampleRing() {
	type frame struct{ name string }
	r, err := New[frame](256, Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	// A producer hands over what it has, and learns how much the ring took.
	n := r.ProduceBatch([]*frame{{"a"}, {"b"}, {"c"}})
	fmt.Println("produced", n)

	// A consumer takes what there is, and puts back what it could not use.
	batch := make([]*frame, 16)
	n = r.ConsumeBatch(batch)
	fmt.Println("consumed", n)
	r.Unconsume(batch[1:n], nil)
	fmt.Println("next is", r.Peek().name)
	// Output:
	// produced 3
	// consumed 3
	// next is b
}
