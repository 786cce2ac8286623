// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/test/rig"
)

// rawPort sends and receives whole frames on a host's interface.
type rawPort struct{ fd int }

// openRaw opens a packet socket that sees only frames that come in.
func openRaw(t *testing.T, h *rig.Host, dev string) *rawPort {
	t.Helper()
	index := linkOf(t, h, dev).Attrs().Index
	p := &rawPort{}
	err := h.Do(func() (err error) {
		p.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(swap16(unix.ETH_P_ALL)))
		return err
	})
	if err == nil {
		// A receive that ends by itself lets the reader see that it is to stop.
		err = errors.Join(
			unix.SetsockoptInt(p.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20),
			unix.SetsockoptTimeval(p.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100000}),
			unix.Bind(p.fd, &unix.SockaddrLinklayer{Protocol: swap16(unix.ETH_P_ALL), Ifindex: index}),
		)
	}
	if err != nil {
		t.Fatalf("%s: open a packet socket on %q: %v", h.Name, dev, err)
	}
	return p
}

// inject sends one frame from a host of the bed.
func (bed *natBed) inject(t *testing.T, from *rig.Host, frame []byte) {
	t.Helper()
	dev := rig.PodDev
	if from == bed.r.Ext {
		dev = rig.ExtDev
	}
	p := openRaw(t, from, dev)
	defer unix.Close(p.fd)
	if _, err := unix.Write(p.fd, frame); err != nil {
		t.Fatalf("%s: send: %v", from.Name, err)
	}
}

func swap16(v uint16) uint16 {
	return binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, v))
}

// workbench injects frames at hosts and collects what arrives at them.
type workbench struct {
	ports map[*rig.Host]*rawPort
	stop  chan struct{}

	mu   sync.Mutex
	seen map[tuple][][]byte
	n    int
}

// newWorkbench opens all hosts' interfaces. From here on their own stacks neither see
// nor answer the sessions' packets.
func newWorkbench(t *testing.T, bed *natBed) *workbench {
	t.Helper()
	b := &workbench{ports: map[*rig.Host]*rawPort{}, stop: make(chan struct{}), seen: map[tuple][][]byte{}}
	var readers sync.WaitGroup
	for h, dev := range map[*rig.Host]string{bed.r.Ext: rig.ExtDev, bed.a.Host: rig.PodDev, bed.b.Host: rig.PodDev} {
		applyRules(t, h, "quiet", `chain pre { type filter hook prerouting priority raw; meta l4proto { tcp, udp } drop; }`)
		p := openRaw(t, h, dev)
		b.ports[h] = p
		readers.Go(func() { b.read(p) })
	}
	t.Cleanup(func() {
		close(b.stop)
		readers.Wait()
		for _, p := range b.ports {
			_ = unix.Close(p.fd)
		}
	})
	return b
}

// read collects TCP and UDP frames by the tuples that they arrive with.
func (b *workbench) read(p *rawPort) {
	buf := make([]byte, 1<<16)
	for {
		n, err := unix.Read(p.fd, buf)
		select {
		case <-b.stop:
			return
		default:
		}
		if err != nil {
			continue
		}
		k, ok := tupleOf(buf[:n])
		if !ok {
			continue
		}
		b.mu.Lock()
		b.seen[k] = append(b.seen[k], bytes.Clone(buf[:n]))
		b.n++
		b.mu.Unlock()
	}
}

func (b *workbench) arrived() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n
}

// send injects frames of all ways, one of each way in turn, and returns what arrived.
func (b *workbench) send(t *testing.T, all []*rawWay, frames func(*rawWay) [][]byte) map[tuple][][]byte {
	t.Helper()
	b.mu.Lock()
	b.seen, b.n = map[tuple][][]byte{}, 0
	b.mu.Unlock()
	sent := 0
	for i := 0; ; i++ {
		more := false
		for _, w := range all {
			f := frames(w)
			if i >= len(f) {
				continue
			}
			more = true
			if _, err := unix.Write(b.ports[w.from].fd, f[i]); err != nil {
				t.Fatalf("%v: packet %d of %d bytes: %v", w, i, len(f[i]), err)
			}
			if sent++; sent%identicalBurst == 0 {
				b.await(sent)
			}
		}
		if !more {
			break
		}
	}
	b.await(sent)
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.seen
}

// await waits until as many packets have arrived. One that is missing shows in the
// comparison.
func (b *workbench) await(n int) {
	for end := time.Now().Add(patience); b.arrived() < n && time.Now().Before(end); {
		time.Sleep(20 * time.Microsecond)
	}
}
