// SPDX-License-Identifier: Apache-2.0

package afxdp

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/pkg/bulk"
	"github.com/xveth/xveth/test/rig"
)

// B176: odd sizes of frames are errors, in the pool or in the UMEM.
func TestFrameSizesB176(t *testing.T) {
	t.Parallel()
	for size, good := range map[int]bool{
		0: false, 1: false, 2: false, 64: false, 1000: false, 1024: false, 2047: false, 2048: true,
		3000: false, os.Getpagesize(): true, 2 * os.Getpagesize(): false, 1 << 16: false,
	} {
		p, err := bulk.NewPool(bulk.Config{Frames: 16, FrameSize: size, Mapped: true})
		if err == nil {
			_, err = NewUMEM(p, Mode{})
		}
		if (err == nil) != good {
			t.Errorf("frames of %d bytes: %v", size, err)
		}
	}
	for headroom, good := range map[int]bool{0: true, 256: true, 1024: true, 2047: false} {
		p, err := bulk.NewPool(bulk.Config{Frames: 16, FrameSize: 2048, Headroom: headroom, Mapped: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = NewUMEM(p, Mode{}); (err == nil) != good {
			t.Errorf("headroom of %d bytes: %v", headroom, err)
		}
	}
	m := make([]byte, 3*os.Getpagesize())
	p, err := bulk.NewPool(bulk.Config{Frames: 2, FrameSize: 2048, Memory: m[1:]})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewUMEM(p, Mode{}); !errors.Is(err, ErrConfig) {
		t.Errorf("memory that does not start on a page: %v", err)
	}
	if _, err := NewUMEM(p, Mode{Copy: 7}); !errors.Is(err, ErrConfig) {
		t.Errorf("unknown copy mode: %v", err)
	}
}

// B176: odd sizes of rings are errors; those that are accepted carry whole frames.
func TestRingSizesB176(t *testing.T) {
	v := newBed(t, 1, 1500)
	for size, good := range map[int]bool{
		-1: false, 0: true, 1: true, 2: true, 3: false, 4: true, 1000: false, 1024: true,
		math.MaxInt32: false, 1 << 31: false, 1 << 32: false, 2 * MaxRing: false,
	} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			m := newUMEM(t, 4096, 2048, Mode{})
			c := Config{Interface: devA, RxRing: size, TxRing: size, FillRing: size}
			if !good {
				err := v.a.Do(func() error { _, err := m.Open(c); return err })
				if !errors.Is(err, ErrConfig) {
					t.Errorf("open: %v", err)
				}
				return
			}
			from := open(t, v.a, m, c)
			c.Interface = devB
			to := open(t, v.b, newUMEM(t, 4096, 2048, Mode{}), c)
			attach(t, v.b, devB, ProgramConfig{}, to)
			check := newChecker(numbered(60))
			_, stop := sink(t, to, check.look)
			stepwise(t, from, GeneratorConfig{Packet: check.packet, Vary: number}, 100, 1, arrive(t, to))
			stop()
			check.report(t)
			if st := stats(t, to); st.RxFrames+st.Lost() != 100 || st.RxBytes != 60*st.RxFrames || st.RxFrames < 50 {
				t.Errorf("100 frames of 60 bytes were sent: %+v", st)
			}
		})
	}
}

func TestOpenErrors(t *testing.T) {
	v := newBed(t, 2, 1500)
	u := newUMEM(t, 256, 2048, Mode{})
	must := newUMEM(t, 256, 2048, Mode{Copy: ZeroCopy})
	other := newUMEM(t, 256, 2048, Mode{})
	open(t, v.a, u, Config{Interface: devA, FillRing: 64})
	for name, c := range map[string]struct {
		u    *UMEM
		c    Config
		is   error
		says string
	}{
		"missing queue":   {other, Config{Interface: devA, Queue: 2}, ErrNoQueue, "it has 2: take one from 0 to 1"},
		"shared missing":  {u, Config{Interface: devA, Queue: 7}, ErrNoQueue, `queue 7 of "va"`},
		"negative queue":  {u, Config{Interface: devA, Queue: -1}, ErrNoQueue, "queue -1"},
		"missing device":  {u, Config{Interface: "nowhere"}, ErrDown, `"nowhere"`},
		"no device":       {u, Config{}, ErrConfig, "no interface"},
		"own queue":       {u, Config{Interface: devA}, ErrBusy, "take another queue"},
		"foreign queue":   {other, Config{Interface: devA}, ErrBusy, "close the other socket"},
		"no zero-copy":    {must, Config{Interface: devA, Queue: 1}, ErrNotSupported, "ask for Auto or Copy"},
		"no direction":    {u, Config{Interface: devA, Queue: 1, RxOnly: true, TxOnly: true}, ErrConfig, "neither"},
		"fill above pool": {u, Config{Interface: devA, Queue: 1, FillRing: 512}, ErrConfig, "enlarge the pool"},
		"busy budget":     {u, Config{Interface: devA, Queue: 1, BusyPollBudget: 1 << 17}, ErrConfig, "busy poll"},
	} {
		t.Run(name, func(t *testing.T) {
			err := v.a.Do(func() error { _, err := c.u.Open(c.c); return err })
			if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("open: %v", err)
			}
		})
	}
}

