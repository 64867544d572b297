package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/act"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/look"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

func TestListShowsHeldLocksAndOnRequestFreeOnes(t *testing.T) {
	db := pgtest.Parallel(t)
	in(t, db.URL(), "list").want(t, cli.ExitOK, "no lock is held")
	hold(t, db, "worker-1", "jobs/a")
	must.Do(t, hold(t, db, "worker-2", "jobs/b").Release(t.Context()))
	hold(t, db, "worker-3", "other")

	a := in(t, db.URL(), "list").want(t, cli.ExitOK, "LOCK", "EXPIRES-IN", "jobs/a", "worker-1", "█", "other")
	if strings.Contains(a.stdout, "jobs/b") {
		t.Errorf("a free lock is listed:\n%s", a.stdout)
	}
	in(t, db.URL(), "list", "--all").want(t, cli.ExitOK, "jobs/b", "FREE")
	in(t, db.URL(), "list", "--all", "--limit", "1").want(t, cli.ExitOK, "there are more")

	view := decode[look.ListView](t, in(t, db.URL(), "list", "--prefix", "jobs/", "-o", "json").want(t,
		cli.ExitOK).stdout)
	if len(view.Locks) != 1 || view.More {
		t.Fatalf("%+v", view)
	}
	if l := view.Locks[0]; l.Name != "jobs/a" || l.Holder != "worker-1" || !l.Held || l.Token != 1 ||
		l.TTL != time.Minute.Milliseconds() ||
		l.Remaining <= 0 || l.Remaining > l.TTL || l.HeldFor < 0 {
		t.Errorf("%+v", l)
	}
}

func TestListReadsEveryPage(t *testing.T) {
	db := pgtest.Parallel(t)
	const many = 2101
	execute(t, db,
		`SELECT pglock.acquire_lease('lock-' || i, gen_random_uuid(), gen_random_uuid(), 'holder', '1 hour') FROM generate_series(1, $1) i`, many)
	for limit, want := range map[string]int{"1000": 1000, "2000": 2000, "2101": many, "2102": many} {
		view := decode[look.ListView](t, in(t, db.URL(), "list", "--limit", limit, "-o", "json").want(t,
			cli.ExitOK).stdout)
		seen := map[string]bool{}
		for _, l := range view.Locks {
			seen[l.Name] = true
		}
		if len(view.Locks) != want || len(seen) != want || view.More != (want < many) {
			t.Errorf("--limit %s: %d locks, %d names, more=%v", limit, len(view.Locks), len(seen), view.More)
		}
	}
}

func TestShowTellsTheLockItsFencesAndItsEvents(t *testing.T) {
	db := pgtest.Parallel(t)
	lease := hold(t, db, "worker-1", "jobs/a", pglock.WithMetadata(json.RawMessage(`{"build":7}`)))
	write := func(pgx.Tx) error { return nil }
	must.Do(t, fencedWrite(t, db, lease, write))
	in(t, db.URL(), "show", "jobs/a").want(t, cli.ExitOK, "jobs/a", "held for", "worker-1", `"build"`, "FENCE OF", "█")
	in(t, db.URL(), "break", "jobs/a", "--reason", "stuck").want(t, cli.ExitOK)
	in(t, db.URL(), "show", "jobs/a").want(t, cli.ExitOK, "FREE", "last holder", "broke the lease of worker-1 with "+
		"token 1: stuck\n")

	view := decode[look.ShowView](t, in(t, db.URL(), "show", "jobs/a", "-o", "json").want(t, cli.ExitOK).stdout)
	if view.Lock.Held || len(view.Fences) != 1 || view.Fences[0].LastToken != 1 || len(view.Events) != 1 ||
		view.Events[0].Reason != "stuck" {
		t.Errorf("%+v", view)
	}
	in(t, db.URL(), "show", "jobs/none").want(t, cli.ExitNotHeld, "list --all")
}

func fencedWrite(tb testing.TB, db *pgtest.DB, lease *pglock.Lease, write func(pgx.Tx) error) error {
	tb.Helper()
	tx := must.Get(db.Conn(tb).Begin(tb.Context()))(tb)
	defer tx.Rollback(tb.Context()) //nolint:errcheck // after a commit
	if _, err := fencedstore.Guard(tb.Context(), tx, lease); err != nil {
		return err
	}
	if err := write(tx); err != nil {
		return err
	}
	return tx.Commit(tb.Context())
}

