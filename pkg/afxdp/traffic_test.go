// SPDX-License-Identifier: Apache-2.0

package afxdp

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/xveth/xveth/pkg/bulk"
)

func TestCopyMode(t *testing.T) {
	for name, mode := range map[string]Mode{
		"when needed": {Copy: Copy},
		"auto":        {},
		"always wake": {AlwaysWake: true},
	} {
		t.Run(name, func(t *testing.T) {
			v := newBed(t, 1, 1500)
			from := open(t, v.a, newUMEM(t, 4096, 2048, mode), Config{Interface: devA, TxOnly: true})
			to := open(t, v.b, newUMEM(t, 8192, 2048, mode), Config{Interface: devB, RxOnly: true})
			attach(t, v.b, devB, ProgramConfig{}, to)
			if from.ZeroCopy() || to.ZeroCopy() {
				t.Error("a veth has no zero-copy")
			}
			c := newChecker(numbered(60))
			_, stop := sink(t, to, c.look)
			sent := stepwise(t, from, GeneratorConfig{Packet: c.packet, Vary: number}, 10000, window, arrive(t, to))
			if lost := v.settled(t, sent, []*Socket{from}, []*Socket{to}); lost != 0 {
				t.Errorf("lost %d although all queues had room", lost)
			}
			stop()
			c.report(t)
		})
	}
}

// As many frames as one processor can send: the queues are full, and every loss is counted.
func TestOverload(t *testing.T) {
	v := newBed(t, 1, 1500)
	from := open(t, v.a, newUMEM(t, 4096, 2048, Mode{}), Config{Interface: devA})
	to := open(t, v.b, newUMEM(t, 128, 2048, Mode{}), Config{Interface: devB, RxRing: 32, FillRing: 64})
	attach(t, v.b, devB, ProgramConfig{}, to)
	c := newChecker(numbered(60))
	_, stop := sink(t, to, c.look)
	sent := generate(t, from, GeneratorConfig{Packet: c.packet, Vary: number}, 50000)
	v.settled(t, sent, []*Socket{from}, []*Socket{to})
	stop()
	c.report(t)
}

// Packets that need a fragment for each page.
func TestMultiBuffer(t *testing.T) {
	for _, size := range []int{2048, 4096} {
		v := newBed(t, 1, jumbo)
		m := Mode{MultiBuffer: true}
		from := open(t, v.a, newUMEM(t, 4096, size, m), Config{Interface: devA})
		to := open(t, v.b, newUMEM(t, 8192, size, m), Config{Interface: devB, FillRing: 4096})
		attach(t, v.b, devB, ProgramConfig{}, to)
		// The MTU does not count the Ethernet header.
		c := newChecker(numbered(jumbo + 14))
		_, stop := sink(t, to, c.look)
		sent := stepwise(t, from, GeneratorConfig{Packet: c.packet, Vary: number}, 3000, window, arrive(t, to))
		if lost := v.settled(t, sent, []*Socket{from}, []*Socket{to}); lost != 0 {
			t.Errorf("lost %d although all queues had room", lost)
		}
		stop()
		c.report(t)
		if want := (jumbo + 14 - 1) / (size - 256); c.frags != want {
			t.Errorf("frames of %d bytes: packets had %d fragments, want %d", size, c.frags, want)
		}
	}
}

// Jumbo packets that do not fit into the rings: all or nothing of each is lost, and counted.
func TestMultiBufferLoss(t *testing.T) {
	v := newBed(t, 1, jumbo)
	m := Mode{MultiBuffer: true}
	from := open(t, v.a, newUMEM(t, 1024, 4096, m), Config{Interface: devA})
	to := open(t, v.b, newUMEM(t, 64, 4096, m), Config{Interface: devB, RxRing: 16, FillRing: 32})
	attach(t, v.b, devB, ProgramConfig{}, to)
	c := newChecker(numbered(jumbo + 14))
	_, stop := sink(t, to, c.look)
	sent := stepwise(t, from, GeneratorConfig{Packet: c.packet, Vary: number}, 1000, 20, arrive(t, to))
	if lost := v.settled(t, sent, []*Socket{from}, []*Socket{to}); lost == 0 {
		t.Error("nothing was lost: the test shows nothing")
	}
	stop()
	c.report(t)
}

// Large packets that come in more buffers than a frame can have are freed whole.
func TestTooManyFrags(t *testing.T) {
	const mtu = 60000
	v := newBed(t, 1, mtu)
	m := Mode{MultiBuffer: true}
	from := open(t, v.a, newUMEM(t, 1024, 4096, m), Config{Interface: devA})
	to := open(t, v.b, newUMEM(t, 1024, 2048, m), Config{Interface: devB})
	attach(t, v.b, devB, ProgramConfig{}, to)
	small, large := newChecker(numbered(100)), numbered(mtu)
	_, stop := sink(t, to, small.look)
	sent := stepwise(t, from, GeneratorConfig{Packet: large}, 8, 8, arrive(t, to))
	sent += generate(t, from, GeneratorConfig{Packet: small.packet, Vary: number}, 8)
	v.settled(t, sent, []*Socket{from}, []*Socket{to})
	stop()
	small.report(t)
	if st := stats(t, to); st.TooManyFrags != 8 || st.RxFrames != 8 || st.RxBytes != 8*100 {
		t.Errorf("want 8 freed and 8 small frames received: %+v", st)
	}
}

