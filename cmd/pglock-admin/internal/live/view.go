package live

import (
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/look"
	"github.com/pglock-dev/pglock/internal/shown"
)

// choose gives the longest text that fits.
func choose(width int, texts ...string) string {
	for _, text := range texts {
		if cells(text) <= width {
			return text
		}
	}
	return texts[len(texts)-1]
}

func blank(s string) bool { return strings.TrimSpace(s) == "" }

// The least size on which anything can be read.
const (
	liveLeastWidth  = 20
	liveLeastHeight = 6
)

func (m *liveModel) View() tea.View {
	v := tea.NewView(strings.Join(m.screen(), "\n"))
	v.AltScreen = true
	return v
}

// screen draws exactly as many lines as the terminal has, none wider than it.
func (m *liveModel) screen() []string {
	if m.width == 0 || m.height == 0 {
		return nil
	}
	if m.width < liveLeastWidth || m.height < liveLeastHeight {
		return []string{shorten("too small", m.width)}
	}
	top, bottom := m.header(), m.bottom()
	bottom = bottom[max(0, len(bottom)-m.height):]
	top = top[:min(len(top), m.height-len(bottom))] // a question needs its room first
	var body []string
	if m.wish.name == "" {
		body = m.drawTop()
	} else {
		body = m.drawLock()
	}
	room := max(0, m.height-len(top)-len(bottom))
	if m.wish.name != "" {
		body = m.window(body, room)
	}
	body = body[:min(len(body), room)]
	for len(body) < room {
		body = append(body, "")
	}
	all := append(append(top, body...), bottom...)
	return all[:min(len(all), m.height)]
}

// window is the part of the view of a lock that is scrolled onto the screen. Its last line says how much more there is.
func (m *liveModel) window(body []string, room int) []string {
	from := max(0, min(m.from, len(body)-room))
	body = body[from:]
	if room > 1 && len(body) > room {
		more := fmt.Sprintf("↓ %d more lines", len(body)-room+1)
		body = append(slices.Clone(body[:room-1]), liveFaint(fit(more, m.width)))
	}
	return body
}

// header says what this is, where, and whether it is fresh.
func (m *liveModel) header() []string {
	title := shown.Either(m.wish.name == "", "top", "watch")
	clock := m.now.UTC().Format("15:04:05") + shown.Either(m.width < 60, "", " UTC")
	room := m.width - cells(title) - cells(clock) - 4
	at := m.o.At.Now()
	where := choose(room, cellLine(at.String()), cellLine(at.Server+"/"+at.Database))
	lines := []string{liveReverse(fit(" "+title+" "+fit(where, room)+" "+clock+" ", m.width))}
	if m.wish.name != "" {
		for _, line := range folded(cellName(m.wish.name), m.width, 3) {
			lines = append(lines, liveBold(fit(line, m.width)))
		}
	}
	return append(lines, m.state()...)
}

// state is the line about the data: what they are, and from when. A lost connection has one more.
func (m *liveModel) state() []string {
	what := m.what()
	age, old := m.old()
	at := m.shot.at.UTC().Format("15:04:05")
	switch {
	case m.trouble != nil:
		said := "NO ANSWER, trying again"
		if m.seen {
			said = choose(m.width, fmt.Sprintf("NO ANSWER, trying again. This is OLD: of %s, %s ago", at, ago(age)),
				fmt.Sprintf("NO ANSWER. OLD: of %s, %s ago", at, ago(age)))
		}
		lines := []string{liveAlarm(fit(said, m.width))}
		for _, line := range folded(cellLine(m.trouble.Message), m.width, 2) {
			lines = append(lines, fit(line, m.width))
		}
		return lines
	case old:
		said := choose(m.width, fmt.Sprintf("No answer yet. This is OLD: of %s, %s ago", at, ago(age)),
			fmt.Sprintf("OLD: of %s, %s ago", at, ago(age)))
		return []string{liveAlarm(fit(said, m.width))}
	}
	fresh := ""
	if m.seen {
		fresh = "every " + shown.Duration(max(m.interval, m.shot.next.Sub(m.shot.at).Round(time.Second)))
	}
	if room := m.width - cells(fresh) - 1; fresh != "" && cells(what) <= room {
		return []string{fit(what, room) + " " + fresh}
	}
	return []string{fit(what, m.width)}
}

func (m *liveModel) what() string {
	if m.wish.name == "" {
		what := "by " + string(m.wish.order)
		if m.seen {
			what += ", " + m.count()
		}
		if m.wish.match != "" {
			what += ", with " + cellText(m.wish.match)
		}
		return what
	}
	if !m.seen || m.shot.gone {
		return ""
	}
	v := m.shot.lock
	state := "free"
	switch n := len(v.Holders); {
	case n == 1:
		state = "held"
	case n > 1:
		state = fmt.Sprintf("held by %d", n)
	}
	what := state + " · " + look.ModeText(v.Lock.Mode, v.Lock.Limit, v.Lock.Subtree)
	if n := v.Lock.LockInfo.Waiting; n > 0 {
		what += fmt.Sprintf(" · %d waiting", n)
	}
	return what
}

func ago(d time.Duration) string { return shown.Duration(d.Round(time.Second)) }

// bottom has the keys, or what somebody is asked.
func (m *liveModel) bottom() []string {
	if m.asking != nil {
		return m.asking.draw(m.width, slices.ContainsFunc(m.shot.lock.Holders, func(h look.LockView) bool {
			return h.Token == m.asking.token
		}))
	}
	lines := m.noticeLines()
	if m.typing {
		return append(lines, fit("filter: "+lastCells(cellText(m.wish.match), m.width-10)+"▏", m.width))
	}
	keys := choose(m.width, "↑↓ PgUp PgDn move   Enter open   w wait  a age  r rate   / filter   q quit",
		"↑↓ Enter open  w a r sort  / filter  q quit", "↑↓ ⏎ open w a r sort / filter q quit", "q quit")
	if m.wish.name != "" {
		back := shown.Either(m.watching, "", "   Esc back")
		other := shown.Either(len(m.shot.lock.Holders) > 1, "   Tab other holder", "")
		keys = choose(m.width, "↑↓ PgUp PgDn scroll"+other+"   b break"+back+"   q quit",
			strings.Join(strings.Fields("↑↓ "+other+" b break "+back+" q quit"), " "), "b break  q quit")
	}
	return append(lines, liveReverse(fit(keys, m.width)))
}

func (m *liveModel) noticeLines() (lines []string) {
	if m.notice == "" {
		return nil
	}
	for _, line := range folded(cellLine(m.notice), m.width, 6) {
		lines = append(lines, liveBold(fit(line, m.width)))
	}
	return lines
}
