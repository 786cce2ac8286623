// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/xveth/xveth/test/rig"
)

// cacheDir is where libcni keeps configurations and results on the node.
const cacheDir = "/var/lib/cni"

// driver uses libcni as CRI-O's driver does: networks are read from a folder, every
// attachment is cached, DEL takes the configuration from the cache, and GC is told which
// pods live.
type driver struct {
	*bed
	cni  *libcni.CNIConfig
	nets map[string]*libcni.NetworkConfigList
}

// newDriver starts with what is in the folder of networks.
func newDriver(t *testing.T, b *bed) *driver {
	t.Helper()
	d := &driver{bed: b, cni: libcni.NewCNIConfigWithCacheDir([]string{b.binDir}, b.Node.Path(cacheDir), rig.NewExec(b.Node))}
	d.load(t)
	return d
}

// load reads the folder anew. The node's plugins must support what is in it.
func (d *driver) load(t *testing.T) {
	t.Helper()
	d.nets = map[string]*libcni.NetworkConfigList{}
	files, err := libcni.ConfFiles(d.confDir, []string{".conflist"})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		list, err := libcni.ConfListFromFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.cni.ValidateNetworkList(ctxOf(t), list); err != nil {
			t.Fatal(err)
		}
		d.nets[list.Name] = list
	}
}

// attachment is one interface of a pod.
type attachment struct{ network, ifname string }

func runtimeConf(p *rig.Pod, a attachment) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: p.ID, NetNS: p.Netns, IfName: a.ifname,
		Args: [][2]string{
			{"IgnoreUnknown", "1"},
			{"K8S_POD_NAMESPACE", "default"},
			{"K8S_POD_NAME", p.ID},
			{"K8S_POD_INFRA_CONTAINER_ID", p.ID},
			{"K8S_POD_UID", "uid-" + p.ID},
		},
		// Those that no plugin asks for go nowhere.
		CapabilityArgs: map[string]any{
			"cgroupPath":                        "/kubepods/" + p.ID,
			"io.kubernetes.cri.pod-annotations": map[string]string{"a": "b"},
		},
	}
}

// setUp attaches a pod to networks, one after the other.
func (d *driver) setUp(ctx context.Context, p *rig.Pod, all ...attachment) error {
	for _, a := range all {
		if err := d.attach(ctx, p, a); err != nil {
			return err
		}
	}
	return nil
}

// attach checks what a runtime reads from the result: the addresses are on the interface
// that it has asked for (B026).
func (d *driver) attach(ctx context.Context, p *rig.Pod, a attachment) error {
	raw, err := d.cni.AddNetworkList(ctx, d.nets[a.network], runtimeConf(p, a))
	if err != nil {
		return fmt.Errorf("add %s to %s: %w", p.ID, a.network, err)
	}
	_, err = addrsOf(p, a, raw)
	return err
}

// addrsOf reads the addresses of an attachment from a result.
func addrsOf(p *rig.Pod, a attachment, raw types.Result) ([]netip.Addr, error) {
	res, err := current.NewResultFromResult(raw)
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	for _, ip := range res.IPs {
		if ip.Interface == nil || *ip.Interface >= len(res.Interfaces) {
			return nil, fmt.Errorf("%s: address %s has no interface", p.ID, ip.Address.String())
		}
		if on := res.Interfaces[*ip.Interface]; on.Name != a.ifname || on.Sandbox != p.Netns {
			return nil, fmt.Errorf("%s: address %s is on %+v", p.ID, ip.Address.String(), on)
		}
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		addrs = append(addrs, addr.Unmap())
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("%s: no address in %s", p.ID, a.network)
	}
	return addrs, nil
}

