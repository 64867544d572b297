package live

import (
	"fmt"
	"strconv"
	"time"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/look"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
)

func (m *liveModel) holder() (look.LockView, bool) {
	for _, h := range m.shot.lock.Holders {
		if h.Token == m.token {
			return h, true
		}
	}
	return look.LockView{}, false
}

// chooseHolder chooses another holder, so many further on. If the lease of the chosen one has ended, it chooses the
// first.
func (m *liveModel) chooseHolder(step int) {
	holders := m.shot.lock.Holders
	if len(holders) == 0 {
		m.token = 0
		return
	}
	at := 0
	for n, h := range holders {
		if h.Token == m.token {
			at = n + step
		}
	}
	m.token = holders[(at+len(holders))%len(holders)].Token
}

func (m *liveModel) scroll(key string) {
	page := max(1, m.height-len(m.header())-len(m.bottom()))
	lines := len(m.drawLock())
	m.from = max(0, min(moved(key, m.from, page, lines), lines-page))
}

// drawLock draws one lock. Lines that do not fit on the screen are scrolled.
func (m *liveModel) drawLock() []string {
	switch {
	case !m.seen:
		return []string{"", "  reading …"}
	case m.shot.gone:
		return append([]string{""}, folded("There is no lock of this name any more: it was pruned.", m.width, 3)...)
	}
	lines := m.drawHeld()
	lines = append(lines, m.drawLine()...)
	lines = append(lines, m.drawPast()...)
	lines = append(lines, m.drawProcesses()...)
	if _, old := m.old(); old {
		for n := range lines {
			lines[n] = liveFaint(lines[n])
		}
	}
	return lines
}

func (m *liveModel) drawHeld() []string {
	v, width := m.shot.lock, m.width
	lines := []string{""}
	if len(v.Holders) == 0 {
		lines = append(lines, "○ nobody holds it")
		ended := shown.Either(v.Lock.EndedAt.IsZero(), "its lease ran out", "ended "+cli.Moment(v.Lock.EndedAt))
		token := fmt.Sprintf("token %d", int64(v.Lock.Token))
		for _, line := range flow(width-2, "last holder "+cellText(v.Lock.Holder), token, ended) {
			lines = append(lines, "  "+line)
		}
		return lines
	}
	for _, h := range v.Holders {
		mark, line := "● ", fit(shorten(cellText(h.Holder), width-2), width-2)
		if len(v.Holders) > 1 && h.Token == m.token {
			mark, line = "▶ ", liveReverse(line)
		}
		lines = append(lines, mark+line)
		slot := shown.Either(h.Slot > 0, fmt.Sprintf("slot %d", h.Slot), "")
		rail := shown.Either(len(v.Waiters) > 0, "│ ", "  ")
		left := fmt.Sprintf("%s %s of %s left", look.LeaseCell(h.LockInfo, h.Life, 10),
			shown.Age(h.LockInfo.Remaining), shown.Duration(h.LockInfo.TTL))
		for _, detail := range flow(width-2, left,
			fmt.Sprintf("token %d", int64(h.Token)), "held for "+shown.Age(lists.HeldFor(h.LockInfo)), slot) {
			lines = append(lines, rail+detail)
		}
	}
	return lines
}

// drawLine draws the queue below the holders, from the head to the end.
func (m *liveModel) drawLine() (lines []string) {
	v, width := m.shot.lock, m.width
	if len(v.Waiters) == 0 {
		return []string{"", "nobody waits"}
	}
	lines = append(lines, "│")
	more := v.Lock.LockInfo.Waiting - len(v.Waiters)
	places := len(strconv.Itoa(v.Waiters[len(v.Waiters)-1].Place))
	for n, q := range v.Waiters {
		arm, rail := "├─ ", "│  "
		if n == len(v.Waiters)-1 && more <= 0 {
			arm, rail = "└─ ", "   "
		}
		same := q.Mode == v.Lock.Mode && q.Limit == v.Lock.Limit && q.Subtree == v.Lock.Subtree
		mode := shown.Either(same, "", look.ModeText(q.Mode, q.Limit, q.Subtree))
		dead := shown.Either(q.Alive, "", look.PassedOver)
		place := fitRight(strconv.Itoa(q.Place), places) + ". "
		pieces := []string{"waits " + shown.Age(q.Waiting), mode, dead}
		room := width - 3 - cells(place)
		if room > 60 { // one line for each waiter
			facts := flow(room, pieces...)
			name := fit(cellText(q.Holder), min(32, room-cells(facts[0])-2))
			lines = append(lines, arm+place+name+"  "+facts[0])
			continue
		}
		lines = append(lines, arm+place+shorten(cellText(q.Holder), room))
		for _, fact := range flow(room, pieces...) {
			lines = append(lines, rail+fit("", cells(place))+fact)
		}
	}
	if more > 0 {
		lines = append(lines, fit(fmt.Sprintf("└─ and %d more", more), width))
	}
	return lines
}

func (m *liveModel) drawPast() []string {
	v := m.shot.lock
	lines := []string{"", liveBold(shorten("HISTORY, newest first", m.width))}
	switch {
	case v.Note != "":
		return append(lines, folded(cellLine(v.Note), m.width, 3)...)
	case len(v.Events) == 0:
		return append(lines, "nothing is recorded")
	}
	for _, e := range v.Events {
		lines = append(lines, m.drawEvent(e)...)
	}
	return lines
}

func (m *liveModel) drawEvent(e lockadmin.HistoryEntry) []string {
	withDay := m.shot.at.Sub(e.At) > 12*time.Hour || m.width >= 80
	when := e.At.UTC().Format(shown.Either(withDay, "2006-01-02 15:04:05", "15:04:05"))
	return hanging(folded(cellLine(when+" "+string(e.Kind)+": "+look.Tell(e)), m.width-2, 4))
}

func hanging(lines []string) []string {
	for n := 1; n < len(lines); n++ {
		lines[n] = "  " + lines[n]
	}
	return lines
}

func (m *liveModel) drawProcesses() []string {
	v := m.shot.lock
	if v.BackendsNote == "" && len(v.Backends) == 0 {
		return nil
	}
	lines := []string{"", liveBold(shorten("PROCESSES OF THE SERVER", m.width))}
	if v.BackendsNote != "" {
		return append(lines, folded(cellLine(v.BackendsNote), m.width, 3)...)
	}
	for _, b := range v.Backends {
		state, open, client := "state hidden", "", ""
		if !b.Hidden {
			state = cellText(b.State) + " for " + shown.Age(b.InState)
			if b.State == "active" && b.WaitsFor != "" {
				state += ", waits for " + cellText(b.WaitsFor)
			}
			open = shown.Either(b.Transaction > 0, "transaction open for "+shown.Age(b.Transaction), "")
			client = shown.Either(b.Client == "", "local", cellText(b.Client))
		}
		pid, user := "pid "+look.PidText(b.PID), "user "+cellText(b.User)
		lines = append(lines, hanging(flow(m.width-2, pid, look.ShortUse(b, cellText), cellText(b.Application), user,
			client, state, open))...)
	}
	return lines
}
