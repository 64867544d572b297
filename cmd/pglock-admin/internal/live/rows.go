package live

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/look"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
)

// liveRates counts grants between refreshes.
type liveRates struct {
	at     time.Time
	grants map[liveKey]int64
	rate   map[liveKey]float64
}

func (r *liveRates) note(s liveShot) {
	grants, rate := map[liveKey]int64{}, map[liveKey]float64{}
	for _, i := range s.locks {
		k := keyOf(i)
		grants[k] = i.Grants
		if before, known := r.grants[k]; known && s.at.After(r.at) {
			rate[k] = max(0, float64(i.Grants-before)/s.at.Sub(r.at).Seconds())
		}
	}
	r.at, r.grants, r.rate = s.at, grants, rate
}

// text is the rate of a lock: "-" until it has been seen twice.
func (r *liveRates) text(k liveKey) string {
	rate, known := r.rate[k]
	switch {
	case !known:
		return "-"
	case rate == 0:
		return "0"
	case rate < 10 && rate != math.Trunc(rate):
		return strconv.FormatFloat(rate, 'f', 1, 64)
	}
	return strconv.FormatFloat(rate, 'f', 0, 64)
}

func (m *liveModel) sort() {
	slices.SortStableFunc(m.shot.locks, func(a, b look.ListedLock) int {
		c := 0
		switch m.wish.order {
		case byWait:
			c = cmp.Compare(b.LongestWait, a.LongestWait)
		case byAge:
			c = cmp.Compare(lists.HeldFor(b.LockInfo), lists.HeldFor(a.LockInfo))
		case byRate:
			c = cmp.Compare(m.rates.rate[keyOf(b)], m.rates.rate[keyOf(a)])
		}
		return cmp.Or(c, cmp.Compare(a.Name, b.Name), cmp.Compare(a.Slot, b.Slot))
	})
}

// follow keeps the chosen lock chosen when its place changes.
func (m *liveModel) follow() {
	if n := slices.IndexFunc(m.shot.locks, func(l look.ListedLock) bool { return keyOf(l) == m.chosen }); n >= 0 {
		m.row = n
	}
	m.choose()
}

// choose notes which lock is chosen, and brings it onto the screen.
func (m *liveModel) choose() {
	m.row = max(0, min(m.row, len(m.shot.locks)-1))
	if m.row < len(m.shot.locks) {
		m.chosen = keyOf(m.shot.locks[m.row])
	}
	page := max(1, m.rows())
	m.from = max(m.row-page+1, min(m.from, m.row))
}

func (m *liveModel) move(key string) {
	m.row = moved(key, m.row, m.rows(), len(m.shot.locks)-1)
	m.choose()
}

// moved is where a key leads from a place. Another key leads nowhere.
func moved(key string, at, page, last int) int {
	switch key {
	case "up", "k":
		return at - 1
	case "down", "j":
		return at + 1
	case "pgup", "ctrl+b":
		return at - page
	case "pgdown", "ctrl+f", "space":
		return at + page
	case "home", "g":
		return 0
	case "end", "G", "shift+g":
		return last
	}
	return at
}

// liveColumn is a column of top. Those of a lower rank leave first when the terminal is narrow.
type liveColumn struct {
	title string
	rank  int
	least int
	right bool
	text  func(look.ListedLock) string
}

const (
	lockColumn   = "LOCK"
	holderColumn = "HOLDER"
)

func (m *liveModel) columns() []liveColumn {
	first := func(order liveOrder, rank int) int { // the sorted one stays
		if m.wish.order == order {
			return 9
		}
		return rank
	}
	return []liveColumn{
		{lockColumn, 10, 16, false, func(l look.ListedLock) string { return cellName(l.Name) }},
		{"VERDICT", 9, 7, false, func(l look.ListedLock) string { return cli.Mark(l.Verdict) }},
		{"MODE", 0, 12, false, func(l look.ListedLock) string { return look.SlotText(l.LockInfo) }},
		{holderColumn, 6, 16, false, func(l look.ListedLock) string { return cellText(l.Holder) }},
		{"TOKEN", 1, 6, true, func(l look.ListedLock) string { return strconv.FormatInt(int64(l.Token), 10) }},
		{"HELD", first(byAge, 5), 6, true, func(l look.ListedLock) string {
			return shown.Either(l.Held, shown.Age(lists.HeldFor(l.LockInfo)), "-")
		}},
		{"LEASE", 2, 10, false, func(l look.ListedLock) string {
			return shown.Either(l.Held, look.LeaseCell(l.LockInfo, l.Life, 10), "")
		}},
		{"LEFT", 8, 5, true, func(l look.ListedLock) string {
			return shown.Either(l.Held, shown.Age(l.LockInfo.Remaining), "FREE")
		}},
		{"QUEUE", 7, 5, true, func(l look.ListedLock) string {
			return shown.Either(l.Waiting > 0, strconv.Itoa(l.Waiting), "-")
		}},
		{"WAIT", first(byWait, 3), 5, true, func(l look.ListedLock) string {
			return shown.Either(l.Waiting > 0, shown.Age(l.LongestWait), "-")
		}},
		{"RATE/s", first(byRate, 4), 6, true, func(l look.ListedLock) string { return m.rates.text(keyOf(l)) }},
	}
}

