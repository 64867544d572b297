package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/act"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/look"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/dev/screens"
	"github.com/pglock-dev/pglock/pglock"
)

// await queues for a lock as a session of its own that lives for the length of the test, and gives its ticket.
func await(tb testing.TB, db *pgtest.DB, holder, name string, mode pglock.Mode, limit int) (ticket int64) {
	tb.Helper()
	var capacity *int
	if mode == pglock.ModeLimit {
		capacity = &limit
	}
	return ask[int64](tb, db, `SELECT (a.more ->> 'ticket')::bigint
		FROM pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), $2, '1 hour',
			p_metadata => '{"job":1}', p_mode => $3, p_capacity => $4, p_wait => true, p_session_ttl => '24 hours') a`,
		name, holder, mode, capacity)
}

// inOrder fails unless the texts stand in this order.
func (a answer) inOrder(tb testing.TB, texts ...string) {
	tb.Helper()
	screens.InOrder(tb, a.stdout, texts...)
}

// narrow fails where a line is wider than a terminal.
func (a answer) narrow(tb testing.TB) answer {
	tb.Helper()
	for line := range strings.Lines(a.stdout) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 80 {
			tb.Errorf("%d columns: %s", n, line)
		}
	}
	return a
}

func TestWaitersShowsTheQueueInOrder(t *testing.T) {
	db := pgtest.Parallel(t)
	in(t, db.URL(), "waiters").want(t, cli.ExitOK, "nobody waits for a lock\n")
	hold(t, db, "host/worker[1]", "jobs/a")
	in(t, db.URL(), "waiters", "jobs/a").want(t, cli.ExitOK, "nobody waits for lock jobs/a\n")
	in(t, db.URL(), "waiters", "jobs/none").want(t, cli.ExitNotHeld, "lock jobs/none does not exist", "list --all")

	first := await(t, db, "host/worker[2]", "jobs/a", pglock.ModeExclusive, 0)
	second := await(t, db, "host/worker[3]", "jobs/a", pglock.ModeShared, 0)
	third := await(t, db, "host/worker[4]", "jobs/a", pglock.ModeLimit, 3)
	hold(t, db, "host/worker[5]", "jobs/b")
	other := await(t, db, "host/worker[6]", "jobs/b", pglock.ModeExclusive, 0)

	one := in(t, db.URL(), "waiters", "jobs/a").want(t, cli.ExitOK).narrow(t)
	one.inOrder(t, "PLACE  TICKET  MODE", "HOLDER", "WAITING  WAITS-FOR\n",
		fmt.Sprintf("1  %6d  exclusive  host/worker[2]  ", first), "s  holder host/worker[1]\n",
		fmt.Sprintf("2  %6d  shared     host/worker[3]  ", second), fmt.Sprintf("s  ticket %d host/worker[2]\n", first),
		fmt.Sprintf("3  %6d  limit 3    host/worker[4]  ", third), fmt.Sprintf("s  ticket %d host/worker[3]\n", second))
	if strings.Contains(one.stdout, "LOCK") || strings.Contains(one.stdout, "jobs/b") {
		t.Errorf("the queue of one lock:\n%s", one.stdout)
	}
	all := in(t, db.URL(), "waiters").want(t, cli.ExitOK, "LOCK")
	all.inOrder(t, "jobs/a", "host/worker[2]", "jobs/a", "host/worker[3]", "jobs/a", "host/worker[4]",
		"jobs/b", fmt.Sprintf("1  %6d  exclusive  host/worker[6]", other), "holder host/worker[5]")

	view := decode[look.WaitersView](t, in(t, db.URL(), "waiters", "jobs/a", "-o", "json").want(t, cli.ExitOK,
		`"ttl_ms": 3600000`, `"waiting_ms": `).stdout)
	if len(view.Waiters) != 3 || view.More {
		t.Fatalf("%+v", view)
	}
	if w := view.Waiters[0]; w.Lock != "jobs/a" || w.Ticket != first || w.Place != 1 ||
		w.Mode != pglock.ModeExclusive || w.Limit != 0 ||
		w.Holder != "host/worker[2]" || w.Session == "" || !w.Alive || w.Since.IsZero() ||
		w.Behind != "host/worker[1]" || w.Before != 0 || len(w.Metadata) == 0 {
		t.Errorf("%+v", w)
	}
	if w := view.Waiters[2]; w.Ticket != third || w.Place != 3 || w.Mode != pglock.ModeLimit || w.Limit != 3 ||
		w.Before != second || w.Behind != "host/worker[3]" {
		t.Errorf("%+v", w)
	}
}

