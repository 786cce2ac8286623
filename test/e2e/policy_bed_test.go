// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/yaml"

	"github.com/xveth/xveth/pkg/policy"
	"github.com/xveth/xveth/test/rig"
)

const (
	// policyNode is the name of the rig's node.
	policyNode = "n1"
	// letWait bounds the wait for what is allowed, denyWait that for what is not.
	letWait  = 5 * time.Second
	denyWait = 200 * time.Millisecond
)

// policyPorts are open for TCP and UDP on every host of the bed.
var policyPorts = []uint16{53, 80, 7999, 8000, 8005, 8010, 8011, 8080}

// place is where probes start and end.
type place struct {
	host  *rig.Host
	addrs map[int]netip.Addr // by family
}

// policyBed is a node with the pods a, b and c and a remote host that plays a pod of
// another node (far), that node with its pods in the host's network (hostnet), and what is
// outside of the cluster (out). svc is a Service in front of b, nodeport the same at the
// node's address.
type policyBed struct {
	r      *rig.Rig
	places map[string]place
}

func newPolicyBed(t *testing.T, conf map[string]any) *policyBed {
	t.Helper()
	r := newRig(t, conf)
	bed := &policyBed{r: r, places: map[string]place{
		"node":     {r.Node, map[int]netip.Addr{4: rig.NodeAddr4, 6: rig.NodeAddr6}},
		"hostnet":  {r.Ext, map[int]netip.Addr{4: rig.ExtAddr4, 6: rig.ExtAddr6}},
		"far":      {r.Ext, map[int]netip.Addr{4: netip.MustParseAddr("10.88.9.2"), 6: netip.MustParseAddr("2001:db8:89::2")}},
		"out":      {r.Ext, map[int]netip.Addr{4: netip.MustParseAddr("198.51.100.7"), 6: netip.MustParseAddr("2001:db8:ffff::7")}},
		"svc":      {nil, map[int]netip.Addr{4: svcAddr4, 6: svcAddr6}},
		"nodeport": {nil, map[int]netip.Addr{4: rig.NodeAddr4, 6: rig.NodeAddr6}},
	}}
	for _, id := range []string{"a", "b", "c"} {
		p := addPod(t, r, id, nil)
		bed.places[id] = place{p.Host, map[int]netip.Addr{4: p.Addr4, 6: p.Addr6}}
	}
	for _, name := range []string{"far", "out"} {
		for _, a := range bed.places[name].addrs {
			if err := r.Ext.Do(func() error { return rig.AddAddr("lo", netip.PrefixFrom(a, a.BitLen())) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	bed.serve(t)
	applyRules(t, r.Node, "services", bed.services())
	t.Cleanup(func() {
		if err := r.Node.Do(policy.Remove); err != nil {
			t.Error(err)
		}
	})
	return bed
}

// serve opens the ports of every host, and answers SCTP on all of them.
func (bed *policyBed) serve(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	for _, p := range bed.places {
		if p.host == nil {
			continue
		}
		for _, a := range p.addrs {
			for _, port := range policyPorts {
				at := netip.AddrPortFrom(a, port)
				if err := errors.Join(p.host.EchoTCP(ctx, at), p.host.EchoUDP(ctx, at)); err != nil {
					t.Fatal(err)
				}
			}
			answerSCTP(t, p.host, a)
		}
	}
}

// services are translations as kube-proxy makes them.
func (bed *policyBed) services() string {
	var pre, post strings.Builder
	for _, fam := range families {
		ip, b := nftFamily(fam), bed.places["b"].addrs[fam]
		fmt.Fprintf(&pre, "%s daddr %s tcp dport 80 dnat %s to %s\n", ip, bed.places["svc"].addrs[fam], ip, netip.AddrPortFrom(b, 8080))
		fmt.Fprintf(&pre, "%s daddr %s tcp dport 30080 dnat %s to %s\n", ip, nodeAddr(fam), ip, netip.AddrPortFrom(b, 8080))
		fmt.Fprintf(&post, "%[1]s saddr %[2]s %[1]s daddr %[2]s masquerade\n", ip, b)
	}
	return fmt.Sprintf(`
	chain pre { type nat hook prerouting priority dstnat; policy accept;
%s	}
	chain post { type nat hook postrouting priority srcnat - 10; policy accept;
	meta l4proto tcp ct original proto-dst 30080 masquerade
%s	}`, &pre, &post)
}

// enforce runs the controller on the node for the objects until the returned function is
// called; the rules stay. Each is like an agent that has just been started.
func (bed *policyBed) enforce(t *testing.T, objects []k8sruntime.Object) (api *fake.Clientset, c *policy.Controller, end func()) {
	t.Helper()
	api = fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactoryWithOptions(api, 0, informers.WithTransform(policy.Strip))
	var said bytes.Buffer
	c, err := policy.New(policyNode, factory, slog.New(slog.NewTextHandler(&said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	factory.Start(ctx.Done())
	done := make(chan error, 1)
	go func() { // on a thread of its own, which stays on the node and ends with it
		runtime.LockOSThread()
		if err := unix.Setns(bed.r.Node.NetnsFD(), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- c.Run(ctx)
	}()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		factory.Shutdown()
		if said.Len() > 0 {
			t.Errorf("the controller says:\n%s", &said)
		}
	})
	t.Cleanup(end)
	eventually(t, letWait, "the rules are written", c.Synced)
	return api, c, end
}

// policyObjects is a cluster.
type policyObjects struct {
	pods       map[string]*corev1.Pod
	namespaces map[string]*corev1.Namespace
	policies   []*networkingv1.NetworkPolicy
}

func (o *policyObjects) list() (all []k8sruntime.Object) {
	for _, p := range o.pods {
		all = append(all, p)
	}
	for _, n := range o.namespaces {
		all = append(all, n)
	}
	for _, p := range o.policies {
		all = append(all, p)
	}
	return all
}

// policyCluster is the cluster of every case. The port "http" is another of each pod.
const policyCluster = `
metadata: {namespace: shop, name: a, labels: {app: client}}
spec: {nodeName: n1, containers: [{name: c, ports: [{name: http, containerPort: 80}]}]}
---
metadata: {namespace: shop, name: b, labels: {app: server, tier: back}}
spec:
  nodeName: n1
  containers:
  - name: c
    ports:
    - {name: http, containerPort: 8080}
    - {name: dns, containerPort: 53, protocol: UDP}
---
metadata: {namespace: other, name: c, labels: {app: client}}
spec: {nodeName: n1, containers: [{name: c, ports: [{name: http, containerPort: 8005}]}]}
---
metadata: {namespace: other, name: far, labels: {app: far}}
spec: {nodeName: n2, containers: [{name: c, ports: [{name: http, containerPort: 8000}]}]}
---
metadata: {namespace: shop, name: hostnet, labels: {app: client}}
spec: {nodeName: n2, hostNetwork: true, containers: [{name: c, ports: [{name: http, containerPort: 80}]}]}
`

// cluster returns the objects of a case.
func (bed *policyBed) cluster(t *testing.T, policies string) *policyObjects {
	t.Helper()
	o := &policyObjects{pods: map[string]*corev1.Pod{}, namespaces: map[string]*corev1.Namespace{}}
	for name, team := range map[string]string{"shop": "red", "other": "blue"} {
		ns := &corev1.Namespace{}
		ns.Name, ns.Labels = name, map[string]string{"team": team}
		o.namespaces[name] = ns
	}
	for _, p := range readObjects[corev1.Pod](t, policyCluster) {
		p.Status.Phase = corev1.PodRunning
		for _, fam := range families {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: bed.places[p.Name].addrs[fam].String()})
		}
		o.pods[p.Name] = p
	}
	o.policies = readObjects[networkingv1.NetworkPolicy](t, policies)
	return o
}

// readObjects reads a stream of YAML. Objects without a namespace are of shop, without a
// name they are numbered.
func readObjects[T any, P interface {
	*T
	GetName() string
	GetNamespace() string
	SetName(string)
	SetNamespace(string)
}](t *testing.T, text string) (out []P) {
	t.Helper()
	for i, doc := range strings.Split(text, "\n---\n") {
		if strings.TrimSpace(doc) == "" {
			continue
		}
		o := P(new(T))
		if err := yaml.UnmarshalStrict([]byte(strings.ReplaceAll(doc, "\t", " ")), o); err != nil {
			t.Fatalf("%v:\n%s", err, doc)
		}
		if o.GetNamespace() == "" {
			o.SetNamespace("shop")
		}
		if o.GetName() == "" {
			o.SetName(fmt.Sprintf("p%d", i))
		}
		out = append(out, o)
	}
	return out
}

// probe is a try to reach something, written "a>b tcp/80", or "a>b tcp/80 v4" for one
// family only.
type probe struct {
	from, to, proto string
	port            uint16
	families        []int
}

func readProbe(t *testing.T, s string) probe {
	t.Helper()
	p := probe{families: families}
	f := strings.Fields(s)
	ends := strings.Split(f[0], ">")
	var port string
	p.from, p.to = ends[0], ends[1]
	p.proto, port, _ = strings.Cut(f[1], "/")
	if port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			t.Fatalf("probe %q: %v", s, err)
		}
		p.port = uint16(n)
	}
	if len(f) == 3 {
		p.families = map[string][]int{"v4": {4}, "v6": {6}}[f[2]]
	}
	return p
}

// check runs probes at once. Those that are denied wait for a while without an answer.
func (bed *policyBed) check(t *testing.T, allowed, denied []string) {
	t.Helper()
	var wg sync.WaitGroup
	for want, list := range map[bool][]string{true: allowed, false: denied} {
		for _, s := range list {
			p := readProbe(t, s)
			for _, fam := range p.families {
				wg.Go(func() {
					wait := denyWait
					if want {
						wait = letWait
					}
					if err := bed.try(p, fam, wait); (err == nil) != want {
						t.Errorf("%s v%d: allowed must be %t: %v", s, fam, want, err)
					}
				})
			}
		}
	}
	wg.Wait()
}

// try returns nil when the probe has its answers.
func (bed *policyBed) try(p probe, fam int, wait time.Duration) error {
	from, ok := bed.places[p.from]
	to, ok2 := bed.places[p.to]
	if !ok || !ok2 {
		return fmt.Errorf("no place %q or %q", p.from, p.to)
	}
	src, dst := from.addrs[fam], netip.AddrPortFrom(to.addrs[fam], p.port)
	switch p.proto {
	case "tcp":
		return tryTCP(from.host, src, dst, wait)
	case "udp":
		return tryUDP(from.host, src, dst, wait)
	case "sctp":
		return trySCTP(from.host, src, dst, wait)
	case "icmp":
		_, err := from.host.Run(context.Background(), "ping", "-c", "1", "-W", fmt.Sprint(wait.Seconds()), "-I", src.String(), dst.Addr().String())
		return err
	}
	return fmt.Errorf("no protocol %q", p.proto)
}

// rounds are enough for a flow to be learned.
const rounds = 8

func tryUDP(h *rig.Host, src netip.Addr, to netip.AddrPort, wait time.Duration) error {
	conn, err := h.DialUDP(netip.AddrPortFrom(src, 0), to)
	if err != nil {
		return err
	}
	defer conn.Close()
	for range rounds {
		if _, err := rig.RoundTrip(conn, []byte("policy"), wait); err != nil {
			return err
		}
	}
	return nil
}

func tryTCP(h *rig.Host, src netip.Addr, to netip.AddrPort, wait time.Duration) error {
	conn, err := startTCP(h, src, to, wait)
	if err != nil {
		return err
	}
	defer conn.Close()
	for range rounds {
		if _, err := rig.RoundTrip(conn, []byte("policy"), wait); err != nil {
			return err
		}
	}
	return nil
}

// startTCP connects like DialTCP, but other calls on the host need not wait for it.
func startTCP(h *rig.Host, src netip.Addr, to netip.AddrPort, wait time.Duration) (net.Conn, error) {
	family, local, remote := unix.AF_INET, sockaddr(netip.AddrPortFrom(src, 0)), sockaddr(to)
	if src.Is6() {
		family = unix.AF_INET6
	}
	fd := -1
	err := h.Do(func() (err error) {
		if fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err := unix.Bind(fd, local); err != nil {
			return err
		}
		if err := unix.Connect(fd, remote); !errors.Is(err, unix.EINPROGRESS) {
			return err
		}
		return nil
	})
	f := os.NewFile(uintptr(fd), "tcp")
	defer f.Close()
	if err != nil {
		return nil, err
	}
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(wait.Milliseconds()))
	if err != nil || n == 0 {
		return nil, fmt.Errorf("connect: no answer: %w", errors.Join(os.ErrDeadlineExceeded, err))
	}
	if code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || code != 0 {
		return nil, fmt.Errorf("connect: %w", errors.Join(unix.Errno(code), err))
	}
	return net.FileConn(f)
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// Chunks of SCTP. Kernels of tests need not have SCTP sockets, so these are raw.
const (
	sctpInit    = 1
	sctpInitAck = 2
)

// sctpPacket is an INIT, or the answer to one.
func sctpPacket(from, to uint16, tag uint32, chunk byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, from)
	b = binary.BigEndian.AppendUint16(b, to)
	b = binary.BigEndian.AppendUint32(b, tag)
	b = append(b, 0, 0, 0, 0) // checksum
	b = append(b, chunk, 0, 0, 20)
	b = binary.BigEndian.AppendUint32(b, 0x10203040) // initiate tag
	b = binary.BigEndian.AppendUint32(b, 65536)      // window
	b = append(b, 0, 1, 0, 1, 0, 0, 0, 1)            // streams, first number
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

func listenSCTP(h *rig.Host, a netip.Addr) (conn *net.IPConn, err error) {
	err = h.Do(func() error {
		conn, err = net.ListenIP("ip:132", &net.IPAddr{IP: a.AsSlice()})
		return err
	})
	return conn, err
}

// readSCTP returns the ports, the initiate tag and the chunk of the next packet.
func readSCTP(conn *net.IPConn) (from net.Addr, src, dst uint16, tag uint32, chunk byte, err error) {
	b := make([]byte, 2048)
	n, from, err := conn.ReadFrom(b)
	if err == nil && n < 20 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return from, 0, 0, 0, 0, err
	}
	return from, binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]), binary.BigEndian.Uint32(b[16:]), b[12], nil
}