// cached lists the attachments of a pod that the cache knows.
func (d *driver) cached(p *rig.Pod) ([]attachment, error) {
	files, err := filepath.Glob(filepath.Join(d.Node.Path(cacheDir), "results", "*-"+p.ID+"-*"))
	if err != nil {
		return nil, err
	}
	var all []attachment
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		var c struct{ Kind, IfName, ContainerID, NetworkName string }
		if err := json.Unmarshal(text, &c); err != nil {
			return nil, err
		}
		if c.Kind == libcni.CNICacheV1 && c.ContainerID == p.ID {
			all = append(all, attachment{c.NetworkName, c.IfName})
		}
	}
	return all, nil
}

// tearDown detaches a pod from all that the cache knows of, with the configurations that
// are in the cache, whatever the folder has by now.
func (d *driver) tearDown(ctx context.Context, p *rig.Pod) error {
	all, err := d.cached(p)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return fmt.Errorf("tear down %s: nothing is in the cache", p.ID)
	}
	for _, a := range all {
		text, rt, err := d.cni.GetNetworkListCachedConfig(&libcni.NetworkConfigList{Name: a.network}, runtimeConf(p, a))
		if err != nil {
			return err
		}
		list, err := libcni.ConfListFromBytes(text)
		if err != nil {
			return err
		}
		if err := d.cni.DelNetworkList(ctx, list, rt); err != nil {
			return fmt.Errorf("delete %s from %s: %w", p.ID, a.network, err)
		}
	}
	return nil
}

// check runs CHECK for all attachments of a pod and returns their addresses.
func (d *driver) check(ctx context.Context, p *rig.Pod) ([]netip.Addr, error) {
	all, err := d.cached(p)
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		if err := d.cni.CheckNetworkList(ctx, d.nets[a.network], runtimeConf(p, a)); err != nil {
			return nil, fmt.Errorf("check %s in %s: %w", p.ID, a.network, err)
		}
	}
	return d.addrs(p)
}

// addrs reads the addresses of a pod from the cached results.
func (d *driver) addrs(p *rig.Pod) ([]netip.Addr, error) {
	all, err := d.cached(p)
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	for _, a := range all {
		raw, err := d.cni.GetNetworkListCachedResult(d.nets[a.network], runtimeConf(p, a))
		if err != nil {
			return nil, err
		}
		some, err := addrsOf(p, a, raw)
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, some...)
	}
	return addrs, nil
}

// gc tells every network which attachments live: those of these pods.
func (d *driver) gc(ctx context.Context, live []*rig.Pod, all ...attachment) error {
	var failed error
	for name, list := range d.nets {
		var valid []types.GCAttachment
		for _, p := range live {
			for _, a := range all {
				if a.network == name {
					valid = append(valid, types.GCAttachment{ContainerID: p.ID, IfName: a.ifname})
				}
			}
		}
		failed = errors.Join(failed, d.cni.GCNetworkList(ctx, list, &libcni.GCArgs{ValidAttachments: valid}))
	}
	return failed
}

// newPods makes unconnected pods.
func (d *driver) newPods(t *testing.T, prefix string, n int) []*rig.Pod {
	t.Helper()
	all, err := d.NewPods(prefix, n)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// forget removes what the cache knows of a pod.
func (d *driver) forget(t *testing.T, p *rig.Pod) {
	t.Helper()
	d.sh(t, "rm "+cacheDir+"/results/*-"+p.ID+"-*")
}

// wantDistinct checks that no address is there twice.
func wantDistinct(t *testing.T, addrs []netip.Addr) {
	t.Helper()
	slices.SortFunc(addrs, netip.Addr.Compare)
	if n := len(slices.Compact(slices.Clone(addrs))); n != len(addrs) {
		t.Errorf("%d addresses are there twice: %v", len(addrs)-n, addrs)
	}
}

// wantRefused checks that an error is the plugin's, with a code and a text.
func wantRefused(t *testing.T, err error, code uint, text string) {
	t.Helper()
	var said *types.Error
	if !errors.As(err, &said) || said.Code != code || !strings.Contains(said.Error(), text) {
		t.Errorf("got %v, want code %d and %q", err, code, text)
	}
}
