// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"

	"github.com/xveth/xveth/pkg/lock"
	"github.com/xveth/xveth/pkg/netconf"
)

// Hold keeps Reclaim waiting until the function that it returns is called: between its
// reservation and its interface an attachment looks like a dead one.
func Hold(c *netconf.Conf) (func(), error) {
	if c.IPAMType != hostLocal {
		return func() {}, nil
	}
	dir, err := storeDir(c)
	if err != nil {
		return nil, err
	}
	return lock.Shared(lockName(dir))
}

// Dead says whether an attachment is dead: whether nothing on the node is left of it.
type Dead func(containerID, ifname string, addr netip.Addr) bool

// Reclaim gives back the addresses of attachments that are dead, and returns how many. It
// leaves reservations that do not name an attachment, such as those made by hand.
func Reclaim(ctx context.Context, c *netconf.Conf, dead Dead) (int, error) {
	return withDead(c, dead, func(dir string, found []reservation) error {
		s, err := openStore(ctx, dir)
		if err != nil {
			return err
		}
		defer s.close()
		return release(found)
	})
}

// Reclaimable returns how many addresses Reclaim would give back. It changes nothing.
func Reclaimable(c *netconf.Conf, dead Dead) (int, error) {
	return withDead(c, dead, func(string, []reservation) error { return nil })
}

// withDead finds the reservations of dead attachments while no ADD is under way.
func withDead(c *netconf.Conf, dead Dead, do func(string, []reservation) error) (int, error) {
	if c.IPAMType != hostLocal {
		return 0, nil
	}
	dir, err := storeDir(c)
	if err != nil {
		return 0, err
	}
	unlock, err := lock.Exclusive(lockName(dir))
	if err != nil {
		return 0, err
	}
	defer unlock()
	rs, err := reservations(dir)
	if err != nil {
		return 0, err
	}
	rs = slices.DeleteFunc(rs, func(r reservation) bool {
		id, ifname, ok := strings.Cut(r.key, disk.LineBreak)
		return !ok || !dead(id, ifname, r.addr)
	})
	return len(rs), do(dir, rs)
}

// Lease is an address that an attachment has.
type Lease struct {
	ContainerID, IfName string
	Addr                netip.Addr
}

// Leases lists the addresses that attachments have, where host-local manages them. It does
// not wait for an ADD that is under way.
func Leases(c *netconf.Conf) ([]Lease, error) {
	if c.IPAMType != hostLocal {
		return nil, nil
	}
	dir, err := storeDir(c)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	rs, err := reservations(dir)
	if err != nil {
		return nil, err
	}
	all := make([]Lease, 0, len(rs))
	for _, r := range rs {
		if id, ifname, ok := strings.Cut(r.key, disk.LineBreak); ok {
			all = append(all, Lease{id, ifname, r.addr})
		}
	}
	return all, nil
}

// lockName names the lock of a store. It is not the reference plugins', which others hold
// for a whole ADD.
func lockName(dir string) string {
	return fmt.Sprintf("ipam-%x", sha256.Sum256([]byte(dir)))[:21]
}
