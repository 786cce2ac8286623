// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// From linux/mroute.h.
const (
	mrtInit        = 200
	mrtAddVIF      = 202
	mrtAddMFC      = 204
	vifUseIfindex  = 8
	notToThisVIF   = 255
	multicastHops  = 8
	multicastCount = 20
)

var multicastGroup = netip.MustParseAddr("239.1.2.3")

// groupMAC is the frame address of the group.
var groupMAC = net.HardwareAddr{1, 0, 0x5e, 1, 2, 3}

// routeMulticast makes the node pass on the group from each of some interfaces to all the
// others, by static routes: from origins[i], which sits behind devs[i].
func routeMulticast(t *testing.T, r *rig.Rig, devs []string, origins []netip.Addr) {
	t.Helper()
	err := r.Node.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_IGMP)
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(fd) }) // the routes end with the socket
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, mrtInit, 1); err != nil {
			return fmt.Errorf("start multicast routing: %w", err)
		}
		for i, dev := range devs {
			ifi, err := net.InterfaceByName(dev)
			if err != nil {
				return err
			}
			vif := make([]byte, 16)
			binary.NativeEndian.PutUint16(vif, uint16(i))
			vif[2], vif[3] = vifUseIfindex, 1
			binary.NativeEndian.PutUint32(vif[8:], uint32(ifi.Index))
			if err := unix.SetsockoptString(fd, unix.IPPROTO_IP, mrtAddVIF, string(vif)); err != nil {
				return fmt.Errorf("add %q to multicast routing: %w", dev, err)
			}
		}
		for i, origin := range origins {
			mfc := make([]byte, 60)
			copy(mfc, origin.AsSlice())
			copy(mfc[4:], multicastGroup.AsSlice())
			binary.NativeEndian.PutUint16(mfc[8:], uint16(i))
			for j := range 32 {
				mfc[10+j] = notToThisVIF
				if j < len(devs) && j != i {
					mfc[10+j] = 1
				}
			}
			if err := unix.SetsockoptString(fd, unix.IPPROTO_IP, mrtAddMFC, string(mfc)); err != nil {
				return fmt.Errorf("add a multicast route: %w", err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// testMulticast sends to a group that the node routes from each side to all the others:
// every member gets every packet, and none of it is learned. B079.
func (s *slowRig) testMulticast(t *testing.T) {
	origins := []netip.Addr{rig.ExtAddr4, s.a.Addr4, s.b.Addr4}
	routeMulticast(t, s.Rig, []string{rig.Uplink, s.a.HostDev, s.b.HostDev}, origins)
	taps := []*tap{newTap(t, s.Ext, rig.ExtDev), newTap(t, s.a.Host, rig.PodDev), newTap(t, s.b.Host, rig.PodDev)}
	for i, from := range taps {
		t.Run("from "+[]string{"ext", "a", "b"}[i], func(t *testing.T) {
			p := rawPacket{
				src: netip.AddrPortFrom(origins[i], 5353), dst: netip.AddrPortFrom(multicastGroup, 5353),
				proto: protoUDP, ttl: multicastHops, payload: numbered(100),
			}
			for _, other := range taps {
				other.drain()
			}
			var before datapath.Counters
			if s.d != nil {
				before = counters(t, s.d)
			}
			for range multicastCount {
				from.send(groupMAC, p.bytes())
			}
			for j, other := range taps {
				if j != i {
					groupArrives(t, other)
				}
			}
			if s.d == nil {
				return
			}
			s.groupNotLearned(t, before)
		})
	}
}

// groupNotLearned checks that each packet was seen on its way out and refused, for what it
// is or because ingress left no note on it.
func (s *slowRig) groupNotLearned(t *testing.T, before datapath.Counters) {
	t.Helper()
	after := counters(t, s.d)
	if n := after.Fast() - before.Fast(); n != 0 {
		t.Errorf("%d packets took the fast path", n)
	}
	refused := after["learn_group"] + after["learn_no_note"] - before["learn_group"] - before["learn_no_note"]
	if refused < 2*multicastCount {
		t.Errorf("%d packets were refused, want %d", refused, 2*multicastCount)
	}
	for f, err := range s.d.Flows() {
		if err != nil {
			t.Fatal(err)
		}
		if f.Dst.Addr() == multicastGroup {
			t.Errorf("a flow to the group was learned: %+v", f)
		}
	}
}

// groupArrives waits for the packets of the group at one member.
func groupArrives(t *testing.T, at *tap) {
	t.Helper()
	got := 0
	for got < multicastCount {
		f := at.next(3 * time.Second)
		if f == nil {
			t.Fatalf("%d of %d packets arrived", got, multicastCount)
		}
		if _, _, dst, ok := portsAt(f[14:]); !ok || dst != netip.AddrPortFrom(multicastGroup, 5353) {
			continue
		}
		if ttl := f[14+8]; ttl != multicastHops-1 || string(f[:6]) != string(groupMAC) {
			t.Errorf("a packet arrived with ttl %d for %x", ttl, f[:6])
		}
		got++
	}
}
