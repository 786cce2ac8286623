// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/pkg/netconf"
	"github.com/xveth/xveth/pkg/veth"
)

// arm loads the programs where that is still to be done and attaches them to the
// uplinks and to the host's end of the pair.
func (a *attachment) arm(uplinks []netconf.Uplink, hostIndex int) error {
	pod, on := a.podDrive()
	if !on {
		return nil
	}
	d, err := datapath.Ensure(datapath.DefaultDir, datapath.Settings{
		Revalidate:  a.conf.FastPath.Revalidate,
		MaxFlows:    a.conf.FastPath.MaxFlows,
		ExcludeMark: a.conf.FastPath.ExcludeMark,
	})
	if err != nil {
		return err
	}
	defer d.Close()
	// Every step on its own: an uplink that cannot be armed leaves the others fast.
	return errors.Join(
		datapath.EnsureLiberal(),
		a.armUplinks(d, uplinks),
		d.AttachPod(hostIndex, pod),
	)
}

// podDrive says how the pair is driven; false when the pod keeps to the kernel.
func (a *attachment) podDrive() (datapath.Pod, bool) {
	c := a.conf
	if c.FastPath.Mode == netconf.ModeOff || c.Runtime.FastPathOff {
		return datapath.Pod{}, false
	}
	pod := datapath.Pod{ToPod: true, FromPod: true, XDP: c.FastPath.Mode == netconf.ModeXDP}
	if b := c.Runtime.Bandwidth; b != nil {
		pod.ToPod = b.IngressRate == 0
		pod.FromPod = b.EgressRate == 0
	}
	return pod, pod.ToPod || pod.FromPod
}

func (a *attachment) armUplinks(d *datapath.Datapath, uplinks []netconf.Uplink) error {
	var failed error
	for _, u := range uplinks {
		drive, reason, err := d.AttachUplink(u.Name, want(u, a.conf.FastPath.Mode))
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		slog.Info("An uplink is armed.", "uplink", u.Name, "drive", drive, "reason", reason)
	}
	return failed
}

func want(u netconf.Uplink, mode netconf.Mode) datapath.Want {
	if u.Mode != "" {
		mode = u.Mode
	}
	switch mode {
	case netconf.ModeXDP:
		return datapath.WantXDP
	case netconf.ModeTCX:
		return datapath.WantTCX
	case netconf.ModeOff:
		return datapath.WantOff
	default:
		return datapath.WantAuto
	}
}

// block keeps packets from an interface that is about to go.
func block(ifindex int) {
	cleanUp(func(d *datapath.Datapath) error { return d.Block(ifindex) })
}

// forgetGone drops what the fast path knows of interfaces that are gone.
func forgetGone() { cleanUp((*datapath.Datapath).ForgetGone) }

// forgetAddrs drops flows to and from addresses that now are those of a pod.
func forgetAddrs(addrs []veth.Address) {
	old := make([]netip.Addr, 0, len(addrs))
	for _, a := range addrs {
		old = append(old, a.Prefix.Addr())
	}
	cleanUp(func(d *datapath.Datapath) error { return d.ForgetAddrs(old) })
}

// cleanUp changes the maps where they are loaded. A failure is only logged: flows
// expire by themselves.
func cleanUp(change func(*datapath.Datapath) error) {
	d, err := datapath.Open(datapath.DefaultDir)
	if errors.Is(err, datapath.ErrNotLoaded) {
		return
	}
	if err == nil {
		defer d.Close()
		err = change(d)
	}
	if err != nil {
		slog.Warn("Old flows were not removed.", "error", err)
	}
}

// checkArmed compares the programs on the pair with what ADD attached.
func (a *attachment) checkArmed(hostName string) error {
	pod, on := a.podDrive()
	if !on {
		return nil
	}
	d, err := datapath.Open(datapath.DefaultDir)
	if err != nil {
		return nil // ADD could not arm it either; STATUS says why
	}
	defer d.Close()
	index := hostIndex(hostName)
	armed, err := d.IsArmed(index)
	if err != nil || !armed {
		return err // nor could ADD arm the pair; status says so
	}
	if err := d.CheckPod(index, pod); err != nil {
		return fmt.Errorf("check the fast path on %q: %w", hostName, err)
	}
	return nil
}

// hostIndex is the index of an interface; 0 when there is none.
func hostIndex(name string) int {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return 0
	}
	return l.Attrs().Index
}
