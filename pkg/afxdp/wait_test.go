// SPDX-License-Identifier: Apache-2.0

package afxdp

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/xveth/xveth/pkg/bulk"
	"github.com/xveth/xveth/test/rig"
)

// A socket is closed by another goroutine while packets come in and go out on it.
func TestCloseUnderLoad(t *testing.T) {
	for round := range 4 {
		v := newBed(t, 1, 1500)
		from := open(t, v.a, newUMEM(t, 2048, 2048, Mode{}), Config{Interface: devA, TxRing: 512})
		ub := newUMEM(t, 4096, 2048, Mode{})
		to := open(t, v.b, ub, Config{Interface: devB, RxRing: 64, FillRing: 256})
		// Both ends receive, so that the one in the middle of the load can send as well.
		attach(t, v.b, devB, ProgramConfig{}, to)
		attach(t, v.a, devA, ProgramConfig{}, from)
		g, err := NewGenerator(from, GeneratorConfig{Packet: v.udpPacket(t)})
		if err != nil {
			t.Fatal(err)
		}
		// Once the socket is closed, the program passes what comes to the stack.
		stack, err := rig.NewSink(v.b, udpPort)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var sent atomic.Uint64
		var all sync.WaitGroup
		all.Go(func() {
			n, err := g.Run(ctx, 0)
			sent.Store(n)
			if err != nil {
				t.Errorf("generator: %v", err)
			}
		})
		stop := reflector(t, to, to)
		waitFor(t, "the load is there", func() bool { return stats(t, to).RxFrames > 500 })
		closeSocket(t, to)
		st := stats(t, to)
		cancel()
		all.Wait()
		stop()
		if st.Lent != 0 || st.InFlight != 0 || st.Unsent != 0 || st.Alien != 0 {
			t.Errorf("the closed socket has something: %+v", st)
		}
		if s := ub.Pool().Stats(); s.Out != 0 {
			t.Errorf("%d frames are missing after close", s.Out)
		}
		var passed, dropped uint64
		waitFor(t, "every frame has arrived somewhere or is counted as lost", func() bool {
			if passed, err = stack.Packets(); err != nil {
				t.Fatal(err)
			}
			dropped = txDropped(t, v.a, devA)
			return st.RxFrames+st.Lost()+passed+dropped >= sent.Load()
		})
		if st.RxFrames+st.Lost()+passed+dropped != sent.Load() {
			t.Errorf("round %d: sent %d, stack %d, dropped %d: %+v", round, sent.Load(), passed, dropped, st)
		}
	}
}

// The sender is closed while several goroutines send on it.
func TestCloseSenderUnderLoad(t *testing.T) {
	v := newBed(t, 1, 1500)
	ua := newUMEM(t, 2048, 2048, Mode{})
	to := open(t, v.b, newUMEM(t, 8192, 2048, Mode{}), Config{Interface: devB})
	attach(t, v.b, devB, ProgramConfig{}, to)
	sink(t, to, nil)
	for range 4 {
		from := open(t, v.a, ua, Config{Interface: devA, TxOnly: true, TxRing: 128, FillRing: 16})
		before := stats(t, to)
		droppedBefore := txDropped(t, v.a, devA)
		var all sync.WaitGroup
		var sent atomic.Uint64
		for range 3 {
			all.Go(func() {
				g, err := NewGenerator(from, GeneratorConfig{Packet: numbered(60), Batch: 16})
				if err != nil {
					t.Error(err)
					return
				}
				n, err := g.Run(context.Background(), 0)
				sent.Add(n)
				if !errors.Is(err, ErrClosed) {
					t.Errorf("generator: %v", err)
				}
			})
		}
		waitFor(t, "the load is there", func() bool { return stats(t, from).TxDone > 500 })
		closeSocket(t, from)
		all.Wait()
		st := stats(t, from)
		if st.TxFrames != sent.Load() || st.TxDone != st.TxFrames || st.Unsent != 0 || ua.Pool().Stats().Out != 0 {
			t.Errorf("sent %d: %+v, %+v", sent.Load(), st, ua.Pool().Stats())
		}
		waitFor(t, "every frame has arrived or is counted as lost", func() bool {
			now := stats(t, to)
			return now.RxFrames+now.Lost()-before.RxFrames-before.Lost()+
				txDropped(t, v.a, devA)-droppedBefore == sent.Load()
		})
	}
}

// What lies in the ring when the socket is closed is sent.
func TestCloseSends(t *testing.T) {
	v := newBed(t, 1, 1500)
	from := open(t, v.a, newUMEM(t, 256, 2048, Mode{}), Config{Interface: devA, FillRing: 16, TxRing: 64})
	to := open(t, v.b, newUMEM(t, 256, 2048, Mode{}), Config{Interface: devB, FillRing: 128})
	attach(t, v.b, devB, ProgramConfig{}, to)
	k, _ := sink(t, to, nil)
	const count = 50
	from.tx.mu.Lock()
	for range count {
		if err := from.tx.push(newFrame(t, from.umem, 60)); err != nil {
			t.Error(err)
		}
	}
	from.tx.ring.publish()
	from.tx.mu.Unlock()
	closeSocket(t, from)
	if st := stats(t, from); st.TxDone != count || st.Unsent != 0 {
		t.Errorf("want %d sent: %+v", count, st)
	}
	waitFor(t, "they arrive", func() bool { n, _ := k.Counts(); return n == count })
}

