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
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// hostileShots have the text wherever a text from outside can be.
func hostileShots(text string) (list, lock liveShot) {
	l := leased(text, text, 1, time.Hour, 10*time.Second, 2)
	list = opened(l, leased("plain", "holder", 2, time.Hour, 10*time.Second, 1))
	second := l
	second.Token, second.Slot = 3, 2
	v := look.ShowView{Lock: look.ViewOf(l), Holders: []look.LockView{look.ViewOf(l), look.ViewOf(second)},
		Waiters: []lockadmin.Waiter{
			{Lock: text, Ticket: 1, Place: 1, Holder: text, Alive: true, Behind: text},
			{Lock: text, Ticket: 2, Place: 12, Holder: text}}}
	for _, kind := range []lockadmin.EventKind{lockadmin.EventBreak, lockadmin.EventTakeover, lockadmin.EventBypass,
		lockadmin.EventEpoch, lockadmin.EventRelease, lockadmin.EventKind(text)} {
		v.Events = append(v.Events, lockadmin.HistoryEntry{At: liveNoon, Kind: kind, Lock: text, Holder: text,
			Actor:  text,
			DBUser: text, Reason: text, Resource: text})
	}
	v.Backends = []lockadmin.Backend{
		{Use: lockadmin.BackendWrite, Resource: text, PID: 1, User: text, Application: text, Client: text,
			State: "active", WaitsFor: text, Transaction: time.Hour},
		{Use: lockadmin.BackendHeartbeat, PID: 2, User: text, Application: text, Client: text, State: text}}
	return list, liveShot{lock: v}
}

// Whatever a name is, each line keeps its width, and nothing in it is a command for the terminal.
func TestHostileTextsStayInTheirPlace(t *testing.T) {
	t.Parallel()
	for _, text := range screens.Hostile {
		list, lock := hostileShots(text)
		for _, size := range [][2]int{{20, 6}, {40, 20}, {120, 40}} {
			l := newLab(size[0], size[1])
			l.gets(list)
			first := screens.Text(emulated(t, l.liveModel))
			if size[0] >= 40 && (!strings.Contains(first, "plain  ") || strings.Contains(first, "pwned\x07")) {
				t.Errorf("%q at %v:\n%s", text, size, first)
			}
			l.presses("/")
			l.Update(tea.PasteMsg{Content: text})
			drawn(t, l.liveModel)
			l.presses("enter")
			l.wish.name = text
			l.gets(lock)
			fitting(t, l.drawLock(), l.width)
			l.presses("end")
			drawn(t, l.liveModel)
			l.presses("b")
			l.Update(tea.PasteMsg{Content: text})
			drawn(t, l.liveModel)
			l.types("x")
			l.presses("enter")
			l.Update(liveBroken{asked: *l.asking, failed: &cli.Problem{Message: text, Hint: text}})
			drawn(t, l.liveModel)
			l.Update(liveBroken{broken: lockadmin.Broken{Name: text, Holder: text, Token: 1}})
			drawn(t, l.liveModel)
			l.gets(liveShot{trouble: &cli.Problem{Message: text, Hint: text}})
			drawn(t, l.liveModel)
		}
	}
}

// A shell and pglock-admin read the name that the screen shows.
func TestNamesOnTheScreenCanBePasted(t *testing.T) {
	t.Parallel()
	for _, name := range append([]string{"nightly-report", "my job", "界"}, screens.Hostile...) {
		shows := cellName(name)
		if !evenPlain(shows) {
			t.Errorf("%q", shows)
		}
		if inner, quoted := strings.CutPrefix(shows, `'"`); quoted {
			back, err := cli.NameOf(look.NewList(&cli.Options{}), []string{`"` + strings.TrimSuffix(inner, "'")}, 0)
			if err != nil || back != name {
				t.Errorf("%q is shown as %s, which is read as %q, %v", name, shows, back, err)
			}
		} else if shows != shown.Name(name) {
			t.Errorf("%q is shown as %s", name, shows)
		}
	}
}