const liveGap = 2

// table chooses the columns that fit, and how wide each is.
func (m *liveModel) table(width int) (columns []liveColumn, widths []int) {
	columns = m.columns()
	natural := map[string]int{}
	for _, c := range columns {
		natural[c.title] = max(c.least, cells(c.title))
		for _, i := range m.shot.locks {
			natural[c.title] = max(natural[c.title], cells(c.text(i)))
		}
	}
	least := func(c liveColumn) int {
		if c.title == lockColumn || c.title == holderColumn {
			return c.least
		}
		return natural[c.title]
	}
	used := func() (n int) {
		for _, c := range columns {
			n += least(c) + liveGap
		}
		return n - liveGap
	}
	for used() > width && len(columns) > 1 {
		lowest := 0
		for n, c := range columns {
			if c.rank < columns[lowest].rank {
				lowest = n
			}
		}
		columns = slices.Delete(columns, lowest, lowest+1)
	}
	rest := max(0, width-used())
	for _, c := range columns {
		w := min(least(c), width)
		switch c.title {
		case lockColumn: // two thirds of what is left, and more if the holder needs less
			w += min(natural[c.title]-w, max(rest*2/3, rest-(natural[holderColumn]-16)))
		case holderColumn:
			w += min(natural[c.title]-w, rest)
		}
		if grown := w - min(least(c), width); grown > 0 {
			rest -= grown
		}
		widths = append(widths, max(w, 0))
	}
	return columns, widths
}

// rows is how many rows of the list the screen has room for.
func (m *liveModel) rows() int { return m.height - len(m.header()) - 2 - len(m.noticeLines()) }

func (m *liveModel) drawTop() []string {
	width := max(0, m.width-2)
	if !m.seen {
		return []string{"", "  reading …"}
	}
	if len(m.shot.locks) == 0 {
		text := shown.Either(m.wish.match == "", "no lock is held", "no lock fits the filter")
		return []string{"", fit("  "+text, m.width)}
	}
	columns, widths := m.table(width)
	row := func(text func(liveColumn) string) string {
		var all []string
		for n, c := range columns {
			fitted := fit
			if c.right {
				fitted = fitRight
			}
			all = append(all, fitted(text(c), widths[n]))
		}
		return strings.Join(all, strings.Repeat(" ", liveGap))
	}
	title := row(func(c liveColumn) string { return c.title })
	lines := []string{liveBold(fit("  "+title, m.width))}
	_, old := m.old()
	for n := m.from; n < min(len(m.shot.locks), m.from+max(1, m.rows())); n++ {
		line := row(func(c liveColumn) string { return c.text(m.shot.locks[n]) })
		switch {
		case n == m.row:
			line = liveReverse(fit("▶ "+line, m.width))
		case old:
			line = liveFaint(fit("  "+line, m.width))
		case ill(m.shot.locks[n].Verdict):
			line = liveAlarm(fit("  "+line, m.width))
		default:
			line = fit("  "+line, m.width)
		}
		lines = append(lines, line)
	}
	return lines
}

// ill says that a lock needs somebody.
func ill(v lockadmin.Severity) bool {
	return v == lockadmin.SeverityWarning || v == lockadmin.SeverityStuck
}

func (m *liveModel) count() string {
	n := fmt.Sprint(len(m.shot.locks))
	switch {
	case m.shot.more:
		return "the first " + n
	case len(m.shot.locks) == 1:
		return "1 row"
	}
	return n + " rows"
}