func TestCloseEndsWaits(t *testing.T) {
	v := newBed(t, 1, 1500)
	u := newUMEM(t, 256, 2048, Mode{})
	s := open(t, v.a, u, Config{Interface: devA, TxRing: 16, FillRing: 64})
	var all sync.WaitGroup
	var waiting atomic.Int32
	for range 4 {
		all.Go(func() {
			waiting.Add(1)
			if n, err := s.Poll(context.Background(), make([]*bulk.Frame, 4)); !errors.Is(err, ErrClosed) {
				t.Errorf("poll: %d, %v", n, err)
			}
		})
	}
	waitFor(t, "all wait", func() bool { return waiting.Load() == 4 })
	time.Sleep(5 * time.Millisecond)
	start := time.Now()
	closeSocket(t, s)
	all.Wait()
	if took := time.Since(start); took > time.Second {
		t.Errorf("close took %v", took)
	}
	if _, err := s.Send([]*bulk.Frame{nil}); !errors.Is(err, ErrClosed) {
		t.Errorf("send after close: %v", err)
	}
	if _, err := s.Receive(nil); !errors.Is(err, ErrClosed) {
		t.Errorf("receive after close: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	// The kernel gives the queue up a little later than it closes the socket.
	open(t, v.a, u, Config{Interface: devA, FillRing: 64})
}

func TestContextEndsWaits(t *testing.T) {
	v := newBed(t, 1, 1500)
	s := open(t, v.a, newUMEM(t, 256, 2048, Mode{}), Config{Interface: devA, FillRing: 64})
	frames := make([]*bulk.Frame, 1)
	for _, timeout := range []time.Duration{0, 3 * time.Millisecond, 30 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		start := time.Now()
		if _, err := s.Poll(ctx, frames); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("poll: %v", err)
		}
		if took := time.Since(start); took < timeout || took > timeout+longWait {
			t.Errorf("poll with %v took %v", timeout, took)
		}
		cancel()
	}
	// One sleeps with a context that never ends: the other's ends all the same.
	ctx, cancel := context.WithCancel(context.Background())
	other := make(chan struct{})
	go func() {
		defer close(other)
		_, _ = s.Poll(ctx, make([]*bulk.Frame, 1))
	}()
	short, cancelShort := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancelShort()
	if _, err := s.Poll(short, frames); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("poll: %v", err)
	}
	cancel()
	<-other
}

// B174: a wake-up that is missed. Rings of two entries, random pauses on both sides, and no
// wait may last. The hand-overs are fewer here than the row's, each is a system call.
func TestTinyRingsB174(t *testing.T) {
	v := newBed(t, 1, 1500)
	from := open(t, v.a, newUMEM(t, 16, 2048, Mode{}), Config{Interface: devA, TxRing: 2, RxRing: 2, FillRing: 2})
	to := open(t, v.b, newUMEM(t, 16, 2048, Mode{}), Config{Interface: devB, TxRing: 2, RxRing: 2, FillRing: 2})
	attach(t, v.b, devB, ProgramConfig{}, to)
	const count = 10000
	timed := func(f func()) {
		start := time.Now()
		f()
		if d := time.Since(start); d > time.Second {
			t.Errorf("a wait lasted %v", d)
		}
	}
	// Each waits for the other: a missed wake-up stops both.
	got := make(chan struct{}, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	go func() {
		frames := make([]*bulk.Frame, 3)
		for n := 0; n < count; {
			var k int
			var err error
			timed(func() { k, err = to.Poll(ctx, frames) })
			if err != nil {
				t.Errorf("poll after %d: %v", n, err)
				cancel()
				return
			}
			bulk.FreeBulk(frames[:k])
			n += k
			pause()
			for range k {
				got <- struct{}{}
			}
		}
	}()
	for n := range count {
		f := newFrame(t, from.umem, 60)
		timed(func() {
			if k, err := from.SendAll(ctx, []*bulk.Frame{f}); k != 1 {
				t.Fatalf("send %d: %v", n, err)
			}
		})
		pause()
		select {
		case <-got:
		case <-ctx.Done():
			t.Fatalf("stopped after %d: %+v", n, stats(t, to))
		}
	}
}

// pause does nothing, or yields, or sleeps.
func pause() {
	switch rand.IntN(64) {
	case 0:
		time.Sleep(time.Duration(rand.IntN(100)) * time.Microsecond)
	case 1:
		time.Sleep(0)
	}
}

// The interface goes away under a reader and a writer.
func TestInterfaceGone(t *testing.T) {
	v := newBed(t, 1, 1500)
	u := newUMEM(t, 256, 2048, Mode{})
	s := open(t, v.a, u, Config{Interface: devA, FillRing: 64})
	done := make(chan error, 1)
	go func() {
		_, err := s.Poll(context.Background(), make([]*bulk.Frame, 1))
		done <- err
	}()
	time.Sleep(5 * time.Millisecond)
	err := v.a.Do(func() error {
		l, err := netlink.LinkByName(devA)
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if !errors.Is(err, ErrDown) {
			t.Errorf("poll: %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("poll does not end")
	}
	if n, err := s.Send([]*bulk.Frame{newFrame(t, u, 60)}); n != 1 || !errors.Is(err, ErrDown) {
		t.Errorf("send: %d, %v", n, err)
	}
}