func TestEveryWidthHasAScreen(t *testing.T) {
	t.Parallel()
	for width := 1; width < 130; width += 1 + width/60 {
		for _, height := range []int{1, 5, 6, 7, 20} {
			for _, order := range []liveOrder{byWait, byAge, byRate} {
				l := newLab(width, height)
				l.wish.order = order
				l.gets(shopRated())
				if width < liveLeastWidth || height < liveLeastHeight {
					if lines := l.screen(); len(lines) != 1 || cells(lines[0]) > width {
						t.Errorf("%dx%d: %q", width, height, lines)
					}
					continue
				}
				text := strings.Join(drawn(t, l.liveModel), "\n")
				title := map[liveOrder]string{byWait: "WAIT", byAge: "HELD", byRate: "RATE/s"}[order]
				if !strings.Contains(text, title) && width >= 26 {
					t.Errorf("at %d there is no %s by which it is sorted:\n%s", width, title, text)
				}
			}
		}
	}
}

func TestTheChosenLockStaysChosenWhereverItGoes(t *testing.T) {
	t.Parallel()
	l := newLab(120, 10)
	l.gets(opened(shop()...)).presses("down") // orders
	if l.chosen.name != "orders/2026-11-22" || l.row != 1 {
		t.Fatalf("%+v in row %d", l.chosen, l.row)
	}
	locks := shop()
	locks[2].LongestWait = time.Hour // fewer wait for it, but for longer
	l.gets(opened(locks...))
	if l.chosen.name != "orders/2026-11-22" || l.row != 0 {
		t.Errorf("%+v in row %d", l.chosen, l.row)
	}
	l.gets(opened(shop()[:1]...)) // it has gone
	if l.row != 0 || l.chosen.name != "gpu" {
		t.Errorf("%+v in row %d", l.chosen, l.row)
	}
	l.gets(liveShot{})
	if l.presses("enter", "down", "pgup", "end", "home"); l.row != 0 || l.wish.name != "" {
		t.Errorf("row %d of nothing, %+v", l.row, l.wish)
	}
	var many []pglock.LockInfo
	for n := range 100 {
		many = append(many, leased(fmt.Sprintf("lock-%03d", n), "h", pglock.Token(n+1), time.Minute, time.Second, 0))
	}
	l.gets(opened(many...))
	for _, step := range []struct{ key, chosen string }{{"end", "lock-099"}, {"up", "lock-098"}, {"home", "lock-000"},
		{"pgdown", "lock-006"}, {"pgdown", "lock-012"}, {"pgup", "lock-006"}} {
		l.presses(step.key)
		if text := screens.Text(emulated(t, l.liveModel)); l.chosen.name != step.chosen ||
			!strings.Contains(text, "▶ "+step.chosen) {
			t.Errorf("%s chooses %s, want %s:\n%s", step.key, l.chosen.name, step.chosen, text)
		}
	}
}

func TestTheRateIsThatBetweenTwoRefreshes(t *testing.T) {
	t.Parallel()
	l := newLab(120, 20)
	l.wish.order = byRate
	at := func(seconds int, grants ...int64) liveShot {
		s := liveShot{at: liveNoon.Add(time.Duration(seconds) * time.Second)}
		s.next = s.at.Add(time.Second)
		for n, g := range grants {
			lock := leased(string(rune('a'+n)), "h", 1, time.Minute, time.Second, 0)
			lock.Grants = g
			s.locks = append(s.locks, listed(lock)...)
		}
		return s
	}
	if l.gets(at(0, 10, 20)); l.rates.text(liveKey{"a", 0}) != "-" {
		t.Errorf("it knows a rate after one look: %s", l.rates.text(liveKey{"a", 0}))
	}
	l.gets(at(2, 10, 25, 7))
	for name, want := range map[string]string{"a": "0", "b": "2.5", "c": "-"} {
		if got := l.rates.text(liveKey{name, 0}); got != want {
			t.Errorf("%s has %s, want %s", name, got, want)
		}
	}
	if first := l.shot.locks[0].Name; first != "b" {
		t.Errorf("%s is first", first)
	}
	if l.gets(at(3, 3)); l.rates.text(liveKey{"a", 0}) != "0" { // its row was pruned and made anew
		t.Errorf("a has %s", l.rates.text(liveKey{"a", 0}))
	}
}

