// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/pkg/veth"
)

// Uplink is a device that leads out of the node.
type Uplink struct {
	Name string `json:"name"`
	// Drive is the hook that serves it: xdp, tcx or none.
	Drive datapath.Drive `json:"drive"`
	// Why it is not driven by XDP.
	Why string `json:"why,omitempty"`
	// Obstacles keep flows by this uplink from being learned.
	Obstacles []string `json:"obstacles,omitempty"`
}

// Attachment is the host's end of a pod.
type Attachment struct {
	HostDev     string `json:"hostDev"`
	HostIndex   int    `json:"hostIndex"`
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
	// PodIndex is the index of the pod's end in its own namespace.
	PodIndex int       `json:"podIndex"`
	ToPod    Direction `json:"toPod"`
	FromPod  Direction `json:"fromPod"`
	// Others are programs, filters and queues on the host's end beside our programs.
	Others []string `json:"others,omitempty"`
}

// Direction is one direction of an attachment.
type Direction struct {
	// Fast says that flows in this direction are learned and repeated.
	Fast bool `json:"fast"`
	// Why not.
	Why string `json:"why,omitempty"`
}

const (
	// chained is the network of an attachment that another plugin made.
	chained = "(chained)"

	learnPod    = "xv_learn_pod"
	learnUplink = "xv_learn_uplink"
	tcIn        = "xv_tc_in"
	// notArmed is all that can be known of a direction without our program.
	notArmed = "not armed: opted out, fastPath.mode off, or arming failed (the plugin's logFile says)"
	noQueue  = "noqueue"
)

func listLinks() ([]netlink.Link, error) {
	links, err := netlinksafe.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	return links, nil
}

// linkNames reads the names of all interfaces at once.
func linkNames() (map[int]string, error) {
	links, err := listLinks()
	if err != nil {
		return nil, err
	}
	return namesOf(links), nil
}

func namesOf(links []netlink.Link) map[int]string {
	names := make(map[int]string, len(links))
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	return names
}

// NameOfGone stands for the name of an interface that does not exist any more.
func NameOfGone(index int) string { return fmt.Sprintf("#%d", index) }

func nameOf(names map[int]string, index int) string {
	if name, ok := names[index]; ok {
		return name
	}
	return NameOfGone(index)
}

// readLinks looks at uplinks and at the host ends of pods; d is nil when nothing is
// loaded.
func (n *Node) readLinks(d *datapath.Datapath, links []netlink.Link) error {
	defaults, err := veth.Uplinks()
	if err != nil {
		return err
	}
	pods, err := veth.List("")
	if err != nil {
		return err
	}
	all := make([]device, 0, len(links))
	for _, l := range links {
		h, err := hooks(d, l)
		if gone(err) {
			continue
		}
		if err != nil {
			return err
		}
		all = append(all, device{l, h})
	}
	byXDP := false
	for _, v := range all {
		byXDP = byXDP || datapath.IsOurs(v.XDP)
		if name := v.Attrs().Name; slices.Contains(v.Egress, learnUplink) || slices.Contains(defaults, name) {
			n.addUplink(d, name, v.Hooks)
		}
	}
	for _, v := range all {
		i := slices.IndexFunc(pods, func(a veth.Attachment) bool { return a.HostIndex == v.Attrs().Index })
		switch {
		case i >= 0:
			n.addAttachment(pods[i], v, byXDP)
		case isChained(v.Hooks):
			n.addAttachment(veth.Attachment{
				HostName: v.Attrs().Name, HostIndex: v.Attrs().Index, Network: chained, ContainerID: "-", IfName: "-",
			}, v, byXDP)
		}
	}
	n.judgeLinks(d != nil)
	return nil
}

// isChained says whether xveth-chain armed the host's end of a pair that another plugin
// made: who it belongs to is that plugin's affair.
func isChained(h datapath.Hooks) bool {
	if slices.Contains(h.Egress, learnUplink) {
		return false
	}
	return slices.Contains(h.Egress, learnPod) || slices.Contains(h.Ingress, tcIn)
}

// device is an interface and what is attached to it.
type device struct {
	netlink.Link
	datapath.Hooks
}

func (n *Node) judgeLinks(loaded bool) {
	driven := slices.ContainsFunc(n.Uplinks, func(u Uplink) bool { return u.Drive != datapath.DriveNone })
	fast := slices.ContainsFunc(n.Attachments, func(a Attachment) bool { return a.ToPod.Fast || a.FromPod.Fast })
	switch {
	case loaded && !driven:
		n.problem("see the plugin's logFile; name the uplinks in the configuration (key uplinks)", "no uplink is driven by xveth")
	case !loaded && fast:
		n.problem("add a pod: it loads programs and maps anew and puts them in the place of the old ones",
			"programs run on that nobody can look into: their pins are gone")
	}
}

func hooks(d *datapath.Datapath, l netlink.Link) (datapath.Hooks, error) {
	if d == nil {
		return datapath.HooksOf(l)
	}
	return d.Hooks(l)
}

// gone says whether an interface vanished while it was looked at.
func gone(err error) bool {
	var nf netlink.LinkNotFoundError
	return errors.As(err, &nf) || isNoDevice(err)
}

