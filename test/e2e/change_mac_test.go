// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

const newMAC = "02:00:5e:00:53:77"

// quickNeighbours makes a host doubt its neighbours within about a second, where the
// default is half a minute.
func quickNeighbours(t *testing.T, h *rig.Host, dev string) {
	t.Helper()
	for _, fam := range []string{"ipv4", "ipv6"} {
		for name, value := range map[string]string{
			"base_reachable_time_ms": "500", "delay_first_probe_time": "1",
			"retrans_time_ms": "100", "ucast_solicit": "1",
		} {
			if err := h.Sysctl("net."+fam+".neigh."+dev+"."+name, value); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// neighbour is the MAC address that a host has for an address; empty if it has none.
func neighbour(t *testing.T, h *rig.Host, addr netip.Addr) string {
	t.Helper()
	_, after, _ := strings.Cut(on(t, h, "ip neigh show to "+addr.String()), "lladdr ")
	mac, _, _ := strings.Cut(after, " ")
	return mac
}

// flowTo finds the live flow to an address as its packets come in.
func flowTo(t *testing.T, d *datapath.Datapath, dst netip.AddrPort) (datapath.Flow, bool) {
	t.Helper()
	for f, err := range d.Flows() {
		if err != nil {
			t.Fatal(err)
		}
		if f.Dst == dst && f.Live() {
			return f, true
		}
	}
	return datapath.Flow{}, false
}

// carries says whether the frames of a live flow go to a MAC address.
func carries(t *testing.T, d *datapath.Datapath, dst netip.AddrPort, mac string) bool {
	t.Helper()
	f, ok := flowTo(t, d, dst)
	return ok && f.DstMAC.String() == mac
}

// TestRemoteMAC changes the remote host's MAC address under warm flows from a pod
// (B081). As soon as the kernel knows the new address, frames carry it within the
// interval.
func TestRemoteMAC(t *testing.T) {
	t.Parallel()
	for _, told := range []bool{true, false} {
		t.Run(fmt.Sprintf("announced %v", told), func(t *testing.T) {
			r := newRig(t, shortInterval(nil))
			pod := addPod(t, r, "a", nil)
			d := open(t, r)
			quickNeighbours(t, r.Node, rig.Uplink)
			if told {
				on(t, r.Ext, "sysctl -qw net.ipv4.conf.ext0.arp_notify=1 net.ipv6.conf.ext0.ndisc_notify=1")
			}
			streams := map[netip.AddrPort]*dgramStream{}
			for _, fam := range families {
				at := netip.AddrPortFrom(extAddr(fam), 9300)
				streams[at] = startStream(t, pod.Host, r.Ext, at, at, 10_000)
				isFast(t, d)
			}
			on(t, r.Ext, "ip link set ext0 address "+newMAC)
			for at, n := range streams {
				eventually(t, veryLong, "the kernel knows the new address", func() bool {
					return neighbour(t, r.Node, at.Addr()) == newMAC
				})
				eventually(t, time.Second, "frames carry the new address", func() bool {
					return carries(t, d, at, newMAC)
				})
				heard := n.heard.Load()
				eventually(t, time.Second, "datagrams arrive again", func() bool { return n.heard.Load() > heard+100 })
				isFast(t, d)
				n.stop()
			}
		})
	}
}

// routerService is where datagrams go that a router delivers to itself.
func routerService(fam int) netip.AddrPort {
	if fam == 6 {
		return netip.MustParseAddrPort("[2001:db8:9::9]:9301")
	}
	return netip.MustParseAddrPort("198.51.100.9:9301")
}

// addRouter connects a second host to the remote host's wire.
func addRouter(t *testing.T, r *rig.Rig) *rig.Host {
	t.Helper()
	h, err := rig.NewHost("second", false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	on(t, r.Ext, "ip link add link ext0 name mv0 address "+newMAC+" type macvlan mode bridge")
	if err := r.Ext.Do(func() error {
		l, err := netlink.LinkByName("mv0")
		if err != nil {
			return err
		}
		return netlink.LinkSetNsFd(l, h.NetnsFD())
	}); err != nil {
		t.Fatal(err)
	}
	on(t, h, `ip addr add 192.0.2.3/24 dev mv0; ip addr add 2001:db8:1::3/64 dev mv0 nodad; ip link set mv0 up
		ip route add `+rig.PodNet4.String()+` via 192.0.2.1; ip route add `+rig.PodNet6.String()+" via 2001:db8:1::1")
	return h
}

// TestOtherRouter moves the node's default route to a second router under a warm flow
// (B081).
func TestOtherRouter(t *testing.T) {
	t.Parallel()
	r := newRig(t, shortInterval(nil))
	pod := addPod(t, r, "a", nil)
	d := open(t, r)
	second := addRouter(t, r)
	for fam, routes := range map[int][2]string{
		4: {"192.0.2.2", "192.0.2.3"},
		6: {"2001:db8:1::2", "2001:db8:1::3"},
	} {
		t.Run(fmt.Sprintf("v%d", fam), func(t *testing.T) {
			at := routerService(fam)
			for _, h := range []*rig.Host{r.Ext, second} {
				on(t, h, fmt.Sprintf("ip addr add %s dev lo nodad", at.Addr()))
			}
			n := startStream(t, pod.Host, r.Ext, at, at, 10_000)
			isFast(t, d)
			there, err := second.ListenUDP(at)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { there.Close() })

			node(t, r, fmt.Sprintf("ip -%d route replace default via %s", fam, routes[1]))
			t.Cleanup(func() { node(t, r, fmt.Sprintf("ip -%d route replace default via %s", fam, routes[0])) })
			eventually(t, time.Second, "frames go to the second router", func() bool {
				return carries(t, d, at, newMAC)
			})
			_ = there.SetReadDeadline(time.Now().Add(time.Second))
			for range 100 {
				if _, err := there.Read(make([]byte, dgramLen)); err != nil {
					t.Fatal(err)
				}
			}
			isFast(t, d)
			n.stop()
		})
	}
}

// TestOwnMAC changes the MAC address of the uplink and of the host's end of a pair
// (B035, as udev does) under warm flows in both directions.
func TestOwnMAC(t *testing.T) {
	t.Parallel()
	for drive, conf := range drives {
		for _, fam := range families {
			t.Run(fmt.Sprintf("%s v%d", drive, fam), func(t *testing.T) { checkOwnMAC(t, conf, fam) })
		}
	}
}

func checkOwnMAC(t *testing.T, conf map[string]any, fam int) {
	r := newRig(t, shortInterval(conf))
	pod := addPod(t, r, "a", nil)
	d := open(t, r)
	quickNeighbours(t, r.Ext, rig.ExtDev)
	quickNeighbours(t, pod.Host, rig.PodDev)
	addr, _ := pod.Addr(fam)
	in, out := netip.AddrPortFrom(addr, 9302), netip.AddrPortFrom(extAddr(fam), 9303)
	toPod := startStream(t, r.Ext, pod.Host, in, in, 10_000)
	toExt := startStream(t, pod.Host, r.Ext, out, out, 10_000)
	for dev, leaves := range map[string]netip.AddrPort{rig.Uplink: out, pod.HostDev: in} {
		isFast(t, d)
		node(t, r, "ip link set "+dev+" address "+newMAC)
		for name, n := range map[string]*dgramStream{"to the pod": toPod, "to the remote host": toExt} {
			heard := n.heard.Load()
			eventually(t, veryLong, "datagrams arrive "+name, func() bool { return n.heard.Load() > heard+1000 })
		}
		eventually(t, veryLong, "frames come from the new address", func() bool {
			f, ok := flowTo(t, d, leaves)
			return ok && f.SrcMAC.String() == newMAC
		})
		for _, at := range []netip.AddrPort{in, out} {
			eventually(t, veryLong, "fast again: "+at.String(), func() bool {
				_, ok := flowTo(t, d, at)
				return ok
			})
		}
	}
	toPod.stop()
	toExt.stop()
}
