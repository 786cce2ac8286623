// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
)

// The reference store is used for its lock and its format. Reservations are made,
// found and released here, because the reference matches any file at any depth
// by its content: a network called "networks" in /var/lib/cni would release
// addresses of every other one, a container whose id looks like an address
// would own last_reserved_ip.0, and a file that cannot be removed would be
// passed over in silence.

// store is the network's store with its lock held.
type store struct {
	*disk.Store
	dir string
	// before is what was reserved when an Add began.
	before []reservation
}

// GetByID finds an attachment's addresses in what has been read: the reference would read
// every file of the store once more, for each address.
func (s *store) GetByID(id, ifname string) []net.IP {
	var ips []net.IP
	for _, r := range owned(s.before, id, ifname) {
		ips = append(ips, r.addr.AsSlice())
	}
	return ips
}

// Lock does nothing: the allocator takes the lock for each address, but a
// whole Add must be one step to others.
func (*store) Lock() error { return nil }

// Unlock does nothing, like Lock.
func (*store) Unlock() error { return nil }

// reserving is where a reservation is written before it gets its name; under the lock
// there is only one. What a process that was killed left in it is no reservation.
const reserving = "reserving"

// Reserve is the reference's, but for one thing: the file appears with its content. One
// that was killed in between would leave an address that belongs to nobody.
func (s *store) Reserve(id, ifname string, ip net.IP, rangeID string) (bool, error) {
	fresh := filepath.Join(s.dir, reserving)
	if err := os.WriteFile(fresh, []byte(key(id, ifname)), 0o600); err != nil {
		return false, err
	}
	defer os.Remove(fresh)
	path := disk.GetEscapedPath(s.dir, ip.String())
	err := os.Link(fresh, path)
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	if err != nil {
		return false, &fs.PathError{Op: "link", Path: path, Err: err}
	}
	last := disk.GetEscapedPath(s.dir, "last_reserved_ip."+rangeID)
	return true, os.WriteFile(last, []byte(ip.String()), 0o600)
}

// openStore makes the store's directory if it is not there and waits for the
// lock as long as the context allows.
func openStore(ctx context.Context, dir string) (*store, error) {
	s, err := disk.New(filepath.Base(dir), filepath.Dir(dir))
	if err != nil {
		return nil, cniError(types.ErrIOFailure, "open address store %q: %w", dir, err)
	}
	locked := make(chan error, 1)
	go func() { locked <- s.Lock() }()
	select {
	case err = <-locked:
	case <-ctx.Done():
		// The wait cannot be interrupted; whoever holds the lock will end it.
		go func() {
			<-locked
			_ = s.Close()
		}()
		return nil, cniError(types.ErrTryAgainLater, "lock address store %q: %w", dir, ctx.Err())
	}
	if err != nil {
		_ = s.Close()
		return nil, cniError(types.ErrIOFailure, "lock address store %q: %w", dir, err)
	}
	_ = os.Remove(filepath.Join(dir, reserving))
	return &store{Store: s, dir: dir}, nil
}

// openIfExists returns nil when there is no store.
func openIfExists(ctx context.Context, dir string) (*store, error) {
	_, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, cniError(types.ErrIOFailure, "open address store: %w", err)
	}
	return openStore(ctx, dir)
}

// close lets the lock go, which belongs to the open file.
func (s *store) close() { _ = s.Store.Close() }

// reservation is one file of the store.
type reservation struct {
	addr netip.Addr
	path string
	// key is the container's id and the interface, separated by a line break;
	// files that old versions of host-local wrote have the id only.
	key string
}

func key(containerID, ifname string) string {
	return strings.TrimSpace(containerID) + disk.LineBreak + ifname
}

// old tells whether the file names no interface.
func (r reservation) old() bool { return !strings.Contains(r.key, disk.LineBreak) }

// reservations returns what is in the store. Only files called like an address
// are: not the lock, not last_reserved_ip.N, and not what is in directories.
func reservations(dir string) ([]reservation, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, cniError(types.ErrIOFailure, "read address store: %w", err)
	}
	var rs []reservation
	for _, e := range entries {
		addr, err := netip.ParseAddr(e.Name())
		if err != nil || addr.Zone() != "" || !e.Type().IsRegular() {
			continue
		}
		path := filepath.Join(dir, e.Name())
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, cniError(types.ErrIOFailure, "read address store: %w", err)
		}
		rs = append(rs, reservation{addr: addr.Unmap(), path: path, key: strings.TrimSpace(string(data))})
	}
	return rs, nil
}

// owned returns the attachment's reservations: those with its key or, when
// there are none, the old ones of its container. So the interfaces of one
// container do not share reservations unless an old version wrote them.
func owned(rs []reservation, containerID, ifname string) []reservation {
	var exact, old []reservation
	for _, r := range rs {
		switch r.key {
		case key(containerID, ifname):
			exact = append(exact, r)
		case strings.TrimSpace(containerID):
			old = append(old, r)
		}
	}
	if len(exact) > 0 {
		return exact
	}
	return old
}

// release removes all of them, also when one cannot be removed.
func release(rs []reservation) error {
	var errs []error
	for _, r := range rs {
		if err := os.Remove(r.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return cniError(types.ErrIOFailure, "release address: %w", err)
	}
	return nil
}
