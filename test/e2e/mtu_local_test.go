// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/test/rig"
)

// jumboRouteMTU is what the kernel makes of larger MTUs of routes.
const jumboRouteMTU = 65520

// TestLocalMTU reads back the MTUs that ADD sets and reports.
func TestLocalMTU(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for name, c := range map[string]struct {
		conf               map[string]any
		link, local, other int
	}{
		"auto":       {nil, 65535, jumboRouteMTU, 1500},
		"off":        {map[string]any{"localMTU": "off"}, 1500, 1500, 1500},
		"number":     {map[string]any{"localMTU": 9000}, 9000, 9000, 1500},
		"mtu":        {map[string]any{"mtu": 1300}, 65535, jumboRouteMTU, 1300},
		"mtu, off":   {map[string]any{"mtu": 1300, "localMTU": "off"}, 1300, 1300, 1300},
		"both equal": {map[string]any{"mtu": 9000, "localMTU": 9000}, 9000, 9000, 9000},
	} {
		t.Run(name, func(t *testing.T) {
			p := addPod(t, r, "p", c.conf)
			defer func() {
				if err := p.Remove(ctxOf(t)); err != nil {
					t.Error(err)
				}
			}()
			for _, l := range p.Result.Interfaces {
				if l.Mtu != c.link {
					t.Errorf("the result gives %q the MTU %d, want %d", l.Name, l.Mtu, c.link)
				}
			}
			if got := strings.TrimSpace(on(t, p.Host, "cat /sys/class/net/eth0/mtu")); got != fmt.Sprint(c.link) {
				t.Errorf("the pod's interface has MTU %s, want %d", got, c.link)
			}
			if got := strings.TrimSpace(node(t, r, "cat /sys/class/net/"+p.HostDev+"/mtu")); got != fmt.Sprint(c.link) {
				t.Errorf("the host's interface has MTU %s, want %d", got, c.link)
			}
			for _, fam := range families {
				checkRouteMTUs(t, p, fam, c.link, c.local, c.other)
			}
		})
	}
}

// checkRouteMTUs compares the MTUs by which a pod sends with what is wanted, and with the
// routes in the result.
func checkRouteMTUs(t *testing.T, p *rig.Pod, fam, link, local, other int) {
	t.Helper()
	neighbour := map[int]string{4: "10.88.0.200", 6: "2001:db8:88::200"}[fam]
	for to, want := range map[netip.Addr]int{netip.MustParseAddr(neighbour): local, extAddr(fam): other} {
		got := routeMTU(t, p.Host, to)
		if got == 0 {
			got = min(link, jumboRouteMTU)
		}
		if got != want && (fam == 4 || got != link || want != jumboRouteMTU) {
			t.Errorf("the pod sends to %s with MTU %d, want %d", to, got, want)
		}
		best, mtu := -1, 0
		for _, route := range p.Result.Routes {
			if ones, _ := route.Dst.Mask.Size(); route.Dst.Contains(to.AsSlice()) && ones > best {
				best, mtu = ones, route.MTU
			}
		}
		if mtu == 0 {
			mtu = link
		}
		if best < 0 || mtu < want || mtu > want && want != jumboRouteMTU {
			t.Errorf("the result gives the route to %s MTU %d, want %d: %v", to, mtu, want, p.Result.Routes)
		}
	}
}