func TestWaitersLimitSaysThatThereAreMore(t *testing.T) {
	db := pgtest.Parallel(t)
	hold(t, db, "holder", "a")
	for n := range 3 {
		await(t, db, fmt.Sprintf("waiter-%d", n), "a", pglock.ModeExclusive, 0)
	}
	a := in(t, db.URL(), "waiters", "a", "--limit", "2").want(t, cli.ExitOK, "waiter-0", "waiter-1",
		"the first 2; there are more")
	if strings.Contains(a.stdout, "waiter-2") {
		t.Errorf("over the limit:\n%s", a.stdout)
	}
	if a := in(t, db.URL(), "waiters", "a", "--limit", "3").want(t, cli.ExitOK, "waiter-2"); strings.Contains(a.stdout,
		"more") {
		t.Errorf("there are no more:\n%s", a.stdout)
	}
	for limit, more := range map[string]bool{"2": true, "3": false} {
		view := decode[look.WaitersView](t, in(t, db.URL(), "waiters", "--limit", limit, "-o", "json").want(t,
			cli.ExitOK).stdout)
		if fmt.Sprint(len(view.Waiters)) != limit || view.More != more {
			t.Errorf("--limit %s: %+v", limit, view)
		}
	}
	hold(t, db, "holder", "b")
	if view := in(t, db.URL(), "waiters", "b", "-o", "json").want(t, cli.ExitOK); !strings.Contains(view.stdout,
		`"waiters": []`) {
		t.Errorf("an empty queue: %s", view.stdout)
	}
}

func TestWaitersOfDeadSessionsAreMarked(t *testing.T) {
	db := pgtest.Parallel(t)
	hold(t, db, "holder", "a")
	await(t, db, "dead", "a", pglock.ModeExclusive, 0)
	live := await(t, db, "alive", "a", pglock.ModeExclusive, 0)
	execute(t, db, "UPDATE pglock.sessions SET alive_until = '-infinity' WHERE holder = 'dead'")
	a := in(t, db.URL(), "waiters").want(t, cli.ExitOK)
	a.inOrder(t, "dead", "passed over: no sign of life\n", fmt.Sprint(live), "alive", "holder holder\n")
	in(t, db.URL(), "show", "a").want(t, cli.ExitOK).inOrder(t, "QUEUE", "1. ticket", "dead",
		"(passed over: no sign of life)\n", "2. ticket")
	view := decode[look.WaitersView](t, in(t, db.URL(), "waiters", "-o", "json").want(t, cli.ExitOK).stdout)
	if len(view.Waiters) != 2 || view.Waiters[0].Alive || !view.Waiters[1].Alive {
		t.Errorf("%+v", view)
	}
}

func TestAWaiterWhoseTurnHasComeIsSaidToWaitForNobody(t *testing.T) {
	db := pgtest.Parallel(t)
	hold(t, db, "holder", "a")
	await(t, db, "next", "a", pglock.ModeExclusive, 0)
	execute(t, db, "UPDATE pglock.locks SET expires_at = clock_timestamp()")
	in(t, db.URL(), "waiters", "a").want(t, cli.ExitOK).inOrder(t, "next", "nobody: its turn has come")
	in(t, db.URL(), "show", "a").want(t, cli.ExitOK).inOrder(t, "FREE", "○ nobody holds it", "└─ 1. ticket", "next")
}

func TestShowPicturesTheQueueFromTheHolderToTheLast(t *testing.T) {
	db := pgtest.Parallel(t)
	lease := hold(t, db, "host/worker[1]", "jobs/a")
	if a := in(t, db.URL(), "show", "jobs/a").want(t, cli.ExitOK); strings.Contains(a.stdout, "QUEUE") {
		t.Errorf("a queue of nobody:\n%s", a.stdout)
	}
	first := await(t, db, "host/worker[2]", "jobs/a", pglock.ModeExclusive, 0)
	second := await(t, db, "host/worker[3]", "jobs/a", pglock.ModeLimit, 12)
	third := await(t, db, "host/worker[4]", "jobs/a", pglock.ModeShared, 0)
	in(t, db.URL(), "show", "jobs/a").want(t, cli.ExitOK, "held for").narrow(t).inOrder(t, "QUEUE",
		fmt.Sprintf("● host/worker[1] has token %d\n│\n", lease.Token()),
		fmt.Sprintf("├─ 1. ticket %d  exclusive  ", first), "  host/worker[2]\n",
		fmt.Sprintf("├─ 2. ticket %d  limit 12   ", second), "  host/worker[3]\n",
		fmt.Sprintf("└─ 3. ticket %d  shared     ", third), "  host/worker[4]\n")
	a := in(t, db.URL(), "show", "jobs/a", "--waiters", "2").want(t, cli.ExitOK)
	a.inOrder(t, "├─ 1.", "├─ 2.", "└─ and 1 more: pglock-admin waiters jobs/a\n")

	view := decode[look.ShowView](t, in(t, db.URL(), "show", "jobs/a", "-o", "json").want(t, cli.ExitOK,
		`"ttl_ms": 3600000`).stdout)
	if view.Lock.Holder != "host/worker[1]" || view.Lock.LockInfo.Waiting != 3 || len(view.Holders) != 1 ||
		view.Holders[0].Token != lease.Token() ||
		view.Holders[0].Remaining <= 0 || len(view.Waiters) != 3 || view.Waiters[0].Ticket != first ||
		view.Waiters[2].Ticket != third {
		t.Errorf("%+v", view)
	}
}

