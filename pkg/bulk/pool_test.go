// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"unsafe"
)

const testFrameSize = 256

// long returns the second number if the environment asks for the long tests
// (XVETH_LONG=1), otherwise the first.
func long(short, long int) int {
	if os.Getenv("XVETH_LONG") != "" {
		return long
	}
	return short
}

// newPool makes a checked pool in which misuse fails the test.
func newPool(t testing.TB, frames int) *Pool {
	t.Helper()
	p, err := NewPool(Config{
		Frames: frames, FrameSize: testFrameSize, Headroom: 32, Checked: true,
		OnMisuse: func(err error) { t.Error(err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func wantFree(t *testing.T, p *Pool, want int) {
	t.Helper()
	if s := p.Stats(); s.Free != want || s.Free+s.Out != s.Total {
		t.Errorf("%+v, want %d free", s, want)
	}
}

func TestAFrameIsOneCacheLine(t *testing.T) {
	t.Parallel()
	if s := unsafe.Sizeof(Frame{}); unsafe.Sizeof(uintptr(0)) == 8 && s != 64 {
		t.Errorf("a frame has %d bytes", s)
	}
}

// What one worker writes to all the time shares no cache line with another worker's.
func TestNoFalseSharing(t *testing.T) {
	t.Parallel()
	const line = 64
	var (
		c Cache
		q TxQueue
		p Poller
	)
	for name, gaps := range map[string][2]uintptr{
		"cache":  {unsafe.Offsetof(c.pool), unsafe.Sizeof(c) - unsafe.Offsetof(c.items) - unsafe.Sizeof(c.items)},
		"queue":  {unsafe.Offsetof(q.send), unsafe.Sizeof(q) - unsafe.Offsetof(q.frames) - unsafe.Sizeof(q.frames)},
		"poller": {unsafe.Offsetof(p.PollConfig), unsafe.Sizeof(p) - unsafe.Offsetof(p.nOut) - unsafe.Sizeof(p.nOut)},
	} {
		if gaps[0] < line || gaps[1] < line {
			t.Errorf("%s: %d bytes to what is before it and %d to what is behind", name, gaps[0], gaps[1])
		}
	}
}

func TestAllocBulkSaysHowMany(t *testing.T) {
	t.Parallel()
	p := newPool(t, 10)
	frames := make([]*Frame, 8)
	for _, want := range []int{8, 2, 0} {
		if n := p.AllocBulk(frames); n != want {
			t.Fatalf("got %d frames, want %d", n, want)
		}
	}
	if p.Alloc() != nil {
		t.Error("an empty pool gave a frame")
	}
	if s := p.Stats(); s.Short != 6+8+1 {
		t.Errorf("%d frames were short, want 15", s.Short)
	}
}

// Who only tries has no lack of frames.
func TestTryAllocBulk(t *testing.T) {
	t.Parallel()
	p := newPool(t, 10)
	frames := make([]*Frame, 12)
	got := 0
	for _, want := range []int{8, 2, 0} {
		n := p.TryAllocBulk(frames[got:min(got+8, len(frames))])
		if n != want {
			t.Fatalf("got %d frames, want %d", n, want)
		}
		got += n
	}
	for _, f := range frames[:got] {
		if f.Headroom() != 32 || f.Len() != 0 {
			t.Errorf("headroom %d, %d bytes", f.Headroom(), f.Len())
		}
	}
	if s := p.Stats(); s.Short != 0 || s.Out != 10 {
		t.Errorf("%+v, want none short", s)
	}
	// The pool knows that they are out.
	FreeBulk(frames[:got])
	wantFree(t, p, 10)
}

func TestFreshFrames(t *testing.T) {
	t.Parallel()
	p := newPool(t, 4)
	c := p.NewCache(2)
	frames := make([]*Frame, 4)
	for name, alloc := range map[string]func() int{
		"pool":  func() int { frames[0] = p.Alloc(); return 1 },
		"bulk":  func() int { return p.AllocBulk(frames) },
		"cache": func() int { frames[0] = c.Alloc(); return 1 },
		"both":  func() int { return c.AllocBulk(frames[:3]) },
	} {
		n := alloc()
		for _, f := range frames[:n] {
			if f.Headroom() != 32 || f.Len() != 0 || f.Tailroom() != testFrameSize-32 || f.Frags() != 0 || f.Packet() != nil {
				t.Errorf("%s: headroom %d, %d bytes, tailroom %d", name, f.Headroom(), f.Len(), f.Tailroom())
			}
			if err := f.SetData(3, 4); err != nil { // must not be seen by the next user
				t.Error(err)
			}
		}
		FreeBulk(frames[:n])
		c.Flush()
		wantFree(t, p, 4)
	}
}

func TestDataStaysInTheBuffer(t *testing.T) {
	t.Parallel()
	p := newPool(t, 2)
	f := p.Alloc()
	if err := f.CopyFrom([]byte("hello world")); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name string
		do   func() error
		ok   bool
		want string
	}{
		{"remove from the front", func() error { return f.AdjustHead(6) }, true, "world"},
		{"give back to the front", func() error { return f.AdjustHead(-6) }, true, "hello world"},
		{"remove from the end", func() error { return f.AdjustTail(-6) }, true, "hello"},
		{"more than the headroom", func() error { return f.AdjustHead(-33) }, false, "hello"},
		{"more than there is", func() error { return f.AdjustHead(6) }, false, "hello"},
		{"more than the tailroom", func() error { return f.AdjustTail(testFrameSize) }, false, "hello"},
		{"less than nothing", func() error { return f.AdjustTail(-6) }, false, "hello"},
		{"negative", func() error { return f.SetData(-1, 3) }, false, "hello"},
		{"too long", func() error { return f.SetData(200, 57) }, false, "hello"},
		{"overflow", func() error { return f.SetData(1, int(^uint(0)>>1)) }, false, "hello"},
		{"too long to copy", func() error { return f.CopyFrom(make([]byte, testFrameSize-31)) }, false, "hello"},
	} {
		if err := step.do(); (err == nil) != step.ok || (err != nil && !errors.Is(err, ErrNoRoom)) {
			t.Errorf("%s: %v", step.name, err)
		}
		if string(f.Data()) != step.want {
			t.Errorf("%s: data are %q, want %q", step.name, f.Data(), step.want)
		}
	}
	if g := p.FrameAt(f.Addr()); g != f || f.Pool() != p {
		t.Error("a frame is not found by its address")
	}
	if p.FrameAt(2*testFrameSize) != nil {
		t.Error("there is a frame behind the memory")
	}
	if string(p.Memory()[f.Addr():f.Addr()+5]) != "hello" {
		t.Error("the address is not where the data are")
	}
}

// A frame of 9,000 bytes over buffers of two pools is freed as one.
func TestFragments(t *testing.T) {
	t.Parallel()
	a, b := newPool(t, 40), newPool(t, 40)
	for name, free := range map[string]func(*Frame){
		"Free":           func(f *Frame) { f.Free() },
		"FreeBulk":       func(f *Frame) { FreeBulk([]*Frame{f}) },
		"Pool.FreeBulk":  func(f *Frame) { f.Pool().FreeBulk([]*Frame{f}) },
		"among others":   func(f *Frame) { FreeBulk([]*Frame{a.Alloc(), b.Alloc(), f, a.Alloc()}) },
		"Cache.Free":     func(f *Frame) { c := a.NewCache(4); c.Free(f); c.Flush() },
		"Cache.FreeBulk": func(f *Frame) { c := b.NewCache(4); c.FreeBulk([]*Frame{f}); c.Flush() },
	} {
		f := a.Alloc()
		if err := f.CopyFrom([]byte("0")); err != nil {
			t.Fatal(err)
		}
		for i := 1; i <= MaxFrags; i++ {
			g := []*Pool{a, b}[i%2].Alloc()
			if err := g.CopyFrom([]byte{byte('0' + i)}); err != nil {
				t.Fatal(err)
			}
			if err := f.Append(g); err != nil {
				t.Fatal(err)
			}
		}
		g := a.Alloc()
		if err := f.Append(g); !errors.Is(err, ErrTooManyFrags) {
			t.Errorf("one fragment too many: %v", err)
		}
		g.Free()
		all := make([]byte, 32)
		if n := f.CopyTo(all); f.Frags() != MaxFrags || f.TotalLen() != MaxFrags+1 || string(all[:n]) != "0123456789:;<=>?@A" {
			t.Errorf("%d fragments with %q", f.Frags(), all)
		}
		free(f)
		wantFree(t, a, 40)
		wantFree(t, b, 40)
		if f.Next() != nil {
			t.Errorf("%s: a free frame has fragments", name)
		}
	}
}

func TestMisuseIsFound(t *testing.T) {
	t.Parallel()
	var found []error
	mine, err := NewPool(Config{
		Frames: 4, FrameSize: 64, Checked: true,
		OnMisuse: func(err error) { found = append(found, err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	other := newPool(t, 4)
	for _, tc := range []struct {
		name string
		want error
		do   func(f *Frame)
	}{
		{"twice", ErrDoubleFree, func(f *Frame) { f.Free(); f.Free() }},
		{"twice in a batch", ErrDoubleFree, func(f *Frame) { FreeBulk([]*Frame{f, f}) }},
		{"twice in a cache", ErrDoubleFree, func(f *Frame) {
			c := mine.NewCache(2)
			c.Free(f)
			c.Free(f)
			c.Flush()
		}},
		{"in a cache and in the pool", ErrDoubleFree, func(f *Frame) {
			c := mine.NewCache(2)
			c.Free(f)
			f.Free()
			c.Flush()
		}},
		{"other pool's", ErrForeignFree, func(f *Frame) {
			g := other.Alloc()
			mine.FreeBulk([]*Frame{f, g})
			g.Free()
		}},
		{"a copy", ErrForeignFree, func(f *Frame) {
			g := *f
			g.Free()
			f.Free()
		}},
	} {
		found = nil
		tc.do(mine.Alloc())
		if len(found) != 1 || !errors.Is(found[0], tc.want) {
			t.Errorf("%s: found %v, want %v", tc.name, found, tc.want)
		}
		wantFree(t, mine, 4)
		wantFree(t, other, 4)
	}
}

// Without checks the list still does not become longer than the pool.
func TestMisuseOfAnUncheckedPool(t *testing.T) {
	t.Parallel()
	p, err := NewPool(Config{Frames: 2, FrameSize: 64})
	if err != nil {
		t.Fatal(err)
	}
	f := p.Alloc()
	f.Free()
	defer func() {
		if recover() == nil {
			t.Error("a frame too many went in")
		}
		wantFree(t, p, 2)
	}()
	f.Free()
}

func TestClose(t *testing.T) {
	t.Parallel()
	for _, mapped := range []bool{false, true} {
		p, err := NewPool(Config{Frames: 4, FrameSize: 4096, Mapped: mapped})
		if err != nil {
			t.Fatal(err)
		}
		f := p.Alloc()
		f.Buffer()[4095] = 1
		if err := p.Close(); !errors.Is(err, ErrBusy) {
			t.Errorf("closed with a frame in flight: %v", err)
		}
		if g := p.Alloc(); g == nil {
			t.Error("a pool that could not be closed is not usable")
		} else {
			g.Free()
		}
		f.Free()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if p.Alloc() != nil {
			t.Error("a closed pool gave a frame")
		}
	}
}

// B176: odd counts and sizes give an error or exactly what was asked for: no frame without
// room for data, none over another.
func TestB176Sizes(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{
		{Frames: 0, FrameSize: 64},
		{Frames: -1, FrameSize: 64},
		{Frames: 1 << 31, FrameSize: 64},
		{Frames: 4, FrameSize: 0},
		{Frames: 4, FrameSize: -1},
		{Frames: 4, FrameSize: MaxFrameSize + 1},
		{Frames: 4, FrameSize: 64, Headroom: 64},
		{Frames: 4, FrameSize: 64, Headroom: -1},
		{Frames: 4, FrameSize: 64, Memory: make([]byte, 255)},
		{Frames: 4, FrameSize: 64, Memory: make([]byte, 256), Mapped: true},
	} {
		if _, err := NewPool(c); !errors.Is(err, ErrConfig) {
			t.Errorf("%d frames of %d behind %d: %v", c.Frames, c.FrameSize, c.Headroom, err)
		}
	}
	for _, n := range []int{0, -1, 1 << 31} {
		if _, err := NewPacketPool(n); !errors.Is(err, ErrConfig) {
			t.Errorf("%d packets: %v", n, err)
		}
	}
	for _, frames := range []int{1, 2, 3, 1000} {
		for _, size := range []int{1, 3, 100, 1500, 2048} {
			for _, memory := range [][]byte{nil, make([]byte, frames*size+7)} {
				checkGeometry(t, Config{Frames: frames, FrameSize: size, Headroom: size / 4, Memory: memory})
			}
		}
	}
}

func checkGeometry(t *testing.T, c Config) {
	t.Helper()
	p, err := NewPool(c)
	if err != nil {
		t.Fatal(err)
	}
	if c.Memory == nil && uintptr(unsafe.Pointer(&p.Memory()[0]))%uintptr(os.Getpagesize()) != 0 {
		t.Error("the memory does not start on a page")
	}
	all := make([]*Frame, c.Frames+1)
	if n := p.AllocBulk(all); n != c.Frames || p.Frames() != c.Frames || p.FrameSize() != c.FrameSize {
		t.Fatalf("%d frames of %d, want %d of %d", n, p.FrameSize(), c.Frames, c.FrameSize)
	}
	for i, f := range all[:c.Frames] {
		if len(f.Buffer()) != c.FrameSize || cap(f.Buffer()) != c.FrameSize || f.Tailroom() < 1 {
			t.Fatalf("%+v: a buffer has %d bytes and a tailroom of %d", c, len(f.Buffer()), f.Tailroom())
		}
		for j := range f.Buffer() {
			f.Buffer()[j] = byte(i % 251)
		}
	}
	for i, f := range all[:c.Frames] {
		for _, b := range f.Buffer() {
			if b != byte(i%251) {
				t.Fatalf("%d frames of %d: frame %d lies over another", c.Frames, c.FrameSize, i)
			}
		}
	}
	FreeBulk(all[:c.Frames])
	wantFree(t, p, c.Frames)
}

func ExamplePool() {
	pool, err := NewPool(Config{Frames: 64, FrameSize: 2048, Headroom: 256})
	if err != nil {
		fmt.Println(err)
		return
	}
	frames := make([]*Frame, 16)
	n := pool.AllocBulk(frames)
	for _, f := range frames[:n] {
		if err := f.CopyFrom([]byte("payload")); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(n, "frames,", pool.Stats().Free, "left, headroom", frames[0].Headroom())

	// A frame knows its pool: whoever has it in the end frees it.
	FreeBulk(frames[:n])
	fmt.Println(pool.Stats().Free, "free")
	// Output:
	// 16 frames, 48 left, headroom 256
	// 64 free
}
