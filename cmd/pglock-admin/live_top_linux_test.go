package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/dev/screens"
	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// atBothSizes runs a test in a narrow terminal and in a wide one, in the short tier in the narrow one, where less fits.
// The pictures of the screens have both.
func atBothSizes(t *testing.T, test func(t *testing.T, columns, lines int)) {
	t.Helper()
	for _, size := range pgtest.Some(t, [][2]int{{40, 20}, {120, 40}}, func(size [2]int) bool {
		return size[0] == 40
	}) {
		t.Run(fmt.Sprintf("%dx%d", size[0], size[1]), func(t *testing.T) {
			t.Parallel()
			test(t, size[0], size[1])
		})
	}
}

// rowsOf are the rows of top: each from the name of its lock on.
func rowsOf(text string) (names []string) {
	_, table, _ := strings.Cut(text, "LOCK ")
	for line := range strings.Lines(table) {
		if name := strings.Fields(strings.TrimPrefix(line, "▶")); strings.HasPrefix(line, "▶ ") ||
			strings.HasPrefix(line, "  ") && len(name) > 0 {
			names = append(names, name[0])
		}
	}
	if len(names) > 0 {
		names = names[1:] // what is left of the titles
	}
	return names
}

func inThisOrder(names ...string) func(string) bool {
	return func(text string) bool { return strings.Join(rowsOf(text), " ") == strings.Join(names, " ") }
}

func TestTopSortsFiltersOpensAndEnds(t *testing.T) {
	t.Parallel()
	atBothSizes(t, func(t *testing.T, columns, lines int) {
		db := pgtest.Database(t)
		hold(t, db, "worker-1", "jobs/a")
		hold(t, db, "worker-2", "jobs/b")
		hold(t, db, "worker-3", "other")
		await(t, db, "waiter-1", "jobs/b", pglock.ModeExclusive, 0)
		execute(t, db, "UPDATE pglock.locks SET acquired_at = acquired_at - interval '1 hour' WHERE name = 'other'")
		s := onScreen(t, db.URL(), columns, lines, "top", "--interval", "100ms")
		s.until("the longest wait first", inThisOrder("jobs/b", "jobs/a", "other"))
		s.types("a")
		s.until("the longest held first", inThisOrder("other", "jobs/a", "jobs/b"))
		s.types("r")
		s.shows("by rate", "RATE/s")
		stop := granting(t, db, "jobs/b")
		s.until("the most granted first", func(text string) bool {
			return strings.HasPrefix(strings.Join(rowsOf(text), " "), "jobs/b")
		})
		stop()
		s.types("w/jobs")
		s.until("what fits the filter", inThisOrder("jobs/b", "jobs/a"))
		s.types("\r")
		s.showsNoMore("filter: ")
		s.types("\x1b[B\r") // down, Enter
		s.shows("jobs/a", "● worker-1", "nobody waits", "HISTORY")
		s.types("\x1b")
		s.until("the list again", inThisOrder("jobs/b", "jobs/a"))
		s.types("\x1b")
		s.until("all of it", inThisOrder("jobs/b", "jobs/a", "other"))
		s.types("\x1b[A\r") // up, Enter: the queue of the other
		s.shows("● worker-2", "└─ 1. waiter-1")
		s.types("q")
		s.ends(cli.ExitOK)
	})
}

// granting counts grants of a lock until it is stopped.
func granting(t *testing.T, db *pgtest.DB, name string) (stop func()) {
	t.Helper()
	conn := db.Conn(t)
	ctx, cancel := context.WithCancel(t.Context())
	var joined sync.WaitGroup
	joined.Go(func() {
		for ctx.Err() == nil {
			_, _ = conn.Exec(ctx, "UPDATE pglock.locks SET grants = grants + 100 WHERE name = $1", name)
			pause.For(ctx, 10*time.Millisecond)
		}
	})
	return func() {
		cancel()
		joined.Wait()
	}
}

func TestALeaseIsBrokenFromTheScreenWithAReason(t *testing.T) {
	t.Parallel()
	atBothSizes(t, func(t *testing.T, columns, lines int) {
		db := pgtest.Database(t)
		lease := hold(t, db, "worker-1", "jobs/a")
		s := onScreen(t, db.URL(), columns, lines, "watch", "jobs/a")
		s.shows("● worker-1")
		s.types("b")
		s.shows("BREAK THIS LEASE", "holder  worker-1", fmt.Sprintf("token   %d", lease.Token()), "reason")
		s.types("\r")
		s.shows("Write why")
		s.types("stuck since 3:00\r")
		s.shows(fmt.Sprintf("Broke token %d of worker-1.", lease.Token()), "○ nobody holds it")
		s.types("q")
		s.ends(cli.ExitOK)
		if _, err := lease.Check(t.Context()); err == nil {
			t.Error("the lease was not broken")
		}
		admin := must.Get(lockadmin.New(t.Context(), db.Pool(t)))(t)
		for e, err := range admin.History(t.Context(), lockadmin.HistoryQuery{Lock: "jobs/a"}) {
			if err != nil || e.Kind != lockadmin.EventBreak || e.Reason != "stuck since 3:00" ||
				e.Token != lease.Token() {
				t.Errorf("%+v, %v", e, err)
			}
		}
	})
}