func TestShowTellsEveryHolder(t *testing.T) {
	db := pgtest.Parallel(t)
	one := hold(t, db, "host/worker[1]", "pool", pglock.WithLimit(2))
	in(t, db.URL(), "show", "pool").want(t, cli.ExitOK, "limit 2", "held by 1", "SLOT", "host/worker[1]")
	two := hold(t, db, "host/worker[2]", "pool", pglock.WithLimit(2))
	ticket := await(t, db, "host/worker[3]", "pool", pglock.ModeLimit, 2)
	in(t, db.URL(), "show", "pool").want(t, cli.ExitOK).narrow(t).inOrder(t, "pool", "limit 2", "held by 2", "SLOT",
		"EXPIRES-IN  LEASE",
		fmt.Sprintf("1  host/worker[1]  %5d  ", one.Token()), "█", fmt.Sprintf("2  host/worker[2]  %5d  ", two.Token()),
		"█",
		"● host/worker[1]", "● host/worker[2]", "└─ 1. ticket "+fmt.Sprint(ticket), "host/worker[3]")
	view := decode[look.ShowView](t, in(t, db.URL(), "show", "pool", "-o", "json").want(t, cli.ExitOK).stdout)
	if len(view.Holders) != 2 || view.Holders[0].Slot != 1 || view.Holders[1].Slot != 2 ||
		view.Holders[1].Token != two.Token() ||
		view.Holders[1].Limit != 2 || view.Holders[1].Mode != pglock.ModeLimit || view.Lock.Slot != 1 ||
		len(view.Waiters) != 1 {
		t.Errorf("%+v", view)
	}
	must.Do(t, one.Release(t.Context()))
	if view := in(t, db.URL(), "show", "pool").want(t, cli.ExitOK); strings.Contains(view.stdout, "QUEUE") {
		t.Errorf("the waiter has been granted the lock:\n%s", view.stdout)
	}
	in(t, db.URL(), "show", "pool", "-o", "json").want(t, cli.ExitOK, `"waiters": []`, "host/worker[3]")
}

func TestShowOfAFreeSemaphoreTellsItsLastHolder(t *testing.T) {
	db := pgtest.Parallel(t)
	must.Do(t, hold(t, db, "host/worker[1]", "pool", pglock.WithLimit(2)).Release(t.Context()))
	a := in(t, db.URL(), "show", "pool").want(t, cli.ExitOK, "FREE", "last holder", "host/worker[1]", "limit 2")
	if strings.Contains(a.stdout, "held by") || strings.Contains(a.stdout, "SLOT") {
		t.Errorf("nobody holds it:\n%s", a.stdout)
	}
}

func TestShowOfAFreeLockHasNoHoldersInJSON(t *testing.T) {
	db := pgtest.Parallel(t)
	must.Do(t, hold(t, db, "worker", "a").Release(t.Context()))
	in(t, db.URL(), "show", "a", "-o", "json").want(t, cli.ExitOK, `"holders": []`, `"waiters": []`,
		`"holder": "worker"`)
}

