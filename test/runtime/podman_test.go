// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/xveth/xveth/test/rig"
)

// podmanCNI is the newest version of the CNI specification that Debian's podman knows.
const podmanCNI = "1.0.0"

// podmanConf is podman's configuration: CNI, and nothing that needs a service of the host.
const podmanConf = `[network]
network_backend = "cni"
network_config_dir = %q
cni_plugin_dirs = [%q]
default_network = "rig"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
[containers]
log_driver = "k8s-file"
`

// podman runs on the node of a bed.
type podman struct {
	*bed
	bin, conf string
	dir       string
}

// newPodman gives podman the network with some keys changed, and more plugins behind it.
func newPodman(t *testing.T, changes map[string]any, more ...map[string]any) *podman {
	t.Helper()
	p := &podman{bed: newBed(t), bin: debian(t, "podman"), dir: t.TempDir()}
	p.conf = filepath.Join(p.dir, "containers.conf")
	if err := os.WriteFile(p.conf, fmt.Appendf(nil, podmanConf, p.confDir, p.binDir), 0o644); err != nil {
		t.Fatal(err)
	}
	p.writeNet(t, podmanCNI, changes, more...)
	p.run(t, "load", "--quiet", "--input", bins.image)
	t.Cleanup(func() { p.run(t, "rm", "--all", "--force", "--time", "2") })
	return p
}

