// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/xveth/xveth/pkg/ptrring"
)

// wire is a sink that takes only so many frames.
type wire struct {
	room  int
	calls []int // frames offered by each call
	got   []byte
}

var errWire = errors.New("wire is cut")

func (w *wire) send(frames []*Frame) (int, error) {
	w.calls = append(w.calls, len(frames))
	n := min(w.room, len(frames))
	w.room -= n
	for _, f := range frames[:n] {
		w.got = append(w.got, f.Data()...)
	}
	FreeBulk(frames[:n])
	if n < len(frames) {
		return n, errWire
	}
	return n, nil
}

// numbered allocates frames that hold one byte each: their number, from first.
func numbered(t testing.TB, p *Pool, first, n int) []*Frame {
	t.Helper()
	frames := make([]*Frame, n)
	if p.AllocBulk(frames) != n {
		t.Fatal("too few frames")
	}
	for i, f := range frames {
		if err := f.CopyFrom([]byte{byte(first + i)}); err != nil {
			t.Fatal(err)
		}
	}
	return frames
}

func TestTxQueueFlushesWhenFull(t *testing.T) {
	t.Parallel()
	p := newPool(t, 64)
	w := &wire{room: 100}
	q := NewTxQueue(w.send)
	for _, f := range numbered(t, p, 0, 40) {
		if left, err := q.Add(f); left != nil || err != nil {
			t.Errorf("%d frames left: %v", len(left), err)
		}
	}
	if q.Len() != 8 {
		t.Errorf("%d frames are queued, want 8", q.Len())
	}
	for range 2 { // the second has nothing to do
		if left, err := q.Flush(); left != nil || err != nil {
			t.Errorf("%d frames left: %v", len(left), err)
		}
	}
	if !slices.Equal(w.calls, []int{16, 16, 8}) || len(w.got) != 40 || w.got[39] != 39 {
		t.Errorf("calls of %v frames, %d arrived", w.calls, len(w.got))
	}
	wantFree(t, p, 64)
}

func TestTxQueueReturnsWhatWasNotSent(t *testing.T) {
	t.Parallel()
	p := newPool(t, 64)
	w := &wire{room: 21}
	q := NewTxQueue(w.send)
	frames := numbered(t, p, 0, 40)
	var left []*Frame
	for i, f := range frames {
		l, err := q.Add(f)
		if (l != nil) != (i == 31) || (err != nil) != (i == 31) {
			t.Errorf("frame %d: %d left, %v", i, len(l), err)
		}
		left = append(left, l...)
	}
	l, err := q.Flush()
	left = append(left, l...)
	if !errors.Is(err, errWire) || !slices.Equal(left, frames[21:]) || q.Len() != 0 {
		t.Errorf("%d frames left: %v", len(left), err)
	}
	if sent, unsent := q.Counts(); sent != 21 || unsent != 19 {
		t.Errorf("sent %d, unsent %d", sent, unsent)
	}
	FreeBulk(left)
	wantFree(t, p, 64)
	// Without a reason there still is an error.
	q = NewTxQueue(func([]*Frame) (int, error) { return 0, nil })
	q.Add(p.Alloc())
	if left, err := q.Flush(); len(left) != 1 || !errors.Is(err, ErrUnsent) {
		t.Errorf("%d frames left: %v", len(left), err)
	} else {
		FreeBulk(left)
	}
}

// limited gives only so many packets.
type limited struct {
	pool *PacketPool
	room int
}

func (l *limited) AllocBulk(dst []*Packet) int {
	n := l.pool.AllocBulk(dst[:min(l.room, len(dst))])
	l.room -= n
	return n
}

// bed is a poller with all around it.
type bed struct {
	pool      *Pool
	packets   *PacketPool
	alloc     *limited
	ring      *ptrring.Ring[Frame]
	tx, other *wire
	poller    *Poller
	delivered []byte
}