func TestListHasALineForEveryHolderAndCountsWhoWaits(t *testing.T) {
	db := pgtest.Parallel(t)
	hold(t, db, "w1", "a")
	plain := in(t, db.URL(), "list").want(t, cli.ExitOK, "WAITING").narrow(t)
	plain.inOrder(t, "WAITING\n", "a ", "w1", "█", "  -\n")
	if strings.Contains(plain.stdout, "MODE") {
		t.Errorf("a mode where all are exclusive:\n%s", plain.stdout)
	}
	await(t, db, "w2", "a", pglock.ModeExclusive, 0)
	await(t, db, "w3", "a", pglock.ModeShared, 0)
	hold(t, db, "w4", "pool", pglock.WithLimit(3))
	hold(t, db, "w5", "pool", pglock.WithLimit(3))
	hold(t, db, "w6", "tree", pglock.WithShared())
	in(t, db.URL(), "list").want(t, cli.ExitOK).narrow(t).inOrder(t, "LOCK  VERDICT  MODE", "HOLDER", "WAITING\n",
		"a     BUSY     exclusive", "w1", " 2 (", ")\n",
		"pool  OK       limit 3 #1  w4", "  -\n", "pool  OK       limit 3 #2  w5", "  -\n",
		"tree  OK       shared #1   w6", "  -\n")
	view := decode[look.ListView](t, in(t, db.URL(), "list", "-o", "json").want(t, cli.ExitOK).stdout)
	if len(view.Locks) != 4 || view.Locks[0].Waiting != 2 || view.Locks[0].Longest <= 0 || view.Locks[1].Longest != 0 ||
		view.Locks[2].Slot != 2 || view.Locks[2].Limit != 3 || view.Locks[3].Mode != pglock.ModeShared {
		t.Errorf("%+v", view)
	}
}

func TestListReadsEveryHolderWhereAPageEndsInsideALock(t *testing.T) {
	db := pgtest.Parallel(t)
	const many = 501 // of two locks: the first page ends inside the second, and no list does
	for _, name := range []string{"a", "b"} {
		execute(t, db,
			`SELECT pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), 'holder', '1 hour', p_mode => 'shared')`, name)
		execute(t, db,
			`INSERT INTO pglock.locks (name, slot, token, grant_id, session_id, holder, mode, ttl, acquired_at, renewed_at, expires_at)
			SELECT l.name, i, l.token + i, gen_random_uuid(), l.session_id, l.holder, l.mode, l.ttl, l.acquired_at, l.renewed_at, l.expires_at
			FROM pglock.locks l, generate_series(2, $2) i WHERE l.name = $1 AND l.slot = 1`, name, many) // granting them one by one takes long
	}
	execute(t, db, `SELECT pglock.acquire_lease('c', gen_random_uuid(), gen_random_uuid(), 'holder', '1 hour')`)
	for limit, want := range map[int]int{1: many, many: many, many + 1: 2 * many, look.Listed: 2 * many,
		2 * many:   2 * many,
		2*many + 1: 2*many + 1, 2*many + 2: 2*many + 1} {
		view := decode[look.ListView](t, in(t, db.URL(), "list", "--limit", fmt.Sprint(limit), "-o", "json").want(t,
			cli.ExitOK).stdout)
		seen := map[string]bool{}
		for _, l := range view.Locks {
			seen[fmt.Sprint(l.Name, l.Slot)] = true
		}
		if len(view.Locks) != want || len(seen) != want || view.More != (want < 2*many+1) {
			t.Errorf("--limit %d: %d rows, %d holders, more=%v; want %d", limit, len(view.Locks), len(seen), view.More,
				want)
		}
	}
}

func TestBreakOfOneOfSeveralHoldersNamesTheTokens(t *testing.T) {
	db := pgtest.Parallel(t)
	one := hold(t, db, "host/worker[1]", "my pool", pglock.WithLimit(2))
	two := hold(t, db, "host/worker[2]", "my pool", pglock.WithLimit(2))
	a := in(t, db.URL(), "break", "my pool", "--reason", "is stuck").want(t, cli.ExitUsage,
		fmt.Sprintf("has 2 holders, with the tokens %d, %d:", one.Token(), two.Token()), "nothing was broken",
		fmt.Sprintf("try: pglock-admin break 'my pool' --reason 'is stuck' --token %d  # host/worker[1]\n",
			one.Token()),
		fmt.Sprintf("--token %d  # host/worker[2]\n", two.Token()))
	if p := decode[cli.Problem](t, in(t, db.URL(), "break", "my pool", "--reason", "is stuck", "-o", "json").want(t,
		cli.ExitUsage).stderr); !strings.Contains(p.Hint, "--token") {
		t.Errorf("%+v, after %s", p, a.stderr)
	}
	if !one.Valid() || !two.Valid() {
		t.Error("a lease ended")
	}
	b := in(t, db.URL(), "break", "my pool", "--reason", "is stuck", "--token", fmt.Sprint(one.Token())).want(t,
		cli.ExitOK,
		"host/worker[1]", "held now", fmt.Sprintf("● host/worker[2] has token %d (as before)", two.Token())).narrow(t)
	if strings.Contains(b.stdout, "free") {
		t.Errorf("one of two is left:\n%s", b.stdout)
	}
	if _, err := two.Check(t.Context()); err != nil {
		t.Errorf("the other holder: %v", err)
	}
	if _, err := one.Check(t.Context()); err == nil {
		t.Error("the broken lease is held")
	}
}

