// SPDX-License-Identifier: Apache-2.0

package afxdp

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/xveth/xveth/pkg/bulk"
)

// B172: a socket that only sends fills the receive side all the same, before it is bound; what
// comes in goes to the stack, and memory stays flat. The row's ten minutes and a real
// driver are for a machine that has one.
func TestTxOnlyB172(t *testing.T) {
	v := newBed(t, 1, 1500)
	u := newUMEM(t, 1024, 2048, Mode{})
	s := open(t, v.a, u, Config{Interface: devA, TxOnly: true, FillRing: 256, TxRing: 256})
	if st := stats(t, s); st.Lent != 256 || s.rx.fill.producer.Load() != 256 {
		t.Fatalf("the fill ring is not full: %+v", st)
	}
	attach(t, v.a, devA, ProgramConfig{})
	from := open(t, v.b, newUMEM(t, 1024, 2048, Mode{}), Config{Interface: devB, TxOnly: true})
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	done := make(chan uint64)
	go func() {
		g, err := NewGenerator(from, GeneratorConfig{Packet: numbered(60), Rate: 50000})
		if err != nil {
			t.Error(err)
		}
		n, _ := g.Run(ctx, 0)
		done <- n
	}()
	g, err := NewGenerator(s, GeneratorConfig{Packet: numbered(60), Rate: 50000})
	if err != nil {
		t.Fatal(err)
	}
	sent, err := g.Run(ctx, 0)
	if n := <-done; n == 0 || sent == 0 || err != nil {
		t.Fatalf("sent %d, received %d: %v", sent, n, err)
	}
	st := stats(t, s)
	if st.Lent != 256 || st.InFlight != 0 || st.TxDone != sent || u.Pool().Stats().Out != 256 {
		t.Errorf("frames went somewhere: %+v, %+v", st, u.Pool().Stats())
	}
	if _, err := s.Receive(make([]*bulk.Frame, 1)); err == nil {
		t.Error("a socket that only sends receives")
	}
}

// B173: the fill ring is as large as the pool, so that a stale position would make it look
// full. Frames go round, and taking them back never takes long.
func TestFillRingAsLargeAsPoolB173(t *testing.T) {
	v := newBed(t, 1, 1500)
	const size = 64
	from := open(t, v.a, newUMEM(t, 1024, 2048, Mode{}), Config{Interface: devA})
	u := newUMEM(t, size, 2048, Mode{})
	to := open(t, v.b, u, Config{Interface: devB, RxOnly: true, RxRing: size, FillRing: size})
	attach(t, v.b, devB, ProgramConfig{}, to)
	if u.Pool().Stats().Free != 0 {
		t.Fatal("not all frames are in the fill ring")
	}
	var took []time.Duration
	frames := make([]*bulk.Frame, 1)
	receive := func(uint64) {
		for range size / 2 {
			for n := 0; n == 0; {
				start := time.Now()
				var err error
				if n, err = to.Receive(frames); err != nil {
					t.Fatal(err)
				}
				took = append(took, time.Since(start))
				if n == 0 {
					runtime.Gosched()
				}
			}
			frames[0].Free()
		}
	}
	sent := stepwise(t, from, GeneratorConfig{Packet: numbered(60)}, 200*size/2, size/2, receive)
	if lost := v.settled(t, sent, []*Socket{from}, []*Socket{to}); lost != 0 {
		t.Errorf("lost %d although the ring had room: %+v", lost, stats(t, to))
	}
	slices.Sort(took)
	// The 99th percentile, so that a machine with other work may interrupt.
	p99 := took[len(took)*99/100]
	t.Logf("recycling takes %v at the median, %v at the 99th percentile", took[len(took)/2], p99)
	if p99 > 10*time.Microsecond && !raceEnabled {
		t.Errorf("recycling spins: %v at the 99th percentile", p99)
	}
}

// The pool is empty for a while: the socket receives again when frames have come back, also if
// it sleeps then.
func TestStarvedSocketRecovers(t *testing.T) {
	v := newBed(t, 1, 1500)
	from := open(t, v.a, newUMEM(t, 256, 2048, Mode{}), Config{Interface: devA, FillRing: 16})
	u := newUMEM(t, 16, 2048, Mode{})
	to := open(t, v.b, u, Config{Interface: devB, RxOnly: true, RxRing: 16, FillRing: 16})
	attach(t, v.b, devB, ProgramConfig{}, to)
	generate(t, from, GeneratorConfig{Packet: numbered(60)}, 20)
	held := make([]*bulk.Frame, 32)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	n := 0
	for n < 16 {
		k, err := to.Poll(ctx, held[n:])
		if err != nil {
			t.Fatal(err)
		}
		n += k
	}
	got := make(chan int)
	go func() {
		more := make([]*bulk.Frame, 4)
		k, _ := to.Poll(ctx, more)
		bulk.FreeBulk(more[:k])
		got <- k
	}()
	time.Sleep(5 * time.Millisecond)
	bulk.FreeBulk(held[:n])
	waitFor(t, "the kernel has frames again", func() bool { return stats(t, to).Lent > 0 })
	generate(t, from, GeneratorConfig{Packet: numbered(60)}, 1)
	if <-got == 0 {
		t.Error("nothing was received")
	}
	if st := stats(t, to); st.RxFrames != 17 || st.Kernel.RxDropped != 4 {
		t.Errorf("want 17 received and 4 dropped: %+v", st)
	}
	wantNoneShort(t, u)
}