func TestProgramErrors(t *testing.T) {
	v := newBed(t, 1, 1500)
	u := newUMEM(t, 256, 2048, Mode{})
	s := open(t, v.a, u, Config{Interface: devA, FillRing: 64, TxOnly: true})
	p := attach(t, v.a, devA, ProgramConfig{})
	if err := p.Serve(s); !errors.Is(err, ErrDirection) {
		t.Errorf("serve one that only sends: %v", err)
	}
	closeSocket(t, s)
	if err := p.Serve(open(t, v.b, u, Config{Interface: devB, FillRing: 64})); !errors.Is(err, ErrConfig) {
		t.Errorf("serve on another interface: %v", err)
	}
	err := v.a.Do(func() error { _, err := Attach(devA, ProgramConfig{}); return err })
	if !errors.Is(err, ErrBusy) {
		t.Errorf("attach twice: %v", err)
	}
	err = v.a.Do(func() error { _, err := Attach("nowhere", ProgramConfig{}); return err })
	if !errors.Is(err, ErrDown) {
		t.Errorf("attach to nothing: %v", err)
	}
}

// A process that may nothing is told what is missing.
func TestPrivileges(t *testing.T) {
	v := newBed(t, 1, 1500)
	u := newUMEM(t, 256, 2048, Mode{})
	h, err := rig.NewHost("weak", false)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	errs := make(map[string]error)
	err = h.Do(func() error {
		// The thread ends with the host, and its lost privileges with it.
		if err := unix.Setns(v.a.NetnsFD(), unix.CLONE_NEWNET); err != nil {
			return err
		}
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&hdr, &none[0]); err != nil {
			return err
		}
		_, errs["open"] = u.Open(Config{Interface: devA})
		_, errs["attach"] = Attach(devA, ProgramConfig{})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for what, err := range errs {
		if !errors.Is(err, ErrPrivilege) || !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "CAP_") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// newFrame is a fresh frame with size bytes of data.
func newFrame(t testing.TB, u *UMEM, size int) *bulk.Frame {
	t.Helper()
	f := u.Pool().Alloc()
	if f == nil {
		t.Fatal("the pool is empty")
	}
	if err := f.CopyFrom(numbered(max(size, numberEnd))[:size]); err != nil {
		t.Fatal(err)
	}
	return f
}

// newChain is a frame in n buffers.
func newChain(t testing.TB, u *UMEM, n int) *bulk.Frame {
	t.Helper()
	f := newFrame(t, u, 60)
	for range n - 1 {
		if err := f.Append(newFrame(t, u, 60)); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func TestSendErrors(t *testing.T) {
	v := newBed(t, 1, 1500)
	u := newUMEM(t, 256, 2048, Mode{})
	s := open(t, v.a, u, Config{Interface: devA, FillRing: 16, TxRing: 16})
	multi := newUMEM(t, 64, 2048, Mode{MultiBuffer: true})
	sm := open(t, v.b, multi, Config{Interface: devB, FillRing: 16, TxRing: 4})
	mixed := newFrame(t, multi, 60)
	if err := mixed.Append(newFrame(t, u, 60)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		s  *Socket
		f  *bulk.Frame
		is error
	}{
		"foreign":      {s, newFrame(t, multi, 60), ErrForeignFrame},
		"empty":        {s, newFrame(t, u, 0), ErrEmptyFrame},
		"fragments":    {s, newChain(t, u, 2), ErrTooLarge},
		"too many":     {sm, newChain(t, multi, 5), ErrTooLarge},
		"foreign frag": {sm, mixed, ErrForeignFrame},
	} {
		good := newFrame(t, c.s.umem, 60)
		n, err := c.s.Send([]*bulk.Frame{good, c.f, c.f})
		if n != 1 || !errors.Is(err, c.is) {
			t.Errorf("%s: sent %d: %v", name, n, err)
		}
		c.f.Free()
		waitFor(t, "the good frame is sent", func() bool { n, _ := c.s.Reap(); return n == 0 })
	}
	twice := newFrame(t, u, 60)
	if n, err := s.Send([]*bulk.Frame{twice, twice}); n != 1 || !errors.Is(err, ErrInFlight) {
		t.Errorf("the same frame twice: sent %d: %v", n, err)
	}
	// The interface cannot send: the ring fills up, and says so.
	if err := v.a.Do(func() error { return down(devA) }); err != nil {
		t.Fatal(err)
	}
	frames := make([]*bulk.Frame, 20)
	for i := range frames {
		frames[i] = newFrame(t, u, 60)
	}
	n, err := s.Send(frames)
	if n < 15 || n > 16 || !errors.Is(err, ErrDown) {
		t.Errorf("interface down: sent %d: %v", n, err)
	}
	bulk.FreeBulk(frames[n:])
}

func TestBusyPoll(t *testing.T) {
	v := newBed(t, 1, 1500)
	c := Config{Interface: devB, BusyPoll: 20 * time.Microsecond, BusyPollBudget: 64}
	from := open(t, v.a, newUMEM(t, 4096, 2048, Mode{}), Config{Interface: devA})
	to := open(t, v.b, newUMEM(t, 8192, 2048, Mode{}), c)
	attach(t, v.b, devB, ProgramConfig{}, to)
	// The budget can be set and not read.
	for option, want := range map[int]int{unix.SO_PREFER_BUSY_POLL: 1, unix.SO_BUSY_POLL: 20} {
		if got, err := unix.GetsockoptInt(to.FD(), unix.SOL_SOCKET, option); err != nil || got != want {
			t.Errorf("option %d is %d, want %d: %v", option, got, want, err)
		}
	}
	check := newChecker(numbered(60))
	_, stop := sink(t, to, check.look)
	sent := stepwise(t, from, GeneratorConfig{Packet: check.packet, Vary: number}, 1000, window, arrive(t, to))
	if lost := v.settled(t, sent, []*Socket{from}, []*Socket{to}); lost != 0 {
		t.Errorf("lost %d although all queues had room", lost)
	}
	stop()
	check.report(t)
}

// The program takes what is meant for its port and leaves everything else to the stack.
func TestProgramPort(t *testing.T) {
	v := newBed(t, 1, 1500)
	for _, generic := range []bool{false, true} {
		from := open(t, v.a, newUMEM(t, 256, 2048, Mode{}), Config{Interface: devA, FillRing: 16})
		to := open(t, v.b, newUMEM(t, 256, 2048, Mode{}), Config{Interface: devB, FillRing: 64})
		p := attach(t, v.b, devB, ProgramConfig{UDPPort: udpPort, Generic: generic}, to)
		var got [][]byte
		_, stop := sink(t, to, func(f *bulk.Frame) { got = append(got, append([]byte(nil), f.Data()...)) })
		good := [][]byte{v.udpPacket(t), v.udp6Packet(t, udpPort)}
		for _, b := range append(v.otherPackets(t), good...) {
			generate(t, from, GeneratorConfig{Packet: b}, 1)
		}
		arrive(t, to)(2)
		stop()
		if len(got) != 2 || string(got[0]) != string(good[0]) || string(got[1]) != string(good[1]) {
			t.Errorf("generic %v: got %x, want %x", generic, got, good)
		}
		closeSocket(t, from)
		closeSocket(t, to)
		if err := p.link.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// otherPackets are none of UDP to the port.
func (v *bed) otherPackets(t testing.TB) [][]byte {
	change := func(b []byte, at int, to ...byte) []byte {
		copy(b[at:], to)
		return b
	}
	return [][]byte{
		numbered(60), v.udp6Packet(t, udpPort+1),
		change(v.udpPacket(t), ip4UDPPort, 1, 2),
		change(v.udpPacket(t), ip4Protocol, unix.IPPROTO_TCP),
		change(v.udpPacket(t), ip4Fragment, 0x20, 0),
		change(v.udpPacket(t), ip4Fragment, 0, 1),
		change(v.udpPacket(t), ip4Version, 0x46),
		change(v.udp6Packet(t, udpPort), ip6NextHeader, unix.IPPROTO_TCP),
		v.udpPacket(t)[:41], v.udp6Packet(t, udpPort)[:61],
	}
}
