// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/xveth/xveth/pkg/bench/result"
	"github.com/xveth/xveth/pkg/netbench"
	"github.com/xveth/xveth/pkg/netbench/report"
)

func newBenchReport() *cobra.Command {
	var html, markdown string
	c := &cobra.Command{
		Use:   "report [FILE...]",
		Short: "Make pages of results: of what bench run --json printed, from files or standard input",
		Long: `Make pages of results that "bench run --json" printed. Files may hold several results, one
behind the other. Runs of the same scenario with the same flags are shown as one, and are
noisy where they do not agree. The HTML page needs nothing else; the pictures of the
Markdown page are written into a folder of its name.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if html == "" && markdown == "" {
				return usageError{errors.New("want --html, --markdown, or both")}
			}
			results, err := readResults(cmd.InOrStdin(), args)
			if err != nil {
				return err
			}
			r, err := report.New(results, aboutScenario)
			if err != nil {
				return err
			}
			return errors.Join(writeHTML(r, html), writeMarkdown(r, markdown))
		},
	}
	c.Flags().StringVar(&html, "html", "", "`file` to write, one page with everything in it")
	c.Flags().StringVar(&markdown, "markdown", "", "`file` to write, with its pictures in a folder beside it")
	return c
}

func readResults(stdin io.Reader, files []string) ([]result.Result, error) {
	if len(files) == 0 {
		return result.Read(stdin)
	}
	var all []result.Result
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		some, err := result.Read(f)
		_ = f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, some...)
	}
	return all, nil
}

func aboutScenario(name string) string {
	for _, s := range netbench.Scenarios() {
		if s.Name == name {
			return strings.ToUpper(s.About[:1]) + s.About[1:]
		}
	}
	return "The host-side library (see the documentation of pkg/bench)"
}

func writeHTML(r *report.Report, file string) error {
	if file == "" {
		return nil
	}
	var b bytes.Buffer
	if err := r.HTML(&b); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}

// writeMarkdown writes the page and its pictures. Pictures of an earlier page are removed.
func writeMarkdown(r *report.Report, file string) error {
	if file == "" {
		return nil
	}
	folder := strings.TrimSuffix(file, filepath.Ext(file))
	var b bytes.Buffer
	pictures, err := r.Markdown(&b, filepath.Base(folder))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(folder, "*.svg"))
	if err != nil {
		return err
	}
	for _, name := range old {
		if err := os.Remove(name); err != nil {
			return err
		}
	}
	for _, p := range pictures {
		if err := os.WriteFile(filepath.Join(folder, p.Name+".svg"), []byte(p.SVG), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}