func TestBreakFencesTheOldHolderAndIsInTheHistory(t *testing.T) {
	db := pgtest.Parallel(t)
	lease := hold(t, db, "stuck-worker", "jobs/a")
	a := in(t, db.URL(), "break", "jobs/a", "--reason", "host is down", "--by", "me@desk", "-o", "json").want(t,
		cli.ExitOK)
	view := decode[act.BreakView](t, a.stdout)
	if view.Holder != "stuck-worker" || view.Token != lease.Token() || view.NewToken <= view.Token ||
		view.By != "me@desk" {
		t.Errorf("%+v", view)
	}
	if _, err := lease.Check(t.Context()); !errors.Is(err, pglock.ErrLost) {
		t.Errorf("the old holder's check says %v", err)
	}
	next := hold(t, db, "worker-2", "jobs/a")
	if next.Token() <= view.NewToken {
		t.Errorf("the next token is %d, after %d", next.Token(), view.NewToken)
	}
	show := decode[look.ShowView](t, in(t, db.URL(), "show", "jobs/a", "-o", "json").want(t, cli.ExitOK).stdout)
	if len(show.Events) != 1 || show.Events[0].Actor != "me@desk" || show.Events[0].Reason != "host is down" ||
		show.Events[0].At.IsZero() {
		t.Errorf("%+v", show.Events)
	}
}

func TestBreakTellsWhoWasBrokenAndWhatHappensNext(t *testing.T) {
	db := pgtest.Parallel(t)
	hold(t, db, "stuck-worker", "jobs/a")
	in(t, db.URL(), "break", "jobs/a", "--reason", "r").want(t, cli.ExitOK, "stuck-worker", "old token", "new token",
		cli.Actor(), "next fenced write")
}

// Whoever has locked the lock's row is in the way of a break: the command that is advised names that process.
func TestABreakThatTakesTooLongSaysHowToFindWhoIsInItsWay(t *testing.T) {
	db := pgtest.Parallel(t)
	hold(t, db, "worker", "jobs/a")
	busy := db.Conn(t)
	for _, sql := range []string{"BEGIN", "SELECT FROM pglock.watch('jobs/a', '1 min')",
		"SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN ('statement_timeout', " +
			"'idle_in_transaction_session_timeout', 'transaction_timeout')"} {
		must.Get(busy.Exec(t.Context(), sql))(t)
	}
	session := ask[string](t, db, "SELECT session_id::text FROM pglock.locks")
	for what, try := range map[string]string{
		"jobs/a": "If it was not: pglock-admin why jobs/a, which names the process of a transaction",
		"--session " + session: "If it was not: pglock-admin list --session " + session + ", and for each lock " +
			"pglock-admin why NAME, which names the process of a transaction",
	} {
		args := append(append([]string{"break"}, strings.Fields(what)...), "--reason", "r", "--timeout", "2s")
		in(t, db.URL(), args...).want(t, cli.ExitUnreachable, "it is unknown whether the lease was broken", try,
			`If it names none: psql "$DATABASE_URL" -c 'SELECT 1' shows`)
	}
	in(t, db.URL(), "why", "jobs/a").want(t, cli.ExitOK, fmt.Sprintf("pg_terminate_backend(%d)", busy.PgConn().PID()))
}

// The server names the statement that ends the transaction in the way of a break. So does the advice.
func TestABreakOfALockedRowSaysHowToEndThatTransaction(t *testing.T) {
	db := pgtest.Parallel(t)
	hold(t, db, "worker", "jobs/a")
	busy := db.Conn(t)
	for _, sql := range []string{"BEGIN", "SELECT FROM pglock.locks WHERE name = 'jobs/a' FOR UPDATE"} {
		if state := written(t, busy, sql); state != "" {
			t.Fatal(state)
		}
	}
	in(t, db.URL(), "break", "jobs/a", "--reason", "r").want(t, cli.ExitFailure, "its row is locked by process",
		fmt.Sprintf("try: the same command again, or end that transaction: SELECT pg_terminate_backend(%d)\n",
			busy.PgConn().PID()))
}

