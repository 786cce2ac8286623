// SPDX-License-Identifier: Apache-2.0

// Package datapath loads, pins, attaches and upgrades the BPF programs and owns
// their maps. It knows interfaces, not pods: nothing of CNI is in it.
package datapath

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/bpf"
)

// DefaultDir is where programs and maps are pinned.
const DefaultDir = "/sys/fs/bpf/xveth"

// layout names the pin directory of one map layout. It changes only when bytes
// that older programs wrote lose their meaning.
const layout = "v1"

// ErrNotLoaded says that nothing is pinned yet.
var ErrNotLoaded = errors.New("the fast path is not loaded")

// Settings hold for the whole node: the programs are shared by all networks.
type Settings struct {
	// Revalidate is how long a flow is repeated without the kernel having
	// forwarded one of its packets.
	Revalidate time.Duration
	// MaxFlows of each address family; takes effect when the maps are made.
	MaxFlows uint32
	// ExcludeMark holds the bits of the packet mark that keep a flow from being
	// learned.
	ExcludeMark uint32
}

// Datapath gives access to the pinned programs and maps.
type Datapath struct {
	dir   string
	progs bpf.DatapathPrograms
	maps  bpf.DatapathMaps
}

// build identifies the embedded object, and whether the kernel has conntrack: programs
// that were loaded before its module came do not see it.
var build = sync.OnceValue(func() uint64 {
	sum := sha256.Sum256(bpf.Object())
	id := binary.LittleEndian.Uint64(sum[:8]) | 1
	if _, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_max"); err != nil {
		id &^= 1
	}
	return id
})

// Open gives access to what is pinned below dir. It changes nothing, and fails
// with ErrNotLoaded when there is nothing.
func Open(dir string) (*Datapath, error) {
	d := &Datapath{dir: filepath.Join(dir, layout)}
	if err := d.openPins(); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// Ensure loads and pins the programs on first use, swaps in those of this build
// where another's are running, and applies the settings. The caller may be one of
// many: a lock on the pin directory makes them take turns.
func Ensure(dir string, s Settings) (*Datapath, error) {
	if err := ensureBPFFS(dir); err != nil {
		return nil, err
	}
	d := &Datapath{dir: filepath.Join(dir, layout)}
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make pin directory: %w", err)
	}
	unlock, err := d.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := d.ensureLoaded(s); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

func (d *Datapath) ensureLoaded(s Settings) error {
	err := d.openPins()
	if err == nil {
		var have bpf.DatapathXvSettings
		if have, err = d.settings(); err == nil && have.Build == build() && d.hasLinks() {
			return d.apply(have, s)
		}
	}
	if err != nil && !errors.Is(err, ErrNotLoaded) {
		return err
	}
	d.Close()
	d.progs, d.maps = bpf.DatapathPrograms{}, bpf.DatapathMaps{}
	if err := d.load(s); err != nil {
		return err
	}
	if err := d.swapAttached(); err != nil {
		return err
	}
	if err := d.pinPrograms(); err != nil {
		return err
	}
	// Last: whoever comes after a load that was cut short does it again.
	return d.writeBuild()
}

// Close releases the handles. What is attached stays attached.
func (d *Datapath) Close() {
	for _, c := range []interface{ Close() error }{&d.progs, &d.maps} {
		_ = c.Close()
	}
}

// lock makes processes that change pins or attachments take turns. It ends with
// the process that holds it.
func (d *Datapath) lock() (func(), error) {
	f, err := os.Open(d.dir)
	if err != nil {
		return nil, fmt.Errorf("open pin directory: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock pin directory %q: %w", d.dir, err)
	}
	return func() { _ = f.Close() }, nil
}

// pinnedPrograms lists the programs by their pin names.
func (d *Datapath) pinnedPrograms() map[string]**ebpf.Program {
	return map[string]**ebpf.Program{
		"xv_xdp_in":       &d.progs.XvXdpIn,
		"xv_tc_in":        &d.progs.XvTcIn,
		"xv_tc_note":      &d.progs.XvTcNote,
		"xv_learn_pod":    &d.progs.XvLearnPod,
		"xv_learn_uplink": &d.progs.XvLearnUplink,
	}
}

func (d *Datapath) pinnedMaps() map[string]**ebpf.Map {
	return map[string]**ebpf.Map{
		"xv_flows4":   &d.maps.XvFlows4,
		"xv_flows6":   &d.maps.XvFlows6,
		"xv_slots":    &d.maps.XvSlots,
		"xv_devs":     &d.maps.XvDevs,
		"xv_ports":    &d.maps.XvPorts,
		"xv_members":  &d.maps.XvMembers,
		"xv_origins":  &d.maps.XvOrigins,
		"xv_blocked":  &d.maps.XvBlocked,
		"xv_losses":   &d.maps.XvLosses,
		"xv_counters": &d.maps.XvCounters,
		"xv_config":   &d.maps.XvConfig,
		"xv_polls":    &d.maps.XvPolls,
		"xv_refusals": &d.maps.XvRefusals,
	}
}

func (d *Datapath) openPins() error {
	if _, err := os.Stat(d.dir); err != nil {
		return openError(filepath.Base(d.dir), err)
	}
	for name, p := range d.pinnedMaps() {
		m, err := ebpf.LoadPinnedMap(filepath.Join(d.dir, name), nil)
		if err != nil {
			return openError(name, err)
		}
		*p = m
	}
	for name, p := range d.pinnedPrograms() {
		prog, err := ebpf.LoadPinnedProgram(filepath.Join(d.dir, name), nil)
		if err != nil {
			return openError(name, err)
		}
		*p = prog
	}
	return nil
}

func openError(name string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w (no pin %q)", ErrNotLoaded, name)
	}
	return fmt.Errorf("open pin %q: %w", name, err)
}

