// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/containernetworking/plugins/pkg/netlinksafe"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// checkEntries looks for entries of interfaces that are gone in the maps that are kept by
// interface.
func checkEntries(t *testing.T, r *rig.Rig) {
	t.Helper()
	exists := map[uint32]bool{}
	err := r.Node.Do(func() error {
		links, err := netlinksafe.LinkList()
		for _, l := range links {
			exists[uint32(l.Attrs().Index)] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"xv_devs", "xv_ports", "xv_members"} {
		m := openMap(t, r, name)
		var key, next uint32
		for err = m.NextKey(nil, &next); err == nil; err = m.NextKey(key, &next) {
			if key = next; !exists[key] {
				t.Errorf("map %s has an entry of interface %d, which is gone", name, key)
			}
		}
		if !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Errorf("read %s: %v", name, err)
		}
	}
}

// checkPrograms looks for programs of ours on interfaces that are not the pinned ones, and
// for pins that a swap left behind.
func checkPrograms(t *testing.T, r *rig.Rig) {
	t.Helper()
	pinned := map[ebpf.ProgramID]bool{}
	err := filepath.WalkDir(r.Node.Path(datapath.DefaultDir), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if strings.HasSuffix(path, "_new") {
			t.Errorf("a pin is left: %s", path)
		}
		p, err := ebpf.LoadPinnedProgram(path, nil)
		if err != nil {
			return nil // a map or a link
		}
		defer p.Close()
		info, err := p.Info()
		if err == nil {
			id, _ := info.ID()
			pinned[id] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for id, where := range attachedPrograms(t, r) {
		if !pinned[id] {
			t.Errorf("program %d on %s is not pinned", id, where)
		}
	}
}

// attachedPrograms lists our programs on the node's interfaces.
func attachedPrograms(t *testing.T, r *rig.Rig) map[ebpf.ProgramID]string {
	t.Helper()
	all := map[ebpf.ProgramID]string{}
	err := r.Node.Do(func() error {
		links, err := netlinksafe.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			if x := l.Attrs().Xdp; x != nil && x.Attached {
				all[ebpf.ProgramID(x.ProgId)] = l.Attrs().Name
			}
			for _, hook := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
				have, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: hook})
				if err != nil {
					return err
				}
				for _, p := range have.Programs {
					all[p.ID] = l.Attrs().Name + " " + hook.String()
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for id := range all {
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			t.Fatal(err)
		}
		info, err := p.Info()
		if err != nil || !strings.HasPrefix(info.Name, "xv_") {
			delete(all, id)
		}
		p.Close()
	}
	return all
}
