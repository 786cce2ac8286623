// SPDX-License-Identifier: Apache-2.0

// Package status finds out what the fast path of a node does and what stands in its
// way, for xvethctl to show. Only GC changes anything. All functions look at the
// network namespace of the calling thread.
package status

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/xveth/xveth/pkg/datapath"
)

// Node is the state of a node's fast path. The JSON names are stable.
type Node struct {
	// Loaded says that programs and maps are pinned; NotLoaded says what is missing.
	Loaded    bool   `json:"loaded"`
	NotLoaded string `json:"notLoaded,omitempty"`
	// Build of the pinned programs, and of those that this binary would load.
	Build    string `json:"build,omitempty"`
	OwnBuild string `json:"ownBuild,omitempty"`

	Settings *Settings `json:"settings,omitempty"`
	// Liberal is the value of nf_conntrack_tcp_be_liberal, "" without conntrack.
	Liberal string `json:"nfConntrackTCPBeLiberal"`

	Programs    []Program    `json:"programs"`
	Uplinks     []Uplink     `json:"uplinks"`
	Attachments []Attachment `json:"attachments"`
	Flows       []Fill       `json:"flows"`
	Counters    []Counter    `json:"counters"`
	Losses      []Loss       `json:"losses"`
	// Degraded lists what keeps the fast path from doing what it could.
	Degraded []Problem `json:"degraded"`
}

// Problem is something that is wrong, and what to do about it.
type Problem struct {
	What string `json:"what"`
	Do   string `json:"do"`
}

// Settings of the node.
type Settings struct {
	Revalidate string `json:"revalidate"`
	// Interval is Revalidate as a number.
	Interval    time.Duration `json:"-"`
	MaxFlows    uint32        `json:"maxFlows"`
	ExcludeMark string        `json:"excludeMark"`
}

// Program is a loaded program. Runs and Nanos are 0 while the kernel does not count.
type Program struct {
	Name  string `json:"name"`
	ID    uint32 `json:"id"`
	Runs  uint64 `json:"runs"`
	Nanos int64  `json:"nanos"`
}

// Fill of one flow map.
type Fill struct {
	Family int    `json:"family"`
	Used   uint32 `json:"used"`
	Max    uint32 `json:"max"`
}

// Counter counts packets that went one way for one reason.
type Counter struct {
	Reason  string `json:"reason"`
	Packets uint64 `json:"packets"`
	Meaning string `json:"meaning"`
}

// Loss counts frames that were lost behind a redirect.
type Loss struct {
	Interface string `json:"interface"`
	Index     int    `json:"index"`
	Cause     string `json:"cause"`
	Frames    uint64 `json:"frames"`
}

const liberalSysctl = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal"

// fullFrom is the share of a flow map from which it counts as full.
const fullFrom = 0.95

// Read finds out the state of the node whose programs are pinned below dir.
func Read(dir string) (*Node, error) { return read(dir, true) }

// Brief is Read without what takes longer the more flows there are: Flows is empty, and
// a flow map that is full goes unnoticed. For those who ask again and again.
func Brief(dir string) (*Node, error) { return read(dir, false) }

func read(dir string, fill bool) (*Node, error) {
	n := &Node{
		Programs: []Program{}, Uplinks: []Uplink{}, Attachments: []Attachment{}, Flows: []Fill{},
		Counters: []Counter{}, Losses: []Loss{}, Degraded: []Problem{},
	}
	links, err := listLinks()
	if err != nil {
		return nil, err
	}
	if value, err := os.ReadFile(liberalSysctl); err == nil {
		n.Liberal = strings.TrimSpace(string(value))
	}
	d, err := datapath.Open(dir)
	if errors.Is(err, datapath.ErrNotLoaded) {
		n.NotLoaded = "not loaded: the next ADD of a pod loads it"
		if err := datapath.Probe(dir); err != nil {
			n.NotLoaded = "not loaded: " + err.Error()
			n.problem("mount a writable BPF file system there (mount -t bpf bpf "+filepath.Dir(dir)+")",
				"the fast path cannot be loaded: %v", err)
		}
		return n, n.readLinks(nil, links)
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	n.Loaded = true
	steps := []func(*datapath.Datapath, []netlink.Link) error{n.readPrograms, n.readLinks, n.readCounters, n.readLosses}
	if fill {
		steps = append(steps, n.readFill)
	}
	for _, step := range steps {
		if err := step(d, links); err != nil {
			return nil, err
		}
	}
	n.judge()
	return n, nil
}

func (n *Node) problem(do, format string, args ...any) {
	n.Degraded = append(n.Degraded, Problem{fmt.Sprintf(format, args...), do})
}

func (n *Node) readPrograms(d *datapath.Datapath, _ []netlink.Link) error {
	pinned, own, err := d.Builds()
	if err != nil {
		return err
	}
	n.Build, n.OwnBuild = fmt.Sprintf("%016x", pinned), fmt.Sprintf("%016x", own)
	s, err := d.Settings()
	if err != nil {
		return err
	}
	n.Settings = &Settings{s.Revalidate.String(), s.Revalidate, s.MaxFlows, fmt.Sprintf("%#x", s.ExcludeMark)}
	progs, err := d.Programs()
	if err != nil {
		return err
	}
	for _, p := range progs {
		n.Programs = append(n.Programs, Program{p.Name, p.ID, p.Runs, p.Time.Nanoseconds()})
	}
	if !d.LossesSeen() {
		n.problem("run the next ADD of a pod with this version", "nothing counts frames that are lost behind a redirect")
	}
	return nil
}

func (n *Node) readFill(d *datapath.Datapath, _ []netlink.Link) error {
	fills, err := d.Fill()
	if err != nil {
		return err
	}
	for _, f := range fills {
		n.Flows = append(n.Flows, Fill{f.Family, f.Used, f.Max})
	}
	return nil
}

func (n *Node) readCounters(d *datapath.Datapath, _ []netlink.Link) error {
	reasons, err := datapath.Reasons()
	if err != nil {
		return err
	}
	counters, err := d.Counters()
	if err != nil {
		return err
	}
	for _, r := range reasons {
		n.Counters = append(n.Counters, Counter{r, counters[r], Meaning(r)})
	}
	return nil
}

func (n *Node) readLosses(d *datapath.Datapath, links []netlink.Link) error {
	losses, err := d.Losses()
	if err != nil {
		return err
	}
	names := namesOf(links)
	for _, l := range losses {
		n.Losses = append(n.Losses, Loss{nameOf(names, l.Ifindex), l.Ifindex, LossCause(l), l.Frames})
	}
	return nil
}

// LossCause says why frames were lost.
func LossCause(l datapath.Loss) string {
	if l.Err != nil {
		return l.Err.Error()
	}
	return "its ring was full"
}

// judge adds what is wrong with the node as a whole.
func (n *Node) judge() {
	if n.Build != n.OwnBuild {
		n.problem("nothing: the next ADD of a pod puts the programs of the plugin's version in their place",
			"the programs are of build %s, this binary's are of build %s", n.Build, n.OwnBuild)
	}
	if n.Liberal == "0" {
		n.problem("sysctl -w net.netfilter.nf_conntrack_tcp_be_liberal=1",
			"no TCP is learned: net.netfilter.nf_conntrack_tcp_be_liberal is 0")
	}
	for _, f := range n.Flows {
		if float64(f.Used) >= fullFrom*float64(f.Max) {
			n.problem("raise fastPath.maxFlows, then run `xvethctl flush --maps`",
				"the IPv%d flow map is full (%d of %d): flows push each other out", f.Family, f.Used, f.Max)
		}
	}
}
