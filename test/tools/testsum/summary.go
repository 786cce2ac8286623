// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"
)

const modulePath = "github.com/xveth/xveth/"

// event is one line of "go test -json" (see "go doc test2json" and "go help buildjson").
type event struct {
	Action      string
	Package     string
	ImportPath  string
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
}

// test is one test or subtest; the package itself is the test without a name.
type test struct {
	pkg, name string
	output    []string
	parent    bool // has subtests: they are counted instead
	childFail bool
	result    string
}

type summary struct {
	w       io.Writer
	tests   map[string]*test
	running map[string]map[string]*test // package, name: begun and not ended
	builds  map[string][]string         // import path: the compiler's output

	passed, failed, skipped int
	skips                   []*test
	failures                []string
	failedPkgs              map[string]bool // packages with a failed test
}

func newSummary(w io.Writer) *summary {
	return &summary{
		w:       w,
		tests:   map[string]*test{},
		running: map[string]map[string]*test{},
		builds:  map[string][]string{},

		failedPkgs: map[string]bool{},
	}
}

// line takes one line of input. What is not an event (a message of the go command) is passed on.
func (s *summary) line(line []byte) {
	var e event
	if json.Unmarshal(line, &e) != nil || e.Action == "" {
		fmt.Fprintf(s.w, "%s\n", strings.TrimRight(string(line), "\n"))
		return
	}
	switch e.Action {
	case "build-output":
		s.builds[e.ImportPath] = append(s.builds[e.ImportPath], e.Output)
	case "run":
		s.start(e)
	case "output":
		t := s.test(e.Package, e.Test)
		t.output = append(t.output, e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			s.endPackage(e)
		} else {
			s.endTest(e.Package, e.Test, e.Action)
		}
	}
}

func (s *summary) test(pkg, name string) *test {
	key := pkg + ":" + name
	if s.tests[key] == nil {
		s.tests[key] = &test{pkg: pkg, name: name}
	}
	return s.tests[key]
}

// parent returns the test that a subtest belongs to, or nil.
func (s *summary) parent(t *test) *test {
	if i := strings.LastIndexByte(t.name, '/'); i >= 0 {
		// A subtest's own name can hold a slash: then the parent is further up.
		for ; i >= 0; i = strings.LastIndexByte(t.name[:i], '/') {
			if p := s.tests[t.pkg+":"+t.name[:i]]; p != nil {
				return p
			}
		}
	}
	return nil
}

func (s *summary) start(e event) {
	t := s.test(e.Package, e.Test)
	if p := s.parent(t); p != nil {
		p.parent = true
	}
	if s.running[e.Package] == nil {
		s.running[e.Package] = map[string]*test{}
	}
	s.running[e.Package][e.Test] = t
}

func (s *summary) endTest(pkg, name, result string) {
	t := s.test(pkg, name)
	t.result = result
	delete(s.running[pkg], name)
	switch {
	case result == "fail":
		if p := s.parent(t); p != nil {
			p.childFail = true
		}
		s.fail(t)
	case t.parent:
	case result == "skip":
		s.skipped++
		s.skips = append(s.skips, t)
	default:
		s.passed++
	}
	if result != "skip" {
		t.output = nil // a long run's passing output is not kept
	}
}

// fail prints what the test printed. A test that failed through its subtests counts as those.
func (s *summary) fail(t *test) {
	output := signal(t.output)
	if !t.childFail {
		s.failed++
		s.failures = append(s.failures, t.label())
		s.failedPkgs[t.pkg] = true
	}
	if !t.childFail || output != "" {
		fmt.Fprintf(s.w, "\n--- FAIL %s\n%s", t.label(), output)
	}
}

func (s *summary) endPackage(e event) {
	t := s.test(e.Package, "")
	t.result = e.Action
	name := shortName(e.Package)
	if e.Action == "fail" {
		for _, r := range s.running[e.Package] {
			// A panic, a time-out or an exit ended these: the one that did it has the output.
			r.output = append(r.output, "    (did not end)\n")
			if !r.parent {
				s.fail(r)
			}
		}
		s.failedPackage(e, t)
	}
	switch e.Action {
	case "skip":
		fmt.Fprintf(s.w, "%-4s %-36s no tests\n", "-", name)
	case "pass":
		fmt.Fprintf(s.w, "%-4s %-36s %.1fs\n", "ok", name, e.Elapsed)
	default:
		fmt.Fprintf(s.w, "%-4s %-36s %.1fs\n", "FAIL", name, e.Elapsed)
	}
	s.running[e.Package] = nil
}

// failedPackage prints what no single test printed, and counts a failure that is no test's own:
// one of the build, of TestMain or of an init function.
func (s *summary) failedPackage(e event, t *test) {
	fmt.Fprint(s.w, strings.Join(s.builds[e.FailedBuild], ""), signal(t.output))
	if !s.failedPkgs[e.Package] {
		s.failed++
		s.failures = append(s.failures, shortName(e.Package)+": the package")
	}
}

// finish prints the totals and reports whether the run succeeded.
func (s *summary) finish(allowed *skipList, took time.Duration) bool {
	unlisted := s.printSkips(allowed)
	if len(s.failures) > 0 {
		fmt.Fprintf(s.w, "\nfailed:\n  %s\n", strings.Join(s.failures, "\n  "))
	}
	none := s.passed+s.failed == 0
	if none {
		fmt.Fprintf(s.w, "\nno test ran\n")
	}
	fmt.Fprintf(s.w, "\ntook %s\n%d passed, %d failed, %d skipped\n",
		took.Round(time.Second), s.passed, s.failed, s.skipped)
	return s.failed == 0 && unlisted == 0 && !none
}

// printSkips prints each skip with its reason and returns how many the list does not allow.
func (s *summary) printSkips(allowed *skipList) (unlisted int) {
	for _, t := range s.skips {
		verdict := "skip"
		if !allowed.allows(t.label()) {
			verdict = "SKIP, not on the list of skips:"
			unlisted++
		}
		reason := strings.Join(strings.Fields(signal(t.output)), " ")
		fmt.Fprintf(s.w, "%s %s: %s\n", verdict, t.label(), reason)
	}
	return unlisted
}

func (t *test) label() string {
	return shortName(t.pkg) + ":" + t.name
}

// shortName is a package's folder in this module.
func shortName(pkg string) string {
	return strings.TrimPrefix(pkg, modulePath)
}

var noise = regexp.MustCompile(`^\s*(=== (RUN|PAUSE|CONT|NAME)\s|--- (PASS|FAIL|SKIP): |(PASS|FAIL)\s*$|FAIL\t|ok\s+\t|exit status \d+\s*$)`)

// signal joins the lines that say more than the events do.
func signal(lines []string) string {
	var b strings.Builder
	for _, line := range lines {
		if !noise.MatchString(line) {
			b.WriteString(line)
		}
	}
	return b.String()
}