// Nor does the server name whoever has locked a whole table. The advice is the command that does.
func TestABreakOfALockedTableSaysWhatNamesThatProcess(t *testing.T) {
	db := pgtest.Parallel(t)
	hold(t, db, "worker", "jobs/a")
	session := ask[string](t, db, "SELECT session_id::text FROM pglock.locks")
	busy := db.Conn(t)
	for _, sql := range []string{"BEGIN", "LOCK TABLE pglock.locks"} {
		if state := written(t, busy, sql); state != "" {
			t.Fatal(state)
		}
	}
	for _, what := range []string{"jobs/a", "--session " + session} {
		args := append(append([]string{"break"}, strings.Fields(what)...), "--reason", "r")
		in(t, db.URL(), args...).want(t, cli.ExitFailure, "nothing was broken: ",
			", which names whoever has locked a whole table, or waits to\n", `psql "$DATABASE_URL" -c "SELECT l.pid, `)
	}
}

func TestBreakOfWhatIsNotHeldExitsWithThree(t *testing.T) {
	db := pgtest.Parallel(t)
	lease := hold(t, db, "worker", "jobs/a")
	in(t, db.URL(), "break", "jobs/a", "--reason", "r", "--token", fmt.Sprint(lease.Token()+1)).want(t, cli.ExitNotHeld,
		"nothing was broken")
	in(t, db.URL(), "break", "jobs/a", "--reason", "r", "--token", "0").want(t, cli.ExitUsage, "token")
	if !lease.Valid() {
		t.Error("the lease ended")
	}
	in(t, db.URL(), "break", "jobs/none", "--reason", "r").want(t, cli.ExitNotHeld)
	in(t, db.URL(), "break", "jobs/a", "--reason", "r", "--token", fmt.Sprint(lease.Token())).want(t, cli.ExitOK)
	in(t, db.URL(), "break", "jobs/a", "--reason", "r").want(t, cli.ExitNotHeld)
	in(t, db.URL(), "break", "jobs/a", "--reason", strings.Repeat("x", lockadmin.MaxReasonBytes+1)).want(t,
		cli.ExitUsage,
		"reason")
}

