// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// column of a table.
type column[T any] struct {
	head string
	// width in characters; 0 shares what the others leave.
	width int
	right bool
	// wide columns are only shown where there is room.
	wide bool
	text func(*T) string
}

// wideFrom is the width of a screen from which wide columns are shown.
const wideFrom = 100

var interfaceColumns = []column[Interface]{
	{head: "HOST END", width: 15, text: func(i *Interface) string { return i.Name }},
	{head: "POD", text: podName},
	{head: "TO PKT/S", width: 8, right: true, text: func(i *Interface) string { return si(i.To.Packets) }},
	{head: "BIT/S", width: 6, right: true, text: func(i *Interface) string { return si(i.To.Bits) }},
	{head: "FROM PKT/S", width: 10, right: true, text: func(i *Interface) string { return si(i.From.Packets) }},
	{head: "BIT/S", width: 6, right: true, text: func(i *Interface) string { return si(i.From.Bits) }},
	{head: "FAST", width: 5, right: true, text: func(i *Interface) string { return percent(i.Share()) }},
	{head: "LOST/S", width: 6, right: true, text: func(i *Interface) string { return si(i.Lost) }},
}

var flowColumns = []column[Flow]{
	{head: "PROTO", width: 5, text: func(f *Flow) string { return f.Proto }},
	{head: "IN", width: 15, wide: true, text: func(f *Flow) string { return f.In }},
	{head: "SOURCE", text: func(f *Flow) string { return f.Src.String() }},
	{head: "DESTINATION", text: func(f *Flow) string { return f.Dst.String() }},
	{head: "OUT", width: 15, wide: true, text: func(f *Flow) string { return f.Out }},
	{head: "PKT/S", width: 6, right: true, text: func(f *Flow) string { return si(f.Packets) }},
	{head: "BIT/S", width: 6, right: true, text: func(f *Flow) string { return si(f.Bits) }},
	{head: "AGE", width: 6, right: true, text: func(f *Flow) string { return age(f.Age) }},
}

func podName(i *Interface) string {
	if i.Uplink {
		return "(uplink)"
	}
	return i.Pod
}

// layout gives every column that fits a screen its width; 0 leaves out the others.
func layout[T any](cols []column[T], screen int) []int {
	widths, left, flexible := make([]int, len(cols)), screen+1, 0
	for i, c := range cols {
		if c.wide && screen < wideFrom {
			continue
		}
		widths[i] = c.width
		left -= c.width + 1
		if c.width == 0 {
			flexible++
		}
	}
	for i, c := range cols {
		if c.width == 0 {
			widths[i] = max(left/flexible, 1)
			left -= widths[i]
			flexible--
		}
	}
	return widths
}

// natural gives every column the width of its longest text.
func natural[T any](cols []column[T], rows []T) []int {
	widths := make([]int, len(cols))
	for i, c := range cols {
		widths[i] = len(c.head)
		for k := range rows {
			widths[i] = max(widths[i], len(c.text(&rows[k])))
		}
	}
	return widths
}

func heading[T any](cols []column[T], widths []int) string {
	return line(cols, widths, func(c column[T]) string { return c.head })
}

func rowLine[T any](cols []column[T], widths []int, row *T) string {
	return line(cols, widths, func(c column[T]) string { return c.text(row) })
}

func line[T any](cols []column[T], widths []int, text func(column[T]) string) string {
	var cells []string
	for i, c := range cols {
		if widths[i] == 0 {
			continue
		}
		cell := fit(text(c), widths[i])
		if pad := strings.Repeat(" ", widths[i]-len(cell)); c.right {
			cell = pad + cell
		} else {
			cell += pad
		}
		cells = append(cells, cell)
	}
	return strings.TrimRight(strings.Join(cells, " "), " ")
}

// fit cuts a text to a width, and leaves nothing in it that a terminal would act on or
// that is wider or narrower than a character: container ids and names are others' work.
func fit(s string, width int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
	if len(s) > width {
		return s[:width-1] + "~"
	}
	return s
}

// SortKeys lists what interfaces and flows can be sorted by.
func SortKeys() []string { return []string{"bits", "packets", "name"} }

// Sort sorts interfaces and flows by one of the SortKeys, with the greatest first, and
// names in their order.
func (r *Rates) Sort(by string) error {
	if !slices.Contains(SortKeys(), by) {
		return fmt.Errorf("sort by %q: want one of %v", by, SortKeys())
	}
	slices.SortFunc(r.Interfaces, func(a, b Interface) int {
		name := cmp.Compare(a.Name, b.Name)
		switch by {
		case "bits":
			return cmp.Or(cmp.Compare(b.To.Bits+b.From.Bits, a.To.Bits+a.From.Bits), name)
		case "packets":
			return cmp.Or(cmp.Compare(b.To.Packets+b.From.Packets, a.To.Packets+a.From.Packets), name)
		}
		return name
	})
	slices.SortFunc(r.Flows, func(a, b Flow) int {
		name := cmp.Or(a.Src.Compare(b.Src), a.Dst.Compare(b.Dst), cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.In, b.In))
		switch by {
		case "bits":
			return cmp.Or(cmp.Compare(b.Bits, a.Bits), name)
		case "packets":
			return cmp.Or(cmp.Compare(b.Packets, a.Packets), name)
		}
		return name
	})
	return nil
}

// Filter leaves the interfaces and flows that a text is part of: of a name, a pod or an
// address. Totals stay those of the node.
func (r *Rates) Filter(text string) {
	if text == "" {
		return
	}
	r.Interfaces = slices.DeleteFunc(r.Interfaces, func(i Interface) bool {
		return !strings.Contains(i.Name+" "+i.Pod, text)
	})
	r.Flows = slices.DeleteFunc(r.Flows, func(f Flow) bool {
		return !strings.Contains(strings.Join([]string{f.Proto, f.In, f.Src.String(), f.Dst.String(), f.Out}, " "), text)
	})
}

// si shows a rate in at most 5 characters.
func si(v float64) string {
	const unit = 1000
	prefix := 0
	for v >= 999.5 && prefix < len("kMGTP") {
		v /= unit
		prefix++
	}
	digits := 0
	if v < 99.95 && (prefix > 0 || v < 9.95 && v != float64(int(v))) {
		digits = 1
	}
	s := fmt.Sprintf("%.*f", digits, v)
	if prefix > 0 {
		s += "kMGTP"[prefix-1 : prefix]
	}
	return s
}

func percent(share float64, ok bool) string {
	if !ok {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", 100*share)
}

// age shows a time in at most 6 characters.
func age(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < 10*time.Hour:
		return fmt.Sprintf("%d:%02d", int(d.Minutes()), int(d.Seconds())%60)
	case d < 100*time.Hour:
		return fmt.Sprintf("%.0fh", d.Hours())
	default:
		return fmt.Sprintf("%dd", int(d.Hours())/24)
	}
}