// A batch that is larger than the pool goes out in parts.
func TestGeneratorWithFewFrames(t *testing.T) {
	v := newBed(t, 1, 1500)
	u := newUMEM(t, 64, 2048, Mode{})
	from := open(t, v.a, u, Config{Interface: devA, TxOnly: true, TxRing: 64, FillRing: 16})
	generate(t, from, GeneratorConfig{Packet: numbered(60), Batch: 64}, 500)
	if st := stats(t, from); st.TxDone != 500 {
		t.Errorf("want 500 sent: %+v", st)
	}
	wantNoneShort(t, u)
}

// wantNoneShort checks that waiting for frames did not count as a lack of them.
func wantNoneShort(t *testing.T, u *UMEM) {
	t.Helper()
	if st := u.Pool().Stats(); st.Short != 0 {
		t.Errorf("the pool counts %d frames as missing: %+v", st.Short, st)
	}
}

// Nothing is allocated while packets flow, waits included.
func TestNoAllocation(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	v := newBed(t, 1, 1500)
	from, to, g := v.pair(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	frames := make([]*bulk.Frame, DefaultBatch)
	run := func(packets int) float64 {
		return testing.AllocsPerRun(20, func() {
			if _, err := g.Run(ctx, uint64(packets)); err != nil {
				t.Fatal(err)
			}
			for got := 0; got < packets; {
				n, err := to.Poll(ctx, frames)
				if err != nil {
					t.Fatal(err)
				}
				bulk.FreeBulk(frames[:n])
				got += n
			}
		})
	}
	if n := testing.AllocsPerRun(100, func() { cycle(t, from, to, frames) }); n != 0 {
		t.Errorf("%v allocations for a batch sent and received", n)
	}
	// A run makes one context, for its end, however many packets it sends.
	if one, many := run(1), run(window); many > one || one > 8 {
		t.Errorf("%v allocations for a run of one packet and %v for %d", one, many, window)
	}
	wait := func() {
		if err := to.waitRx(ctx); err != nil {
			t.Fatal(err)
		}
	}
	to.rx.target += to.rx.refillAt // as if frames were missing: it looks again soon
	if n := testing.AllocsPerRun(20, wait); n != 0 {
		t.Errorf("%v allocations for a wait", n)
	}
	to.rx.target -= to.rx.refillAt
}

func (v *bed) pair(t testing.TB) (from, to *Socket, g *Generator) {
	from = open(t, v.a, newUMEM(t, 4096, 2048, Mode{}), Config{Interface: devA, FillRing: 64})
	to = open(t, v.b, newUMEM(t, 4096, 2048, Mode{}), Config{Interface: devB, RxOnly: true})
	attach(t, v.b, devB, ProgramConfig{}, to)
	g, err := NewGenerator(from, GeneratorConfig{Packet: numbered(60)})
	if err != nil {
		t.Fatal(err)
	}
	return from, to, g
}

// cycle sends a batch and receives it.
func cycle(t testing.TB, from, to *Socket, frames []*bulk.Frame) {
	n := from.umem.pool.AllocBulk(frames)
	for _, f := range frames[:n] {
		_ = f.SetData(f.Headroom(), 60)
	}
	sent, err := from.Send(frames[:n])
	if err != nil {
		t.Fatal(err)
	}
	for got := 0; got < sent; {
		n, err := to.Receive(frames)
		if err != nil {
			t.Fatal(err)
		}
		bulk.FreeBulk(frames[:n])
		got += n
		if n == 0 {
			runtime.Gosched()
		}
	}
}

// A packet sent over a veth and received at its other end, in copy mode.
func BenchmarkVeth(b *testing.B) {
	v := newBed(b, 1, 1500)
	from, to, _ := v.pair(b)
	frames := make([]*bulk.Frame, DefaultBatch)
	cycle(b, from, to, frames)
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; n += len(frames) {
		cycle(b, from, to, frames)
	}
}
