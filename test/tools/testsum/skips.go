// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// skipList holds the tests that may skip.
type skipList struct {
	patterns []*regexp.Regexp
}

// parseSkips reads lines of a PACKAGE:TEST pattern and a reason, which is required.
func parseSkips(r io.Reader) (*skipList, error) {
	l := &skipList{}
	in := bufio.NewScanner(r)
	for n := 1; in.Scan(); n++ {
		line := strings.TrimSpace(in.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		pattern, reason, _ := strings.Cut(line, " ")
		if !strings.Contains(pattern, ":") || strings.TrimSpace(reason) == "" {
			return nil, fmt.Errorf("line %d: want PACKAGE:TEST and a reason, have %q", n, line)
		}
		expr := strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*")
		l.patterns = append(l.patterns, regexp.MustCompile("^"+expr+"$"))
	}
	return l, in.Err()
}

// allows reports whether the test with the name "package:test" may skip. No list allows all.
func (l *skipList) allows(name string) bool {
	if l == nil {
		return true
	}
	for _, p := range l.patterns {
		if p.MatchString(name) {
			return true
		}
	}
	return false
}
