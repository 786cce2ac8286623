// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/pkg/datapath"
)

// Flow is a learned flow as xvethctl shows it. The JSON names are stable.
type Flow struct {
	// Proto is "tcp" or "udp".
	Proto string `json:"proto"`
	// In is the name of the interface that packets come in by, Out that of the one
	// they leave by; "#7" is the index of one that is gone.
	In       string `json:"in"`
	InIndex  int    `json:"inIndex"`
	Out      string `json:"out"`
	OutIndex int    `json:"outIndex"`
	// Src and Dst as packets come in, NewSrc and NewDst as they leave.
	Src    netip.AddrPort `json:"src"`
	Dst    netip.AddrPort `json:"dst"`
	NewSrc netip.AddrPort `json:"newSrc"`
	NewDst netip.AddrPort `json:"newDst"`
	// NAT says that an address or port changes on the way.
	NAT bool `json:"nat"`
	// Routed says that the TTL falls by one.
	Routed bool `json:"routed"`
	// ToPod says that packets go straight to the pod's end of the veth.
	ToPod bool `json:"toPod"`
	// Bounce says that packets leave by the interface they came in on.
	Bounce bool `json:"bounce"`
	// Bridged says that a bridge forwards them, with their MAC addresses.
	Bridged bool `json:"bridged"`
	// SrcMAC and DstMAC of the frames that leave.
	SrcMAC string `json:"srcMAC"`
	DstMAC string `json:"dstMAC"`
	// MaxLen is the longest IP packet in bytes that takes the fast path.
	MaxLen int `json:"maxLen"`
	// Age in seconds since the flow was learned.
	Age float64 `json:"age"`
	// Left is the time in seconds until the kernel has to confirm the flow; it is
	// negative when that is overdue.
	Left float64 `json:"left"`
	// Live says whether packets take the fast path now.
	Live bool `json:"live"`
	// Packets and Bytes that took the fast path; bytes are of IP packets.
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// FlowFilter says which flows are meant; the zero value means those that are live.
type FlowFilter struct {
	// Pod is an address at either end, before or after translation.
	Pod netip.Addr
	// Port is a port at either end, before or after translation.
	Port uint16
	// Proto is the IP protocol number.
	Proto uint8
	// All includes flows that wait for the kernel's confirmation.
	All bool
}

// Match says whether a flow is meant.
func (f FlowFilter) Match(x *datapath.Flow) bool {
	ends := []netip.AddrPort{x.Src, x.Dst, x.NewSrc, x.NewDst}
	return (f.All || x.Live()) &&
		(f.Proto == 0 || f.Proto == x.Proto) &&
		(!f.Pod.IsValid() || slices.ContainsFunc(ends, func(e netip.AddrPort) bool { return e.Addr() == f.Pod.Unmap() })) &&
		(f.Port == 0 || slices.ContainsFunc(ends, func(e netip.AddrPort) bool { return e.Port() == f.Port }))
}

// Flows reads the learned flows that a filter lets through. Interfaces get their names
// from the network namespace of the calling thread.
func Flows(d *datapath.Datapath, filter FlowFilter) ([]Flow, error) {
	names, err := linkNames()
	if err != nil {
		return nil, err
	}
	all := []Flow{}
	for f, err := range d.Flows() {
		if err != nil {
			return nil, err
		}
		if filter.Match(&f) {
			all = append(all, flowOf(&f, names))
		}
	}
	return all, nil
}

func flowOf(f *datapath.Flow, names map[int]string) Flow {
	return Flow{
		Proto: ProtoName(f.Proto),
		In:    nameOf(names, f.In), InIndex: f.In,
		Out: nameOf(names, f.Out), OutIndex: f.Out,
		Src: f.Src, Dst: f.Dst, NewSrc: f.NewSrc, NewDst: f.NewDst,
		NAT: f.NAT, Routed: f.Routed, ToPod: f.ToPod, Bounce: f.Bounce, Bridged: f.Bridged,
		SrcMAC: f.SrcMAC.String(), DstMAC: f.DstMAC.String(),
		MaxLen: f.MaxLen, Age: f.Age.Seconds(), Left: f.Left.Seconds(), Live: f.Live(),
		Packets: f.Packets, Bytes: f.Bytes,
	}
}

// protocols that are learned.
var protocols = map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP}

// ParseProto reads the name of a protocol that is learned.
func ParseProto(name string) (uint8, error) {
	n, ok := protocols[name]
	if !ok {
		return 0, fmt.Errorf("protocol %q: want tcp or udp", name)
	}
	return n, nil
}

// ProtoName is the name of a protocol that is learned, or its number.
func ProtoName(n uint8) string {
	for name, have := range protocols {
		if have == n {
			return name
		}
	}
	return strconv.Itoa(int(n))
}

// sortKeys are what flows can be sorted by; amounts with the greatest first.
var sortKeys = map[string]func(a, b Flow) int{
	"age":     func(a, b Flow) int { return cmp.Compare(b.Age, a.Age) },
	"bytes":   func(a, b Flow) int { return cmp.Compare(b.Bytes, a.Bytes) },
	"dst":     func(a, b Flow) int { return a.Dst.Compare(b.Dst) },
	"left":    func(a, b Flow) int { return cmp.Compare(b.Left, a.Left) },
	"packets": func(a, b Flow) int { return cmp.Compare(b.Packets, a.Packets) },
	"src":     func(a, b Flow) int { return a.Src.Compare(b.Src) },
}

// SortFlows sorts by one of the SortKeys; flows that are equal in it by their tuple.
func SortFlows(all []Flow, by string) error {
	less, ok := sortKeys[by]
	if !ok {
		return fmt.Errorf("sort by %q: want one of %v", by, SortKeys())
	}
	slices.SortFunc(all, func(a, b Flow) int {
		return cmp.Or(less(a, b), a.Src.Compare(b.Src), a.Dst.Compare(b.Dst),
			cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.InIndex, b.InIndex))
	})
	return nil
}

// SortKeys lists what flows can be sorted by.
func SortKeys() []string {
	keys := make([]string, 0, len(sortKeys))
	for k := range sortKeys {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// WriteFlows prints flows as a table.
func WriteFlows(w io.Writer, all []Flow) error {
	t := newTable(w)
	fmt.Fprintln(t, "PROTO\tIN\tSOURCE\tDESTINATION\tOUT\tLEAVES AS\tAGE\tLEFT\tPACKETS\tBYTES")
	for _, f := range all {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\n", f.Proto, f.In, f.Src, f.Dst, f.Out,
			f.translation(), seconds(f.Age), f.left(), f.Packets, f.Bytes)
	}
	return t.Flush()
}

// translation names the ends that change, the others are "=".
func (f *Flow) translation() string {
	if !f.NAT {
		return "="
	}
	src, dst := "=", "="
	if f.NewSrc != f.Src {
		src = f.NewSrc.String()
	}
	if f.NewDst != f.Dst {
		dst = f.NewDst.String()
	}
	return src + " > " + dst
}

func (f *Flow) left() string {
	if !f.Live {
		return "expired"
	}
	return seconds(f.Left)
}

// seconds shows a time with as many digits as it deserves.
func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d < time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	default:
		return d.Round(time.Second).String()
	}
}

func newTable(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 8, 2, ' ', 0) }
