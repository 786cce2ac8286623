// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// metaInPod is what a pod puts before what it echoes, to be told from anybody else.
const metaInPod = "pod:"

// metaCaller sends to a UDP port of the node from one socket, and notes who answers.
type metaCaller struct {
	name string
	conn net.Conn
	// byPod and byNode count the answers.
	byPod, byNode atomic.Int64
}

// call sends from the remote host all the time until the test ends.
func (bed *metaBed) call(t *testing.T, fam, port int) *metaCaller {
	t.Helper()
	c := &metaCaller{
		name: fmt.Sprintf("v%d", fam),
		conn: dial(t, bed.r.Ext, "udp", netip.AddrPortFrom(nodeAddr(fam), uint16(port))),
	}
	done := make(chan struct{})
	t.Cleanup(func() { close(done) })
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				_, _ = c.conn.Write([]byte("hello"))
			}
		}
	}()
	go func() {
		buf := make([]byte, 100)
		for {
			n, err := c.conn.Read(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if strings.HasPrefix(string(buf[:n]), metaInPod) {
				c.byPod.Add(1)
			} else if n > 0 {
				c.byNode.Add(1)
			}
		}
	}()
	return c
}

// answer echoes datagrams with something in front, until the function that it returns is
// called.
func (bed *metaBed) answer(t *testing.T, h *rig.Host, at netip.AddrPort, front string) (stop func()) {
	t.Helper()
	conn := answerUDP(t, h, at, func(_ netip.AddrPort, message []byte) []byte { return append([]byte(front), message...) })
	return func() { conn.Close() }
}

// more waits until a counter has risen, within what the rule allows.
func (c *metaCaller) more(t *testing.T, who string, n *atomic.Int64) {
	t.Helper()
	const within = 2 * time.Second
	start := n.Load()
	eventually(t, within, c.name+": answered by "+who, func() bool { return n.Load() >= start+3 })
}

// isFast says whether datagrams of the caller take the fast path.
func (c *metaCaller) isFast(t *testing.T, d *datapath.Datapath) bool {
	t.Helper()
	f, ok := flow(t, d, protos["udp"], localOf(c.conn), addrPortOf(c.conn.RemoteAddr()))
	return ok && f.Packets > 0
}

// wantNoEntry fails when conntrack still sends a port of the node to a pod.
func (bed *metaBed) wantNoEntry(t *testing.T, pod *rig.Pod, port int) {
	t.Helper()
	for _, fam := range families {
		out := node(t, bed.r, fmt.Sprintf("conntrack -L -f ipv%d -p udp --orig-port-dst %d 2>/dev/null || true", fam, port))
		if addr := addrsOf(pod)[fam].String(); strings.Contains(out, "src="+addr+" ") {
			t.Errorf("conntrack sends port %d to the pod: %s", port, out)
		}
	}
	for _, f := range everyFlow(t, bed.datapath(t)) {
		if f.Live() && slices.Contains([]netip.Addr{pod.Addr4, pod.Addr6}, f.NewDst.Addr()) {
			t.Errorf("a flow leads to the pod: %+v", f)
		}
	}
}

// TestMetaHostPortReleased is B028: a client that never stops sends to a UDP hostPort, and
// its datagrams are fast. When the mapping goes, with the pod or before it, a process of
// the node gets them, and so does the next pod that has the port.
func TestMetaHostPortReleased(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"nftables", "iptables"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			bed := newMetaBed(t, metaList(t, "xveth-portmap.conflist", metaPortmapBy(backend)))
			for name, release := range map[string]func(*testing.T, *rig.Pod, map[string]any){
				"pod deleted": bed.del, "mapping deleted": bed.unmap,
			} {
				// Were the pod's port the node's, an answer that meets no conntrack entry would be
				// masqueraded as the node's own, and what follows be held for answers to it.
				t.Run(name, func(t *testing.T) { bed.released(t, [2]int{8053, 53}, release) })
			}
		})
	}
}

// released runs one client of each family against a pod's port.
func (bed *metaBed) released(t *testing.T, port [2]int, release func(*testing.T, *rig.Pod, map[string]any)) {
	caps := metaPorts(port)
	pod := bed.add(t, "old", caps)
	var callers []*metaCaller
	for _, fam := range families {
		bed.answer(t, pod.Host, netip.AddrPortFrom(addrsOf(pod)[fam], uint16(port[1])), metaInPod)
		callers = append(callers, bed.call(t, fam, port[0]))
	}
	d := bed.datapath(t)
	for _, c := range callers {
		c.more(t, "the pod", &c.byPod)
		eventually(t, 5*time.Second, c.name+": the caller is fast", func() bool { return c.isFast(t, d) })
	}
	release(t, pod, caps)
	var stop []func()
	for _, fam := range families {
		stop = append(stop, bed.answer(t, bed.r.Node, netip.AddrPortFrom(nodeAddr(fam), uint16(port[0])), "node:"))
	}
	for _, c := range callers {
		c.more(t, "the node", &c.byNode)
	}
	bed.wantNoEntry(t, pod, port[0])
	// An answer of the process, on its way while portmap flushes conntrack, would look like a
	// flow of the node's own.
	for _, f := range stop {
		f()
	}
	next := bed.add(t, "next", caps)
	for i, fam := range families {
		bed.answer(t, next.Host, netip.AddrPortFrom(addrsOf(next)[fam], uint16(port[1])), metaInPod)
		callers[i].more(t, "the next pod", &callers[i].byPod)
	}
}

// del removes a pod as a runtime does.
func (bed *metaBed) del(t *testing.T, pod *rig.Pod, caps map[string]any) {
	t.Helper()
	if err := bed.cni.DelNetworkList(ctxOf(t), bed.list, runtimeConf(pod, caps)); err != nil {
		t.Error(err)
	}
}

// unmap removes the mappings of a pod that goes on to answer: what is between the DEL of
// portmap and that of xveth.
func (bed *metaBed) unmap(t *testing.T, pod *rig.Pod, caps map[string]any) {
	t.Helper()
	for _, p := range bed.list.Plugins {
		if p.Network.Type != "portmap" {
			continue
		}
		conf := withKeys(t, p.Bytes, map[string]any{
			"name": bed.list.Name, "cniVersion": bed.list.CNIVersion, "prevResult": pod.Result, "runtimeConfig": caps,
		})
		if _, err := callPlugin(t, bed.r, filepath.Join(testBin(t), "portmap"), "DEL", conf, pod.Env()); err != nil {
			t.Error(err)
		}
	}
}
