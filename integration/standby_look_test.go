package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/dashboard"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// adminCommand builds pglock-admin.
func adminCommand(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "pglock-admin")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/pglock-admin")
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// commandOf runs a program at one server.
type commandOf struct {
	t            *testing.T
	program, url string
}

// run wants the exit code, and gives what the command wrote.
func (c commandOf) run(code int, args ...string) (stdout, stderr string) {
	c.t.Helper()
	var out, errs strings.Builder
	ctx, cancel := context.WithTimeout(c.t.Context(), patience) // serve would go on for ever
	defer cancel()
	cmd := exec.CommandContext(ctx, c.program, append([]string{"--database-url", c.url}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != code {
		c.t.Errorf("pglock-admin %q: %v, want exit code %d\n%s%s", args, err, code, &out, &errs)
	}
	return out.String(), errs.String()
}

// wants wants these texts in the answer, as a table; of those after a "-" it wants none.
func (c commandOf) wants(args []string, texts ...string) {
	c.t.Helper()
	out, _ := c.run(0, args...)
	words, not := strings.Join(strings.Fields(out), " "), false
	for _, text := range texts {
		if text == "-" {
			not = true
		} else if strings.Contains(words, text) == not {
			c.t.Errorf("pglock-admin %q: %q is wanted: %v\n%s", args, text, !not, out)
		}
	}
}

// standbyField is what an answer in JSON says of a standby.
type standbyField struct {
	Standby *struct {
		Behind     *int64    `json:"behind_ms"`
		ReplayedAt time.Time `json:"replayed_at"`
		Receiving  bool      `json:"receiving"`
		Text       string    `json:"text"`
	} `json:"standby"`
}

func (c commandOf) data(v any, args ...string) {
	c.t.Helper()
	out, _ := c.run(0, append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(out), v); err != nil {
		c.t.Errorf("pglock-admin %q: %v\n%s", args, err, out)
	}
}

// The commands that only read answer on a standby, with the past, and say so. What writes is refused.
func TestI23_AStandbyShowsThePastAndSaysSo(t *testing.T) {
	t.Parallel() // it has servers of its own
	primary := newPrimary(t)
	look := newPeer(t, primary.url)
	look.exec(t, `CREATE TABLE public.accounts (id bigint PRIMARY KEY)`)
	look.exec(t, `CREATE ROLE oncall LOGIN PASSWORD 'x' IN ROLE pglock_user`)
	standby := newStandby(t, primary)
	look.exec(t, `SELECT pglock.acquire_lease('report', gen_random_uuid(), gen_random_uuid(), 'reporter', '1 h')`)
	look.mustAcquire(t, "gone", time.Hour)
	look.mustAcquire(t, "broken", time.Hour)
	look.exec(t, `SELECT pglock.fence('gone', token, grant_id) FROM pglock.locks WHERE name = 'gone'`)
	look.exec(t, `SELECT pglock.break_lock('broken', 'stuck', 'alice')`)
	look.exec(t, `SELECT pglock.acquire_lease('gone', gen_random_uuid(), gen_random_uuid(), 'waiter', '1 h',
		p_wait => true)`)
	look.exec(t, `UPDATE pglock.locks
		SET acquired_at = acquired_at - interval '1 min', renewed_at = renewed_at - interval '1 min' WHERE name = 'gone'`)
	look.exec(t,
		`UPDATE pglock.sessions SET alive_until = clock_timestamp() - interval '1 min' WHERE holder = 'waiter'`)
	look.exec(t, `INSERT INTO pglock.sessions (session_id, holder, alive_until, seen_at, version, pid, mark)
		SELECT session_id, holder, clock_timestamp() + interval '1 h', clock_timestamp() - interval '50 s', 'v1', 1, 4711
		FROM pglock.locks WHERE name = 'gone'
		ON CONFLICT (session_id) DO UPDATE
		SET alive_until = EXCLUDED.alive_until, seen_at = EXCLUDED.seen_at, pid = 1, mark = 4711`)
	look.mustAcquire(t, "fresh", time.Hour) // its last sign came over a connection that has ended
	look.exec(t, `INSERT INTO pglock.sessions (session_id, holder, alive_until, seen_at, seen_by, version, pid, mark)
		SELECT gen_random_uuid(), 'fresh', clock_timestamp() + interval '1 h', clock_timestamp() + interval '1 h', 1, 'v1',
			1, 4712`)
	look.exec(t, `UPDATE pglock.locks SET session_id = (SELECT session_id FROM pglock.sessions WHERE holder = 'fresh')
		WHERE name = 'fresh'`)
	session := one[string](t, look, `SELECT session_id::text FROM pglock.locks WHERE name = 'gone'`)
	program := adminCommand(t)
	there, here := commandOf{t, program, primary.url}, commandOf{t, program, standby.url}
	from := look.Config()
	source := fmt.Sprintf("This standby receives from %s, port %d: ", from.Host, from.Port)
	standby.catchUp(t, look)

	t.Run("looks", func(t *testing.T) { standbyLooks(t, there, here, session) })
	t.Run("the page", func(t *testing.T) { standbyOfThePage(t, primary, standby) })
	t.Run("the primary's address", func(t *testing.T) {
		mine := commandOf{t, program, standby.url}
		mine.wants([]string{"why", "gone"}, "Ask the primary.", source)
		mine.url = strings.Replace(standby.url, from.User+":"+from.Password, "oncall:x", 1)
		mine.wants([]string{"why", "gone"}, "Ask the primary.", "-", "receives from")
	})
	t.Run("refusals", func(t *testing.T) { standbyRefuses(t, here, standby, session) })
	t.Run("a table that is locked", func(t *testing.T) { standbyOfALockedTable(t, primary, standby, here) })
	t.Run("delay", func(t *testing.T) { standbyIsBehind(t, look, standby, here) })
}

// standbyLooks compares the words of the primary with those of its standby.
func standbyLooks(t *testing.T, there, here commandOf, session string) {
	there.t, here.t = t, t
	const heading = "This is a standby: it shows the past"
	there.wants([]string{"list"}, "dead", "-", "standby")
	here.wants([]string{"list"}, heading, "report", "gone", "-", "dead", "silent")
	there.wants([]string{"sessions", "--session", session}, " dead ", "-", "standby")
	here.wants([]string{"sessions", "--session", session}, heading, " unknown ", "-", " dead ", " silent ")
	there.wants([]string{"why", "gone"}, "dead or cut off", "-", "standby")
	here.wants([]string{"why", "gone"}, heading, "NOTE As far as this standby knows, gone is held by",
		"The last sign of life that has arrived here is ", "does not see the server's processes of the primary",
		"Ask the primary.", "1 waits; next: waiter", "-", "dead", "pglock-admin break", "If you do nothing",
		"PgBouncer")
	there.wants([]string{"why"}, "its holder is dead or cut off", "-", "standby")
	here.wants([]string{"why"}, heading, "NOTE gone", "The primary alone knows how the locks are.", "-", "dead",
		"break ",
		"are well")
	here.wants([]string{"list"}, "report NOTE", "gone NOTE", "-", " OK ")
	here.wants([]string{"why", "report"}, heading, "report is held by reporter", "-", "dead", "PgBouncer")
	here.wants([]string{"why", "broken"}, heading, "As far as this standby knows, broken is free.", "alice", "-",
		"dead")
	here.wants([]string{"why", "gome"}, heading, "the primary may know the lock by now", "Ask the primary.", "-",
		"Sure")
	here.wants([]string{"history"}, heading, "break", "alice", "-", "record --level")
	there.wants([]string{"show", "gone"}, "HOW TO END IT", "passed over")
	here.wants([]string{"show", "gone"}, heading, "held for",
		"A standby does not see the server's processes of the primary.",
		"unknown: no sign of life has arrived", "-", "HOW TO END IT", "PgBouncer", "passed over")
	there.wants([]string{"waiters"}, "passed over")
	here.wants([]string{"waiters"}, heading, "unknown: no sign of life has arrived on this standby", "-",
		"passed over")
	here.wants([]string{"fences"}, heading, "gone")
	here.wants([]string{"verify"}, heading)
	here.wants([]string{"guard", "list"}, heading)
	here.wants([]string{"doctor"}, "prepared transactions", "-", "older than a minute")
	for _, args := range [][]string{
		{"list"}, {"why", "gone"}, {"sessions"}, {"history"}, {"show", "gone"}, {"waiters"}, {"fences"},
	} {
		var on, off standbyField
		there.data(&off, args...)
		if here.data(&on, args...); off.Standby != nil || on.Standby == nil || on.Standby.Behind == nil ||
			!on.Standby.Receiving || on.Standby.ReplayedAt.IsZero() ||
			!strings.Contains(on.Standby.Text, "shows the past") {
			t.Errorf("%q says %+v on the primary, and %+v on the standby", args, off.Standby, on.Standby)
		}
	}
	there.wants([]string{"sessions", "--holder", "fresh"}, " unknown ", "-", " alive ")
	here.wants([]string{"sessions", "--holder", "fresh"}, " alive ", "-", " unknown ")
	for _, args := range [][]string{
		{"list", "--order", "age"}, {"list", "--order", "waiting", "--all"}, {"waiters", "--order", "age"},
		{"sessions", "--order", "age"}, {"fences", "--order", "age"}, {"history", "gone"}, {"verify", "gone"},
	} {
		here.wants(args, "shows the past", "-", "dead", "silent")
	}
	var why lockadmin.Explanation
	here.data(&why, "why", "gone")
	if q := why.Queue; q.Waiting != 1 || len(q.First) != 1 || q.Dead != 0 || q.Alive != nil ||
		why.Holders[0].Life != lockadmin.LifeUnknown || why.Holders[0].Connected != nil {
		t.Errorf("why says on a standby %+v", why)
	}
	var lives struct {
		Locks []struct {
			Name string         `json:"name"`
			Life lockadmin.Life `json:"life"`
		} `json:"locks"`
	}
	here.data(&lives, "list", "--prefix", "gone")
	if len(lives.Locks) != 1 || lives.Locks[0].Life != lockadmin.LifeUnknown {
		t.Errorf("on a standby the life of a dead holder is %+v", lives)
	}
	here.data(&lives, "list", "--prefix", "fresh")
	if len(lives.Locks) != 1 || lives.Locks[0].Life != lockadmin.LifeAlive {
		t.Errorf("on a standby the life of a holder that gave a sign is %+v", lives)
	}
	methodsLook(t, here)
	someone := must.Get(url.Parse(here.url))(t)
	someone.User = url.UserPassword("oncall", "x")
	least := commandOf{t, here.program, someone.String()}
	least.wants([]string{"why", "gone"}, heading, "you need the role pglock_admin", "-", "cannot be known")
}

// methodsLook calls what the commands above do not.
func methodsLook(t *testing.T, here commandOf) {
	admin := newAdmin(t, newPool(t, here.url))
	if n, err := admin.Statistics(t.Context(), 10); err != nil || n.DeadHolders != 0 || n.Locks != 3 {
		t.Errorf("the statistics of a standby: %+v, %v", n, err)
	}
	if _, err := admin.Backends(t.Context(), "gone"); err != nil {
		t.Error(err)
	}
	if e, last, err := admin.RecentHistory(t.Context(), 0); err != nil || len(e) != 1 || last != e[0].ID {
		t.Errorf("the events of a standby: %+v up to %d, %v", e, last, err)
	}
	if _, err := admin.Diagnose(t.Context()); err != nil {
		t.Error(err)
	}
}

// listOfPage is what the page's list says.
type listOfPage struct {
	Locks []json.RawMessage `json:"locks"`
	Ill   struct {
		All     bool `json:"all"`
		Standby bool `json:"standby"`
	} `json:"ill"`
}

// lockOfPage is what the page says of one lock.
type lockOfPage struct {
	Why struct {
		Standby bool `json:"standby"`
	} `json:"why"`
}

// askPage asks a page over the server.
func askPage[T any](t *testing.T, on *node, path string) (v T) {
	t.Helper()
	page := must.Get(dashboard.New(newAdmin(t, newPool(t, on.url)), dashboard.Config{Anybody: true}))(t)
	defer page.Close()
	answer := httptest.NewRecorder()
	page.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	if err := json.Unmarshal(answer.Body.Bytes(), &v); answer.Code != http.StatusOK || err != nil {
		t.Errorf("%d, %v: %s", answer.Code, err, answer.Body)
	}
	return v
}

// standbyOfThePage: a page may lead to a standby, as after a failover. All cannot be well there.
func standbyOfThePage(t *testing.T, primary, standby *node) {
	if list := askPage[listOfPage](t, primary, "/api/locks"); len(list.Locks) == 0 || !list.Ill.All ||
		list.Ill.Standby {
		t.Errorf("the page of the primary says %+v", list)
	}
	if list := askPage[listOfPage](t, standby, "/api/locks"); len(list.Locks) == 0 || list.Ill.All ||
		!list.Ill.Standby {
		t.Errorf("the page of a standby says %+v", list)
	}
	for on, is := range map[*node]bool{primary: false, standby: true} {
		if lock := askPage[lockOfPage](t, on, "/api/lock?name=gone"); lock.Why.Standby != is {
			t.Errorf("the page of a lock says %+v, want %t", lock, is)
		}
	}
}

// standbyRefuses has every command that writes, and every method of an Admin that does, also where nothing would be
// written.
func standbyRefuses(t *testing.T, here commandOf, standby *node, session string) {
	here.t = t
	for _, args := range [][]string{
		{"break", "report", "--reason", "x", "--yes"}, {"break", "free", "--reason", "x", "--yes"},
		{"break", "--session", session, "--reason", "x", "--yes"}, {"prune"}, {"record", "--level", "all"},
		{"record", "--level", "losses"}, {"guard", "add", "public.accounts"},
		{"guard", "drop", "public.accounts", "--yes"}, {"serve", "--listen", "127.0.0.1:0"},
	} {
		_, stderr := here.run(4, args...)
		if !strings.Contains(stderr, "the server is a standby: this command needs the primary") ||
			!strings.Contains(stderr, "target_session_attrs=read-write") {
			t.Errorf("pglock-admin %q says %s", args, stderr)
		}
	}
	if _, stderr := here.run(114, "run", "report", "--", "true"); !strings.Contains(stderr, "standby") {
		t.Errorf("pglock-admin run says %s", stderr)
	}
	ctx := t.Context()
	admin := must.Get(lockadmin.New(ctx, newPool(t, standby.url)))(t)
	const nobody = "00000000-0000-4000-8000-000000000000"
	var opts lockadmin.BreakOptions
	for what, call := range map[string]func() error{
		"Break":                  func() error { _, err := admin.Break(ctx, "report", "x", opts); return err },
		"Break of a free lock":   func() error { _, err := admin.Break(ctx, "free", "x", opts); return err },
		"BreakSession":           func() error { _, err := admin.BreakSession(ctx, session, "x", opts); return err },
		"BreakSession of nobody": func() error { _, err := admin.BreakSession(ctx, nobody, "x", opts); return err },
		"Prune of nothing":       func() error { _, err := admin.Prune(ctx, lockadmin.PruneOptions{}); return err },
		"SetHistory to what it is": func() error {
			_, err := admin.SetHistory(ctx, lockadmin.HistoryChange{Level: lockadmin.HistoryLosses})
			return err
		},
		"Ping": func() error { return admin.Ping(ctx) },
	} {
		if err := call(); !errors.Is(err, pglock.ErrReadOnly) {
			t.Errorf("I23: %s on a standby answered %v", what, err)
		}
	}
}

// standbyOfALockedTable locks a table on the primary: the standby locks it likewise.
func standbyOfALockedTable(t *testing.T, primary, standby *node, here commandOf) {
	here.t = t
	locker, look := newPeer(t, primary.url), newPeer(t, primary.url)
	locker.exec(t, `BEGIN`)
	locker.exec(t, `LOCK TABLE pglock.locks`)
	standby.catchUp(t, look)
	here.wants([]string{"why", "gone"}, "This is a standby", "Nobody can read the tables of pglock here",
		"A transaction on the primary has probably locked", "Ask the primary.", "-", "pg_terminate_backend")
	here.wants([]string{"why"}, "This is a standby", "Ask the primary.", "-", "pg_terminate_backend", "All is well")
	if list := askPage[listOfPage](t, standby, "/api/locks"); len(list.Locks) > 0 || !list.Ill.Standby {
		t.Errorf("the page of a standby says of a locked table %+v", list)
	}
	locker.exec(t, `ROLLBACK`)
	standby.catchUp(t, look)
}

// standbyIsBehind lets the standby replay nothing for a while, and then receive nothing.
func standbyIsBehind(t *testing.T, look *peer, standby *node, here commandOf) {
	here.t = t
	there := newPeer(t, standby.url)
	there.exec(t, `SELECT pg_wal_replay_pause()`)
	pgtest.Eventually(t, "the replay to pause", func() bool {
		return one[bool](t, there, `SELECT pg_is_wal_replay_paused()`)
	})
	look.mustAcquire(t, "later", time.Hour)
	pgtest.Eventually(t, "the standby to have received what it has not replayed, for a second", func() bool {
		return one[bool](t, there, `SELECT pg_last_wal_receive_lsn() > pg_last_wal_replay_lsn()
			AND pg_last_xact_replay_timestamp() < clock_timestamp() - interval '1 s'`)
	})
	here.wants([]string{"list"}, "This is a standby: it shows the past, and is up to ", " behind the primary.",
		"may look as if it had run out", "gone", "-", "later")
	var f standbyField
	here.data(&f, "why", "gone")
	if f.Standby == nil || f.Standby.Behind == nil || *f.Standby.Behind < 1000 || !f.Standby.Receiving {
		t.Errorf("a standby that replays nothing says %+v", f.Standby)
	}
	there.exec(t, `SELECT pg_wal_replay_resume()`)
	standby.catchUp(t, look)
	pgtest.Eventually(t, "the standby to have replayed all", func() bool { // the primary does next to nothing
		out, _ := here.run(0, "list")
		here.data(&f, "list")
		words := strings.Join(strings.Fields(out), " ")
		return strings.Contains(words, "It is 0 s behind: it has replayed all that it has received.") &&
			strings.Contains(words, "later") && f.Standby != nil && f.Standby.Behind != nil && *f.Standby.Behind == 0
	})

	standby.cutOff(t)
	f = standbyField{}
	here.data(&f, "list")
	if f.Standby == nil || f.Standby.Behind != nil || f.Standby.Receiving || f.Standby.ReplayedAt.IsZero() {
		t.Errorf("a standby that receives nothing says %+v", f.Standby)
	}
	here.wants([]string{"history"}, "How far it is behind the primary cannot be known: it receives nothing from there.",
		"The last transaction that it shows is ", "-", "0 s behind")
}
