// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"

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
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, cniError(types.ErrIOFailure, "make address store: %w", err)
	}
	return lockDir(dir, syscall.LOCK_SH)
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
	unlock, err := lockDir(dir, syscall.LOCK_EX)
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

// lockDir locks the directory itself, which no reference plugin does: they lock a file in
// it.
func lockDir(dir string, how int) (func(), error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, cniError(types.ErrIOFailure, "open address store: %w", err)
	}
	for {
		if err = syscall.Flock(int(f.Fd()), how); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, cniError(types.ErrIOFailure, "lock address store: %w", err)
	}
	return func() { _ = f.Close() }, nil
}
