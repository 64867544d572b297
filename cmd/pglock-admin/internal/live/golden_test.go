package live

import (
	"fmt"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/look"
	"github.com/pglock-dev/pglock/internal/dev/screens"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// evenPlain reports whether a text has only runes that take the same number of cells in every terminal.
func evenPlain(line string) bool {
	_, same := evenCells(line)
	return same
}

var liveNoon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// leased is a lock that is held.
func leased(name, holder string, token pglock.Token, held, left time.Duration, waiting int) pglock.LockInfo {
	const ttl = 30 * time.Second
	return pglock.LockInfo{Name: name, Held: true, Holder: holder, Token: token, TTL: ttl, Remaining: left,
		Mode:       pglock.ModeExclusive,
		AcquiredAt: liveNoon.Add(-held), ExpiresAt: liveNoon.Add(left), Waiting: waiting,
		LongestWait: time.Duration(waiting) * 220 * time.Second}
}

// liveLab is a screen without a database: it notes what it asks for.
type liveLab struct {
	*liveModel
	asked  []liveWish
	broken []liveBreak
}

func newLab(width, height int) *liveLab {
	lab := &liveLab{}
	lab.liveModel = &liveModel{o: &cli.Options{At: &cli.Target{Where: cli.Where{Server: "db.example.com:5432",
		Database: "app",
		Schema:   cli.DefaultSchema}}, Getenv: func(string) string {
		return ""
	}},
		interval: time.Second, width: width, height: height, now: liveNoon, wish: liveWish{order: byWait},
		ask: func(w liveWish) {
			lab.asked = append(lab.asked, w)
		}, suspend: func() {}, breakIt: func(b liveBreak) { lab.broken = append(lab.broken, b) }}
	return lab
}

// gets gives the screen what a refresh has read.
func (l *liveLab) gets(s liveShot) *liveLab {
	s.wish = l.wish
	if s.at.IsZero() {
		s.at, s.next = liveNoon, liveNoon.Add(time.Second)
	}
	l.Update(s)
	l.now = s.at
	return l
}

// presses presses keys, by their names.
func (l *liveLab) presses(keys ...string) (last tea.Cmd) {
	for _, key := range keys {
		_, last = l.Update(keyNamed(key))
	}
	return last
}

func keyNamed(name string) tea.KeyPressMsg {
	for code, named := range map[rune]string{tea.KeyEnter: "enter", tea.KeyEsc: "esc", tea.KeyUp: "up",
		tea.KeyDown: "down", tea.KeyPgUp: "pgup", tea.KeyPgDown: "pgdown",
		tea.KeyHome: "home", tea.KeyEnd: "end", tea.KeyTab: "tab", tea.KeyBackspace: "backspace"} {
		if name == named {
			return tea.KeyPressMsg{Code: code}
		}
	}
	if letter, ctrl := strings.CutPrefix(name, "ctrl+"); ctrl {
		return tea.KeyPressMsg{Code: rune(letter[0]), Mod: tea.ModCtrl}
	}
	return tea.KeyPressMsg{Code: []rune(name)[0], Text: name}
}

// types types a text, rune by rune.
func (l *liveLab) types(text string) {
	for _, r := range text {
		l.presses(string(r))
	}
}

func shop() []pglock.LockInfo {
	free := pglock.LockInfo{Name: "cleanup", Holder: "app-2/cron[9]", Token: 12, TTL: 30 * time.Second,
		Mode: pglock.ModeExclusive}
	gpu := leased("gpu", "app-3/train[51]", 44, 11*time.Second, 19*time.Second, 0)
	gpu.Mode, gpu.Limit, gpu.Slot = pglock.ModeLimit, 2, 1
	return []pglock.LockInfo{
		gpu,
		leased("nightly-report", "app-1/reporter[4711]", 42, 11*time.Minute, 24*time.Second, 3),
		leased("orders/2026-11-22", "app-2/orders[963]", 17592186044451, 40*time.Millisecond, 29900*time.Millisecond,
			1),
		leased("stock count", "app-4/stock[7]", 7, 26*time.Hour, 4*time.Second, 0),
		free,
	}
}

// opened is a shot of the shop, or of other locks.
func opened(locks ...pglock.LockInfo) liveShot { return liveShot{locks: listed(locks...)} }

func listed(infos ...pglock.LockInfo) (locks []look.ListedLock) {
	verdicts := map[string]lockadmin.Severity{"gpu": lockadmin.SeverityOK,
		"nightly-report": lockadmin.SeverityBusy, "orders/2026-11-22": lockadmin.SeverityBusy,
		"stock count": lockadmin.SeverityWarning, "cleanup": lockadmin.SeverityOK}
	for _, i := range infos {
		locks = append(locks, look.ListedLock{LockView: look.ViewOf(i), Verdict: verdicts[i.Name]})
	}
	return locks
}

func shopRated() liveShot {
	s := opened(shop()...)
	s.at, s.next = liveNoon.Add(time.Second), liveNoon.Add(2*time.Second)
	return s
}

func queueOf(n int) (queue []lockadmin.Waiter) {
	for i := range n {
		w := lockadmin.Waiter{Lock: "nightly-report", Ticket: int64(i + 1), Place: i + 1, Mode: pglock.ModeExclusive,
			Holder: fmt.Sprintf("app-%d/reporter[%d]", i+2, 960+i),
			Alive:  true, Waiting: time.Duration(660-200*i) * time.Second}
		if i == 1 {
			w.Mode = pglock.ModeShared
		}
		if i == 2 {
			w.Alive = false
		}
		queue = append(queue, w)
	}
	return queue
}

func reportShot() liveShot {
	l := shop()[1]
	l.Name = "nightly-report"
	v := look.ShowView{Lock: look.ViewOf(l), Holders: []look.LockView{look.ViewOf(l)},
		Waiters: queueOf(3)}
	v.Events = []lockadmin.HistoryEntry{
		{At: liveNoon.Add(-11 * time.Minute), Kind: lockadmin.EventTakeover, Token: 41, NewToken: 42,
			Holder: "app-9/reporter[12]", Actor: "app-1/reporter[4711]"},
		{At: liveNoon.Add(-26 * time.Hour), Kind: lockadmin.EventBreak, Token: 30, NewToken: 31,
			Holder: "app-9/reporter[7]", Actor: "alice@ops", DBUser: "alice", Reason: "stuck since 3:00, host is down"},
	}
	v.Backends = []lockadmin.Backend{{Use: lockadmin.BackendHeartbeat, PID: 20321, User: "app",
		Application: "pglock app-1/reporter[4711]", Client: "10.0.0.7", State: "idle",
		InState: 1200 * time.Millisecond}}
	return liveShot{lock: v}
}

// The sizes of the terminals that the tests know.
var liveSizes = [][2]int{{40, 20}, {120, 40}}

// The golden screens are what a terminal shows: an emulator has drawn them.
func TestScreensLookAsInTheGoldenFiles(t *testing.T) {
	t.Parallel()
	scenes := map[string]func(*liveLab){
		"top":       func(l *liveLab) { l.gets(opened(shop()...)).gets(shopRated()) },
		"top-empty": func(l *liveLab) { l.gets(liveShot{}) },
		"top-filter": func(l *liveLab) {
			l.gets(opened(shop()...)).types("/re")
			l.gets(opened(shop()[1:2]...))
		},
		"top-old": func(l *liveLab) {
			l.gets(opened(shop()...)).gets(liveShot{trouble: &cli.Problem{Message: "cannot connect as user app: " +
				"10.0.0.5:5432: connection refused"}})
			l.now = liveNoon.Add(8 * time.Second)
		},
		"lock": func(l *liveLab) { l.wish.name = "nightly-report"; l.gets(reportShot()) },
		"lock-free": func(l *liveLab) {
			l.wish.name = "cleanup"
			free := shop()[4]
			free.EndedAt = liveNoon.Add(-time.Minute)
			l.gets(liveShot{lock: look.ShowView{Lock: look.ViewOf(free), Note: "the events are not shown: they need " +
				"the role pglock_admin"}})
		},
		"lock-gone": func(l *liveLab) {
			l.wish.name = "nightly-report"
			l.gets(reportShot()).gets(liveShot{gone: true}).presses("b", "end")
		},
		"lock-break": func(l *liveLab) {
			l.wish.name = "nightly-report"
			l.gets(reportShot()).presses("b")
			l.types("stuck since 3:00")
		},
		"lock-refused": func(l *liveLab) {
			l.wish.name = "nightly-report"
			l.gets(reportShot()).presses("b")
			l.types("x")
			l.presses("enter")
			l.Update(liveBroken{asked: l.broken[0],
				failed: &cli.Problem{Message: "permission denied for function break_lock (SQLSTATE 42501)",
					Hint: "let an administrator run: GRANT pglock_admin TO app"}})
		},
	}
	for name, play := range scenes {
		for _, size := range liveSizes {
			l := newLab(size[0], size[1])
			play(l)
			e := emulated(t, l.liveModel)
			screens.Compare(t, fmt.Sprintf("testdata/%s-%dx%d.txt", name, size[0], size[1]), screens.Text(e))
		}
	}
}

// The pictures in the documentation are what a terminal shows.
func TestPicturesInTheDocumentationAreWhatATerminalShows(t *testing.T) {
	t.Parallel()
	l := newLab(100, 12)
	l.gets(opened(shop()...))
	after := shopRated()
	after.locks[2].Token = 51
	for n, grants := range []int64{0, 0, 12, 0, 1} {
		after.locks[n].Grants += grants
	}
	l.gets(after)
	screens.Compare(t, "../../../../docs/top.svg", picture(emulated(t, l.liveModel),
		"pglock-admin top: five locks, the one that somebody has waited for longest first. One has a holder that "+
			"renews late, and is red."))

	l = newLab(100, 25)
	l.wish.name = "nightly-report"
	l.gets(reportShot()).presses("b")
	l.types("stuck since 3:00, host is down")
	screens.Compare(t, "../../../../docs/watch.svg", picture(emulated(t, l.liveModel),
		"pglock-admin watch nightly-report: the holder with the bar of its lease, three waiters, the history, the "+
			"process of the server. It asks why the lease is to be broken."))
}