func TestDataThatCameLateAreCalledOld(t *testing.T) {
	t.Parallel()
	l := newLab(120, 20)
	l.gets(opened(shop()...))
	for seconds, old := range map[int]bool{0: false, 1: false, 3: false, 4: true, 100: true} {
		l.Update(liveTick(liveNoon.Add(time.Duration(seconds) * time.Second)))
		if text := screens.Text(emulated(t, l.liveModel)); strings.Contains(text,
			fmt.Sprintf("OLD: of 12:00:00, %ds ago",
				seconds)) != (old && seconds < 60) && seconds < 60 {
			t.Errorf("after %d s:\n%s", seconds, text)
		}
		if _, is := l.old(); is != old {
			t.Errorf("after %d s it is old: %v", seconds, is)
		}
	}
	l.now = liveNoon
	l.gets(liveShot{trouble: &cli.Problem{Message: "gone"}})
	if _, old := l.old(); !old {
		t.Error("a refresh has failed, and the screen does not call its data old")
	}
	l.gets(liveShot{locks: listed(shop()...), at: liveNoon.Add(time.Minute), next: liveNoon.Add(time.Minute)})
	if _, old := l.old(); old || l.trouble != nil {
		t.Error("fresh data are called old")
	}
}

func TestAnAnswerToAnotherQuestionIsNotShown(t *testing.T) {
	t.Parallel()
	l := newLab(120, 20)
	l.gets(opened(shop()...))
	late := liveShot{wish: l.wish, locks: listed(shop()[0]), at: liveNoon}
	l.types("/x")
	if text := screens.Text(emulated(t, l.liveModel)); strings.Contains(text, "gpu") ||
		!strings.Contains(text, "reading") {
		t.Errorf("what was read for another filter is shown:\n%s", text)
	}
	l.Update(late)
	if text := screens.Text(emulated(t, l.liveModel)); strings.Contains(text, "gpu") {
		t.Errorf("what was read for another filter is shown:\n%s", text)
	}
	if want := (liveWish{order: byWait, match: "x"}); len(l.asked) != 1 || l.asked[0] != want {
		t.Errorf("it asked %+v", l.asked)
	}
	l.presses("esc")
	if l.typing || l.wish.match != "" || len(l.asked) != 2 {
		t.Errorf("%v %+v %+v", l.typing, l.wish, l.asked)
	}
}

// Where the server has left locks out, another order is read before it is shown.
func TestAnotherOrderOfAPartIsReadFirst(t *testing.T) {
	t.Parallel()
	l := newLab(120, 20)
	if l.gets(opened(shop()...)).presses("a"); !l.seen {
		t.Error("all locks are known, and only sorted anew")
	}
	if l.gets(liveShot{locks: listed(shop()...), more: true}).presses("w"); l.seen {
		t.Error("others may be first in this order")
	}
}

func TestABreakIsSentOnceAndOnlyWithAReason(t *testing.T) {
	t.Parallel()
	l := newLab(80, 24)
	l.wish.name = "nightly-report"
	l.gets(reportShot())
	l.presses("b", "enter")
	l.types("  ")
	l.presses("enter", "esc")
	if len(l.broken) > 0 || l.asking != nil {
		t.Fatalf("%+v", l.broken)
	}
	l.presses("b")
	l.types("stuckk")
	l.presses("backspace")
	l.Update(tea.PasteMsg{Content: " since\n3:00\x1b[2J"})
	next := reportShot() // it is granted to somebody else meanwhile
	next.lock.Holders[0].Token, next.lock.Holders[0].Holder = 99, "other"
	l.gets(next)
	l.presses("enter", "enter", "esc", "x")
	want := liveBreak{name: "nightly-report", holder: "app-1/reporter[4711]", token: 42, reason: "stuck since 3:00[2J",
		sent: true}
	if len(l.broken) != 1 || l.broken[0] != want || l.asking == nil {
		t.Errorf("%+v, want %+v once", l.broken, want)
	}
	l.Update(liveBroken{asked: want, broken: lockadmin.Broken{Token: 42}})
	if l.asking != nil || !strings.Contains(l.notice, "Broke token 42") {
		t.Errorf("%+v %q", l.asking, l.notice)
	}
	l.presses("b")
	for range lockadmin.MaxReasonBytes {
		l.types("界")
	}
	if n := len(l.asking.reason); n > lockadmin.MaxReasonBytes || n < lockadmin.MaxReasonBytes-3 {
		t.Errorf("a reason of %d bytes", n)
	}
}

