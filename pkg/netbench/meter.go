// SPDX-License-Identifier: Apache-2.0

package netbench

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"

	"github.com/xveth/xveth/pkg/bench/result"
	"github.com/xveth/xveth/test/rig"
)

// meter looks at the machine and at a bed before and after a measurement: the processors'
// time by kind, and what was lost where.
type meter struct {
	bed    *bed
	began  time.Time
	cpu    cpuTimes
	drops  map[string]uint64
	places []string

	// What stop found.
	took     time.Duration
	spent    cpuTimes
	lost     map[string]uint64
	measured bool
}

func (m *meter) start() error {
	var err error
	if m.drops, err = m.readDrops(); err != nil {
		return err
	}
	if m.cpu, err = readCPU(); err != nil {
		return err
	}
	m.began = time.Now()
	return nil
}

func (m *meter) stop() error {
	m.took = time.Since(m.began)
	after, err := readCPU()
	if err != nil {
		return err
	}
	m.spent = after.minus(m.cpu)
	drops, err := m.readDrops()
	if err != nil {
		return err
	}
	m.lost = map[string]uint64{}
	for _, place := range m.places {
		if n := drops[place] - m.drops[place]; n > 0 {
			m.lost[place] = n
		}
	}
	m.measured = true
	return nil
}

// kinds of processor time, as /proc/stat has them.
const (
	cpuUser    = result.CPUPrefix + "user"
	cpuSystem  = result.CPUPrefix + "system"
	cpuSoftirq = result.CPUPrefix + "softirq"
	cpuIdle    = result.CPUPrefix + "idle"
)

var cpuKinds = []string{cpuUser, cpuSystem, cpuSoftirq, cpuIdle}

// cpuTimes are the ticks of all processors by kind.
type cpuTimes map[string]uint64

func (t cpuTimes) minus(before cpuTimes) cpuTimes {
	d := cpuTimes{}
	for k, v := range t {
		d[k] = v - before[k]
	}
	return d
}

// share is a kind's part of all, in percent of the machine.
func (t cpuTimes) share(kind string) float64 {
	var sum uint64
	for _, v := range t {
		sum += v
	}
	if sum == 0 {
		return 0
	}
	return 100 * float64(t[kind]) / float64(sum)
}

func readCPU() (cpuTimes, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return nil, fmt.Errorf("read processor times: %w", err)
	}
	return parseCPU(stat)
}

// parseCPU reads the first line of /proc/stat. What a hypervisor took counts as nothing:
// nobody here had it.
func parseCPU(stat []byte) (cpuTimes, error) {
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	f := strings.Fields(string(line))
	if len(f) < 8 || f[0] != "cpu" {
		return nil, fmt.Errorf("read processor times: %q is not the line of all processors", line)
	}
	v := make([]uint64, len(f))
	for i := 1; i < len(f); i++ {
		var err error
		if v[i], err = strconv.ParseUint(f[i], 10, 64); err != nil {
			return nil, fmt.Errorf("read processor times: %w", err)
		}
	}
	return cpuTimes{
		cpuUser: v[1] + v[2], cpuSystem: v[3], cpuIdle: v[4] + v[5], cpuSoftirq: v[6] + v[7],
	}, nil
}

// readDrops reads the counters of lost packets on a bed, by place.
func (m *meter) readDrops() (map[string]uint64, error) {
	all := map[string]uint64{}
	m.places = m.places[:0]
	note := func(place string, n uint64) {
		if _, have := all[place]; !have {
			m.places = append(m.places, place)
		}
		all[place] += n
	}
	if m.bed == nil {
		return all, nil
	}
	b := m.bed
	for _, h := range []*rig.Host{b.rig.Ext, b.rig.Wire, b.rig.Node} {
		if err := h.Do(func() error { return linkDrops(h.Name, note) }); err != nil {
			return nil, err
		}
	}
	for _, p := range b.pods[:min(len(b.pods), podsLookedAt)] {
		err := p.Do(func() error { return errors.Join(linkDrops("pod", note), socketDrops("pod", note)) })
		if err != nil {
			return nil, err
		}
	}
	return all, backlogDrops(note)
}

// podsLookedAt is of how many pods the lost packets are counted; traffic goes to the first.
const podsLookedAt = 2

// linkDrops reads the interfaces of the calling thread's namespace. What a pair of veths
// loses between its ends, where the ring of the other is full, counts at the sending end.
// Those of pods on the node count as one place.
func linkDrops(host string, note func(string, uint64)) error {
	links, err := netlinksafe.LinkList()
	if err != nil {
		return fmt.Errorf("read interfaces of %q: %w", host, err)
	}
	for _, l := range links {
		s, name := l.Attrs().Statistics, l.Attrs().Name
		if s == nil || l.Type() != "veth" {
			continue
		}
		switch {
		case name == rig.WireNode:
			name = "wire to uplink"
		case name == rig.WireExt:
			name = "wire to remote host"
		case name == rig.ExtDev:
			name = "remote host to wire"
		case host == "pod":
			name = "pod to node"
		case name == rig.Uplink:
			name = "uplink to wire"
		default:
			name = "node to pod"
		}
		note(name, s.TxDropped)
	}
	return nil
}

// socketDrops reads what found the buffer of its UDP socket full, in the calling thread's
// namespace.
func socketDrops(host string, note func(string, uint64)) error {
	snmp, err := os.ReadFile("/proc/thread-self/net/snmp")
	if err != nil {
		return fmt.Errorf("read counters of sockets: %w", err)
	}
	n, err := parseSNMP(snmp, "Udp", "RcvbufErrors")
	note(host+" socket", n)
	return err
}

// parseSNMP finds a counter in /proc/net/snmp, where a line of names comes before each line
// of values.
func parseSNMP(snmp []byte, proto, name string) (uint64, error) {
	var names []string
	for line := range strings.Lines(string(snmp)) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] != proto+":" {
			continue
		}
		if names == nil {
			names = f
			continue
		}
		for i := 1; i < len(f) && i < len(names); i++ {
			if names[i] == name {
				return strconv.ParseUint(f[i], 10, 64)
			}
		}
	}
	return 0, fmt.Errorf("read counters of sockets: there is no %s %s", proto, name)
}

// backlogDrops reads what found the processors' backlogs full, of the whole machine.
func backlogDrops(note func(string, uint64)) error {
	stat, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		return fmt.Errorf("read the backlogs: %w", err)
	}
	for line := range strings.Lines(string(stat)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			return fmt.Errorf("read the backlogs: %q", line)
		}
		n, err := strconv.ParseUint(f[1], 16, 64)
		if err != nil {
			return fmt.Errorf("read the backlogs: %w", err)
		}
		note("backlog", n)
	}
	return nil
}
