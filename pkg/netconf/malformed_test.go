// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"unicode"

	"github.com/containernetworking/cni/pkg/types"
)

// malformedCase is one row of testdata/malformed.json, which the end-to-end
// test runs through the binary too. Msg is part of the message and details.
type malformedCase struct {
	Name, Conf, Args, Msg string
	Code                  uint
}

func malformedCases(t testing.TB) []malformedCase {
	t.Helper()
	text, err := os.ReadFile("testdata/malformed.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []malformedCase
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	return cases
}

func checkError(t *testing.T, conf *Conf, err error, code uint, msg string) {
	t.Helper()
	var e *types.Error
	if !errors.As(err, &e) {
		t.Fatalf("got error %v (%T), want a *types.Error", err, err)
	}
	if !mayKeep(conf, err) {
		t.Errorf("got a configuration beside error %v", err)
	}
	if e.Code != code {
		t.Errorf("got code %d, want %d: %v", e.Code, code, e)
	}
	if !strings.Contains(e.Error(), msg) {
		t.Errorf("got message %s\nwant it to contain %s", e.Error(), msg)
	}
	if len(e.Error()) > 1024 {
		t.Errorf("message has %d bytes, want it short", len(e.Error()))
	}
	if i := strings.IndexFunc(e.Error(), func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
		t.Errorf("message %q is not printable at byte %d", e.Error(), i)
	}
}

// mayKeep says whether a configuration may come beside an error: the rest of one whose
// prevResult cannot be read.
func mayKeep(c *Conf, err error) bool {
	return c == nil || c.PrevResult == nil && strings.Contains(err.Error(), `"prevResult`)
}

func TestMalformed(t *testing.T) {
	t.Parallel()
	cases := malformedCases(t)
	if len(cases) < 70 {
		t.Errorf("table has %d cases, want at least 70", len(cases))
	}
	for _, tc := range cases {
		t.Run(tc.Name, func(t *testing.T) {
			t.Parallel()
			conf, err := Parse([]byte(tc.Conf), tc.Args)
			checkError(t, conf, err, tc.Code, tc.Msg)
		})
	}
}

// TestMalformedBulk has what would bloat the table or cannot stand in it.
func TestMalformedBulk(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	tests := []struct {
		name, conf, args string
		code             uint
		msg              string
	}{
		{"over 1 MiB", minimal(`"args":{"a":"` + strings.Repeat("a", mib) + `"}`), "", 7, "want at most 1048576"},
		{"a million brackets", strings.Repeat("[", mib), "", 6, "read network configuration"},
		{"a hundred thousand levels", strings.Repeat("[", 1e5) + strings.Repeat("]", 1e5), "", 6, "read network configuration"},
		{"not UTF-8", minimal("\"logFile\":\"/var/log/\xff\""), "", 6, "not UTF-8"},
		{"null on top", "null", "", 6, "null is not an object"},
		{"only white space", " \n", "", 6, "unexpected end of JSON input"},
		{"a key of half a MiB", minimal(`"` + strings.Repeat("k", mib/2) + `":1`), "", 2, "unknown key"},
		{"a value of half a MiB", minimal(`"mtu":"` + strings.Repeat("9", mib/2) + `"`), "", 7, `check "mtu"`},
		{"a number of half a MiB", minimal(`"mtu":` + strings.Repeat("9", mib/2)), "", 7, `check "mtu"`},
		{"prevResult with a hostile value", minimal(`"prevResult":{"ips":[{"address":"\u001b[2J` + strings.Repeat("x", 4096) + `"}]}`), "", 7, `read "prevResult"`},
		{"CNI_ARGS over-long", minimal(""), "IgnoreUnknown=1;K=" + strings.Repeat("v", 64<<10), 4, "want at most 65536"},
		{"CNI_ARGS not UTF-8", minimal(""), "IP=\xff", 4, `"\xff"`},
		{"bad configuration and bad CNI_ARGS", minimal(`"mtu":1`), "FOO", 7, `check "mtu"`},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			conf, err := Parse([]byte(tc.conf), tc.args)
			checkError(t, conf, err, tc.code, tc.msg)
		})
	}
}
