// SPDX-License-Identifier: Apache-2.0

// Testsum reads the events of "go test -json" from its input and prints what a person wants to
// read: a line for each package, the output of each test that failed, the skips with their
// reasons, and the totals. It exits 1 if a test or a package failed, if none ran, or if a test
// skipped that the skip list does not name. It does not run the tests.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"time"
)

func main() {
	skips := flag.String("skips", "", "`file` with the skips that are allowed; without it all are")
	flag.Parse()
	ok, err := run(os.Stdin, os.Stdout, *skips)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

// run prints the summary of the events in r to w and reports whether all is well.
func run(r io.Reader, w io.Writer, skipFile string) (bool, error) {
	var allowed *skipList
	if skipFile != "" {
		f, err := os.Open(skipFile)
		if err != nil {
			return false, err
		}
		defer f.Close()
		if allowed, err = parseSkips(f); err != nil {
			return false, fmt.Errorf("parse %s: %w", skipFile, err)
		}
	}
	started := time.Now()
	s := newSummary(w)
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			s.line(line)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return false, fmt.Errorf("read events: %w", err)
		}
	}
	return s.finish(allowed, time.Since(started)), nil
}
