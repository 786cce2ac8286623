// SPDX-License-Identifier: Apache-2.0

package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// What a Step does.
const (
	Write   = "write"
	Replace = "replace"
	Same    = "same"
	Chain   = "chain"
	Unchain = "unchain"
	Remove  = "remove"
	Keep    = "keep"
)

// Step is something that was done, or would be.
type Step struct {
	Do   string `json:"do"`
	What string `json:"what"`
	Why  string `json:"why,omitempty"`

	apply func() error
}

// Report says what was done and what comes of it. The JSON names are stable.
type Report struct {
	DryRun bool   `json:"dryRun"`
	Steps  []Step `json:"steps"`
	// First is the network that runtimes take, which is the first by file name.
	First    *Network `json:"first"`
	Warnings []string `json:"warnings"`
}

func newReport(dryRun bool) *Report {
	return &Report{DryRun: dryRun, Steps: []Step{}, Warnings: []string{}}
}

// Kept says whether something is still where it was put, for a reason that Steps give.
func (r *Report) Kept() bool {
	return slices.ContainsFunc(r.Steps, func(s Step) bool { return s.Do == Keep })
}

func (r *Report) warn(format string, args ...any) {
	r.Warnings = append(r.Warnings, fmt.Sprintf(format, args...))
}

// run does the steps of a plan in turn and reports those that were done.
func (r *Report) run(plan []Step) error {
	for _, s := range plan {
		if !r.DryRun && s.apply != nil {
			if err := s.apply(); err != nil {
				return err
			}
		}
		r.Steps = append(r.Steps, s)
	}
	return nil
}

// tellOrder reports which network a runtime takes, and warns where that is not one that
// was installed now.
func (n *node) tellOrder(rep *Report, all []Network, installed changes) {
	if len(all) == 0 {
		rep.warn("no network is configured in %q: until one is, no pod can be added, nor deleted by a runtime that looks there for how",
			n.conf.path)
		return
	}
	first := all[0]
	rep.First = &first
	if first.Error != "" {
		rep.warn("%q is the first by name and cannot be read (%s): containerd stops there, others take the next", first.File, first.Error)
	}
	for _, net := range all {
		if _, now := installed[filepath.Base(net.File)]; !now {
			continue
		}
		if net.File != first.File {
			rep.warn("%q comes before %q: runtimes that take the first network by file name take that one", first.File, net.File)
		}
		n.warnMissing(rep, net)
	}
}

// warnMissing names the plugins of a network that are not beside ours.
func (n *node) warnMissing(rep *Report, net Network) {
	for _, name := range net.Plugins {
		if slices.Contains(Plugins(), name) {
			continue
		}
		if _, err := os.Stat(filepath.Join(n.bin.path, name)); errors.Is(err, fs.ErrNotExist) {
			rep.warn("%q needs the plugin %q, which is not in %q", net.File, name, n.bin.path)
		}
	}
}
