// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/test/rig"
)

// rigPatience is how long a round trip may take.
const rigPatience = 2 * time.Second

// moveUplink gives the node's addresses and default routes to another device.
func moveUplink(t *testing.T, r *rig.Rig, dev string) {
	t.Helper()
	node(t, r, fmt.Sprintf(`ip addr flush dev eth0 scope global
		ip link set %[1]s up
		ip addr add 192.0.2.1/24 brd + dev %[1]s
		ip addr add 2001:db8:1::1/64 dev %[1]s nodad
		ip route replace default via 192.0.2.2
		ip -6 route replace default via 2001:db8:1::2`, dev))
}

// TestUplinkKinds makes uplinks of kinds that have no native XDP: everything works by tcx,
// and STATUS says why, whether XDP was asked for or not. B105.
func TestUplinkKinds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, make string }{
		{"bridge", "ip link add up0 type bridge; ip link set eth0 master up0"},
		{"macvlan", "ip link add up0 link eth0 type macvlan mode bridge"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, nil)
			node(t, r, c.make)
			moveUplink(t, r, "up0")
			t.Cleanup(func() { undoUplink(t, r) })
			for _, mode := range []string{"auto", "xdp", "tcx"} {
				conf := map[string]any{"uplinks": []any{map[string]any{"name": "up0", "mode": mode}}}
				a := addPod(t, r, "a", conf)
				for _, fam := range families {
					t.Run(fmt.Sprintf("%s v%d", mode, fam), func(t *testing.T) { bothWays(t, r, a, fam) })
				}
				if mtu := routeMTU(t, a.Host, extAddr(4)); mtu != 1500 {
					t.Errorf("the pod sends with MTU %d", mtu)
				}
				switch text := statusText(t, r, conf); {
				case !strings.Contains(text, "uplink up0: tcx"):
					t.Errorf("STATUS with mode %s says %q", mode, text)
				case mode != "tcx" && !strings.Contains(text, "uplink up0: tcx ("):
					t.Errorf("STATUS with mode %s gives no reason: %q", mode, text)
				}
				if err := a.Remove(ctxOf(t)); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// undoUplink brings the rig's uplink back, for the comparison at the end.
func undoUplink(t *testing.T, r *rig.Rig) {
	for _, p := range r.Pods() {
		if err := p.Remove(ctxOf(t)); err != nil {
			t.Error(err)
		}
	}
	node(t, r, "ip link del up0")
	moveUplink(t, r, "eth0")
}

// bothWays warms a flow from the remote host to a pod and one the other slowWay.
func bothWays(t *testing.T, r *rig.Rig, a *rig.Pod, fam int) {
	t.Helper()
	addr, _ := a.Addr(fam)
	for proto := range protos {
		for _, w := range []slowWay{{"", r.Ext, a.Host, netip.Addr{}, addr}, {"", a.Host, r.Ext, netip.Addr{}, extAddr(fam)}} {
			at := netip.AddrPortFrom(w.dst, 7)
			ctx, stop := withCancel(t)
			start := w.to.EchoUDP
			if proto == "tcp" {
				start = w.to.EchoTCP
			}
			if err := start(ctx, at); err != nil {
				t.Fatal(err)
			}
			conn := dial(t, w.from, proto, at)
			warm(t, r, conn)
			if got, err := rig.RoundTrip(conn, numbered(1200), rigPatience); err != nil || string(got) != string(numbered(1200)) {
				t.Errorf("payload: %v", err)
			}
			conn.Close()
			stop()
		}
	}
}

// TestDriverRefusesXDP has a driver refuse XDP: the uplink works by tcx, and the driver's
// own words are in STATUS and in the log. B105, B106.
func TestDriverRefusesXDP(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	// A veth takes XDP only if it has a receive queue for each of its peer's senders.
	attachUplink(t, r, "numrxqueues 1 numtxqueues 1", "numtxqueues 4 numrxqueues 4")
	log := r.Node.Path("/var/lib/xveth.log")
	conf := map[string]any{
		"uplinks": []any{map[string]any{"name": "up1", "mode": "xdp"}}, "logFile": "/var/lib/xveth.log", "logLevel": "debug",
	}
	a := addPod(t, r, "a", conf)
	const words = "number of rx queues"
	if b, err := os.ReadFile(log); err != nil || !strings.Contains(string(b), words) {
		t.Errorf("the log does not contain %q: %v\n%s", words, err, b)
	}
	wantStatus(t, r, conf, "uplink up1: tcx", words)
	for _, fam := range families {
		bothWays(t, r, a, fam)
	}
}

// attachUplink joins node and remote host by a veth of its own, and moves their traffic
// there. Frames leave it with complete checksums.
func attachUplink(t *testing.T, r *rig.Rig, here, there string) {
	t.Helper()
	makeSecondUplink(t, r, here, there)
	t.Cleanup(func() {
		for _, p := range r.Pods() {
			if err := p.Remove(ctxOf(t)); err != nil {
				t.Error(err)
			}
		}
		node(t, r, "ip link del up1")
		moveUplink(t, r, "eth0")
		// The next call forgets what belongs to the uplink that is gone.
		churn(t, r, nil)
	})
}

func makeSecondUplink(t *testing.T, r *rig.Rig, here, there string) {
	t.Helper()
	node(t, r, fmt.Sprintf("ip link add up1 %s type veth peer name up1r %s netns %s", here, there, r.Ext.NetnsPath()))
	on(t, r.Ext, `ip addr flush dev ext0 scope global
		ip link set up1r up
		ethtool -K up1r tx-checksum-ip-generic off gro on >/dev/null
		ip addr add 192.0.2.2/24 dev up1r; ip addr add 2001:db8:1::2/64 dev up1r nodad
		ip route replace 10.88.0.0/24 via 192.0.2.1; ip route replace 2001:db8:88::/64 via 2001:db8:1::1`)
	node(t, r, "ethtool -K up1 tx-checksum-ip-generic off gro on >/dev/null")
	moveUplink(t, r, "up1")
}

// TestUplinkRecreated deletes the uplink and makes it again under its name, with another
// index and with the same: the next ADD arms it, and nothing of the old one does harm.
// B123.
func TestUplinkRecreated(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	attachUplink(t, r, "", "")
	conf := map[string]any{"uplinks": []any{map[string]any{"name": "up1", "mode": "xdp"}}}
	a := addPod(t, r, "a", conf)
	bothWays(t, r, a, 4)
	for _, index := range []string{"", "index"} {
		t.Run("same name "+index, func(t *testing.T) {
			old := strings.TrimSpace(node(t, r, "cat /sys/class/net/up1/ifindex"))
			node(t, r, "ip link del up1")
			here := ""
			if index != "" {
				here = "index " + old
			}
			makeSecondUplink(t, r, here, "")
			// Not armed yet: the kernel does everything.
			echoOnce(t, r, a)
			churn(t, r, conf)
			wantStatus(t, r, conf, "uplink up1: xdp")
			for _, fam := range families {
				bothWays(t, r, a, fam)
			}
		})
	}
}

// echoOnce makes round trips both ways without asking for the fast path.
func echoOnce(t *testing.T, r *rig.Rig, a *rig.Pod) {
	t.Helper()
	for _, w := range []slowWay{{"", r.Ext, a.Host, netip.Addr{}, a.Addr4}, {"", a.Host, r.Ext, netip.Addr{}, rig.ExtAddr4}} {
		ctx, stop := withCancel(t)
		if err := w.to.EchoUDP(ctx, netip.AddrPortFrom(w.dst, 9)); err != nil {
			t.Fatal(err)
		}
		conn := dial(t, w.from, "udp", netip.AddrPortFrom(w.dst, 9))
		eventually(t, 5*time.Second, "a datagram is answered", func() bool {
			_, err := rig.RoundTrip(conn, []byte("ping"), 300*time.Millisecond)
			return err == nil
		})
		stop()
	}
}

// TestTunUplink has a device without Ethernet headers for an uplink: its packets are the
// kernel's. B085.
func TestTunUplink(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	dev := openTun(t, r.Node, "up0")
	go reflectUDP(dev)
	node(t, r, "ip link set up0 up; ip addr add 8.0.0.1/24 dev up0; ip addr add 2001:db8:7::1/64 dev up0 nodad")
	conf := map[string]any{"uplinks": []any{map[string]any{"name": "up0", "mode": "auto"}}}
	a := addPod(t, r, "a", conf)
	t.Cleanup(func() {
		if err := a.Remove(ctxOf(t)); err != nil {
			t.Error(err)
		}
		dev.Close()
		eventually(t, 3*time.Second, "the tun device is gone", func() bool {
			_, err := r.Node.Run(ctxOf(t), "ip", "link", "show", "up0")
			return err != nil
		})
	})
	for _, to := range []string{"8.0.0.2", "2001:db8:7::2"} {
		conn := dial(t, a.Host, "udp", netip.AddrPortFrom(netip.MustParseAddr(to), 7))
		for n := range 200 {
			msg := numbered(100 + n)
			if got, err := rig.RoundTrip(conn, msg, rigPatience); err != nil || string(got) != string(msg) {
				t.Fatalf("%s, datagram %d: %v", to, n, err)
			}
		}
	}
}

// openTun makes a tun device on a host.
func openTun(t *testing.T, h *rig.Host, name string) *os.File {
	t.Helper()
	var f *os.File
	err := h.Do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		ifr, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
			return err
		}
		if err := unix.SetNonblock(fd, true); err != nil {
			return err
		}
		f = os.NewFile(uintptr(fd), "tun")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// reflectUDP sends each UDP packet of a tun device back to where it came from.
func reflectUDP(dev *os.File) {
	buf := make([]byte, 2000)
	for {
		n, err := dev.Read(buf)
		if err != nil {
			return
		}
		ip := buf[:n]
		if proto, _, _, ok := portsAt(ip); !ok || proto != protoUDP {
			continue
		}
		// Sums do not change when both ends are swapped.
		src, dst, l4 := ip[12:16], ip[16:20], ip[20:]
		if ip[0]>>4 == 6 {
			src, dst, l4 = ip[8:24], ip[24:40], ip[40:]
		}
		swap(src, dst)
		swap(l4[:2], l4[2:4])
		_, _ = dev.Write(ip)
	}
}

func swap(a, b []byte) {
	for i := range a {
		a[i], b[i] = b[i], a[i]
	}
}
