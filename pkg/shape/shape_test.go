// SPDX-License-Identifier: Apache-2.0

package shape

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/pkg/veth"
)

const (
	podIP     = "10.2.0.10"
	gateway   = "10.2.0.1"
	jumbo     = 65535
	megabit   = 1_000_000
	tolerance = 0.10
)

var (
	key      = veth.Key("net", "pod", "eth0")
	hostVeth = veth.HostName("net", "pod", "eth0")
)

// The main thread cannot die when a test leaves it in another namespace, so
// nothing but the main goroutine may use it.
func init() { runtime.LockOSThread() }

// newNS makes a network namespace, removed after the test, and returns the
// file that holds it.
func newNS(t *testing.T) ns.NetNS {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("making network namespaces takes root")
	}
	path := filepath.Join(t.TempDir(), "netns")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		// The thread is never unlocked: it dies with this goroutine.
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatalf("make network namespace: %v", err)
	}
	n, err := ns.GetNS(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.Close()
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", path, err)
		}
	})
	return n
}

func in(n ns.NetNS, f func() error) error { return n.Do(func(ns.NetNS) error { return f() }) }

// attach makes a host and a pod.
func attach(t *testing.T) (host, pod ns.NetNS) {
	t.Helper()
	host, pod = newNS(t), newNS(t)
	err := in(host, func() error {
		_, err := veth.Add(context.Background(), veth.Config{
			Network: "net", ContainerID: "pod", IfName: "eth0", NetnsPath: pod.Path(), MTU: jumbo,
			Addresses: []veth.Address{{Prefix: netip.MustParsePrefix(podIP + "/24"), Gateway: netip.MustParseAddr(gateway)}},
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return host, pod
}

// rate sends by TCP for a while and returns the bits a second that arrived,
// counted only after the first burst.
func rate(t *testing.T, from, to ns.NetNS, ip string) float64 {
	t.Helper()
	const warmUp, measured = 500 * time.Millisecond, 2 * time.Second
	var l net.Listener
	if err := in(to, func() (err error) { l, err = net.Listen("tcp", ip+":0"); return err }); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var c net.Conn
	if err := in(from, func() (err error) { c, err = net.Dial("tcp", l.Addr().String()); return err }); err != nil {
		t.Fatal(err)
	}
	go func() {
		b := make([]byte, 128<<10)
		for {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}()
	defer c.Close()
	r, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b := make([]byte, 1<<20)
	start := time.Now()
	var first time.Time
	total := 0
	for time.Since(start) < warmUp+measured {
		n, err := r.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case !first.IsZero():
			total += n
		case time.Since(start) >= warmUp:
			first = time.Now()
		}
	}
	return float64(total) * 8 / time.Since(first).Seconds()
}

// A packet longer than the bucket is deep would never pass.
func TestLongestPacketPasses(t *testing.T) {
	t.Parallel()
	host, pod := attach(t)
	l := Limits{IngressRate: 100 * megabit, IngressBurst: 8000, EgressRate: 9_999 * megabit, EgressBurst: 8000}
	if err := in(host, func() error { return Ensure(hostVeth, key, jumbo, l) }); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		from, to ns.NetNS
		ip       string
	}{{host, pod, podIP}, {pod, host, gateway}} {
		var pc net.PacketConn
		if err := in(tc.to, func() (err error) { pc, err = net.ListenPacket("udp", tc.ip+":0"); return err }); err != nil {
			t.Fatal(err)
		}
		defer pc.Close()
		const payload = jumbo - 28
		err := in(tc.from, func() error {
			c, err := net.Dial("udp", pc.LocalAddr().String())
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write(make([]byte, payload))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		_ = pc.SetReadDeadline(time.Now().Add(2 * time.Second))
		if n, _, err := pc.ReadFrom(make([]byte, jumbo)); err != nil || n != payload {
			t.Errorf("to %s: got %d bytes, %v", tc.ip, n, err)
		}
	}
}

// The segments of a local jumbo MTU are longer than the burst asked for.
func TestRateBothDirections(t *testing.T) {
	host, pod := attach(t)
	l := Limits{IngressRate: 200 * megabit, IngressBurst: 1 * megabit / 10, EgressRate: 100 * megabit, EgressBurst: megabit / 10}
	for range 2 { // once more: nothing changes
		if err := in(host, func() error { return Ensure(hostVeth, key, jumbo, l) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := in(host, func() error { return Check(hostVeth, key, jumbo, l) }); err != nil {
		t.Errorf("check: %v", err)
	}
	for _, tc := range []struct {
		name     string
		from, to ns.NetNS
		ip       string
		want     float64
	}{
		{"to the pod", host, pod, podIP, 200 * megabit},
		{"from the pod", pod, host, gateway, 100 * megabit},
	} {
		got := rate(t, tc.from, tc.to, tc.ip)
		t.Logf("%s: %.1f Mbit/s of %.1f", tc.name, got/megabit, tc.want/megabit)
		if got < tc.want*(1-tolerance) || got > tc.want*(1+tolerance) {
			t.Errorf("%s: %.1f Mbit/s, want %.1f within 10 %%", tc.name, got/megabit, tc.want/megabit)
		}
	}
}

func TestTokenBucketTakesTheLongestPacket(t *testing.T) {
	t.Parallel()
	for _, rate := range []uint64{8, 1000, megabit, 1000 * megabit, 9_999 * megabit, 100_000 * megabit, 1 << 62} {
		for _, burst := range []uint64{0, 8, 1 << 20, 1 << 62} {
			q, err := tokenBucket(1, jumbo, rate, burst)
			if err != nil {
				t.Fatal(err)
			}
			depth := float64(q.Buffer) * tick * float64(q.Rate)
			// The kernel stores at most 2^32 ticks; at such a rate one packet takes minutes.
			if depth < jumbo+14 && q.Buffer != 1<<32-1 {
				t.Errorf("rate %d burst %d: the bucket holds %.0f bytes", rate, burst, depth)
			}
			if q.Limit < jumbo+14 {
				t.Errorf("rate %d burst %d: the queue holds %d bytes", rate, burst, q.Limit)
			}
		}
	}
	if _, err := tokenBucket(1, jumbo, 7, 0); !errors.Is(err, ErrInvalid) {
		t.Errorf("rate of 7 bits: got %v", err)
	}
}

func TestCheckNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	host, _ := attach(t)
	l := Limits{IngressRate: 50 * megabit, EgressRate: 50 * megabit}
	link := func(name string) netlink.Link {
		l, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	delRoot := func(name string) error {
		return netlink.QdiscDel(&netlink.Tbf{QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: link(name).Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT,
		}})
	}
	for _, tc := range []struct {
		name, want string
		breakIt    func() error
	}{
		{"bucket to the pod", hostVeth, func() error { return delRoot(hostVeth) }},
		{"bucket from the pod", DeviceName(key), func() error { return delRoot(DeviceName(key)) }},
		{"ifb device down", "is down", func() error { return netlink.LinkSetDown(link(DeviceName(key))) }},
		{"ifb device", "no device", func() error { return netlink.LinkDel(link(DeviceName(key))) }},
		{"redirect", "does not redirect", func() error {
			return netlink.QdiscDel(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
				LinkIndex: link(hostVeth).Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
			}})
		}},
	} {
		err := in(host, func() error {
			if err := Ensure(hostVeth, key, jumbo, l); err != nil {
				return err
			}
			if err := Check(hostVeth, key, jumbo, l); err != nil {
				return err
			}
			return tc.breakIt()
		})
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		err = in(host, func() error { return Check(hostVeth, key, jumbo, l) })
		if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", tc.name, err, tc.want)
		}
	}
}

func TestRemoveAndList(t *testing.T) {
	t.Parallel()
	host, _ := attach(t)
	err := in(host, func() error {
		if err := Ensure(hostVeth, key, jumbo, Limits{EgressRate: megabit}); err != nil {
			return err
		}
		for network, want := range map[string]int{"": 1, "net": 1, "other": 0} {
			got, err := List(network)
			if err != nil || len(got) != want {
				t.Errorf("list %q: %v, %v", network, got, err)
			}
			if want == 1 && (!got[0].Is(key) || got[0].Key != key) {
				t.Errorf("list %q: %+v is not %q", network, got[0], key)
			}
		}
		return errors.Join(Remove(key), Remove(key), RemoveByName(DeviceName(key)))
	})
	if err != nil {
		t.Error(err)
	}
	err = in(host, func() error {
		// As left by an ADD that was killed before it set the alias.
		attrs := netlink.NewLinkAttrs()
		attrs.Name = DeviceName(key)
		if err := netlink.LinkAdd(&netlink.Ifb{LinkAttrs: attrs}); err != nil {
			return err
		}
		got, err := List("net")
		if err != nil || len(got) != 1 || !got[0].Unlabelled || !got[0].Is(key) {
			t.Errorf("list: %+v, %v", got, err)
		}
		return Remove(key)
	})
	if err != nil {
		t.Error(err)
	}
}

func TestFailureLeavesNothing(t *testing.T) {
	t.Parallel()
	host, _ := attach(t)
	err := in(host, func() error {
		// A device of somebody else under the name of ours.
		attrs := netlink.NewLinkAttrs()
		attrs.Name = DeviceName(key)
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return err
		}
		err := Ensure(hostVeth, key, jumbo, Limits{IngressRate: megabit, EgressRate: megabit})
		if !errors.Is(err, ErrNotOurs) {
			t.Errorf("ensure: got %v", err)
		}
		if err := Remove(key); !errors.Is(err, ErrNotOurs) {
			t.Errorf("remove: got %v", err)
		}
		link, err := netlink.LinkByName(hostVeth)
		if err != nil {
			return err
		}
		qdiscs, err := netlinksafe.QdiscList(link)
		for _, q := range qdiscs {
			if q.Type() != "noqueue" {
				t.Errorf("qdisc %v is left", q)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if err := in(host, func() error { return Ensure("nosuch", key, jumbo, Limits{IngressRate: 8}) }); err == nil {
		t.Error("ensure on a missing device succeeded")
	}
	if err := Ensure(hostVeth, "", jumbo, Limits{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("empty key: got %v", err)
	}
}