// asUser gives a connection string of a new user who has the given role, or none.
func asUser(t *testing.T, db *pgtest.DB, role string) string {
	t.Helper()
	conn := db.Conn(t)
	name := db.Name() + "_user"
	after := context.WithoutCancel(t.Context())
	execute(t, db, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD 'secret'", pgx.Identifier{name}.Sanitize()))
	t.Cleanup(func() {
		if _, err := conn.Exec(after, "DROP ROLE "+pgx.Identifier{name}.Sanitize()); err != nil {
			t.Error(err)
		}
	})
	if role != "" {
		execute(t, db, fmt.Sprintf("GRANT %s TO %s", role, pgx.Identifier{name}.Sanitize()))
	}
	u := must.Get(url.Parse(db.URL()))(t)
	u.User = url.UserPassword(name, "secret")
	return u.String()
}

func TestAUserWithoutOperatorRightsMayLookButNotBreak(t *testing.T) {
	db := pgtest.Parallel(t)
	hold(t, db, "worker", "jobs/a")
	user := asUser(t, db, "pglock_user")
	in(t, user, "list").want(t, cli.ExitOK, "jobs/a")
	in(t, user, "show", "jobs/a").want(t, cli.ExitOK, "worker", "they need the role pglock_admin")
	if v := decode[look.ShowView](t, in(t, user, "show", "jobs/a", "-o", "json").want(t,
		cli.ExitOK).stdout); v.Events != nil ||
		v.Note == "" {
		t.Errorf("%+v", v)
	}
	a := in(t, user, "break", "jobs/a", "--reason", "r").want(t, cli.ExitPermission, "GRANT pglock_admin")
	if strings.Contains(a.stderr, "secret") {
		t.Error(a.stderr)
	}
}

func TestAUserWithoutAnyRightsIsToldWhatToAskFor(t *testing.T) {
	db := pgtest.Parallel(t)
	user := asUser(t, db, "")
	in(t, user, "list").want(t, cli.ExitPermission, "pglock_user")
	in(t, strings.Replace(user, "secret", "wrong", 1), "list").want(t, cli.ExitPermission, "PGPASSWORD")
	in(t, user, "migrate", "up", "--schema", "another").want(t, cli.ExitPermission)
}

func TestTerminalEscapesAreQuoted(t *testing.T) {
	db := pgtest.Parallel(t)
	name, holder := "evil\x1b[2J\nname", "hol\x1b]0;x\ader\u202e\u009b1m"
	lease := hold(t, db, holder, name, pglock.WithMetadata(json.RawMessage(`"\u001b[31m\u202e"`)))
	unsafe := func(a answer) {
		t.Helper()
		for _, r := range a.stdout + a.stderr {
			if r != '\n' && (r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u202e') {
				t.Errorf("%U in %q", r, a.stdout+a.stderr)
			}
		}
	}
	for _, format := range []string{"table", "json"} {
		unsafe(in(t, db.URL(), "list", "-o", format).want(t, cli.ExitOK))
		unsafe(in(t, db.URL(), "show", name, "-o", format).want(t, cli.ExitOK))
		unsafe(in(t, db.URL(), "break", name, "--reason", "no", "--token", "99", "-o", format).want(t, cli.ExitNotHeld))
		unsafe(in(t, db.URL(), "show", name+"?", "-o", format).want(t, cli.ExitNotHeld))
	}
	in(t, db.URL(), "list").want(t, cli.ExitOK, `"evil\x1b[2J\nname"`)
	view := decode[look.ListView](t, in(t, db.URL(), "list", "-o", "json").stdout)
	if view.Locks[0].Name != name || view.Locks[0].Holder != holder {
		t.Errorf("JSON does not give the texts back: %+v", view.Locks[0])
	}
	unsafe(in(t, db.URL(), "break", name, "--reason", "bad\x1b[0m", "--by", "me\x1b", "--token",
		fmt.Sprint(lease.Token())).want(t, cli.ExitOK))
	unsafe(in(t, db.URL(), "show", name).want(t, cli.ExitOK, `"bad\x1b[0m"`))
}

// A lock that nobody holds and nobody gets is in the list, with the word that why has for it.
func TestAFreeLockThatIsStuckIsListed(t *testing.T) {
	db := pgtest.Parallel(t)
	execute(t, db, "SELECT pglock.acquire_lease(n, gen_random_uuid(), gen_random_uuid(), 'former', '1 h') FROM "+
		"unnest('{free,stuck,young}'::text[]) n")
	execute(t, db, "SELECT pglock.acquire_lease(n, gen_random_uuid(), gen_random_uuid(), 'waiter', '1 h', "+
		"p_wait => true, p_session_ttl => '1 h') FROM unnest('{stuck,young}'::text[]) n")
	execute(t, db, "UPDATE pglock.locks SET expires_at = clock_timestamp() - interval '1 min'")
	execute(t, db, "UPDATE pglock.locks SET expires_at = '-infinity', ended_at = clock_timestamp() + interval '1 h' "+
		"WHERE name = 'young'") // it was ended less than three seconds ago, however long the test takes
	psql := db.Conn(t)
	for _, sql := range []string{"BEGIN", "SELECT FROM pglock.locks WHERE name = 'stuck' FOR UPDATE"} {
		if state := written(t, psql, sql); state != "" {
			t.Fatal(state)
		}
	}
	execute(t, db, "SELECT pg_sleep(1.1)") // a younger transaction is nothing to speak of
	v := decode[look.ListView](t, in(t, db.URL(), "list", "-o", "json").want(t, cli.ExitOK).stdout)
	if len(v.Locks) != 1 || v.Locks[0].Name != "stuck" || v.Locks[0].Held || v.Locks[0].Why != "row" ||
		v.Locks[0].Verdict != lockadmin.SeverityStuck {
		t.Errorf("%+v", v.Locks)
	}
	in(t, db.URL(), "list").want(t, cli.ExitOK, "STUCK", "FREE")
	in(t, db.URL(), "why").want(t, cli.ExitOK, "STUCK", "stuck", "somebody has locked its row")
	in(t, db.URL(), "list", "--holder", "former").want(t, cli.ExitOK, "no lock fits these flags")
}
