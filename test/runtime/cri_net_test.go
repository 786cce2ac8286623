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

// ready is what containerd says of the node's network, with its reason.
func (c *containerd) ready(t *testing.T) (bool, string) {
	t.Helper()
	var info struct {
		Status struct {
			Conditions []struct {
				Type, Reason, Message string
				Status                bool
			}
		}
	}
	if err := json.Unmarshal([]byte(c.crictl(t, "info")), &info); err != nil {
		t.Fatal(err)
	}
	for _, cond := range info.Status.Conditions {
		if cond.Type == "NetworkReady" {
			return cond.Status, cond.Reason + ": " + cond.Message
		}
	}
	t.Fatal("containerd says nothing of the network")
	return false, ""
}

// waitReady waits until containerd finds the network ready, or finds it not ready for a
// reason.
func (c *containerd) waitReady(t *testing.T, want bool, reason string) {
	t.Helper()
	eventually(t, startWait, fmt.Sprintf("the network is ready: %v %s", want, reason), func() bool {
		is, why := c.ready(t)
		return is == want && strings.Contains(why, reason)
	})
}

// TestCRIReady is B014: containerd tells whether the network is ready, and why not: when it
// has no configuration and, with a version that calls STATUS, when no address is free.
func TestCRIReady(t *testing.T) {
	eachContainerd(t, func(t *testing.T, c *containerd) {
		c.waitReady(t, true, "")
		if err := os.Remove(filepath.Join(c.confDir, netFile)); err != nil {
			t.Fatal(err)
		}
		c.waitReady(t, false, "cni")
		c.writeNet(t, c.cni, map[string]any{"ipam": map[string]any{
			"type": "host-local", "ranges": [][]map[string]string{{{"subnet": "10.88.0.0/30"}}},
		}})
		c.waitReady(t, true, "")
		p := c.addPod(t, "only", nil)
		// Before version 1.1 there is no STATUS, and the network stays ready.
		c.waitReady(t, c.cni < "1.1.0", map[bool]string{true: "no free address"}[c.cni >= "1.1.0"])
		if _, err := c.tryPod(t, "more", nil); err == nil || !strings.Contains(err.Error(), "no IP addresses available") {
			t.Errorf("a pod without an address: %v", err)
		}
		c.remove(t, p)
		c.waitReady(t, true, "")
	})
}

// TestCRIChainFails is B004: a later plugin fails ADD, or ADD and DEL. The runtime's DEL
// takes everything back. Where it cannot, containerd 1 keeps the pods, and containerd 2
// drops them: then a range of 5 addresses lasts for more pods than that. A pod gets its
// network as soon as the plugin no longer fails.
func TestCRIChainFails(t *testing.T) {
	eachContainerd(t, func(t *testing.T, c *containerd) {
		c.link(t, bins.guest, "hold")
		small := map[string]any{"ipam": map[string]any{
			"type": "host-local", "ranges": [][]map[string]string{{{"subnet": "10.88.0.0/29"}}},
			"routes": []map[string]string{{"dst": "0.0.0.0/0"}},
		}}
		empty := c.state(t)
		for i, fail := range [][]string{{"ADD"}, {"ADD", "DEL"}} {
			c.writeNet(t, c.cni, small, map[string]any{"type": "hold", "fail": fail})
			c.reload(t)
			for n := 0; n < 7 && len(c.pods(t)) < 4; n++ {
				_, err := c.tryPod(t, fmt.Sprintf("fails%d-%d", i, n), nil)
				if err == nil || !strings.Contains(err.Error(), "as always") {
					t.Errorf("pod %d with %v failing: %v", n, fail, err)
				}
			}
			if i == 0 {
				c.wantState(t, empty)
			}
		}
		c.writeNet(t, c.cni, small)
		c.reload(t)
		c.removeAll(t)
		p := c.addPod(t, "works", nil)
		c.wantFastIn(t, "tcp", p.inBoth()[0], p.inBoth()[0])
		c.remove(t, p)
		// What has no owner goes as soon as somebody says who lives.
		c.gc(t, small)
		c.wantState(t, empty)
	})
}

// gc tells the plugin that no attachment of the network is valid.
func (c *containerd) gc(t *testing.T, conf map[string]any) {
	t.Helper()
	changes := map[string]any{"cni.dev/valid-attachments": []any{}}
	for k, v := range conf {
		changes[k] = v
	}
	if _, err := c.Plugin(ctxOf(t), "GC", c.Conf(changes), nil); err != nil {
		t.Error(err)
	}
}

// TestCRIBandwidth asks containerd for a limit by the annotation of Kubernetes, which has a
// rate and no burst (B030). The limit is in force, and packets in its direction stay with
// the kernel; the other direction is fast.
func TestCRIBandwidth(t *testing.T) {
	eachContainerd(t, func(t *testing.T, c *containerd) {
		c.writeNet(t, c.cni, map[string]any{"capabilities": map[string]any{"bandwidth": true}})
		c.reload(t)
		p := c.addPod(t, "limited", map[string]any{"annotations": map[string]any{"kubernetes.io/ingress-bandwidth": "10M"}})
		if out := c.sh(t, "tc qdisc show"); !strings.Contains(out, "tbf") || !strings.Contains(out, "rate 10Mbit") {
			t.Errorf("the limit is not there: %s", out)
		}
		at := p.inBoth()[0]
		d := c.datapath(t)
		conn, err := c.Ext.DialUDP(netip.AddrPort{}, at)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		src := netip.MustParseAddrPort(conn.LocalAddr().String())
		eventually(t, warmWait, "what the pod sends is fast", func() bool {
			for range burst {
				roundTrip(t, conn)
			}
			return fast(t, d, "udp", at, src) >= fastEnough
		})
		if got := flows(t, d, "udp", src, at); len(got) != 0 {
			t.Errorf("what is limited is fast too: %+v", got)
		}
		c.remove(t, p)
	})
}