func TestAnUnknownOutcomeIsNotCalledARefusal(t *testing.T) {
	t.Parallel()
	p := &cli.Problem{Message: "it is unknown whether the lease was broken: the connection was lost",
		Hint: "pglock-admin show a"}
	if told := (liveBroken{failed: p, unknown: true}).told(); strings.Contains(told, "Nothing was broken") ||
		!strings.Contains(told, "unknown") {
		t.Error(told)
	}
}

func TestTabChoosesTheHolderToBreak(t *testing.T) {
	t.Parallel()
	l := newLab(80, 24)
	l.wish.name = "gpu"
	v := look.ShowView{}
	for n := range 3 {
		h := leased("gpu", fmt.Sprintf("h%d", n), pglock.Token(10+n), time.Minute, time.Second, 0)
		h.Slot = n + 1
		v.Holders = append(v.Holders, look.ViewOf(h))
	}
	l.gets(liveShot{lock: v})
	for _, step := range []struct {
		key   string
		token pglock.Token
	}{{"x", 10}, {"tab", 11}, {"tab", 12}, {"tab", 10}, {"tab", 11}} {
		if l.presses(step.key); l.token != step.token {
			t.Errorf("%s chooses %d, want %d", step.key, l.token, step.token)
		}
	}
	v.Holders = append(v.Holders[:1:1], v.Holders[2:]...) // the chosen one has ended
	l.gets(liveShot{lock: v}).presses("b")
	if l.asking == nil || l.asking.token != 10 || l.asking.holder != "h0" {
		t.Errorf("%+v", l.asking)
	}
	l.presses("esc")
	l.gets(liveShot{lock: look.ShowView{}}).presses("b")
	if l.asking != nil || l.notice == "" {
		t.Error("there is nothing to break")
	}
}

func TestASlowListIsReadLessOften(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]time.Duration{0: time.Second,
		100 * time.Millisecond: 900 * time.Millisecond, time.Second: 4 * time.Second} {
		if got := pauseAfter(took, time.Second); got != want {
			t.Errorf("after %v a pause of %v, want %v", took, got, want)
		}
	}
}

// However low the terminal is, the question says whose lease it is about, and with which token.
func TestALowTerminalHasRoomForTheQuestion(t *testing.T) {
	t.Parallel()
	for height := liveLeastHeight; height < 20; height++ {
		l := newLab(40, height)
		l.wish.name = "nightly-report"
		l.gets(reportShot()).presses("b")
		text := strings.Join(drawn(t, l.liveModel), "\n")
		for _, want := range []string{"nightly-report", "app-1/reporter[4711]", "token   42", "reason",
			"Enter breaks it"} {
			if !strings.Contains(text, want) {
				t.Errorf("at %d lines there is no %q:\n%s", height, want, text)
			}
		}
	}
}

func TestFoldedKeepsToItsWidthAndLosesNothing(t *testing.T) {
	for s, want := range map[string]string{
		"…x…---":             "…x…--/-",
		"世世yxy世 y-世 xb--x":   "世世y/xy世/y-世/xb--x",
		"held by app-1/x[4]": "held/by/app-/1/x[4/]",
		"abcdefgh":           "abcde/fgh",
		"ab":                 "ab",
		"":                   "",
	} {
		got := folded(s, 5, 99)
		for _, line := range got {
			if cells(line) > 5 {
				t.Errorf("%q has %d cells", line, cells(line))
			}
		}
		if strings.Join(got, "/") != want {
			t.Errorf("%q is folded to %q, want %q", s, got, want)
		}
	}
	if got := strings.Join(folded("abcdefghijklmn", 5, 2), "/"); got != "abcde/fgh…n" {
		t.Errorf("shortened to %q", got)
	}
}
