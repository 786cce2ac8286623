// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"slices"
	"time"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/pkg/lock"
	"github.com/xveth/xveth/pkg/masq"
	"github.com/xveth/xveth/pkg/shape"
	"github.com/xveth/xveth/pkg/veth"
)

// An ADD that is under way has made its veth and not yet labelled it, for a moment.
const (
	labelledWithin = time.Second
	lookAgain      = 20 * time.Millisecond
)

// Garbage is something that belongs to nothing on this node.
type Garbage struct {
	// Kind is "interface", "masquerade" or "entries" (of the maps).
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Why it belongs to nothing.
	Why string `json:"why"`
}

// GC finds what belongs to no attachment that is there, and removes it unless it only
// is to look. It returns what it found and, without a dry run, could remove. What other
// people made is never touched, and neither are addresses: only the runtime knows which
// pods live (the plugin's own GC).
func GC(dir string, dryRun bool) ([]Garbage, error) {
	c := &collector{dir: dir, dryRun: dryRun, found: []Garbage{}}
	var failed error
	for _, step := range []func() error{c.interfaces, c.limits, c.masquerade, c.entries} {
		failed = errors.Join(failed, step())
	}
	return c.found, failed
}

type collector struct {
	dir    string
	dryRun bool
	found  []Garbage
}

// collect notes something, and removes it.
func (c *collector) collect(g Garbage, remove func() error) error {
	if !c.dryRun {
		if err := remove(); err != nil {
			return err
		}
	}
	c.found = append(c.found, g)
	return nil
}

// interfaces finds the host ends that killed ADDs left without a label.
func (c *collector) interfaces() error {
	left, err := unlabelled()
	for end := time.Now().Add(labelledWithin); err == nil && len(left) > 0 && time.Now().Before(end); {
		time.Sleep(lookAgain)
		var now []veth.Attachment
		now, err = unlabelled()
		left = slices.DeleteFunc(left, func(a veth.Attachment) bool { return !slices.Contains(now, a) })
	}
	if err != nil {
		return err
	}
	for _, a := range left {
		err = errors.Join(err, c.collect(Garbage{"interface", a.HostName, "the ADD that made it was killed"}, func() error {
			return veth.RemoveByName(a.HostName)
		}))
	}
	return err
}

func unlabelled() ([]veth.Attachment, error) {
	all, err := veth.List("")
	return slices.DeleteFunc(all, func(a veth.Attachment) bool { return !a.Unlabelled }), err
}

// limits finds the ifb devices of attachments that are gone. The devices are listed
// before the attachments: ADD makes them in the other order.
func (c *collector) limits() error {
	devices, err := shape.List("")
	if err != nil {
		return err
	}
	pods, err := veth.List("")
	if err != nil {
		return err
	}
	var failed error
	for _, d := range devices {
		if slices.ContainsFunc(pods, func(a veth.Attachment) bool {
			return a.Unlabelled || d.Is(a.Network+"/"+a.ContainerID+"/"+a.IfName)
		}) {
			continue
		}
		failed = errors.Join(failed, c.collect(Garbage{"interface", d.Name, "its attachment is gone: " + d.Key}, func() error {
			return shape.RemoveByName(d.Name)
		}))
	}
	return failed
}

// masquerade finds the rules of networks without an attachment. The plugin holds the
// same lock while it adds or removes them.
func (c *collector) masquerade() error {
	unlock, err := lock.Exclusive(masq.Lock)
	if err != nil {
		return err
	}
	defer unlock()
	networks, err := masq.Networks()
	if err != nil {
		return err
	}
	var failed error
	for _, name := range networks {
		left, err := veth.List(name)
		if err != nil {
			return errors.Join(failed, err)
		}
		if len(left) > 0 {
			continue
		}
		failed = errors.Join(failed, c.collect(Garbage{"masquerade", name, "the network has no attachment"}, func() error {
			return masq.Remove(name)
		}))
	}
	return failed
}

// entries finds what the maps hold of interfaces that are gone. The maps are read before
// the interfaces are listed, so that one that comes meanwhile is not taken for gone.
func (c *collector) entries() error {
	d, err := datapath.Open(c.dir)
	if errors.Is(err, datapath.ErrNotLoaded) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	indexes, err := d.Indexes()
	if err != nil {
		return err
	}
	names, err := linkNames()
	if err != nil {
		return err
	}
	var failed error
	for _, i := range indexes {
		if _, ok := names[i]; ok {
			continue
		}
		failed = errors.Join(failed, c.collect(Garbage{"entries", nameOf(names, i), "the interface is gone"}, func() error {
			return d.ForgetGone()
		}))
	}
	return failed
}
