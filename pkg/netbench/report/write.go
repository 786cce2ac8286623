// SPDX-License-Identifier: Apache-2.0

package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"
	texttemplate "text/template"

	"github.com/xveth/xveth/pkg/bench/result"
)

// tooWide is with how many paths a table has a line for each of them.
const tooWide = 9

//go:embed report.html.tmpl
var htmlText string

//go:embed report.md.tmpl
var markdownText string

var functions = map[string]any{
	"figure": figure, "spread": spread, "ratio": ratio, "times": times, "row": rowOf, "quotient": quotientOf,
}

var (
	htmlTemplate     = template.Must(template.New("html").Funcs(functions).Parse(htmlText))
	markdownTemplate = texttemplate.Must(texttemplate.New("markdown").Funcs(functions).Parse(markdownText))
)

// Picture is one of the report's pictures.
type Picture struct {
	// Name without an ending.
	Name string
	SVG  template.HTML
}

// page is what the templates get.
type page struct {
	*Report
	Summary  Picture
	Compared []Compared
	Sections []pageSection
	Images   string
}

type pageSection struct {
	Section
	Pictures []Picture
}

// Tall says that the table has a line for each path.
func (s pageSection) Tall() bool { return len(s.Columns) > tooWide }

func (r *Report) page(images string) (*page, error) {
	p := &page{Report: r, Compared: r.Summary, Images: images}
	svg, err := ratioChart("xveth, times better than what was there before (pale: noisy)", r.Summary)
	if err != nil {
		return nil, err
	}
	p.Summary = Picture{"summary", svg}
	for _, s := range r.Sections {
		pictures, err := s.pictures()
		if err != nil {
			return nil, err
		}
		p.Sections = append(p.Sections, pageSection{s, pictures})
	}
	return p, nil
}

// HTML writes one page that needs nothing else.
func (r *Report) HTML(w io.Writer) error {
	p, err := r.page("")
	if err != nil {
		return err
	}
	if err := htmlTemplate.Execute(w, p); err != nil {
		return fmt.Errorf("write html: %w", err)
	}
	return nil
}

// Markdown writes a page whose pictures are expected in a folder, and returns them.
func (r *Report) Markdown(w io.Writer, images string) ([]Picture, error) {
	p, err := r.page(images)
	if err != nil {
		return nil, err
	}
	if err := markdownTemplate.Execute(w, p); err != nil {
		return nil, fmt.Errorf("write markdown: %w", err)
	}
	all := []Picture{p.Summary}
	for _, s := range p.Sections {
		all = append(all, s.Pictures...)
	}
	return all, nil
}

// pictures draws a section's headlines, one picture for each unit.
func (s *Section) pictures() (all []Picture, err error) {
	var units []string
	lists := map[string][]bars{}
	for _, l := range s.Lines {
		if !l.Headline {
			continue
		}
		appendNew(&units, l.Unit)
		for i, path := range s.Columns {
			row, have := l.Cells[path]
			if !have {
				continue
			}
			label := strings.Join(slices.DeleteFunc([]string{l.Setting, s.headline(l.Metric), path}, func(p string) bool { return p == "" }), ", ")
			lists[l.Unit] = append(lists[l.Unit], bars{
				label: label, class: classOf(path), low: row.Min, mid: row.Median, high: row.Max, gap: i == 0,
			})
		}
	}
	for i, unit := range units {
		name := s.Name
		if i > 0 {
			name = fmt.Sprintf("%s-%d", s.Name, i+1)
		}
		svg, err := valueChart(s.Name, unit, lists[unit])
		if err != nil {
			return nil, err
		}
		all = append(all, Picture{name, svg})
	}
	return all, nil
}

// headline is a metric where there are several, and nothing where there is one.
func (s *Section) headline(metric string) string {
	if len(s.headlines()) > 1 {
		return metric
	}
	return ""
}

// classOf is the colour of a path.
func classOf(path string) string {
	switch {
	case path == "xveth-off":
		return "path"
	case path == "chain", strings.HasPrefix(path, "xveth"):
		return "ours"
	case path == "limit", path == "uplink-drop", strings.HasPrefix(path, "redirect"):
		return "limit"
	}
	return "path"
}

// figure has three digits that count.
func figure(v float64) string {
	if math.Abs(v) >= 999.5 { // which %.3g would write as 1e+03
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

func spread(r result.Row) string {
	return fmt.Sprintf("%s (%s to %s)", figure(r.Median), figure(r.Min), figure(r.Max))
}

func times(s result.Spread) string {
	return fmt.Sprintf("%.2f (%.2f to %.2f)", s.Median, s.Min, s.Max)
}

// ratio marks what is noisy.
func ratio(q result.Ratio) string {
	if q.Noisy {
		return "~ " + times(q.Spread)
	}
	return times(q.Spread)
}

// rowOf is a cell's text; empty where a run did not measure it.
func rowOf(l Line, path string) string {
	if r, have := l.Cells[path]; have {
		return spread(r)
	}
	return ""
}

func quotientOf(l Line, name string) string {
	if q, have := l.Ratios[name]; have {
		return ratio(q)
	}
	return ""
}
