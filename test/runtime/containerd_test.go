// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"text/template"
	"time"
)

// flavour is a version of containerd.
type flavour struct {
	name string
	// find finds a program of it.
	find func(*testing.T, string) string
	// conf is the template of its configuration.
	conf string
	// cni is the newest version of the CNI specification that it knows.
	cni string
}

// flavours are Debian's containerd, and one that is built from its published module.
var flavours = []flavour{
	{"containerd 1", debian, conf1, "1.0.0"},
	{"containerd 2", tool, conf2, "1.1.0"},
}

// startWait bounds the wait for something to start on a busy machine.
const startWait = 60 * time.Second

const socket = "/run/containerd/containerd.sock"

// Not every machine lets processes lower their oom_score_adj.
const conf1 = `version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{{.Image}}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{{.Bin}}"
    conf_dir = "{{.Conf}}"
`

const conf2 = `version = 3
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{{.Image}}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{{.Bin}}"]
    conf_dir = "{{.Conf}}"
  # Else it is looked for in PATH first, where another version's may be.
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    runtime_path = "{{.Shim}}"
[plugins.'io.containerd.nri.v1.nri']
  disable = true
`

// eachContainerd runs a test with every flavour. The network is written beforehand.
func eachContainerd(t *testing.T, f func(t *testing.T, c *containerd)) {
	t.Parallel()
	for _, fl := range flavours {
		t.Run(fl.name, func(t *testing.T) {
			t.Parallel()
			c := &containerd{bed: newBed(t), flavour: fl, dir: t.TempDir()}
			c.writeNet(t, fl.cni, nil)
			c.configure(t)
			c.start(t)
			t.Cleanup(func() { c.removeAll(t) })
			c.run(t, fl.find(t, "ctr"), "--address", socket, "-n", "k8s.io", "images", "import", bins.image)
			f(t, c)
		})
	}
}

// containerd runs on the node of a bed.
type containerd struct {
	*bed
	flavour
	dir    string
	daemon *daemon
}

func (c *containerd) configure(t *testing.T) {
	t.Helper()
	var text bytes.Buffer
	err := template.Must(template.New("conf").Parse(c.conf)).Execute(&text,
		map[string]string{
			"Image": imageName, "Bin": c.binDir, "Conf": c.confDir, "Shim": c.find(t, "containerd-shim-runc-v2"),
		})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.dir, "config.toml"), text.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// start starts containerd and waits until it answers.
func (c *containerd) start(t *testing.T) {
	t.Helper()
	first := c.daemon == nil
	c.daemon = c.startDaemon(t, filepath.Join(c.dir, "containerd.log"),
		c.find(t, "containerd"), "--config", filepath.Join(c.dir, "config.toml"))
	if first {
		t.Cleanup(func() {
			c.daemon.end(t, syscall.SIGTERM)
			if t.Failed() {
				c.daemon.showLog(t)
			}
		})
	}
	eventually(t, startWait, "containerd answers", func() bool {
		_, err := c.machine.Run(ctxOf(t), tool(t, "crictl"), c.args("version")...)
		return err == nil
	})
}

func (c *containerd) args(args ...string) []string {
	return append([]string{"--runtime-endpoint", "unix://" + socket, "--timeout", "60s"}, args...)
}

// tryCrictl runs crictl and returns what it printed.
func (c *containerd) tryCrictl(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, err := c.machine.Run(ctxOf(t), tool(t, "crictl"), c.args(args...)...)
	return strings.TrimSpace(out), err
}