// answerSCTP answers associations on every port of an address until the test ends.
func answerSCTP(t *testing.T, h *rig.Host, a netip.Addr) {
	t.Helper()
	conn, err := listenSCTP(h, a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		for {
			from, src, dst, tag, chunk, err := readSCTP(conn)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil && chunk == sctpInit {
				_, _ = conn.WriteTo(sctpPacket(dst, src, tag, sctpInitAck), from)
			}
		}
	}()
}

// sctpPort is the last one that a probe came from. Raw sockets have none of their own.
var sctpPort struct {
	sync.Mutex
	last uint16
}

func trySCTP(h *rig.Host, src netip.Addr, to netip.AddrPort, wait time.Duration) error {
	sctpPort.Lock()
	sctpPort.last++
	mine := 20000 + sctpPort.last%20000
	sctpPort.Unlock()
	conn, err := listenSCTP(h, src)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(wait)); err != nil {
		return err
	}
	if _, err := conn.WriteTo(sctpPacket(mine, to.Port(), 0, sctpInit), &net.IPAddr{IP: to.Addr().AsSlice()}); err != nil {
		return err
	}
	for {
		_, _, dst, _, chunk, err := readSCTP(conn)
		if err != nil {
			return err
		}
		if dst == mine && chunk == sctpInitAck {
			return nil
		}
	}
}