// sendMSS is the size of segments that a connection sends.
func sendMSS(t *testing.T, c net.Conn) int {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var info *unix.TCPInfo
	var infoErr error
	err = raw.Control(func(fd uintptr) { info, infoErr = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if err != nil || infoErr != nil {
		t.Fatal(err, infoErr)
	}
	return int(info.Snd_mss)
}

// TestLocalMTUTraffic sends in big pieces between pods and in small ones elsewhere.
func TestLocalMTUTraffic(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	a, b := addPod(t, r, "a", nil), addPod(t, r, "b", nil)
	for _, fam := range families {
		for _, w := range podWays(r, a, b, fam) {
			t.Run(fmt.Sprintf("tcp %s v%d", w.name, fam), func(t *testing.T) {
				upload(t, w.from, w.to, netip.AddrPortFrom(w.dst, 5001), transferSize, func(c net.Conn) {
					warm(t, r, c)
					mss := sendMSS(t, c)
					if w.name == "pod to pod" {
						if mss < 32000 { // half of the first window, until the window has grown
							t.Errorf("the segments are of %d bytes", mss)
						}
						return
					}
					want := 1500 - 20 - 20 - 12
					if fam == 6 {
						want -= 20
					}
					if mss != want {
						t.Errorf("the segments are of %d bytes, want %d", mss, want)
					}
				})
			})
		}
		t.Run(fmt.Sprintf("udp in one piece v%d", fam), func(t *testing.T) {
			addr, _ := b.Addr(fam)
			inOnePiece(t, r, a, b, netip.AddrPortFrom(addr, 7))
		})
	}
}

// inOnePiece sends datagrams of 60000 bytes, cold and warm, and sees none of it cut.
func inOnePiece(t *testing.T, r *rig.Rig, a, b *rig.Pod, at netip.AddrPort) {
	const size = 60000
	echo(t, b.Host, "udp", at)
	in := newTap(t, b.Host, rig.PodDev)
	conn := dial(t, a.Host, "udp", at)
	msg := numbered(size)
	before := counters(t, open(t, r)).Fast()
	for range 20 {
		got, err := rig.RoundTrip(conn, msg, 2*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, msg) {
			t.Fatal("the echo differs")
		}
	}
	whole := 0
	for f := in.next(0); f != nil; f = in.next(0) {
		if proto, _, dst, ok := portsAt(f[14:]); ok && proto == protoUDP && dst == at && len(f) > size {
			whole++
		}
	}
	if whole != 20 {
		t.Errorf("%d of 20 datagrams came in one piece", whole)
	}
	if counters(t, open(t, r)).Fast() < before+20 {
		t.Error("they did not take the fast path")
	}
}

// addPTP makes a pod by the reference ptp plugin, with MTU 1500, on the rig's node.
func addPTP(t *testing.T, r *rig.Rig, id string, subnets ...string) (*rig.Pod, map[int]netip.Addr) {
	t.Helper()
	p, err := r.NewNetns(id)
	if err != nil {
		t.Fatal(err)
	}
	var ranges [][]map[string]string
	for _, s := range subnets {
		subnet, start, _ := strings.Cut(s, " ")
		one := map[string]string{"subnet": subnet}
		if start != "" {
			one["rangeStart"] = start
		}
		ranges = append(ranges, []map[string]string{one})
	}
	conf, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": "ptp-" + id, "type": "ptp", "mtu": 1500,
		"ipam": map[string]any{
			"type": "host-local", "ranges": ranges,
			"routes": []map[string]string{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	bin := testBin(t)
	run := func(verb string) string {
		return node(t, r, fmt.Sprintf(`export CNI_COMMAND=%s CNI_CONTAINERID=%s CNI_NETNS=%s CNI_IFNAME=eth0 CNI_PATH=%s
%s <<'E'
%s
E`, verb, id, p.Netns, bin, filepath.Join(bin, "ptp"), conf))
	}
	out := run("ADD")
	t.Cleanup(func() {
		run("DEL")
		p.Destroy()
	})
	var res struct {
		IPs []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal([]byte(out), &res); err != nil {
		t.Fatal(err)
	}
	addrs := map[int]netip.Addr{}
	for _, ip := range res.IPs {
		addrs[familyOf(ip.Address.Addr())] = ip.Address.Addr()
	}
	return p, addrs
}

// TestLocalMTUBesidePTP lets jumbo pods talk with pods of MTU 1500 that another plugin
// made, of another subnet and of the same.
func TestLocalMTUBesidePTP(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	a := addPod(t, r, "a", nil)
	for _, c := range []struct {
		name    string
		subnets []string
	}{
		{"other subnet", []string{"10.89.0.0/24", "2001:db8:89::/64"}},
		{"same subnet", []string{"10.88.0.0/24 10.88.0.100", "2001:db8:88::/64 2001:db8:88::100"}},
	} {
		p, addrs := addPTP(t, r, strings.ReplaceAll(c.name, " ", "-"), c.subnets...)
		for _, fam := range families {
			addrA, _ := a.Addr(fam)
			for _, w := range []slowWay{
				{"to ptp", a.Host, p.Host, addrA, addrs[fam]},
				{"from ptp", p.Host, a.Host, addrs[fam], addrA},
			} {
				t.Run(fmt.Sprintf("%s %s v%d", c.name, w.name, fam), func(t *testing.T) { smallAndLarge(t, w, fam) })
			}
		}
	}
}

// smallAndLarge sends what fits 1500 bytes and what does not.
func smallAndLarge(t *testing.T, w slowWay, fam int) {
	endsInTime(t, upload(t, w.from, w.to, netip.AddrPortFrom(w.dst, 5001), transferSize, func(net.Conn) {}))
	on(t, w.from, "ping -n -c 2 -i 0.01 -W 2 -s 4000 "+w.dst.String())
	on(t, w.from, flushRoutes)
	on(t, w.to, flushRoutes)
	at := netip.AddrPortFrom(w.dst, 7)
	echo(t, w.to, "udp", at)
	conn := dial(t, w.from, "udp", at).(*net.UDPConn)
	for _, df := range []int{unix.IP_PMTUDISC_DONT, unix.IP_PMTUDISC_WANT} {
		setDF(t, conn, fam, df)
		for _, size := range []int{100, 1400, 5000} {
			// With DF the first one, or the first answer, may have to find the MTU.
			eventually(t, 3*time.Second, fmt.Sprintf("%d bytes are answered", size), func() bool {
				_, err := rig.RoundTrip(conn, numbered(size), 200*time.Millisecond)
				return err == nil
			})
			for range 10 {
				if _, err := rig.RoundTrip(conn, numbered(size), 2*time.Second); err != nil {
					t.Fatalf("%d bytes, discovery %d: %v", size, df, err)
				}
			}
		}
	}
	setDF(t, conn, fam, unix.IP_PMTUDISC_DO)
	eventually(t, 2*time.Second, "a datagram that must not be cut is refused", func() bool {
		_, err := conn.Write(numbered(5000))
		return errors.Is(err, unix.EMSGSIZE)
	})
}