func newBed(t testing.TB, batch int, verdict func(*Frame) Verdict) *bed {
	t.Helper()
	b := &bed{pool: newPool(t, 512), tx: &wire{room: 1 << 20}, other: &wire{room: 1 << 20}}
	var err error
	if b.packets, err = NewPacketPool(512); err != nil {
		t.Fatal(err)
	}
	b.alloc = &limited{b.packets, 1 << 20}
	if b.ring, err = ptrring.New[Frame](512, ptrring.Options{}); err != nil {
		t.Fatal(err)
	}
	b.poller, err = NewPoller(PollConfig{
		Ring: b.ring, Verdict: verdict, Packets: b.alloc, Batch: batch,
		Deliver: func(packets []*Packet) {
			for _, k := range packets {
				if k.Frame().Packet() != k {
					t.Error("a packet and its frame do not know each other")
				}
				b.delivered = append(b.delivered, k.Frame().Data()...)
			}
			FreePackets(packets)
		},
		Tx: NewTxQueue(b.tx.send), Targets: []*TxQueue{NewTxQueue(b.other.send)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// wantAll checks that nothing is lost and that the counts add up.
func (b *bed) wantAll(t *testing.T) {
	t.Helper()
	wantFree(t, b.pool, 512)
	if s := b.packets.Stats(); s.Free != s.Total {
		t.Errorf("%d packets are missing", s.Out)
	}
	s := b.poller.Stats()
	sum := s.Passed + s.Packets + s.Sent + s.Dropped + s.Aborted + s.AllocDrops + s.BuildDrops + s.TxDrops
	if sum != s.Consumed {
		t.Errorf("%+v: the sum is %d", s, sum)
	}
}

// The budget counts entries: whatever the batch, no call consumes more, and it says what it
// consumed.
func TestBudgetIsNeverExceeded(t *testing.T) {
	t.Parallel()
	verdicts := []Verdict{Pass, Drop, Tx, Redirect(0), Redirect(1), Aborted, 77}
	for batch := 1; batch <= MaxBatch; batch++ {
		rnd := rand.New(rand.NewPCG(9, uint64(batch)))
		b := newBed(t, batch, func(*Frame) Verdict { return verdicts[rnd.IntN(len(verdicts))] })
		for range 60 {
			n := rnd.IntN(200)
			for _, f := range numbered(t, b.pool, 0, n) {
				if rnd.IntN(3) == 0 {
					b.packets.Alloc().Build(f)
				}
				b.ring.Produce(f)
			}
			for had := b.ring.Len(); ; had = b.ring.Len() {
				budget := rnd.IntN(100) - 5
				got := b.poller.Poll(budget)
				if got != had-b.ring.Len() || got != max(0, min(budget, had)) {
					t.Fatalf("batch %d, budget %d, %d entries: took %d, said %d", batch, budget, had, had-b.ring.Len(), got)
				}
				if had == got {
					break
				}
			}
			b.wantAll(t)
		}
	}
}

// If only so many packets can be had, those frames of the batch that have none are dropped and
// counted, and no others.
func TestFailedAllocationDropsExactlyThat(t *testing.T) {
	t.Parallel()
	for _, batch := range []int{1, 8, 16, 64} {
		for room := range 50 {
			b := newBed(t, batch, func(f *Frame) Verdict {
				return []Verdict{Pass, Pass, Drop, Tx, Redirect(0)}[f.Data()[0]%5]
			})
			b.alloc.room = room
			b.ring.ProduceBatch(numbered(t, b.pool, 0, 100)) // 40 of them pass
			if n := b.poller.Poll(1000); n != 100 {
				t.Fatalf("consumed %d", n)
			}
			want := PollStats{
				Consumed: 100, Passed: uint64(min(room, 40)), AllocDrops: uint64(40 - min(room, 40)),
				Dropped: 20, Sent: 40,
			}
			if s := b.poller.Stats(); s != want {
				t.Errorf("batch %d, %d packets: %+v, want %+v", batch, room, s, want)
			}
			for i, id := range b.delivered {
				if want := byte(i/2*5 + i%2); id != want {
					t.Errorf("batch %d, %d packets: packet %d is frame %d", batch, room, i, id)
				}
			}
			b.wantAll(t)
		}
	}
}

// Packets that were packets already keep their place among frames that become packets.
func TestOrderOfFramesAndPackets(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(10, 10))
	for _, room := range []int{0, 7, 1000} {
		b := newBed(t, 16, func(*Frame) Verdict { return Pass })
		b.alloc.room = room
		frames := numbered(t, b.pool, 0, 100)
		var plain []byte
		for i, f := range frames {
			if rnd.IntN(2) == 0 {
				b.packets.Alloc().Build(f)
			} else {
				plain = append(plain, byte(i))
			}
		}
		b.ring.ProduceBatch(frames)
		b.poller.Poll(100)
		dropped := plain[min(room, len(plain)):]
		var want []byte
		for i := range 100 {
			if !slices.Contains(dropped, byte(i)) {
				want = append(want, byte(i))
			}
		}
		if !slices.Equal(b.delivered, want) {
			t.Errorf("%d packets: delivered %v, want %v", room, b.delivered, want)
		}
		b.wantAll(t)
	}
}

func TestABuildErrorDropsThatFrameAlone(t *testing.T) {
	t.Parallel()
	b := newBed(t, 16, func(*Frame) Verdict { return Pass })
	b.poller.Build = func(k *Packet) error {
		if k.Frame().Data()[0]%10 == 3 {
			return errWire
		}
		return nil
	}
	b.ring.ProduceBatch(numbered(t, b.pool, 0, 40))
	b.poller.Poll(40)
	if s := b.poller.Stats(); s.BuildDrops != 4 || s.Passed != 36 || len(b.delivered) != 36 {
		t.Errorf("%+v, %d delivered", s, len(b.delivered))
	}
	b.wantAll(t)
}

func TestAFullQueueDropsWhatItDoesNotTake(t *testing.T) {
	t.Parallel()
	for room := range 40 {
		b := newBed(t, 16, func(f *Frame) Verdict { return []Verdict{Tx, Redirect(0)}[f.Data()[0]%2] })
		b.tx.room = room
		b.ring.ProduceBatch(numbered(t, b.pool, 0, 80))
		b.poller.Poll(80)
		s := b.poller.Stats()
		if s.TxDrops != uint64(40-room) || s.Sent != uint64(40+room) || len(b.tx.got) != room || len(b.other.got) != 40 {
			t.Errorf("room for %d: %+v", room, s)
		}
		b.wantAll(t)
	}
}

func TestPollFlushesAtTheEnd(t *testing.T) {
	t.Parallel()
	b := newBed(t, 16, func(*Frame) Verdict { return Tx })
	for range 3 {
		b.ring.ProduceBatch(numbered(t, b.pool, 0, 20))
		b.poller.Poll(64)
		b.wantAll(t)
	}
	if !slices.Equal(b.tx.calls, []int{16, 4, 16, 4, 16, 4}) {
		t.Errorf("calls of %v frames", b.tx.calls)
	}
}

func TestPollerConfig(t *testing.T) {
	t.Parallel()
	good := newBed(t, 0, func(*Frame) Verdict { return Drop }).poller.PollConfig
	for name, spoil := range map[string]func(*PollConfig){
		"ring":    func(c *PollConfig) { c.Ring = nil },
		"verdict": func(c *PollConfig) { c.Verdict = nil },
		"packets": func(c *PollConfig) { c.Packets = nil },
		"deliver": func(c *PollConfig) { c.Deliver = nil },
		"batch":   func(c *PollConfig) { c.Batch = MaxBatch + 1 },
		"target":  func(c *PollConfig) { c.Targets = []*TxQueue{nil} },
	} {
		c := good
		spoil(&c)
		if _, err := NewPoller(c); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPollDoesNotAllocate(t *testing.T) {
	b := newBed(t, 16, func(f *Frame) Verdict { return []Verdict{Pass, Drop, Tx, Redirect(0)}[f.index%4] })
	b.tx.send(nil)
	frames := make([]*Frame, 64)
	sink := func(f []*Frame) (int, error) { FreeBulk(f); return len(f), nil }
	b.poller.Tx, b.poller.Targets[0] = NewTxQueue(sink), NewTxQueue(sink)
	b.poller.Deliver = FreePackets
	c := b.pool.NewCache(16)
	if n := testing.AllocsPerRun(100, func() {
		b.ring.ProduceBatch(frames[:b.pool.AllocBulk(frames)])
		b.poller.Poll(64)
		c.FreeBulk(frames[:c.AllocBulk(frames)])
		b.pool.Alloc().Free()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func ExamplePoller() {
	pool, err := NewPool(Config{Frames: 256, FrameSize: 2048, Headroom: 256})
	if err != nil {
		fmt.Println(err)
		return
	}
	packets, err := NewPacketPool(256)
	if err != nil {
		fmt.Println(err)
		return
	}
	in, _ := ptrring.New[Frame](256, ptrring.Options{})
	out, _ := ptrring.New[Frame](256, ptrring.Options{})
	poller, err := NewPoller(PollConfig{
		Ring: in,
		Verdict: func(f *Frame) Verdict { // the program
			switch f.Data()[0] {
			case 'p':
				return Pass
			case 't':
				return Tx
			}
			return Drop
		},
		Packets: packets,
		Deliver: func(p []*Packet) {
			for _, k := range p {
				fmt.Printf("packet %q\n", k.Frame().Data())
			}
			FreePackets(p)
		},
		Tx: NewTxQueue(ToRing(out)),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, s := range []string{"pass me", "drop me", "turn me round", "pass me too"} {
		f := pool.Alloc()
		if err := f.CopyFrom([]byte(s)); err != nil {
			fmt.Println(err)
		}
		in.Produce(f)
	}
	fmt.Println("consumed", poller.Poll(64))
	fmt.Printf("sent %q\n", out.Consume().Data())
	fmt.Println("dropped", poller.Stats().Dropped)
	// Output:
	// packet "pass me"
	// packet "pass me too"
	// consumed 4
	// sent "turn me round"
	// dropped 1
}

func ExampleTxQueue() {
	pool, err := NewPool(Config{Frames: 64, FrameSize: 2048})
	if err != nil {
		fmt.Println(err)
		return
	}
	ring, _ := ptrring.New[Frame](20, ptrring.Options{})
	q := NewTxQueue(ToRing(ring))
	for range 24 {
		if left, err := q.Add(pool.Alloc()); err != nil {
			FreeBulk(left)
		}
	}
	// The end of the poll: what does not fit comes back.
	left, err := q.Flush()
	fmt.Println(ring.Len(), "sent,", len(left), "left:", err)
	FreeBulk(left)
	// Output:
	// 20 sent, 4 left: not all frames were sent
}