// run runs podman, which has to succeed, and returns what it printed.
func (p *podman) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := p.machine.Run(ctxOf(t), "env", append([]string{"CONTAINERS_CONF=" + p.conf, p.bin}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// start runs a container that echoes, with some arguments, and waits until it does.
func (p *podman) start(t *testing.T, name string, args ...string) {
	t.Helper()
	args = append([]string{
		"run", "--detach", "--name", name, "--pull", "never",
		"--cgroup-parent", "/" + p.machine.Cgroup, "--log-opt", "path=" + p.log(name),
	}, args...)
	p.run(t, append(append(args, imageName), serve...)...)
	p.waitServing(t, name)
}

func (p *podman) log(name string) string { return filepath.Join(p.dir, name+".log") }

// again runs commands that start a container anew, and waits until it echoes.
func (p *podman) again(t *testing.T, name string, commands ...[]string) {
	t.Helper()
	if err := os.Truncate(p.log(name), 0); err != nil {
		t.Fatal(err)
	}
	for _, args := range commands {
		p.run(t, args...)
	}
	p.waitServing(t, name)
}

func (p *podman) waitServing(t *testing.T, name string) {
	t.Helper()
	if err := waitServing(p.log(name)); err != nil {
		t.Fatal(err)
	}
}

// exec runs a command in a container.
func (p *podman) exec(name string) client {
	return func(t *testing.T, args ...string) string {
		t.Helper()
		return p.run(t, append([]string{"exec", name}, args...)...)
	}
}

// addrs are a container's addresses in a network, as podman has them from the plugin.
func (p *podman) addrs(t *testing.T, name, network string) (addr4, addr6 netip.Addr, mac string) {
	t.Helper()
	var all []struct {
		NetworkSettings struct {
			Networks map[string]struct {
				IPAddress, GlobalIPv6Address, MacAddress string
			}
		}
	}
	out := p.run(t, "inspect", "--type", "container", name)
	if err := json.Unmarshal([]byte(out), &all); err != nil || len(all) != 1 {
		t.Fatalf("%v in %s", err, out)
	}
	n := all[0].NetworkSettings.Networks[network]
	addr4, err4 := netip.ParseAddr(n.IPAddress)
	addr6, err6 := netip.ParseAddr(n.GlobalIPv6Address)
	if err4 != nil || err6 != nil {
		t.Fatalf("container %s has %+v in network %s", name, n, network)
	}
	return addr4, addr6, n.MacAddress
}

// wantFast checks that a container is fast in both families, with both protocols, from and
// to the remote host.
func (p *podman) wantFast(t *testing.T, name string) {
	t.Helper()
	addr4, addr6, _ := p.addrs(t, name, network)
	for _, c := range []struct{ addr, ext netip.Addr }{{addr4, rig.ExtAddr4}, {addr6, rig.ExtAddr6}} {
		at := netip.AddrPortFrom(c.addr, servePort)
		for _, proto := range []string{"udp", "tcp"} {
			p.wantFastIn(t, proto, at, at)
			p.wantFastOut(t, p.exec(name), proto, c.addr, c.ext)
		}
	}
}

// TestPodman runs, restarts, stops and starts a container, and a second one beside it.
func TestPodman(t *testing.T) {
	t.Parallel()
	p := newPodman(t, nil)
	empty := p.state(t)
	p.start(t, "a")
	p.wantFast(t, "a")
	p.start(t, "b")
	addr4, addr6, _ := p.addrs(t, "a", network)
	other4, other6, _ := p.addrs(t, "b", network)
	p.wantFastDial(t, p.exec("b"), "tcp", other4, netip.AddrPortFrom(addr4, servePort))
	p.wantFastDial(t, p.exec("b"), "udp", other6, netip.AddrPortFrom(addr6, servePort))

	p.again(t, "a", []string{"restart", "--time", "5", "a"})
	p.wantFast(t, "a")
	p.again(t, "a", []string{"stop", "--time", "5", "a"}, []string{"start", "a"})
	p.wantFast(t, "a")
	p.run(t, "stop", "--time", "5", "a")
	if got := p.reserved(t, network); len(got) != 2 {
		t.Errorf("reserved are %v, want the addresses of one container", got)
	}
	p.run(t, "rm", "a")
	p.run(t, "rm", "--force", "--time", "5", "b")
	p.wantState(t, empty)
}

// TestPodmanPublish publishes ports, which the real portmap does behind xveth, of one
// container and then of another.
func TestPodmanPublish(t *testing.T) {
	t.Parallel()
	const port = 8080
	p := newPodman(t, nil, map[string]any{
		"type": "portmap", "capabilities": map[string]any{"portMappings": true}, "backend": "iptables",
	})
	publish := []string{"--publish", fmt.Sprintf("%d:%d/tcp", port, servePort), "--publish", fmt.Sprintf("%d:%d/udp", port, servePort)}
	for _, name := range []string{"a", "b"} {
		p.start(t, name, publish...)
		addr4, addr6, _ := p.addrs(t, name, network)
		for _, c := range []struct{ node, pod netip.Addr }{{rig.NodeAddr4, addr4}, {rig.NodeAddr6, addr6}} {
			for _, proto := range []string{"tcp", "udp"} {
				p.wantFastIn(t, proto, netip.AddrPortFrom(c.node, port), netip.AddrPortFrom(c.pod, servePort))
			}
		}
		p.run(t, "rm", "--force", "--time", "5", name)
		if conn, err := p.Ext.DialTCP(netip.AddrPort{}, netip.AddrPortFrom(rig.NodeAddr4, port)); err == nil {
			conn.Close()
			t.Error("the port is still open")
		}
	}
	p.sh(t, "nft flush ruleset") // portmap leaves its chains by design
}

// TestPodmanTwoNetworks gives a container two networks with a default route each, takes the
// second one away and gives it back (B040). Both are fast, and the first one does not
// notice. When it goes itself, the second one leads out.
func TestPodmanTwoNetworks(t *testing.T) {
	t.Parallel()
	p := newPodman(t, nil)
	p.writeSecond(t, podmanCNI)
	empty := p.state(t)
	p.start(t, "both", "--network", network, "--network", second)
	p.start(t, "near", "--network", second)
	p.wantFast(t, "both")
	addr4, addr6, _ := p.addrs(t, "both", network)
	conn, err := p.Ext.DialTCP(netip.AddrPort{}, netip.AddrPortFrom(addr4, servePort))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for range 2 {
		p.wantSecond(t)
		p.run(t, "network", "disconnect", second, "both")
		roundTrip(t, conn)
		p.wantFastIn(t, "udp", netip.AddrPortFrom(addr6, servePort), netip.AddrPortFrom(addr6, servePort))
		p.run(t, "network", "connect", second, "both")
		roundTrip(t, conn)
	}
	p.wantSecond(t)
	p.run(t, "network", "disconnect", network, "both")
	both4, both6, _ := p.addrs(t, "both", second)
	p.wantFastOut(t, p.exec("both"), "tcp", both4, rig.ExtAddr4)
	p.wantFastOut(t, p.exec("both"), "udp", both6, rig.ExtAddr6)
	p.run(t, "rm", "--all", "--force", "--time", "5")
	p.wantState(t, empty)
}

// wantSecond checks that the second network of the container is fast.
func (p *podman) wantSecond(t *testing.T) {
	t.Helper()
	near4, near6, _ := p.addrs(t, "near", second)
	both4, both6, _ := p.addrs(t, "both", second)
	p.wantFastDial(t, p.exec("near"), "tcp", near4, netip.AddrPortFrom(both4, servePort))
	p.wantFastDial(t, p.exec("near"), "udp", near6, netip.AddrPortFrom(both6, servePort))
}

// TestPodmanAddress asks for addresses and for a MAC address (B031).
func TestPodmanAddress(t *testing.T) {
	t.Parallel()
	p := newPodman(t, map[string]any{"capabilities": map[string]any{"ips": true, "mac": true}})
	const ip4, ip6, mac = "10.88.0.77", "2001:db8:88::77", "02:11:22:33:44:55"
	for name, args := range map[string][]string{
		"one": {"--network", network, "--ip", ip4, "--mac-address", mac},
		"two": {"--network", network + ":ip=" + ip4 + ",ip=" + ip6 + ",mac=" + mac},
	} {
		p.start(t, name, args...)
		addr4, addr6, got := p.addrs(t, name, network)
		if addr4.String() != ip4 || got != mac || (name == "two") != (addr6.String() == ip6) {
			t.Errorf("with %v the container has %s, %s and %s", args, addr4, addr6, got)
		}
		if out := p.exec(name)(t, "/bin/ip", "link", "show", rig.PodDev); !strings.Contains(out, mac) {
			t.Errorf("the interface has another MAC address: %s", out)
		}
		p.wantFast(t, name)
		p.run(t, "rm", "--force", "--time", "5", name)
	}
}
