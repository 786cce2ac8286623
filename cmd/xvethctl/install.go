// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/spf13/cobra"
	"github.com/vishvananda/netlink"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/pkg/install"
	"github.com/xveth/xveth/pkg/status"
	"github.com/xveth/xveth/pkg/veth"
)

const (
	cniConf     = "/etc/cni/net.d"
	defaultFile = "05-xveth.conflist"
	defaultName = "podnet"
	// maxConf is what is read of a network list at most; install refuses less.
	maxConf = 2 << 20
)

// installFlags are the flags of install.
type installFlags struct {
	install.Options
	conf, name string
	subnets    []string
}

func (a *app) newInstall() *cobra.Command {
	var f installFlags
	c := &cobra.Command{
		Use:   "install",
		Short: "Put the plugins and a network list in place",
		Long: `Put the plugins where the runtime looks for them, and then, from --subnet, --conf or
--chain, a network list. All is checked before anything is changed, and every file is
replaced at once: a runtime never sees half of one. What is there already stays as it
is, and what was not put there by install is never replaced without --force.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runInstall(cmd, &f) },
	}
	c.Flags().StringVar(&f.BinDir, "bin-dir", cniBin, "`directory` of the plugins")
	c.Flags().StringVar(&f.ConfDir, "conf-dir", cniConf, "`directory` of the networks")
	c.Flags().StringVar(&f.From, "from", "", "`directory` to take the plugins from (default: that of xvethctl)")
	c.Flags().StringArrayVar(&f.subnets, "subnet", nil, "write a list for pods in this `subnet`; once for each")
	c.Flags().StringVar(&f.name, "name", defaultName, "`name` of the network of --subnet")
	c.Flags().StringVar(&f.conf, "conf", "", "write the list of this `file`")
	c.Flags().StringVar(&f.File, "file", defaultFile, "`name` of the list that is written; runtimes take the first")
	c.Flags().StringVar(&f.Chain, "chain", "", "append xveth-chain to this `file`, somebody else's list")
	c.Flags().BoolVar(&f.Force, "force", false, "also replace what was not put there by install")
	c.Flags().BoolVar(&f.DryRun, "dry-run", false, "only say what would be done")
	a.outputFlag(c)
	c.Args = noArgs
	return c
}

func (a *app) runInstall(cmd *cobra.Command, f *installFlags) error {
	if err := f.check(cmd); err != nil {
		return usageError{err}
	}
	var err error
	if f.List, err = f.list(); err != nil {
		return err
	}
	if f.From, err = f.source(); err != nil {
		return err
	}
	rep, err := install.Install(f.Options)
	return a.writeReport(cmd.OutOrStdout(), rep, err)
}

// check looks at which flags go together.
func (f *installFlags) check(cmd *cobra.Command) error {
	var lists []string
	for _, name := range []string{"subnet", "conf", "chain"} {
		if cmd.Flags().Changed(name) {
			lists = append(lists, "--"+name)
		}
	}
	wants := func(flag string, lists ...string) bool {
		return cmd.Flags().Changed(flag) && !slices.ContainsFunc(lists, cmd.Flags().Changed)
	}
	switch {
	case len(lists) > 1:
		return fmt.Errorf("want one of %s", strings.Join(lists, ", "))
	case wants("name", "subnet"):
		return errors.New("--name is the network of --subnet")
	case wants("file", "subnet", "conf"):
		return errors.New("--file is where the list of --subnet or --conf is written")
	case f.Chain == "":
		return nil
	}
	dir, err := filepath.Abs(f.ConfDir)
	if err != nil {
		return err
	}
	path, err := filepath.Abs(f.Chain)
	if err != nil {
		return err
	}
	if filepath.Dir(path) != dir {
		return fmt.Errorf("%q is not in %q: say --conf-dir", f.Chain, f.ConfDir)
	}
	f.Chain = filepath.Base(path)
	return nil
}

// list is the text of the network list, nil for none.
func (f *installFlags) list() ([]byte, error) {
	if f.conf != "" {
		in, err := os.Open(f.conf)
		if err != nil {
			return nil, err
		}
		defer in.Close()
		return io.ReadAll(io.LimitReader(in, maxConf))
	}
	if len(f.subnets) == 0 {
		return nil, nil
	}
	var all []netip.Prefix
	for _, s := range f.subnets {
		p, err := netip.ParsePrefix(s)
		if err != nil || p.Addr().Is4In6() {
			return nil, usageError{fmt.Errorf("subnet %q is not an address and a length, such as 10.244.1.0/24", s)}
		}
		if p != p.Masked() {
			return nil, usageError{fmt.Errorf("subnet %q has bits behind its length: want %s", s, p.Masked())}
		}
		all = append(all, p)
	}
	return install.Generate(install.ListOptions{Name: f.name, Subnets: all, Masquerade: true})
}

// source is the folder of the plugins. Beside xvethctl there are none where a package
// has put them in their place.
func (f *installFlags) source() (string, error) {
	if f.From != "" {
		return f.From, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(self)
	for _, name := range install.Plugins() {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return dir, nil
		}
	}
	for _, name := range install.Plugins() {
		if _, err := os.Stat(filepath.Join(f.BinDir, name)); err != nil {
			return "", fmt.Errorf("the plugin %q is neither in %q nor in %q (make build, or --from)", name, dir, f.BinDir)
		}
	}
	return "", nil
}

func (a *app) newUninstall() *cobra.Command {
	var o install.UninstallOptions
	c := &cobra.Command{
		Use:   "uninstall",
		Short: "Take away what install put in place",
		Long: `Take away the network lists that install wrote, the xveth-chain that it appended to
others, and then the plugins. What was changed since stays, and so do the plugins while
a pod needs them for its DEL or another network names them: run it again later. With
the plugins goes the fast path, off all interfaces. Running pods keep their network.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runUninstall(cmd, o) },
	}
	c.Flags().StringVar(&o.BinDir, "bin-dir", cniBin, "`directory` of the plugins")
	c.Flags().StringVar(&o.ConfDir, "conf-dir", cniConf, "`directory` of the networks")
	c.Flags().BoolVar(&o.Force, "force", false, "also remove what was changed, and plugins that are needed")
	c.Flags().BoolVar(&o.DryRun, "dry-run", false, "only say what would be done")
	a.outputFlag(c)
	c.Args = noArgs
	needRoot(c)
	return c
}

