// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"

	"github.com/xveth/xveth/pkg/netconf"
)

func addHostLocal(ctx context.Context, c *netconf.Conf, a *skel.CmdArgs) (*current.Result, error) {
	conf, err := load(c, a.Args)
	if err != nil {
		return nil, err
	}
	result := &current.Result{CNIVersion: current.ImplementedSpecVersion, Routes: conf.Routes}
	if conf.ResolvConf != "" {
		if result.DNS, err = readResolvConf(conf.ResolvConf); err != nil {
			return nil, cniError(types.ErrIOFailure, "read resolvConf: %w", err)
		}
	}
	dir, err := storeDir(c)
	if err != nil {
		return nil, err
	}
	s, err := openStore(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer s.close()

	if s.before, err = reservations(dir); err != nil {
		return nil, err
	}
	if err := checkDuplicate(conf, s.before, a); err != nil {
		return nil, err
	}
	if result.IPs, err = s.allocate(conf, a); err != nil {
		return nil, s.rollBack(a, err)
	}
	return result, nil
}

// checkDuplicate refuses a second Add for an attachment. The reference looks
// for one only where no address is requested, and gives a second address
// otherwise. A reservation outside of all ranges, left from an earlier
// configuration, is no obstacle.
func checkDuplicate(conf *allocator.IPAMConfig, rs []reservation, a *skel.CmdArgs) error {
	for _, r := range owned(rs, a.ContainerID, a.IfName) {
		for _, set := range conf.Ranges {
			if set.Contains(r.addr.AsSlice()) {
				return cniError(types.ErrInternal, "address %s is already reserved for container %q interface %q: DEL must come before another ADD",
					r.addr, a.ContainerID, a.IfName)
			}
		}
	}
	return nil
}

// allocate takes one address of each range set, the requested one where there
// is one.
func (s *store) allocate(conf *allocator.IPAMConfig, a *skel.CmdArgs) ([]*current.IPConfig, error) {
	var out []*current.IPConfig
	for i := range conf.Ranges {
		set := &conf.Ranges[i]
		var requested net.IP
		if j := slices.IndexFunc(conf.IPArgs, set.Contains); j >= 0 {
			requested = conf.IPArgs[j]
		}
		ipc, err := allocator.NewIPAllocator(set, s, i).Get(a.ContainerID, a.IfName, requested)
		var io *fs.PathError
		if errors.As(err, &io) {
			return nil, cniError(types.ErrIOFailure, "reserve address of range set %d: %w", i, err)
		}
		if err != nil {
			return nil, cniError(types.ErrTryAgainLater, "reserve address of range set %d: %w", i, err)
		}
		out = append(out, ipc)
	}
	return out, nil
}

// rollBack removes what this Add reserved, found by comparison with the store
// as it was: the allocator does not say what it took when it fails late.
func (s *store) rollBack(a *skel.CmdArgs, cause error) error {
	after, err := reservations(s.dir)
	if err == nil {
		err = release(slices.DeleteFunc(after, func(r reservation) bool {
			was := slices.ContainsFunc(s.before, func(b reservation) bool { return b.path == r.path })
			return was || r.key != key(a.ContainerID, a.IfName)
		}))
	}
	var ce *types.Error
	if err != nil && errors.As(cause, &ce) {
		ce.Details = fmt.Sprintf("undo: %v", err)
	}
	return cause
}

func delHostLocal(ctx context.Context, c *netconf.Conf, a *skel.CmdArgs) error {
	dir, err := storeDir(c)
	if err != nil {
		return err
	}
	s, err := openIfExists(ctx, dir)
	if s == nil || err != nil {
		return err
	}
	defer s.close()
	rs, err := reservations(dir)
	if err != nil {
		return err
	}
	return release(owned(rs, a.ContainerID, a.IfName))
}

func gcHostLocal(ctx context.Context, c *netconf.Conf, valid []types.GCAttachment) error {
	dir, err := storeDir(c)
	if err != nil {
		return err
	}
	s, err := openIfExists(ctx, dir)
	if s == nil || err != nil {
		return err
	}
	defer s.close()
	rs, err := reservations(dir)
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	containers := map[string]bool{}
	for _, v := range valid {
		keep[key(v.ContainerID, v.IfName)] = true
		containers[strings.TrimSpace(v.ContainerID)] = true
	}
	return release(slices.DeleteFunc(rs, func(r reservation) bool {
		return keep[r.key] || r.old() && containers[r.key]
	}))
}

func checkHostLocal(ctx context.Context, c *netconf.Conf, a *skel.CmdArgs) error {
	conf, err := load(c, a.Args)
	if err != nil {
		return err
	}
	want, err := resultAddrs(c, conf, a)
	if err != nil {
		return err
	}
	dir, err := storeDir(c)
	if err != nil {
		return err
	}
	var rs []reservation
	s, err := openIfExists(ctx, dir)
	if err != nil {
		return err
	}
	if s != nil {
		defer s.close()
		if rs, err = reservations(dir); err != nil {
			return err
		}
	}
	mine := owned(rs, a.ContainerID, a.IfName)
	if len(mine) == 0 && len(want) == 0 {
		return fmt.Errorf("check addresses in %q: no reservation for container %q interface %q", dir, a.ContainerID, a.IfName)
	}
	for _, addr := range want {
		if !slices.ContainsFunc(mine, func(r reservation) bool { return r.addr == addr }) {
			return fmt.Errorf("check addresses in %q: reservation of %s for container %q interface %q is missing",
				dir, addr, a.ContainerID, a.IfName)
		}
	}
	return nil
}

// resultAddrs returns the addresses of the previous result that this network
// gave to the interface. Other plugins of the chain may have added their own.
func resultAddrs(c *netconf.Conf, conf *allocator.IPAMConfig, a *skel.CmdArgs) ([]netip.Addr, error) {
	if c.PrevResult == nil {
		return nil, nil
	}
	prev, err := current.NewResultFromResult(c.PrevResult)
	if err != nil {
		return nil, cniError(types.ErrInvalidNetworkConfig, "read prevResult: %w", err)
	}
	var out []netip.Addr
	for _, ipc := range prev.IPs {
		if i := ipc.Interface; i != nil && *i >= 0 && *i < len(prev.Interfaces) && prev.Interfaces[*i].Name != a.IfName {
			continue
		}
		addr := toAddr(ipc.Address.IP)
		if slices.ContainsFunc(subnets(conf), func(p netip.Prefix) bool { return p.Contains(addr) }) {
			out = append(out, addr)
		}
	}
	return out, nil
}

func statusHostLocal(c *netconf.Conf) error {
	conf, err := load(c, "")
	if err != nil {
		return err
	}
	dir, err := storeDir(c)
	if err != nil {
		return err
	}
	if err := checkUsable(dir); err != nil {
		return cniError(types.ErrPluginNotAvailable, "use address store %q: %w", dir, err)
	}
	// Without the lock, which would be created: one look at a directory needs
	// none.
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cniError(types.ErrPluginNotAvailable, "use address store: %w", err)
	}
	taken := map[netip.Addr]bool{}
	for _, e := range entries {
		if addr, err := netip.ParseAddr(e.Name()); err == nil {
			taken[addr] = true
		}
	}
	for i, set := range conf.Ranges {
		if !slices.ContainsFunc(set, func(r allocator.Range) bool { return hasFree(r, taken) }) {
			return cniError(types.ErrPluginNotAvailable, "network %q has no free address in range set %d: %s", c.Name, i, set.String())
		}
	}
	return nil
}

// checkUsable tells whether the store could be written to; what does not exist
// would be made in the nearest directory that does.
func checkUsable(dir string) error {
	const read, write, search = 4, 2, 1 // R_OK, W_OK, X_OK of access(2)
	for {
		info, err := os.Stat(dir)
		parent := filepath.Dir(dir)
		if errors.Is(err, fs.ErrNotExist) && parent != dir {
			dir = parent
			continue
		}
		if err != nil {
			return err
		}
		if !info.IsDir() {
			return &fs.PathError{Op: "open", Path: dir, Err: syscall.ENOTDIR}
		}
		if err := syscall.Access(dir, read|write|search); err != nil {
			return &fs.PathError{Op: "access", Path: dir, Err: err}
		}
		return nil
	}
}

// hasFree ends after as many steps as there are reservations, however large
// the range is.
func hasFree(r allocator.Range, taken map[netip.Addr]bool) bool {
	end, gateway := toAddr(r.RangeEnd), toAddr(r.Gateway)
	for addr := toAddr(r.RangeStart); addr.IsValid() && addr.Compare(end) <= 0; addr = addr.Next() {
		if addr != gateway && !taken[addr] {
			return true
		}
	}
	return false
}