// crictl runs crictl, which has to succeed.
func (c *containerd) crictl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.tryCrictl(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (c *containerd) run(t *testing.T, name string, args ...string) {
	t.Helper()
	if _, err := c.machine.Run(ctxOf(t), name, args...); err != nil {
		t.Fatal(err)
	}
}

// writeJSON writes a file for crictl.
func (c *containerd) writeJSON(t *testing.T, name string, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(c.dir, name)
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// pod is a sandbox with a container that echoes.
type pod struct {
	id, container string
	addr4, addr6  netip.Addr
	// conf is the sandbox's configuration file.
	conf string
	// netns is the path of its network namespace.
	netns string
}

// sandboxConf writes the configuration of a sandbox, with some keys changed.
func (c *containerd) sandboxConf(t *testing.T, name string, changes map[string]any) string {
	t.Helper()
	conf := map[string]any{
		"metadata":      map[string]any{"name": name, "namespace": "default", "uid": "uid-" + name},
		"linux":         map[string]any{"cgroup_parent": "/" + c.machine.Cgroup},
		"log_directory": c.dir,
	}
	for k, v := range changes {
		conf[k] = v
	}
	return c.writeJSON(t, name+".json", conf)
}

// addPod runs a pod.
func (c *containerd) addPod(t *testing.T, name string, changes map[string]any) *pod {
	t.Helper()
	p, err := c.tryPod(t, name, changes)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// tryPod is addPod for goroutines, which must not end the test.
func (c *containerd) tryPod(t *testing.T, name string, changes map[string]any) (*pod, error) {
	t.Helper()
	p := &pod{conf: c.sandboxConf(t, name, changes)}
	var err error
	if p.id, err = c.tryCrictl(t, "runp", p.conf); err != nil {
		return nil, err
	}
	return p, c.addContainer(t, p)
}

// addContainer runs the echo server in a pod's sandbox.
func (c *containerd) addContainer(t *testing.T, p *pod) error {
	t.Helper()
	log := "echo-" + p.id + ".log"
	conf := c.writeJSON(t, "echo-"+p.id+".json", map[string]any{
		"metadata": map[string]any{"name": "echo"},
		"image":    map[string]any{"image": imageName},
		"command":  serve,
		"linux":    map[string]any{},
		"log_path": log,
	})
	_ = os.Remove(filepath.Join(c.dir, log))
	var err error
	if p.container, err = c.tryCrictl(t, "create", p.id, conf, p.conf); err != nil {
		return err
	}
	if _, err := c.tryCrictl(t, "start", p.container); err != nil {
		return err
	}
	if err := waitServing(filepath.Join(c.dir, log)); err != nil {
		return err
	}
	return c.readStatus(t, p)
}

// waitServing waits until the log of a container's output says that its server is there.
func waitServing(log string) error {
	var text []byte
	for end := time.Now().Add(startWait); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		var err error
		if text, err = os.ReadFile(log); err == nil && bytes.Contains(text, []byte(serving)) {
			return nil
		}
	}
	return fmt.Errorf("the server does not start within %v: %q", startWait, text)
}

// sandboxStatus is what crictl tells of a sandbox.
type sandboxStatus struct {
	Status struct {
		State   string
		Network struct {
			IP            string
			AdditionalIPs []struct{ IP string }
		}
	}
	Info struct {
		RuntimeSpec struct {
			Linux struct {
				Namespaces []struct{ Type, Path string }
			}
		}
	}
}

func (c *containerd) inspect(t *testing.T, id string) (*sandboxStatus, error) {
	t.Helper()
	out, err := c.tryCrictl(t, "inspectp", "--output", "json", id)
	if err != nil {
		return nil, err
	}
	var s sandboxStatus
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		return nil, fmt.Errorf("%w in %s", err, out)
	}
	return &s, nil
}

// readStatus fills in what the runtime found out about the pod's network.
func (c *containerd) readStatus(t *testing.T, p *pod) error {
	t.Helper()
	s, err := c.inspect(t, p.id)
	if err != nil {
		return err
	}
	texts := []string{s.Status.Network.IP}
	for _, more := range s.Status.Network.AdditionalIPs {
		texts = append(texts, more.IP)
	}
	for _, text := range texts {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return fmt.Errorf("pod %s: %w", p.id, err)
		}
		if addr.Is4() {
			p.addr4 = addr
		} else {
			p.addr6 = addr
		}
	}
	for _, ns := range s.Info.RuntimeSpec.Linux.Namespaces {
		if ns.Type == "network" {
			p.netns = ns.Path
		}
	}
	return nil
}

// remove stops and removes a pod.
func (c *containerd) remove(t *testing.T, p *pod) {
	t.Helper()
	c.crictl(t, "stopp", p.id)
	c.crictl(t, "rmp", p.id)
}

// pods lists the sandboxes that containerd knows.
func (c *containerd) pods(t *testing.T, filter ...string) []string {
	t.Helper()
	return strings.Fields(c.crictl(t, append([]string{"pods", "--quiet"}, filter...)...))
}

// removeAll removes what a test that failed has left.
func (c *containerd) removeAll(t *testing.T) {
	t.Helper()
	for _, id := range c.pods(t) {
		c.crictl(t, "stopp", id)
		c.crictl(t, "rmp", "--force", id)
	}
}
