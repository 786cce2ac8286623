// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/bpf"
)

// What conntrack has to tolerate in a fast TCP connection, of which it sees few packets.
const (
	// liberalSysctl lets packets pass that lie outside the window it has seen.
	liberalSysctl = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal"
	// resetSysctl lets a RST pass whose sequence number seems old, as any does once
	// 2 GiB have gone by.
	resetSysctl = "/proc/sys/net/netfilter/nf_conntrack_tcp_ignore_invalid_rst"
)

func (d *Datapath) settings() (bpf.DatapathXvSettings, error) {
	var s bpf.DatapathXvSettings
	if err := d.maps.XvConfig.Lookup(uint32(0), &s); err != nil {
		return s, fmt.Errorf("read settings: %w", err)
	}
	return s, nil
}

// Settings returns what the running programs go by.
func (d *Datapath) Settings() (Settings, error) {
	s, err := d.settings()
	if err != nil {
		return Settings{}, err
	}
	return Settings{
		Revalidate:  time.Duration(s.RevalidateNs),
		MaxFlows:    d.maps.XvFlows4.MaxEntries(),
		ExcludeMark: s.ExcludeMark,
	}, nil
}

// initSettings writes the settings for freshly loaded programs.
func (d *Datapath) initSettings(have bpf.DatapathXvSettings, want Settings) error {
	cookie, err := netnsCookie()
	if err != nil {
		return err
	}
	info, err := d.maps.XvDevs.Info()
	if err != nil {
		return fmt.Errorf("read map info: %w", err)
	}
	id, _ := info.ID()
	have.NetnsCookie = cookie
	have.DevmapId = uint32(id)
	have.RevalidateNs = 0
	return d.apply(have, want)
}

// apply writes the settings where they differ, and nothing else of the map.
func (d *Datapath) apply(have bpf.DatapathXvSettings, want Settings) error {
	if have.RevalidateNs == uint64(want.Revalidate) && have.ExcludeMark == want.ExcludeMark {
		return nil
	}
	have.RevalidateNs = uint64(want.Revalidate)
	have.ExcludeMark = want.ExcludeMark
	if err := d.maps.XvConfig.Put(uint32(0), &have); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	return nil
}

// writeBuild notes that everything of this build is in place.
func (d *Datapath) writeBuild() error {
	s, err := d.settings()
	if err != nil {
		return err
	}
	s.Build = build()
	if err := d.maps.XvConfig.Put(uint32(0), &s); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	return nil
}

// netnsCookie identifies the network namespace of the calling thread.
func netnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open a socket for the namespace cookie: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("read the namespace cookie: %w", err)
	}
	return cookie, nil
}

// EnsureLiberal makes conntrack tolerate that it sees few packets of a fast TCP
// connection (net.netfilter.nf_conntrack_tcp_be_liberal and _tcp_ignore_invalid_rst
// become 1). Nothing is to be done where conntrack, or a setting, is missing.
func EnsureLiberal() error {
	return errors.Join(ensureOn(liberalSysctl), ensureOn(resetSysctl))
}

// IsLiberal says whether conntrack's TCP window checks are liberal, or missing.
func IsLiberal() (bool, error) { return isOn(liberalSysctl) }

func ensureOn(sysctl string) error {
	on, err := isOn(sysctl)
	if err != nil || on {
		return err
	}
	if err := os.WriteFile(sysctl, []byte("1"), 0); err != nil {
		return fmt.Errorf("set %s: %w", filepath.Base(sysctl), err)
	}
	return nil
}

// isOn is also true when there is no such setting.
func isOn(sysctl string) (bool, error) {
	b, err := os.ReadFile(sysctl)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %s: %w", filepath.Base(sysctl), err)
	}
	return strings.TrimSpace(string(b)) != "0", nil
}
