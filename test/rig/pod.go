// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
)

// Pod is a network namespace that the plugin has connected to the node.
type Pod struct {
	*Host
	// ID is the container id.
	ID string
	// Netns is the namespace's path on the node.
	Netns string
	// Result of ADD.
	Result *current.Result
	// Addr4 and Addr6 of the pod; invalid where it has none.
	Addr4, Addr6 netip.Addr
	// HostDev is the node's end of the pair.
	HostDev string

	rig  *Rig
	conf []byte
}

// Output is what a plugin printed.
type Output struct {
	Stdout, Stderr []byte
}

// runPlugin runs a plugin on the node. An error that the plugin reported on standard
// output comes back as a *types.Error.
func (r *Rig) runPlugin(ctx context.Context, name, verb string, conf []byte, env map[string]string) (Output, error) {
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(filepath.SplitList(r.opts.Plugins)[0], name))
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "CNI_COMMAND=" + verb, "CNI_PATH=" + r.pluginPath()}
	for k, v := range env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(conf), &out, &errOut
	err := r.Node.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	res := Output{out.Bytes(), errOut.Bytes()}
	if err == nil {
		return res, nil
	}
	var said types.Error
	if json.Unmarshal(res.Stdout, &said) == nil && said.Msg != "" {
		return res, &said
	}
	return res, fmt.Errorf("run %s %s: %w: %s%s", name, verb, err, res.Stdout, res.Stderr)
}

// NewNetns makes a namespace for a pod and gives it a path on the node, but does not
// connect it.
func (r *Rig) NewNetns(id string) (*Pod, error) {
	h, err := NewHost(id, false)
	if err != nil {
		return nil, err
	}
	p := &Pod{Host: h, ID: id, Netns: "/run/netns/" + id, rig: r}
	if err := r.bindNetns(h, p.Netns); err != nil {
		h.Close()
		return nil, err
	}
	r.mu.Lock()
	r.pods = append(r.pods, p)
	r.mu.Unlock()
	return p, nil
}

// NewPods makes unconnected pods, whose names are a prefix and a number.
func (r *Rig) NewPods(prefix string, n int) ([]*Pod, error) {
	var all []*Pod
	for i := range n {
		p, err := r.NewNetns(fmt.Sprintf("%s%d", prefix, i))
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// AddPod makes a pod and connects it by the plugin, with some keys of the configuration
// changed.
func (r *Rig) AddPod(ctx context.Context, id string, changes map[string]any) (*Pod, error) {
	p, err := r.NewNetns(id)
	if err != nil {
		return nil, err
	}
	if err := p.Add(ctx, r.Conf(changes)); err != nil {
		p.Destroy()
		return nil, err
	}
	return p, nil
}

// Env is the environment of a plugin call for this pod.
func (p *Pod) Env() map[string]string {
	return map[string]string{
		"CNI_CONTAINERID": p.ID, "CNI_NETNS": p.Netns, "CNI_IFNAME": PodDev,
	}
}

// Add connects the pod's namespace.
func (p *Pod) Add(ctx context.Context, conf []byte) error {
	out, err := p.rig.Plugin(ctx, "ADD", conf, p.Env())
	if err != nil {
		return fmt.Errorf("add pod %q: %w", p.ID, err)
	}
	raw, err := current.NewResult(out.Stdout)
	if err != nil {
		return fmt.Errorf("add pod %q: read result: %w", p.ID, err)
	}
	if p.Result, err = current.GetResult(raw); err != nil {
		return fmt.Errorf("add pod %q: read result: %w", p.ID, err)
	}
	p.conf = conf
	p.HostDev = p.Result.Interfaces[0].Name
	p.TakeAddrs()
	return nil
}

// withPrev is the pod's configuration with the result of ADD in it.
func (p *Pod) withPrev() ([]byte, error) {
	var conf map[string]any
	if err := json.Unmarshal(p.conf, &conf); err != nil {
		return nil, err
	}
	if p.Result != nil {
		conf["prevResult"] = p.Result
	}
	return json.Marshal(conf)
}

// Check runs CHECK.
func (p *Pod) Check(ctx context.Context) error {
	conf, err := p.withPrev()
	if err != nil {
		return err
	}
	_, err = p.rig.Plugin(ctx, "CHECK", conf, p.Env())
	return err
}

// Del disconnects the pod; its namespace stays.
func (p *Pod) Del(ctx context.Context) error {
	conf, err := p.withPrev()
	if err != nil {
		return err
	}
	if _, err := p.rig.Plugin(ctx, "DEL", conf, p.Env()); err != nil {
		return fmt.Errorf("delete pod %q: %w", p.ID, err)
	}
	return nil
}

// Destroy removes the namespace without telling the plugin.
func (p *Pod) Destroy() {
	_ = p.rig.unbindNetns(p.Netns)
	p.Host.Close()
	p.rig.mu.Lock()
	defer p.rig.mu.Unlock()
	for i, have := range p.rig.pods {
		if have == p {
			p.rig.pods = append(p.rig.pods[:i], p.rig.pods[i+1:]...)
			return
		}
	}
}

// Remove disconnects the pod and removes its namespace.
func (p *Pod) Remove(ctx context.Context) error {
	err := p.Del(ctx)
	p.Destroy()
	return err
}

// Addr is the pod's address of a family, 4 or 6.
func (p *Pod) Addr(family int) (netip.Addr, error) {
	addr := p.Addr4
	if family == 6 {
		addr = p.Addr6
	}
	if !addr.IsValid() {
		return addr, errors.New("the pod has no address of this family")
	}
	return addr, nil
}

// Pods lists the pods and unconnected namespaces that have not been destroyed.
func (r *Rig) Pods() []*Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.pods)
}
