// SPDX-License-Identifier: Apache-2.0

// Package arm attaches the fast path as a network's configuration asks for it, and says
// how things stand.
package arm

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/pkg/netconf"
	"github.com/xveth/xveth/pkg/veth"
)

// Pod drops flows to and from addresses that now are those of the pod, loads the programs
// where that is still to be done, and attaches them to the uplinks and to the host's end of
// a pair.
func Pod(c *netconf.Conf, uplinks []netconf.Uplink, pair *veth.Pair, addrs []netip.Addr) error {
	pod, on := drive(c, pair.PodMAC)
	if !on {
		ForgetAddrs(addrs)
		return nil
	}
	d, err := ensure(c)
	if err != nil {
		ForgetAddrs(addrs)
		return err
	}
	defer d.Close()
	logOld(d.ForgetAddrs(addrs))
	// Every step on its own: an uplink that cannot be armed leaves the others fast.
	return errors.Join(
		datapath.EnsureLiberal(),
		attachUplinks(d, uplinks, c.FastPath.Mode),
		d.AttachPod(pair.HostIndex, pod),
	)
}

// Node loads the programs where that is still to be done, and attaches them to the uplinks,
// for those who do not wait for the first pod. Where the configuration switches the fast
// path off, it does nothing.
func Node(c *netconf.Conf, uplinks []netconf.Uplink) error {
	if c.FastPath.Mode == netconf.ModeOff {
		return nil
	}
	d, err := ensure(c)
	if err != nil {
		return err
	}
	defer d.Close()
	return errors.Join(datapath.EnsureLiberal(), attachUplinks(d, uplinks, c.FastPath.Mode))
}

func ensure(c *netconf.Conf) (*datapath.Datapath, error) {
	return datapath.Ensure(datapath.DefaultDir, datapath.Settings{
		Revalidate:  c.FastPath.Revalidate,
		MaxFlows:    c.FastPath.MaxFlows,
		ExcludeMark: c.FastPath.ExcludeMark,
	})
}

// Wanted says whether the pod is to have a fast path in some direction.
func Wanted(c *netconf.Conf) bool {
	_, on := drive(c, nil)
	return on
}

// drive says how the pair is driven; false when the pod keeps to the kernel.
func drive(c *netconf.Conf, mac net.HardwareAddr) (datapath.Pod, bool) {
	if c.FastPath.Mode == netconf.ModeOff || c.Runtime.FastPathOff {
		return datapath.Pod{}, false
	}
	pod := datapath.Pod{ToPod: true, FromPod: true, XDP: c.FastPath.Mode == netconf.ModeXDP, MAC: mac}
	if b := c.Runtime.Bandwidth; b != nil {
		pod.ToPod = b.IngressRate == 0
		pod.FromPod = b.EgressRate == 0
	}
	return pod, pod.ToPod || pod.FromPod
}

// Uplinks are those of the configuration, else the devices of the default routes.
func Uplinks(c *netconf.Conf) ([]netconf.Uplink, error) {
	if len(c.Uplinks) > 0 {
		return c.Uplinks, nil
	}
	names, err := veth.Uplinks()
	if err != nil {
		return nil, err
	}
	all := make([]netconf.Uplink, 0, len(names))
	for _, n := range names {
		all = append(all, netconf.Uplink{Name: n})
	}
	return all, nil
}

func attachUplinks(d *datapath.Datapath, uplinks []netconf.Uplink, mode netconf.Mode) error {
	var failed error
	for _, u := range uplinks {
		drive, reason, err := d.AttachUplink(u.Name, want(u, mode))
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

// Disarm takes our programs off the host's end of a pair that stays; nothing is sent by it
// on the fast path any more.
func Disarm(hostIndex int) error {
	d, err := datapath.Open(datapath.DefaultDir)
	if errors.Is(err, datapath.ErrNotLoaded) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	return errors.Join(d.Block(hostIndex), d.Detach(hostIndex), d.ForgetInterface(hostIndex))
}

// Remove has an interface of the host removed, 0 being one that is not there: packets for
// it go to the kernel from before that, and then what the fast path knows of it is dropped.
func Remove(ifindex int, remove func() error) error {
	d := loaded()
	if d == nil {
		return remove()
	}
	defer d.Close()
	if ifindex != 0 {
		logOld(d.Block(ifindex))
	}
	if err := remove(); err != nil {
		return err
	}
	logOld(d.ForgetRemoved(ifindex))
	return nil
}

// ForgetGone drops what the fast path knows of interfaces that are gone.
func ForgetGone() {
	if d := loaded(); d != nil {
		defer d.Close()
		logOld(d.ForgetGone())
	}
}

// ForgetAddrs drops flows to and from addresses that now are those of a pod.
func ForgetAddrs(addrs []netip.Addr) {
	if d := loaded(); d != nil {
		defer d.Close()
		logOld(d.ForgetAddrs(addrs))
	}
}

// loaded gives access to the maps; nil where there are none.
func loaded() *datapath.Datapath {
	d, err := datapath.Open(datapath.DefaultDir)
	if err == nil {
		return d
	}
	if !errors.Is(err, datapath.ErrNotLoaded) {
		logOld(err)
	}
	return nil
}

// logOld is for what failed of a clean-up: flows expire by themselves.
func logOld(err error) {
	if err != nil {
		slog.Warn("Old flows were not removed.", "error", err)
	}
}

// Check compares the programs on a pair with what Pod attached. A pair that has none could
// not be armed; status says why.
func Check(c *netconf.Conf, pair *veth.Pair) error {
	pod, on := drive(c, pair.PodMAC)
	if !on {
		return nil
	}
	d, err := datapath.Open(datapath.DefaultDir)
	if err != nil && c.Required {
		return err
	}
	if err != nil {
		return nil // ADD could not arm it either; STATUS says why
	}
	defer d.Close()
	armed, err := d.IsArmed(pair.HostIndex)
	if err != nil || !armed && !c.Required {
		return err
	}
	if err := d.CheckPod(pair.HostIndex, pod); err != nil {
		return fmt.Errorf("check the fast path on %q: %w", pair.HostName, err)
	}
	return nil
}

// Obstacle says why no pod of a network can be armed, if so.
func Obstacle(c *netconf.Conf) error {
	if c.FastPath.Mode == netconf.ModeOff {
		return errors.New("fastPath.mode is off")
	}
	d, err := datapath.Open(datapath.DefaultDir)
	if errors.Is(err, datapath.ErrNotLoaded) {
		return datapath.Probe(datapath.DefaultDir)
	}
	if err == nil {
		d.Close()
	}
	return err
}

// Text says in a line how things stand.
func Text(c *netconf.Conf, uplinks []netconf.Uplink) string {
	if err := Obstacle(c); err != nil {
		return "not armed: " + err.Error()
	}
	d, err := datapath.Open(datapath.DefaultDir)
	if err != nil {
		return "not armed yet: the first ADD loads it"
	}
	defer d.Close()
	text := "armed"
	if on, err := datapath.IsLiberal(); err != nil || !on {
		text += "; no TCP is learned while net.netfilter.nf_conntrack_tcp_be_liberal is 0"
	}
	for _, u := range uplinks {
		drive, reason := d.UplinkDrive(u.Name, want(u, c.FastPath.Mode))
		text += fmt.Sprintf("; uplink %s: %s", u.Name, drive)
		if reason != "" {
			text += " (" + reason + ")"
		}
	}
	return text
}