// Whoever asks for the reason has shown a token. A lease that was granted while somebody typed stays.
func TestALeaseThatWasGrantedMeanwhileIsNeverBrokenFromTheScreen(t *testing.T) {
	db := pgtest.Parallel(t)
	lease := hold(t, db, "worker-1", "jobs/a")
	s := onScreen(t, db.URL(), 120, 40, "watch", "jobs/a")
	s.shows("● worker-1")
	s.types("b")
	s.shows("BREAK THIS LEASE")
	must.Do(t, lease.Release(t.Context()))
	next := hold(t, db, "worker-2", "jobs/a")
	s.shows("● worker-2", "holder  worker-1", "This lease has ended meanwhile. Enter breaks nothing.")
	s.types("stuck\r")
	s.shows("Nothing was broken: ", "is held with another token than 1")
	if _, err := next.Check(t.Context()); err != nil {
		t.Errorf("the next lease: %v", err)
	}
	s.types("q")
	s.ends(cli.ExitOK)
}

func TestARefusedBreakNamesTheRoleThatIsMissing(t *testing.T) {
	t.Parallel()
	atBothSizes(t, func(t *testing.T, columns, lines int) {
		db := pgtest.Database(t)
		lease := hold(t, db, "worker-1", "jobs/a")
		s := onScreen(t, asUser(t, db, "pglock_user"), columns, lines, "watch", "jobs/a")
		s.shows("● worker-1", "pglock_admin") // the history needs it too
		s.types("bstuck\r")
		text := s.until("which role is missing", func(text string) bool {
			return strings.Contains(strings.ReplaceAll(text, "\n", " "), "GRANT pglock_admin TO")
		})
		if !strings.Contains(text, "Nothing was broken: ") {
			t.Error(text)
		}
		if _, err := lease.Check(t.Context()); err != nil {
			t.Error(err)
		}
		s.types("q")
		s.ends(cli.ExitOK)
	})
}

// watch moves within a second of the change.
func TestWatchMovesWhenTheLockChanges(t *testing.T) {
	db := pgtest.Parallel(t)
	lease := hold(t, db, "worker-1", "jobs/a")
	s := onScreen(t, db.URL(), 40, 20, "watch", "jobs/a")
	s.shows("● worker-1")
	s.size(120, 40) // the terminal is made larger meanwhile
	s.drawnTo(40)
	for tries := 1; ; tries++ {
		began := time.Now()
		must.Do(t, lease.Release(t.Context()))
		s.shows("○ nobody holds it")
		took := time.Since(began)
		if took < 1500*time.Millisecond { // at least once, on a busy machine
			break
		}
		if tries == 5 {
			t.Fatalf("it took %v", took)
		}
		lease = hold(t, db, "worker-1", "jobs/a")
		s.shows("● worker-1")
	}
	hold(t, db, "worker-2", "jobs/a", pglock.WithTTL(time.Hour)) // no heartbeat adds to the screen
	s.shows("● worker-2")
	s.size(40, 20)
	s.drawnTo(20)
	s.shows("● worker-2")
	s.types("q")
	s.ends(cli.ExitOK)
}

// drawnTo waits until the screen is drawn down to that line, its last: it holds the keys.
func (s *screen) drawnTo(line int) {
	s.t.Helper()
	s.until(fmt.Sprintf("the keys in line %d", line), func(text string) bool {
		all := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		return len(all) == line && strings.Contains(all[line-1], "q quit")
	})
}

// Nothing from the database reaches the terminal as it is.
func TestHostileNamesDoNotReachTheTerminal(t *testing.T) {
	db := pgtest.Parallel(t)
	for n, text := range screens.Hostile {
		if len(text) > 256 {
			text = strings.ToValidUTF8(text[:256], "")
		}
		hold(t, db, text, fmt.Sprint(n)+text)
	}
	atBothSizes(t, func(t *testing.T, columns, lines int) {
		s := onScreen(t, db.URL(), columns, lines, "top", "--interval", "100ms")
		s.types("a")
		s.shows("by age", fmt.Sprint(len(screens.Hostile)), "▶ ")
		for n := 0; n < len(screens.Hostile); n += 7 { // the model's tests open all of them
			s.types("\r")
			s.shows("watch", "held · ")
			s.types("b")
			s.shows("BREAK THIS LEASE")
			s.types("\x1b")
			s.showsNoMore("BREAK")
			s.types("\x1b")
			text := s.shows("LOCK ", "VERDICT")
			for _, line := range rowLines(text) {
				if n := ansi.StringWidth(line); n > columns {
					t.Errorf("%d columns: %q", n, line)
				}
			}
			s.types(strings.Repeat("\x1b[B", 7))
		}
		s.types("q")
		s.ends(cli.ExitOK)
		raw := s.written()
		for _, bad := range []string{"pwned\x07", "\x1b]", "\u202e", "\u2066", "\u200b", "\u200d", "\u009b", "\x7f",
			"\u0301", "\ufe0f", "\x1b[1;1Hpwned"} {
			if strings.Contains(raw, bad) {
				t.Errorf("%q has reached the terminal", bad)
			}
		}
	})
}

func rowLines(text string) []string {
	_, table, _ := strings.Cut(text, "LOCK ")
	return strings.Split(table, "\n")
}

func TestTopAndWatchSayThatAHolderIsSilent(t *testing.T) {
	db := pgtest.Parallel(t)
	execute(t, db, "SELECT pglock.acquire_lease('nightly', gen_random_uuid(), gen_random_uuid(), 'app-1', '1 h')")
	execute(t, db, "UPDATE pglock.locks SET acquired_at = acquired_at - interval '1 min'") // and no sign of life since
	s := onScreen(t, db.URL(), 120, 40, "top", "--interval", "100ms")
	s.shows("nightly", "silent")
	s.types("\r")
	s.shows("held for 1m", "silent 59m")
	s.types("q")
	s.ends(cli.ExitOK)
}