func (a *app) runUninstall(cmd *cobra.Command, o install.UninstallOptions) error {
	pods := 0
	o.InUse = func() (string, error) {
		served, err := servedPods()
		if pods = len(served); err != nil || pods == 0 {
			return "", err
		}
		return fmt.Sprintf("pods need it for their DEL (%s): run uninstall again when they are gone, or --force", strings.Join(served, ", ")), nil
	}
	rep, err := install.Uninstall(o)
	if err == nil && pods == 0 && removedPlugins(rep) {
		err = a.takeOff(rep)
	}
	return a.writeReport(cmd.OutOrStdout(), rep, err)
}

// learnUplink is the program that tells an uplink from the host's end of a pod.
const learnUplink = "xv_learn_uplink"

// servedPods lists the host ends of pods that the plugins made or armed.
func servedPods() ([]string, error) {
	made, err := veth.List("")
	if err != nil {
		return nil, err
	}
	var all []string
	for _, p := range made {
		all = append(all, p.HostName)
	}
	armed, err := armedLinks()
	for _, l := range armed {
		name := l.Attrs().Name
		if l.Type() == "veth" && !slices.Contains(all, name) && !slices.Contains(l.Egress, learnUplink) {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all, err
}

// armedLink is an interface with programs of ours.
type armedLink struct {
	netlink.Link
	datapath.Hooks
}

func armedLinks() ([]armedLink, error) {
	links, err := netlinksafe.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var all []armedLink
	for _, l := range links {
		h, err := datapath.HooksOf(l)
		if err != nil {
			if _, gone := netlink.LinkByIndex(l.Attrs().Index); gone != nil {
				continue
			}
			return nil, err
		}
		if datapath.IsOurs(h.XDP) || slices.ContainsFunc(append(h.Ingress, h.Egress...), datapath.IsOurs) {
			all = append(all, armedLink{l, h})
		}
	}
	return all, nil
}

func removedPlugins(rep *install.Report) bool {
	return !rep.Kept() && slices.ContainsFunc(rep.Steps, func(s install.Step) bool {
		return s.Do == install.Remove && slices.Contains(install.Plugins(), filepath.Base(s.What))
	})
}

// takeOff leaves nothing of xveth in the kernel: it would never be used again.
func (a *app) takeOff(rep *install.Report) error {
	found, err := status.GC(a.bpffs, rep.DryRun)
	for _, g := range found {
		rep.Steps = append(rep.Steps, install.Step{Do: install.Remove, What: g.Kind + " " + g.Name, Why: g.Why})
	}
	if err != nil {
		return err
	}
	armed, err := armedLinks()
	if err == nil && !rep.DryRun {
		_, err = datapath.DetachAll(a.bpffs)
	}
	if err != nil {
		return err
	}
	for _, l := range armed {
		rep.Steps = append(rep.Steps, install.Step{Do: install.Remove, What: "fast path of " + l.Attrs().Name})
	}
	return nil
}

// doing says what a step does, and what it would do.
var doing = map[string][2]string{
	install.Write:   {"wrote", "would write"},
	install.Replace: {"replaced", "would replace"},
	install.Same:    {"unchanged", "unchanged"},
	install.Chain:   {"chained", "would chain"},
	install.Unchain: {"unchained", "would unchain"},
	install.Remove:  {"removed", "would remove"},
	install.Keep:    {"kept", "would keep"},
}

// writeReport says what was done, also when err has put an end to it.
func (a *app) writeReport(w io.Writer, rep *install.Report, err error) error {
	for _, text := range rep.Warnings {
		fmt.Fprintf(os.Stderr, "xvethctl: warning: %s\n", text)
	}
	if a.asJSON() {
		return errors.Join(err, writeJSON(w, rep))
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, s := range rep.Steps {
		verb := doing[s.Do][0]
		if rep.DryRun {
			verb = doing[s.Do][1]
		}
		line := []string{verb, printable(s.What)}
		if s.Why != "" {
			line = append(line, s.Why)
		}
		fmt.Fprintln(t, strings.Join(line, "\t"))
	}
	if len(rep.Steps) == 0 && err == nil {
		fmt.Fprintln(t, "nothing to do")
	}
	if rep.First != nil {
		fmt.Fprintf(t, "runtimes take\t%s\tnetwork %q: %q\n", printable(rep.First.File), rep.First.Name, rep.First.Plugins)
	}
	return errors.Join(err, t.Flush())
}

// printable quotes a path that a terminal would not show as it is.
func printable(path string) string {
	if q := strconv.Quote(path); q != `"`+path+`"` {
		return q
	}
	return path
}
