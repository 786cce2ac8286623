// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/xveth/xveth/pkg/cluster"
	"github.com/xveth/xveth/pkg/install"
	"github.com/xveth/xveth/pkg/veth"
	"github.com/xveth/xveth/test/rig"
)

// bed is a node with an agent on it, whose API is a fake.
type bed struct {
	t     *testing.T
	host  *rig.Host
	api   *fake.Clientset
	cfg   Config
	agent *Agent
}

func newBed(t *testing.T, nodes ...*corev1.Node) *bed {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make network namespaces")
	}
	host, err := rig.NewHost("node", true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(host.Close)
	b := &bed{t: t, host: host, api: fake.NewClientset()}
	from := t.TempDir()
	for _, p := range append(install.Plugins(), "portmap") {
		if err := os.WriteFile(filepath.Join(from, p), []byte("#!"+p), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	bin := t.TempDir()
	if err := os.Rename(filepath.Join(from, "portmap"), filepath.Join(bin, "portmap")); err != nil {
		t.Fatal(err)
	}
	b.cfg = Config{
		NodeName: "n1", From: from, BinDir: bin, ConfDir: t.TempDir(), List: "10-xveth.conflist", Network: "xveth",
		Cluster:  cluster.Config{Tunnel: cluster.TunnelAuto, VNI: 1, Port: 8472, Masquerade: true},
		FastPath: install.FastPath{Mode: "off"},
	}
	for _, c := range []string{
		"ip link add eth0 type veth peer name wire", "ip link set eth0 up", "ip link set wire up",
		"ip addr add 192.0.2.1/24 dev eth0", "ip route add default via 192.0.2.254",
	} {
		b.run(c)
	}
	for _, n := range nodes {
		b.tell(n)
	}
	return b
}

func (b *bed) run(command string) string {
	b.t.Helper()
	out, err := b.host.Run(b.t.Context(), "sh", "-c", command)
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

// tell creates or updates a node object.
func (b *bed) tell(n *corev1.Node) {
	b.t.Helper()
	nodes := b.api.CoreV1().Nodes()
	if _, err := nodes.Create(b.t.Context(), n, metav1.CreateOptions{}); err != nil {
		if _, err := nodes.Update(b.t.Context(), n, metav1.UpdateOptions{}); err != nil {
			b.t.Fatal(err)
		}
	}
}

// start makes a fresh agent and waits until it knows the nodes.
func (b *bed) start() {
	b.t.Helper()
	var err error
	if b.agent, err = New(b.cfg, b.api); err != nil {
		b.t.Fatal(err)
	}
	b.agent.factory.StartWithContext(b.t.Context())
	if !rig.Within(10*time.Second, b.agent.listed) {
		b.t.Fatal("the nodes are not known")
	}
}

// sync is one round on the node.
func (b *bed) sync() error {
	return b.host.Do(func() error { return b.agent.sync(b.t.Context()) })
}

// until runs rounds until the agent's knowledge has come to what is wanted.
func (b *bed) until(what string, ok func() bool) {
	b.t.Helper()
	var err error
	if !rig.Within(10*time.Second, func() bool { err = b.sync(); return ok() }) {
		b.t.Fatalf("not within ten seconds: %s; the last round ended with %v", what, err)
	}
}

func (b *bed) list() string {
	text, _ := os.ReadFile(filepath.Join(b.cfg.ConfDir, b.cfg.List))
	return string(text)
}

func node(name, addr string, ranges ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Spec.PodCIDRs = ranges
	n.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeInternalIP, Address: addr},
	}
	return n
}

// TestReadyLast is row B127 of what went wrong elsewhere: there is no network list, by which
// a node counts as ready, until all the rest is in place.
func TestReadyLast(t *testing.T) {
	b := newBed(t)
	var err error
	if b.agent, err = New(b.cfg, b.api); err != nil {
		t.Fatal(err)
	}
	if err := b.sync(); !errors.Is(err, errNotListed) {
		t.Errorf("before the API answers: %v", err)
	}
	b.start()
	if err := b.sync(); err == nil || !strings.Contains(err.Error(), `no node "n1"`) {
		t.Errorf("without this node: %v", err)
	}
	b.tell(node("n1", "192.0.2.1"))
	b.until("no range is known", func() bool { return errors.Is(b.sync(), errNoRange) })
	b.tell(node("n1", "192.0.2.1", "10.244.1.0/24"))
	// Something in the way of the masquerade, which comes before the list.
	b.run("nft add table inet xveth; nft add chain inet xveth masq-node '{ type nat hook prerouting priority 0; }'; nft add chain inet xveth other; nft add rule inet xveth other jump masq-node 2>/dev/null; true")
	b.run("ip link add xveth-vxlan type bridge")
	b.tell(node("n2", "198.51.100.2", "10.244.2.0/24"))
	b.until("the tunnel fails", func() bool { err := b.sync(); return err != nil && strings.Contains(err.Error(), "in the way") })
	if entries, _ := os.ReadDir(b.cfg.ConfDir); len(entries) > 0 {
		t.Errorf("the runtime's folder has %v", entries)
	}
	b.run("ip link del xveth-vxlan")
	b.until("the list is there", func() bool { return b.list() != "" })
	for _, want := range []string{"10.244.2.0/24 via 10.244.2.0 dev xveth-vxlan onlink"} {
		if got := b.run("ip route show proto 120"); !strings.Contains(got, want) {
			t.Errorf("there is a list, and no route %q: %s", want, got)
		}
	}
}

// TestList looks at the network list that comes of a cluster.
func TestList(t *testing.T) {
	b := newBed(t, node("n1", "192.0.2.1", "10.244.1.0/24", "fd00:244:1::/64"), node("n2", "192.0.2.2", "10.244.2.0/24"))
	b.start()
	if err := b.sync(); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(b.list()), &got); err != nil {
		t.Fatal(err)
	}
	subnet := func(s string) []any { return []any{map[string]any{"subnet": s}} }
	want := map[string]any{
		"cniVersion": "1.0.0", "cniVersions": []any{"1.0.0", "1.1.0"}, "name": "xveth",
		"plugins": []any{
			map[string]any{
				"type": "xveth", "ipMasq": false, "fastPath": map[string]any{"mode": "off"},
				"capabilities": map[string]any{"bandwidth": true, "fastPath": true, "ips": true, "mac": true},
				"ipam": map[string]any{
					"type":   "host-local",
					"ranges": []any{subnet("10.244.1.0/24"), subnet("fd00:244:1::/64")},
					"routes": []any{map[string]any{"dst": "0.0.0.0/0"}, map[string]any{"dst": "::/0"}},
				},
			},
			map[string]any{"type": "portmap", "capabilities": map[string]any{"portMappings": true}},
		},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for _, p := range install.Plugins() {
		if text, _ := os.ReadFile(filepath.Join(b.cfg.BinDir, p)); string(text) != "#!"+p {
			t.Errorf("plugin %s is %q", p, text)
		}
	}

	t.Run("with a tunnel", func(t *testing.T) {
		b.tell(node("n3", "198.51.100.3", "10.244.3.0/24"))
		b.until("the list has the tunnel's MTU", func() bool { return strings.Contains(b.list(), `"mtu": 1450`) })
		conf, err := install.Conf([]byte(b.list()))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, u := range conf.Uplinks {
			names = append(names, u.Name)
		}
		if d := cmp.Diff([]string{"eth0", cluster.DeviceName}, names); d != "" {
			t.Error(d)
		}
	})
	t.Run("somebody removed it", func(t *testing.T) {
		was := b.list()
		if err := os.Remove(filepath.Join(b.cfg.ConfDir, b.cfg.List)); err != nil {
			t.Fatal(err)
		}
		if err := b.sync(); err != nil || b.list() != was {
			t.Errorf("%v; the list is %q", err, b.list())
		}
	})
	t.Run("the agent starts again", func(t *testing.T) {
		was, before := b.list(), b.host.State("bridge fdb")
		b.start()
		if err := b.sync(); err != nil || b.list() != was {
			t.Errorf("%v; the list is %q", err, b.list())
		}
		if d := rig.StateDiff(before, b.host.State("bridge fdb")); d != "" {
			t.Errorf("a mere start changed: %s", d)
		}
	})
	t.Run("remove", func(t *testing.T) {
		if err := b.host.Do(func() error { return Remove(b.cfg) }); err != nil {
			t.Fatal(err)
		}
		left, _ := os.ReadDir(b.cfg.ConfDir)
		bin, _ := os.ReadDir(b.cfg.BinDir)
		if len(left) > 0 || len(bin) != 1 || bin[0].Name() != "portmap" {
			t.Errorf("left are %v and %v", left, bin)
		}
		if got := b.run("ip route show proto 120; nft list ruleset; ip link show type vxlan"); got != "" {
			t.Errorf("left is %s", got)
		}
	})
}

// TestListAlwaysWhole is row B125: whoever looks at the folder while the list is rewritten
// finds it whole, and nothing else that a runtime would take for a network.
func TestListAlwaysWhole(t *testing.T) {
	b := newBed(t, node("n1", "192.0.2.1", "10.244.1.0/24"))
	// In memory: a thousand times to the disk take half a minute.
	dir, err := os.MkdirTemp("/dev/shm", "xveth-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b.cfg.ConfDir = dir
	b.start()
	if err := b.sync(); err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		looks := 0
		defer func() { done <- looks }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			entries, err := os.ReadDir(b.cfg.ConfDir)
			if err != nil {
				t.Error(err)
				return
			}
			for _, e := range entries {
				ext := filepath.Ext(e.Name())
				if e.Name() != b.cfg.List && (ext == ".conflist" || ext == ".conf" || ext == ".json") {
					t.Errorf("a runtime would read %s", e.Name())
					return
				}
			}
			if _, err := install.Conf([]byte(b.list())); err != nil {
				t.Errorf("the list is not whole: %v", err)
				return
			}
			looks++
		}
	}()
	for i := range 1000 {
		self := cluster.Node{Name: "n1", PodCIDRs: []netip.Prefix{netip.MustParsePrefix([]string{"10.244.1.0/24", "10.244.128.0/17"}[i%2])}}
		text, err := b.agent.list(self, cluster.Result{})
		if err == nil {
			err = b.agent.install(text, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	if n := <-done; n < 100 {
		t.Errorf("only %d looks", n)
	}
}

// TestPodRoutesComeBack is row B140: a manager of networks flushes the routes to pods.
func TestPodRoutesComeBack(t *testing.T) {
	b := newBed(t, node("n1", "192.0.2.1", "10.244.1.0/24"))
	b.start()
	pod, err := rig.NewHost("pod", false)
	if err != nil {
		t.Fatal(err)
	}
	defer pod.Close()
	err = b.host.Do(func() error {
		_, err := veth.Add(t.Context(), veth.Config{
			Network: "xveth", ContainerID: "c1", IfName: "eth0", NetnsPath: pod.NetnsPath(),
			Addresses: []veth.Address{{Prefix: netip.MustParsePrefix("10.244.1.5/24"), Gateway: netip.MustParseAddr("169.254.1.1")}},
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	b.run("mkdir -p /var/lib/cni/networks/xveth; printf 'c1\\r\\neth0' >/var/lib/cni/networks/xveth/10.244.1.5")
	if err := b.sync(); err != nil {
		t.Fatal(err)
	}
	host := veth.HostName("xveth", "c1", "eth0")
	has := func() bool { return strings.Contains(b.run("ip route"), "10.244.1.5 dev "+host) }
	if !has() {
		t.Fatal("ADD made no route")
	}
	flush := func() { b.run("ip route flush scope link dev " + host) }
	flush()
	if err := b.sync(); err != nil || has() {
		t.Errorf("%v; a route of an ADD that may be under way was made", err)
	}
	for name := range b.agent.pods.seen {
		b.agent.pods.seen[name] = time.Now().Add(-2 * grown)
	}
	if err := b.sync(); err != nil || !has() {
		t.Errorf("%v; the route did not come back", err)
	}
	b.run("rm /var/lib/cni/networks/xveth/10.244.1.5")
	flush()
	if err := b.sync(); err != nil || has() {
		t.Errorf("%v; a route to an address that was given back was made", err)
	}
}

// TestOptions has the mistakes that people make.
func TestOptions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args, env []string
		want      string // of the error; "" for none
	}{
		{args: []string{"--node-name", "n"}},
		{want: "--node-name"},
		{env: []string{"XVETHD_NODE_NAME=n", "XVETHD_TUNNEL=never", "HOME=/"}},
		{env: []string{"XVETHD_NODENAME=n"}, want: "no option for the environment variable XVETHD_NODENAME"},
		{env: []string{"XVETHD_VXLAN_PORT=x"}, want: "XVETHD_VXLAN_PORT"},
		{args: []string{"--node-name", "n", "--tunnel", "sometimes"}, want: "--tunnel"},
		{args: []string{"--node-name", "n", "--vxlan-vni", "16777216"}, want: "--vxlan-vni"},
		{args: []string{"--node-name", "n", "--vxlan-port", "0"}, want: "--vxlan-port"},
		{args: []string{"--node-name", "n", "--non-masquerade-cidrs", "10.0.0.1"}, want: "--non-masquerade-cidrs"},
		{args: []string{"--node-name", "n", "--fast-path", "warp"}, want: "fastPath.mode"},
		{args: []string{"--node-name", "n", "--revalidate", "2m"}, want: "fastPath.revalidate"},
		{args: []string{"--node-name", "n", "--max-flows", "1"}, want: "fastPath.maxFlows"},
		{args: []string{"--node-name", "n", "--uplinks", "a/b"}, want: "uplinks"},
		{args: []string{"--node-name", "n", "--network", "a b"}, want: "name"},
		{args: []string{"--node-name", "a"}, env: []string{"XVETHD_NODE_NAME=b"}},
	} {
		o, f := NewOptions("test")
		err := f.Parse(c.args)
		if err == nil {
			err = FromEnv(f, c.env)
		}
		var cfg Config
		if err == nil {
			cfg, err = o.Config()
		}
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%q %q: %v", c.args, c.env, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%q %q: got %v, want an error about %s", c.args, c.env, err, c.want)
		case len(c.args) > 1 && c.want == "" && cfg.NodeName != c.args[1]:
			t.Errorf("%q %q: the node is %q", c.args, c.env, cfg.NodeName)
		}
	}
}