func (n *Node) addUplink(d *datapath.Datapath, name string, h datapath.Hooks) {
	u := Uplink{Name: name, Drive: datapath.DriveNone, Why: "nothing is loaded"}
	if d != nil {
		u.Drive, u.Why = d.UplinkDrive(name, datapath.WantAuto)
	}
	if u.Drive != datapath.DriveNone {
		if h.XDP != "" && !datapath.IsOurs(h.XDP) {
			n.problem(fmt.Sprintf("remove it (ip link set dev %s xdp off) and add a pod, or live with tcx", name),
				"uplink %s is driven by %s: xdp program %q is somebody else's", name, u.Drive, h.XDP)
		}
		u.Obstacles = behind("egress", h.Egress, h.EgressFilters)
		if u.Drive == datapath.DriveXDP {
			u.Obstacles = append(u.Obstacles, anywhere(h.Ingress, h.IngressFilters)...)
		} else {
			u.Obstacles = append(u.Obstacles, behind("ingress", h.Ingress, h.IngressFilters)...)
		}
		if h.Blocked > 0 {
			u.Obstacles = append(u.Obstacles, "it refused frames a moment ago")
		}
	}
	for _, o := range u.Obstacles {
		n.problem("remove it, or let its owner attach it in front of xveth's", "uplink %s keeps to the kernel: %s", name, o)
	}
	n.Uplinks = append(n.Uplinks, u)
}

func (n *Node) addAttachment(a veth.Attachment, v device, byXDP bool) {
	x := Attachment{
		HostDev: a.HostName, HostIndex: a.HostIndex, PodIndex: v.Attrs().ParentIndex,
		Network: a.Network, ContainerID: a.ContainerID, IfName: a.IfName, Others: others(v.Hooks),
	}
	if a.Unlabelled {
		x.Network, x.ContainerID, x.IfName = "?", "?", "?"
		n.problem("run `xvethctl gc`", "%s is what an ADD left that was killed", a.HostName)
	}
	to, from := slices.Contains(v.Egress, learnPod), slices.Contains(v.Ingress, tcIn)
	x.ToPod = direction(to, v.Qdisc != noQueue && v.Qdisc != "", toPodObstacles(v, byXDP))
	x.FromPod = direction(from, len(v.IngressFilters) > 0, behind("ingress", v.Ingress, v.IngressFilters))
	for _, d := range []struct {
		Direction
		name  string
		armed bool
	}{{x.ToPod, "to", to}, {x.FromPod, "from", from}} {
		if d.armed && !d.Fast {
			n.problem(remedy(d.Why, a.IfName), "traffic %s %s (%s/%s) keeps to the kernel: %s",
				d.name, a.HostName, a.ContainerID, a.IfName, d.Why)
		}
	}
	n.Attachments = append(n.Attachments, x)
}

// toPodObstacles names what keeps flows to a pod from being learned. Only XDP minds a
// pod's end that takes no frames.
func toPodObstacles(v device, byXDP bool) []string {
	all := behind("egress", v.Egress, v.EgressFilters)
	if takes, known := takesFrames(v.Attrs().Index); byXDP && known && !takes {
		all = append(all, "by XDP uplinks, since the pod's end takes no frames (its GRO is off)")
	}
	if v.Blocked > 0 {
		all = append(all, "it refused frames a moment ago")
	}
	return all
}

func remedy(why, ifName string) string {
	if strings.Contains(why, "GRO") {
		return fmt.Sprintf("in the pod: ethtool -K %s gro on", ifName)
	}
	return "remove it, or let its owner attach it in front of xveth's"
}

// direction judges one direction of an attachment. One that is limited on purpose has
// no program of ours.
func direction(armed, limited bool, obstacles []string) Direction {
	switch {
	case !armed && limited:
		return Direction{Why: "its bandwidth is limited"}
	case !armed:
		return Direction{Why: notArmed}
	case len(obstacles) > 0:
		return Direction{Why: strings.Join(obstacles, "; ")}
	case limited:
		return Direction{Why: "it is shaped by somebody else"}
	default:
		return Direction{Fast: true}
	}
}

// behind names what runs behind our program on a hook, where nothing may be learned.
func behind(hook string, progs, filters []string) []string {
	if !slices.ContainsFunc(progs, datapath.IsOurs) {
		return nil
	}
	var all []string
	if last := progs[len(progs)-1]; !datapath.IsOurs(last) {
		all = append(all, fmt.Sprintf("tcx program %q on %s runs behind ours", last, hook))
	}
	for _, f := range filters {
		all = append(all, fmt.Sprintf("a %s filter on %s runs behind ours", f, hook))
	}
	return all
}

// anywhere names what XDP would skip.
func anywhere(progs, filters []string) []string {
	var all []string
	for _, p := range progs {
		if !datapath.IsOurs(p) {
			all = append(all, fmt.Sprintf("tcx program %q would be skipped by xdp", p))
		}
	}
	for _, f := range filters {
		all = append(all, fmt.Sprintf("a %s filter would be skipped by xdp", f))
	}
	return all
}

// others lists what there is on an interface beside our programs.
func others(h datapath.Hooks) []string {
	var all []string
	if h.XDP != "" && !datapath.IsOurs(h.XDP) {
		all = append(all, "xdp "+h.XDP)
	}
	for _, hook := range []struct {
		name           string
		progs, filters []string
	}{{"ingress", h.Ingress, h.IngressFilters}, {"egress", h.Egress, h.EgressFilters}} {
		for _, p := range hook.progs {
			if !datapath.IsOurs(p) {
				all = append(all, "tcx "+hook.name+" "+p)
			}
		}
		for _, f := range hook.filters {
			all = append(all, hook.name+" filter "+f)
		}
	}
	if h.Qdisc != noQueue && h.Qdisc != "" {
		all = append(all, "qdisc "+h.Qdisc)
	}
	return all
}