// load makes or reuses the maps and loads the programs.
func (d *Datapath) load(s Settings) error {
	spec, err := bpf.LoadDatapath()
	if err != nil {
		return fmt.Errorf("read the embedded programs: %w", err)
	}
	next := d.oldSettings()
	if next.Seed == 0 {
		next.Seed = rand.Uint32() | 1
	}
	next.Build = 0
	spec.Maps["xv_flows4"].MaxEntries = s.MaxFlows
	spec.Maps["xv_flows6"].MaxEntries = s.MaxFlows
	d.keepSizes(spec)
	if err := setVariables(spec, next.Seed); err != nil {
		return err
	}
	var objs bpf.DatapathObjects
	opts := &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: d.dir}}
	err = spec.LoadAndAssign(&objs, opts)
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		return fmt.Errorf("reuse the maps in %q: %w (another version of xveth made them; run `xvethctl flush --maps` to start afresh)", d.dir, err)
	}
	if err != nil {
		return fmt.Errorf("load the programs: %w", err)
	}
	d.progs, d.maps = objs.DatapathPrograms, objs.DatapathMaps
	if err := d.numberPolls(); err != nil {
		return err
	}
	return d.initSettings(next, s)
}

// numberPolls starts each CPU's count of polls at a number of its own. A new start
// while flows are live costs them at most one poll on the kernel's path.
func (d *Datapath) numberPolls() error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("count the CPUs: %w", err)
	}
	starts := make([]uint64, cpus)
	for cpu := range starts {
		starts[cpu] = uint64(cpu+1) << 48
	}
	if err := d.maps.XvPolls.Put(uint32(0), starts); err != nil {
		return fmt.Errorf("number the polls: %w", err)
	}
	return nil
}

// oldSettings reads the settings of programs that ran before; all zero if none did.
func (d *Datapath) oldSettings() bpf.DatapathXvSettings {
	m, err := ebpf.LoadPinnedMap(filepath.Join(d.dir, "xv_config"), nil)
	if err != nil {
		return bpf.DatapathXvSettings{}
	}
	defer m.Close()
	var s bpf.DatapathXvSettings
	if m.ValueSize() != uint32(binary.Size(s)) || m.Lookup(uint32(0), &s) != nil {
		return bpf.DatapathXvSettings{}
	}
	return s
}

// keepSizes lets pinned flow maps keep the size that they were made with.
func (d *Datapath) keepSizes(spec *ebpf.CollectionSpec) {
	for _, name := range []string{"xv_flows4", "xv_flows6"} {
		m, err := ebpf.LoadPinnedMap(filepath.Join(d.dir, name), nil)
		if err != nil {
			continue
		}
		spec.Maps[name].MaxEntries = m.MaxEntries()
		_ = m.Close()
	}
}

// setVariables fills in what the programs have to know before they are verified.
func setVariables(spec *ebpf.CollectionSpec, seed uint32) error {
	for name, value := range map[string]any{
		"xv_seed":        seed,
		"xv_ct_from_skb": kernelDescribes("nf_conn"),
		"xv_ct_opts_len": ctOptsLen(),
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}

// kernelDescribes says whether the kernel's own type information, not that of a
// module, has a structure.
func kernelDescribes(name string) bool {
	_, err := kernelStruct(name)
	return err == nil
}

func kernelStruct(name string) (*btf.Struct, error) {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, err
	}
	var t *btf.Struct
	if err := spec.TypeByName(name, &t); err != nil {
		return nil, err
	}
	return t, nil
}

// ctOptsLen is the size of struct bpf_ct_opts, which the conntrack helpers insist on.
func ctOptsLen() uint32 {
	t, err := kernelStruct("bpf_ct_opts")
	if err != nil {
		return 12 // conntrack is a module: all kernels accept the first size
	}
	return t.Size
}

// pinPrograms makes the programs findable for the next process. A new pin is put in
// the place of an old one in one step.
func (d *Datapath) pinPrograms() error {
	for name, p := range d.pinnedPrograms() {
		if err := replacePin(filepath.Join(d.dir, name), (*p).Pin); err != nil {
			return err
		}
	}
	for name, prog := range map[string]*ebpf.Program{
		"link_redirect_err": d.progs.XvOnRedirectErr,
		"link_devmap_xmit":  d.progs.XvOnDevmapXmit,
		"link_poll":         d.progs.XvOnPoll,
	} {
		l, err := link.AttachTracing(link.TracingOptions{Program: prog})
		if err != nil {
			return fmt.Errorf("attach %q: %w", name, err)
		}
		err = replacePin(filepath.Join(d.dir, name), l.Pin)
		_ = l.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// hasLinks says whether the programs on the tracepoints are pinned.
func (d *Datapath) hasLinks() bool {
	for _, name := range []string{"link_redirect_err", "link_devmap_xmit", "link_poll"} {
		if _, err := os.Stat(filepath.Join(d.dir, name)); err != nil {
			return false
		}
	}
	return true
}

func replacePin(path string, pin func(string) error) error {
	fresh := path + "_new"
	_ = os.Remove(fresh)
	if err := pin(fresh); err != nil {
		return fmt.Errorf("pin %q: %w", path, err)
	}
	if err := os.Rename(fresh, path); err != nil {
		return fmt.Errorf("put pin %q in place: %w", path, err)
	}
	return nil
}

// Unload removes every pin below dir. Programs that are still attached run on.
func Unload(dir string) error {
	if err := os.RemoveAll(filepath.Join(dir, layout)); err != nil {
		return fmt.Errorf("remove pins: %w", err)
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove pin directory: %w", err)
	}
	return nil
}