// TestCRIHostPort publishes a port of a pod, which the real portmap does behind xveth.
func TestCRIHostPort(t *testing.T) {
	const tcp, udp, port = 0, 1, 8080
	eachContainerd(t, func(t *testing.T, c *containerd) {
		c.writeNet(t, c.cni, nil, map[string]any{
			"type": "portmap", "capabilities": map[string]any{"portMappings": true}, "backend": "nftables",
		})
		c.reload(t)
		p := c.addPod(t, "published", map[string]any{"port_mappings": []map[string]any{
			{"protocol": tcp, "container_port": servePort, "host_port": port},
			{"protocol": udp, "container_port": servePort, "host_port": port},
		}})
		for i, node := range []netip.Addr{rig.NodeAddr4, rig.NodeAddr6} {
			for _, network := range []string{"tcp", "udp"} {
				c.wantFastIn(t, network, netip.AddrPortFrom(node, port), p.inBoth()[i])
			}
		}
		c.remove(t, p)
		if conn, err := c.Ext.DialTCP(netip.AddrPort{}, netip.AddrPortFrom(rig.NodeAddr4, port)); err == nil {
			conn.Close()
			t.Error("the port is still open")
		}
		c.sh(t, "nft delete table ip cni_hostport; nft delete table ip6 cni_hostport") // portmap leaves them by design
	})
}

// TestCRINamespaceLost removes pods whose namespace has lost its path, or is gone with all
// its processes (B001).
func TestCRINamespaceLost(t *testing.T) {
	eachContainerd(t, func(t *testing.T, c *containerd) {
		empty := c.state(t)
		for name, lose := range map[string]func(p *pod){
			"path":      func(p *pod) { c.sh(t, "umount "+p.netns+" && rm "+p.netns) },
			"processes": func(p *pod) { c.sh(t, "umount "+p.netns+" && rm "+p.netns+" && "+killPod(c, t, p)) },
		} {
			p := c.addPod(t, name, nil)
			c.wantFastIn(t, "udp", p.inBoth()[0], p.inBoth()[0])
			lose(p)
			c.remove(t, p)
			eventually(t, startWait, "the dead namespace is gone", func() bool { return c.state(t) == empty })
		}
	})
}

// killPod is a command that kills all processes of a pod.
func killPod(c *containerd, t *testing.T, p *pod) string {
	t.Helper()
	var pids []string
	for _, verb := range [][]string{{"inspectp", p.id}, {"inspect", p.container}} {
		var out struct{ Info struct{ Pid int } }
		if err := json.Unmarshal([]byte(c.crictl(t, verb[0], "--output", "json", verb[1])), &out); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, fmt.Sprint(out.Info.Pid))
	}
	// With the first process of its PID namespace the others may be gone already.
	return "{ kill -9 " + strings.Join(pids, " ") + " || true; }"
}

// TestCRIReboot is B005: the node reboots with its pods. containerd finds them dead, and
// removing them frees their addresses.
func TestCRIReboot(t *testing.T) {
	eachContainerd(t, func(t *testing.T, c *containerd) {
		empty := c.state(t)
		for i := range 3 {
			c.addPod(t, fmt.Sprintf("old%d", i), nil)
		}
		c.reboot(t)
		c.start(t)
		if got := c.reserved(t, network); len(got) != 6 {
			t.Errorf("reserved are %v, want the addresses of 3 pods", got)
		}
		fresh := c.addPod(t, "fresh", nil)
		for _, id := range c.pods(t, "--state", "NotReady") {
			c.crictl(t, "stopp", id)
			c.crictl(t, "rmp", id)
		}
		if got := c.reserved(t, network); len(got) != 2 {
			t.Errorf("reserved are %v, want the addresses of 1 pod", got)
		}
		c.wantFastIn(t, "udp", fresh.inBoth()[0], fresh.inBoth()[0])
		c.remove(t, fresh)
		c.wantState(t, empty)
	})
}

// TestCRIChained has xveth-chain at the end of other plugins' lists, whose result the runtime
// gets unchanged (B026), and whose pods become fast.
func TestCRIChained(t *testing.T) {
	ipam := rig.DefaultConf()["ipam"]
	eachContainerd(t, func(t *testing.T, c *containerd) {
		empty := c.state(t)
		for name, first := range map[string]map[string]any{
			"ptp":    {"type": "ptp", "ipam": ipam},
			"bridge": {"type": "bridge", "bridge": "br-cni", "isGateway": true, "ipam": ipam},
		} {
			c.writeList(t, netFile, network, c.cni, first, map[string]any{
				"type": "xveth-chain", "required": true, "uplinks": rig.DefaultConf()["uplinks"],
			})
			c.reload(t)
			p := c.addPod(t, name, nil)
			c.wantFast(t, p)
			c.remove(t, p)
		}
		c.sh(t, "ip link del br-cni") // the bridge plugin leaves it by design
		c.wantState(t, empty)
	})
}