func TestBreakOfOneOfManyHoldersNamesTheFirst(t *testing.T) {
	db := pgtest.Parallel(t)
	execute(t, db,
		`SELECT pglock.acquire_lease('a', gen_random_uuid(), gen_random_uuid(), 'holder ' || i, '1 hour', p_mode => 'shared') FROM generate_series(1, 11) i`)
	a := in(t, db.URL(), "break", "a", "--reason", "r").want(t, cli.ExitUsage, "has 11 holders", ", …: name",
		"# holder 10\n", "or another: pglock-admin show a\n")
	if strings.Contains(a.stderr, "holder 11") {
		t.Error(a.stderr)
	}
}

func TestBreakTellsToWhomTheQueueHandedTheLock(t *testing.T) {
	db := pgtest.Parallel(t)
	hold(t, db, "stuck", "a")
	in(t, db.URL(), "break", "a", "--reason", "r").want(t, cli.ExitOK, "The lock is free; its next grant has a token "+
		"above")
	hold(t, db, "stuck", "b")
	await(t, db, "heir", "b", pglock.ModeExclusive, 0)
	await(t, db, "last", "b", pglock.ModeExclusive, 0)
	a := in(t, db.URL(), "break", "b", "--reason", "r").want(t, cli.ExitOK, "The lock is held now:", "● heir has token",
		"(was next in the queue)").narrow(t)
	if strings.Contains(a.stdout, "free") || strings.Contains(a.stdout, "last") {
		t.Errorf("it is held:\n%s", a.stdout)
	}
	view := decode[act.BreakView](t, in(t, db.URL(), "break", "b", "--reason", "r", "-o", "json").want(t,
		cli.ExitOK).stdout)
	if view.Holder != "heir" || len(view.Now) != 1 || view.Now[0].Holder != "last" ||
		view.Now[0].Token <= view.NewToken {
		t.Errorf("%+v", view)
	}
	in(t, db.URL(), "break", "b", "--reason", "r", "-o", "json").want(t, cli.ExitOK, `"now": []`)
}

func TestTextsOfWaitersAreQuoted(t *testing.T) {
	db := pgtest.Parallel(t)
	name, holder := "evil\x1b[2J\nname", "wait\x1b]0;x\aer\u202e\u009b1m"
	hold(t, db, "ho\x1b[1mlder", name)
	await(t, db, holder, name, pglock.ModeExclusive, 0)
	await(t, db, holder, name, pglock.ModeExclusive, 0)
	for _, format := range []string{"table", "json"} {
		for _, args := range [][]string{{"waiters"}, {"waiters", name}, {"show", name},
			{"show", name, "--waiters", "1"}, {"list"}} {
			a := in(t, db.URL(), append(args, "-o", format)...).want(t, cli.ExitOK)
			for _, r := range a.stdout {
				if r != '\n' && !strings.ContainsRune("●│├└─○", r) &&
					(r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u202e') {
					t.Errorf("%q: %U in %q", args, r, a.stdout)
				}
			}
		}
	}
	in(t, db.URL(), "waiters", name).want(t, cli.ExitOK, `"wait\x1b]0;x\aer\u202e\u009b1m"`, `holder "ho\x1b[1mlder"`)
	in(t, db.URL(), "break", name, "--reason", "r").want(t, cli.ExitOK, `● "wait\x1b]0;x`)
	if view := decode[look.WaitersView](t, in(t, db.URL(), "waiters", "-o", "json").want(t,
		cli.ExitOK).stdout); view.Waiters[0].Lock != name || view.Waiters[0].Holder != holder {
		t.Errorf("JSON does not give the texts back: %+v", view)
	}
}

func TestAUserWithoutOperatorRightsMaySeeTheQueue(t *testing.T) {
	db := pgtest.Parallel(t)
	hold(t, db, "worker", "a")
	await(t, db, "waiter", "a", pglock.ModeExclusive, 0)
	user := asUser(t, db, "pglock_user")
	in(t, user, "waiters").want(t, cli.ExitOK, "waiter", "holder worker")
	in(t, user, "show", "a").want(t, cli.ExitOK, "└─ 1. ticket")
	in(t, strings.Replace(user, "secret", "wrong", 1), "waiters").want(t, cli.ExitPermission)
}
