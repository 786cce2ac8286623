// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
)

// Options of the live view.
type Options struct {
	// Interval between two readings.
	Interval time.Duration
	// Sort is one of the SortKeys.
	Sort string
	// Filter leaves what this text is part of.
	Filter string
}

// Live shows the rates on a terminal until somebody ends it or the context ends.
func Live(ctx context.Context, s *Sampler, in io.Reader, out io.Writer, o Options) error {
	m := &screen{sampler: s, o: o, rates: &Rates{}, width: minWidth, height: minHeight}
	_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out)).Run()
	if errors.Is(err, tea.ErrInterrupted) || ctx.Err() != nil {
		return nil // the way in which it ends
	}
	if err != nil {
		return fmt.Errorf("show rates: %w", err)
	}
	return nil
}

const (
	// The least that is drawn for; on a smaller screen the end of it is cut off.
	minWidth, minHeight = 40, 8
	help                = "tab pods/flows  s sort  / filter  p pause  arrows scroll  q quit"
)

// screen is what is shown.
type screen struct {
	sampler *Sampler
	o       Options
	rates   *Rates // as read; sorted and filtered is view
	view    Rates
	err     error
	// waiting for the first rates.
	started bool

	flows  bool // the tab
	paused bool
	typing bool // a filter
	offset int
	width  int
	height int
}

// reading is what a reading of the counters gave.
type reading struct {
	rates *Rates
	err   error
}

// Init implements tea.Model.
func (m *screen) Init() tea.Cmd { return m.later() }

// later reads the counters an interval from now. One reading follows the other, so a slow
// machine gets longer intervals and no queue.
func (m *screen) later() tea.Cmd {
	return tea.Tick(m.o.Interval, func(time.Time) tea.Msg {
		r, err := m.sampler.Rates()
		return reading{r, err}
	})
}

// Update implements tea.Model.
func (m *screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = max(msg.Width, minWidth), max(msg.Height, minHeight)
	case reading:
		if !m.paused {
			m.take(msg)
		}
		return m, m.later()
	case tea.KeyPressMsg:
		if msg.String() == "ctrl+c" {
			return m, tea.Quit
		}
		if m.typing {
			m.typeFilter(msg)
			return m, nil
		}
		return m, m.press(msg.String())
	}
	return m, nil
}

func (m *screen) take(r reading) {
	if m.err = r.err; r.err == nil {
		m.rates, m.started = r.rates, true
		m.arrange()
	}
}

// arrange sorts and filters a copy of what was read.
func (m *screen) arrange() {
	m.view = *m.rates
	m.view.Interfaces = append([]Interface(nil), m.rates.Interfaces...)
	m.view.Flows = append([]Flow(nil), m.rates.Flows...)
	m.view.Filter(m.o.Filter)
	m.err = errors.Join(m.err, m.view.Sort(m.o.Sort))
}

func (m *screen) typeFilter(key tea.KeyPressMsg) {
	switch key.String() {
	case "enter":
		m.typing = false
	case "esc":
		m.typing, m.o.Filter = false, ""
	case "backspace":
		m.o.Filter = m.o.Filter[:max(len(m.o.Filter)-1, 0)]
	default:
		if text := key.Text; text == fit(text, len(text)+1) {
			m.o.Filter += text
		}
	}
	m.offset = 0
	m.arrange()
}

func (m *screen) press(key string) tea.Cmd {
	page := m.rowsShown()
	switch key {
	case "q":
		return tea.Quit
	case "tab":
		m.flows, m.offset = !m.flows, 0
	case "s":
		keys := SortKeys()
		for i, k := range keys {
			if k == m.o.Sort {
				m.o.Sort = keys[(i+1)%len(keys)]
				break
			}
		}
		m.arrange()
	case "/":
		m.typing = true
	case "p", "space":
		m.paused = !m.paused
	case "up", "k":
		m.offset--
	case "down", "j":
		m.offset++
	case "pgup":
		m.offset -= page
	case "pgdown":
		m.offset += page
	case "home":
		m.offset = 0
	case "end":
		m.offset = m.rows()
	}
	m.offset = max(0, min(m.offset, m.rows()-page))
	return nil
}

func (m *screen) rows() int {
	if m.flows {
		return len(m.view.Flows)
	}
	return len(m.view.Interfaces)
}

// Lines above and below the rows of the table.
const linesAround = 8

func (m *screen) rowsShown() int { return m.height - linesAround }

// View implements tea.Model.
func (m *screen) View() tea.View {
	lines := append([]string{m.headline()}, m.view.totals()...)
	lines = append(lines, m.tabs())
	if m.flows {
		lines = append(lines, table(m, flowColumns, m.view.Flows)...)
	} else {
		lines = append(lines, table(m, interfaceColumns, m.view.Interfaces)...)
	}
	for len(lines) < m.height-1 {
		lines = append(lines, "")
	}
	lines = append(lines, m.footer())
	for i := range lines {
		lines[i] = fit(lines[i], m.width)
	}
	v := tea.NewView(strings.Join(lines, "\n"))
	v.AltScreen = true
	return v
}

func (m *screen) headline() string {
	what := "reading the counters"
	if m.started {
		what = m.view.At.Format(time.TimeOnly)
	}
	if m.paused {
		what += "  PAUSED"
	}
	return fmt.Sprintf("xveth  %s  every %v", what, m.o.Interval)
}

func (m *screen) tabs() string {
	pods, flows := "[Pods %d]", " Flows %d "
	if m.flows {
		pods, flows = " Pods %d ", "[Flows %d]"
	}
	s := fmt.Sprintf(pods+" "+flows+"  by %s", len(m.view.Interfaces), len(m.view.Flows), m.o.Sort)
	if m.o.Filter != "" {
		s += fmt.Sprintf("  with %q", m.o.Filter)
	}
	return s
}

func (m *screen) footer() string {
	switch {
	case m.typing:
		return "filter: " + m.o.Filter + "_  (enter: done, esc: none)"
	case m.err != nil:
		return "reading the counters: " + m.err.Error()
	}
	return help
}

// table draws the heading and the rows that the screen has room for.
func table[T any](m *screen, cols []column[T], rows []T) []string {
	widths := layout(cols, m.width)
	lines := []string{heading(cols, widths)}
	from := min(m.offset, len(rows))
	for i := from; i < min(from+m.rowsShown(), len(rows)); i++ {
		lines = append(lines, rowLine(cols, widths, &rows[i]))
	}
	return lines
}