// One memory for two queues, on both ends, and frames that are received on one queue and
// sent on the other.
func TestSharedUMEM(t *testing.T) {
	v := newBed(t, 2, 1500)
	ua, ub := newUMEM(t, 16384, 2048, Mode{}), newUMEM(t, 16384, 2048, Mode{})
	var from, to []*Socket
	for q := range 2 {
		from = append(from, open(t, v.a, ua, Config{Interface: devA, Queue: q}))
		to = append(to, open(t, v.b, ub, Config{Interface: devB, Queue: q}))
	}
	attach(t, v.b, devB, ProgramConfig{}, to...)
	var checks [2]*checker
	var stops []func()
	for q := range 2 {
		checks[q] = newChecker(numbered(100 + q))
		_, stop := sink(t, to[q], checks[q].look)
		stops = append(stops, stop)
	}
	const each = 5000
	done := make(chan struct{})
	for q := range 2 {
		go func() {
			defer func() { done <- struct{}{} }()
			stepwise(t, from[q], GeneratorConfig{Packet: checks[q].packet, Vary: number}, each, window, arrive(t, to[q]))
		}()
	}
	<-done
	<-done
	if lost := v.settled(t, 2*each, from, to); lost != 0 {
		t.Errorf("lost %d although all queues had room", lost)
	}
	for q := range 2 {
		stops[q]()
		// Each checker knows its own queue's length only: a frame on the wrong one is torn.
		checks[q].report(t)
	}
	// The first socket registered the memory; a third one finds the second's.
	closeSocket(t, from[0])
	from[0] = open(t, v.a, ua, Config{Interface: devA, Queue: 0})
	generate(t, from[0], GeneratorConfig{Packet: checks[0].packet}, 100)
}

// What comes back on the other queue of the same memory needs no copy.
func TestReflect(t *testing.T) {
	v := newBed(t, 2, 1500)
	ua, ub := newUMEM(t, 8192, 2048, Mode{}), newUMEM(t, 8192, 2048, Mode{})
	out := open(t, v.a, ua, Config{Interface: devA, Queue: 0})
	back := open(t, v.a, ua, Config{Interface: devA, Queue: 1})
	in := open(t, v.b, ub, Config{Interface: devB, Queue: 0})
	over := open(t, v.b, ub, Config{Interface: devB, Queue: 1})
	attach(t, v.b, devB, ProgramConfig{}, in)
	attach(t, v.a, devA, ProgramConfig{}, back)
	c := newChecker(numbered(200))
	k, stop := sink(t, back, c.look)
	stopReflect := reflector(t, in, over)
	const count = 5000
	generate(t, out, GeneratorConfig{Packet: c.packet, Vary: number, Rate: 200000}, count)
	dropped := func() uint64 { return txDropped(t, v.a, devA) + txDropped(t, v.b, devB) }
	waitFor(t, "all frames came back", func() bool {
		n, _ := k.Counts()
		return n+dropped()+stats(t, in).Lost()+stats(t, back).Lost() >= count
	})
	stopReflect()
	stop()
	c.report(t)
	if n, bytes := k.Counts(); bytes != n*200 || n+dropped()+stats(t, in).Lost()+stats(t, back).Lost() != count {
		t.Errorf("%d of %d frames came back, %d bytes", n, count, bytes)
	}
}

// reflector sends what arrives at one socket by another, until what it returns is called or a
// socket closed.
func reflector(t testing.TB, in, out *Socket) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		frames := make([]*bulk.Frame, DefaultBatch)
		for {
			n, err := in.Poll(ctx, frames)
			if err != nil {
				return
			}
			sent, err := out.SendAll(ctx, frames[:n])
			bulk.FreeBulk(frames[sent:n])
			if errors.Is(err, ErrClosed) || ctx.Err() != nil {
				return
			}
			if err != nil {
				t.Errorf("reflect: %v", err)
				return
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// A generator keeps its rate, on the average.
func TestGeneratorRate(t *testing.T) {
	v := newBed(t, 1, 1500)
	from := open(t, v.a, newUMEM(t, 1024, 2048, Mode{}), Config{Interface: devA, TxRing: 256})
	const rate, count = 20000, 4000
	start := time.Now()
	generate(t, from, GeneratorConfig{Packet: numbered(60), Rate: rate}, count)
	if took, want := time.Since(start), time.Second*count/rate; took < want*95/100 {
		t.Errorf("took %v for what should last %v", took, want)
	}
}
