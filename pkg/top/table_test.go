// SPDX-License-Identifier: Apache-2.0

package top

import (
	"net/netip"
	"testing"
)

// TestFormat shows rates, shares and times in the characters that columns have for them.
func TestFormat(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{
		0: "0", 0.25: "0.2", 1: "1", 9.94: "9.9", 9.97: "10", 42.4: "42", 999.4: "999", 999.5: "1.0k",
		99_949: "99.9k", 99_951: "100k", 999_499: "999k", 999_500: "1.0M", 1.5e9: "1.5G", 2e13: "20.0T",
	} {
		if got := si(v); got != want || len(got) > 5 {
			t.Errorf("%v is shown as %q, want %q", v, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0.0s", 59.9: "59.9s", 61: "1:01", 35_999: "599:59", 36_000: "10h", 100 * 3600: "4d"} {
		if got := age(v); got != want || len(got) > 6 {
			t.Errorf("%v s are shown as %q, want %q", v, got, want)
		}
	}
}

// TestLines draws rows with texts that are too long or act on terminals: every line has the
// width of the screen or less, and every column begins where its heading does.
func TestLines(t *testing.T) {
	t.Parallel()
	v6 := netip.MustParseAddrPort("[2001:db8:1234:5678:9abc:def0:1234:5678]:65535")
	flow := Flow{Proto: "udp", In: "xv67uu6xpuja45f", Out: "\x1b[2Jé", Src: v6, Dst: v6, Packets: 1e12, Bits: 1e15, Age: 9e8}
	pod := Interface{Name: "xv67uu6xpuja45f", Pod: "a very long name of a network and\na very long container id eth0", Lost: 1e9}
	for _, width := range []int{minWidth, 80, 99, 100, 120, 300} {
		lines := []string{
			heading(flowColumns, layout(flowColumns, width)), rowLine(flowColumns, layout(flowColumns, width), &flow),
			heading(interfaceColumns, layout(interfaceColumns, width)), rowLine(interfaceColumns, layout(interfaceColumns, width), &pod),
		}
		for _, l := range lines {
			if width >= 80 && len(l) > width {
				t.Errorf("width %d: %d characters: %q", width, len(l), l)
			}
			for _, r := range l {
				if r < ' ' || r > '~' {
					t.Errorf("width %d: %q", width, l)
				}
			}
		}
	}
}

// TestSort orders by amounts with the greatest first, and by names.
func TestSort(t *testing.T) {
	t.Parallel()
	for by, want := range map[string]string{"bits": "ba", "packets": "ab", "name": "ab"} {
		r := Rates{Interfaces: []Interface{
			{Name: "b", To: Traffic{Packets: 1, Bits: 9}}, {Name: "a", From: Traffic{Packets: 2, Bits: 8}},
		}}
		if err := r.Sort(by); err != nil {
			t.Fatal(err)
		}
		if got := r.Interfaces[0].Name + r.Interfaces[1].Name; got != want {
			t.Errorf("by %s: %s, want %s", by, got, want)
		}
	}
	if err := (&Rates{}).Sort("age"); err == nil {
		t.Error("sorted by what is no column")
	}
}
