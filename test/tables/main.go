// SPDX-License-Identifier: Apache-2.0

// Command tables writes the tables of the documentation that come from the code, between
// their marks in a page. It is run by go generate.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/xveth/xveth/pkg/metrics"
	"github.com/xveth/xveth/pkg/netconf"
)

//go:generate go run . ../../docs

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: tables DOCS")
		os.Exit(2)
	}
	for page, tables := range pages() {
		if err := update(filepath.Join(os.Args[1], page), tables); err != nil {
			fmt.Fprintln(os.Stderr, "tables:", err)
			os.Exit(1)
		}
	}
}

// update writes the tables of a page.
func update(page string, tables map[string]string) error {
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	text, err := fill(string(old), tables)
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	if text == string(old) {
		return nil
	}
	return os.WriteFile(page, []byte(text), 0o644)
}

// pages are the tables by page and mark.
func pages() map[string]map[string]string {
	return map[string]map[string]string{
		"metrics.md":       {"metrics": metricsTable()},
		"configuration.md": {"keys": keysTable()},
	}
}

// fill puts tables between their marks.
func fill(text string, tables map[string]string) (string, error) {
	for name, table := range tables {
		begin, end := fmt.Sprintf("<!-- go generate: %s -->\n", name), "<!-- end -->\n"
		head, rest, ok := strings.Cut(text, begin)
		if !ok {
			return "", fmt.Errorf("no line %q", strings.TrimSpace(begin))
		}
		_, tail, ok := strings.Cut(rest, end)
		if !ok {
			return "", fmt.Errorf("no line %q behind %q", strings.TrimSpace(end), strings.TrimSpace(begin))
		}
		text = head + begin + table + end + tail
	}
	return text, nil
}

func metricsTable() string {
	var b strings.Builder
	b.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, m := range metrics.Metrics() {
		labels := ""
		if len(m.Labels) > 0 {
			labels = "`" + strings.Join(m.Labels, "`, `") + "`"
		}
		writeRow(&b, "`"+m.Name+"`", m.Type, labels, m.Help)
	}
	return b.String()
}

func keysTable() string {
	var b strings.Builder
	b.WriteString("| key | type | default | range | meaning |\n|---|---|---|---|---|\n")
	for _, k := range netconf.Keys() {
		writeRow(&b, "`"+k.Path+"`", k.Type, k.Default, k.Range, k.Meaning)
	}
	return b.String()
}

func writeRow(b *strings.Builder, cells ...string) {
	b.WriteString("|")
	for _, c := range cells {
		if c != "" {
			c = " " + c
		}
		b.WriteString(c + " |")
	}
	b.WriteString("\n")
}
