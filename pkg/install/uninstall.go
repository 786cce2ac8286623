// SPDX-License-Identifier: Apache-2.0

package install

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
)

// UninstallOptions says what to take away.
type UninstallOptions struct {
	// BinDir and ConfDir that Install was given.
	BinDir, ConfDir string
	// InUse says why the plugins are still needed although no network names them; ""
	// when they are not. It is asked once no network does.
	InUse func() (string, error)
	// Force removes plugins that are still needed, and files that were changed since
	// Install put them there.
	Force bool
	// DryRun only finds out what would be done.
	DryRun bool

	at func(string) // for tests, called between the steps of a change
}

// Uninstall takes away what Install put in place and nothing else: first what runtimes
// read, then the plugins. The report is that of what was done also where an error comes
// with it.
func Uninstall(o UninstallOptions) (*Report, error) {
	rep := newReport(o.DryRun)
	to := toChange
	if o.DryRun {
		to = toLook
	}
	n, err := openNode(o.BinDir, o.ConfDir, to, o.at)
	if err != nil {
		return rep, err
	}
	defer n.close()
	changed := changes{}
	var plan []Step
	for _, name := range slices.Sorted(slices.Values(n.conf.rec.Chained)) {
		plan = append(plan, n.planUnchain(name, changed))
	}
	for _, name := range slices.Sorted(maps.Keys(n.conf.rec.Files)) {
		s, err := n.conf.planDrop(name, o.Force)
		if err != nil {
			return rep, err
		}
		if s.Do == Remove {
			changed[name] = nil
		}
		plan = append(plan, s)
	}
	if err := rep.run(plan); err != nil {
		return rep, err
	}
	all, err := networks(n.conf.path, changed)
	if err != nil {
		return rep, err
	}
	n.tellOrder(rep, all, nil)
	// An ADD that had read the list before it went may be under way still. Its pod
	// keeps its network, and its DEL needs another install.
	needed, err := o.InUse()
	if err != nil {
		return rep, err
	}
	if plan, err = n.planDropPlugins(all, needed, o.Force); err != nil {
		return rep, err
	}
	return rep, rep.run(plan)
}

// planDropPlugins plans to remove the plugins that nobody needs.
func (n *node) planDropPlugins(all []Network, needed string, force bool) ([]Step, error) {
	var plan []Step
	for _, name := range slices.Sorted(maps.Keys(n.bin.rec.Files)) {
		s, err := n.bin.planDrop(name, force)
		if err != nil {
			return nil, err
		}
		if why := neededBy(all, name, needed); s.Do == Remove && why != "" && !force {
			s = Step{Do: Keep, What: s.What, Why: why}
		}
		plan = append(plan, s)
	}
	return plan, nil
}

func neededBy(all []Network, plugin, needed string) string {
	for i := range all {
		if all[i].needs(plugin) {
			return fmt.Sprintf("%q needs it", all[i].File)
		}
	}
	return needed
}

// planDrop decides what becomes of a file that Install put there.
func (f *folder) planDrop(name string, force bool) (Step, error) {
	s := Step{Do: Remove, What: filepath.Join(f.path, name), apply: func() error { return f.drop(name) }}
	have, err := f.look(name)
	switch {
	case err != nil:
		return s, err
	case !have.exists:
		s.Do, s.Why = Same, "it is gone"
	case have.exists && !have.plain && !have.link:
		return Step{Do: Keep, What: s.What, Why: "it is no file any more"}, nil
	case !f.owns(name, have) && !force:
		return Step{Do: Keep, What: s.What, Why: ErrChanged.Error() + " (--force removes it)"}, nil
	}
	return s, nil
}
