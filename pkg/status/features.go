// SPDX-License-Identifier: Apache-2.0

package status

import (
	"encoding/binary"
	"errors"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The netdev family of generic netlink (include/uapi/linux/netdev.h).
const (
	netdevFamily   = "netdev"
	netdevVersion  = 1
	netdevGet      = 1
	netdevIfindex  = 1
	netdevFeatures = 3
	featureXmit    = 4 // NETDEV_XDP_ACT_NDO_XMIT
)

// genlHeader is the header of a request. That of the library leaves its last two bytes
// to chance, which the kernel minds.
type genlHeader [nl.SizeofGenlmsg]byte

// Len of the header in bytes.
func (h genlHeader) Len() int { return len(h) }

// Serialize returns the header's bytes.
func (h genlHeader) Serialize() []byte { return h[:] }

// takesFrames says whether XDP may send frames to an interface; known is false where
// the kernel does not tell (before Linux 6.3). It asks for one interface at a time: the
// kernel does not mark a list of them as one, and the library takes the first for all.
func takesFrames(index int) (takes, known bool) {
	family, err := netlink.GenlFamilyGet(netdevFamily)
	if err != nil {
		return false, false
	}
	req := nl.NewNetlinkRequest(int(family.ID), 0)
	req.AddData(genlHeader{netdevGet, netdevVersion})
	req.AddData(nl.NewRtAttr(netdevIfindex, nl.Uint32Attr(uint32(index))))
	msgs, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil || len(msgs) != 1 || len(msgs[0]) < nl.SizeofGenlmsg {
		return false, false
	}
	attrs, err := nl.ParseRouteAttr(msgs[0][nl.SizeofGenlmsg:])
	if err != nil {
		return false, false
	}
	for _, a := range attrs {
		if a.Attr.Type == netdevFeatures && len(a.Value) >= 8 {
			return binary.NativeEndian.Uint64(a.Value)&featureXmit != 0, true
		}
	}
	return false, false
}

func isNoDevice(err error) bool { return errors.Is(err, unix.ENODEV) }
