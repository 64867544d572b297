package integration

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// A session's tickets are for whoever has its key: others see no grant ID, keep nothing alive and end nothing.
func TestI5_TicketsAreForTheKeyOfTheirSessionAlone(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	p.party("holder", "exclusive", time.Minute).mustGet(t, "x")
	own := p.party("own", "exclusive", time.Minute).mustQueue(t, "x")
	other := p.party("other", "exclusive", time.Minute).mustQueue(t, "x")
	tickets := func(key any) (all []string) {
		rows, _ := p.Query(t.Context(), `SELECT name || ' ' || grant_id
			FROM pglock.own_tickets($1, $2)`, key, []int64{own.ticket, other.ticket})
		all = must.Get(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
		return all
	}
	if got := tickets(own.key); len(got) != 1 || got[0] != "x "+own.id.String() {
		t.Errorf("I5: with its key a session finds the tickets %v, want that of %v", got, own.id)
	}
	for what, key := range map[string]any{
		"a stranger's key": p.key, "the session's ID, which everybody sees": own.session(), "no key": nil,
	} {
		if got := tickets(key); len(got) != 0 {
			t.Errorf("I5: %s shows the tickets %v", what, got)
		}
	}
	wantCount(t, p, 0, "I5: a look with the session's ID tells of %d tickets",
		`SELECT count(*) FROM pglock.look($1, 'stranger', '1 min')`, own.session())
	end := func(key uuid.UUID) bool { return one[bool](t, p, `SELECT pglock.end_session($1)`, key) }
	if end(p.key) || !end(own.session()) { // that of the look
		t.Error("I5: a stranger has ended a session, or none of its own")
	}
	if got := queuedFor(t, p, "x"); got != "own other" {
		t.Errorf("I5: after strangers have looked and ended their sessions %q wait", got)
	}
	// The session itself ends with its tickets, at once.
	if !end(own.key) || end(own.key) {
		t.Error("a session ends once")
	}
	if n := one[int](t, p, `SELECT count(*) FROM pglock.list_waiters('x')`); n != 1 || queuedFor(t, p, "x") != "other" {
		t.Errorf("%d tickets are left, of %q", n, queuedFor(t, p, "x"))
	}
	if s, queued := other.look(t); !queued || !s.first {
		t.Errorf("the next is told %+v", s)
	}
}

// announce tells those who were granted the lock as waiters, and whose lease stands; and whoever watches.
func TestAnnounceTellsWhoHasALeaseFromTheQueue(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	want := func(what, name string, n int, slots ...int) {
		t.Helper()
		for _, slot := range slots {
			if got := one[int](t, p, `SELECT pglock.announce(ARRAY[$1], ARRAY[$2::int])`, name, slot); got != n {
				t.Errorf("%s, slot %d: %d are notified, want %d", what, slot, got, n)
			}
		}
	}
	want("a name that was never used", "unknown", 0, 0, 1, -1)
	first := p.party("first", "exclusive", time.Minute).mustGet(t, "x")
	second := p.party("second", "exclusive", time.Minute).mustQueue(t, "x")
	third := p.party("third", "limit 2", time.Minute).mustQueue(t, "x")
	want("held by one that has not waited", "x", 0, 0, 1)
	waysToEnd["release_lease"](t, first)
	want("handed over", "x", 1, 0)
	want("handed over", "x", 0, 1, -1)
	second.find(t)
	waysToEnd["release_lease"](t, second)
	want("handed over to one of two", "x", 1, 1)
	want("handed over to one of two", "x", 0, 0, 2)
	third.find(t)
	waysToEnd["release_lease"](t, third)
	want("released", "x", 0, 0, 1)
	held := p.party("holder", "exclusive", time.Minute).mustGet(t, "y")
	p.party("waiter", "exclusive", time.Minute).mustQueue(t, "y")
	waysToEnd["break_lock"](t, held)
	endNow(t, p, "y")
	want("run out", "y", 0, 0)
	wantCount(t, p, 0, "%d are notified of a lock that nobody watches", `SELECT pglock.announce('{y}', '{NULL}')`)
	p.exec(t, `SELECT pglock.watch('y', '1 min')`)
	p.exec(t, `SELECT pglock.announce('{y,x}', '{NULL,NULL}')`)
}

// A lock is watched for as long as the latest request says, counted from when it came, and no longer: until then every
// grant and every end is told. A request in the first half of another as long writes nothing.
func TestALockIsWatchedForAsLongAsTheLatestRequestSays(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	watch := func() { p.exec(t, `SELECT pglock.watch('x', '1 min')`) }
	version := func() string { return one[string](t, p, `SELECT max(xmin::text || ctid::text) FROM pglock.locks`) }
	told := func(when string, want bool) {
		t.Helper()
		g := grant{name: "x", id: uuid.New()}
		var granted, ended bool
		if err := p.QueryRow(t.Context(), `SELECT token, coalesce((more ->> 'watched')::boolean, false)
			FROM pglock.acquire_lease('x', $1, $2, 'p', '1 min')`, g.id, p.key).Scan(&g.token, &granted); err != nil {
			t.Fatal(err)
		}
		if err := p.QueryRow(t.Context(), `SELECT coalesce((more ->> 'watched')::boolean, false)
			FROM pglock.release_lease('x', $1, $2)`, g.token, g.id).Scan(&ended); err != nil {
			t.Fatal(err)
		}
		if granted != want || ended != want {
			t.Errorf("%s: a grant says that the lock is watched: %v, a release: %v, want %v", when, granted, ended,
				want)
		}
	}
	told("never watched", false)
	watch()
	told("watched", true)
	letPass(t, p, 20*time.Second)
	before := version()
	if watch(); version() != before {
		t.Error("a request in the first half of another has written")
	}
	letPass(t, p, 20*time.Second)
	watch() // in the second half
	letPass(t, p, 50*time.Second)
	told("90 s after the first and 50 s after the latest request", true)
	letPass(t, p, 11*time.Second)
	told("61 s after the latest request", false)
}

// Nobody overtakes a ticket: not when a named waiter was served before its turn, and the sequence of tickets was set
// back, as by a failover.
func TestI9_ATicketAfterAHandOverIsBehindThoseBeforeIt(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	p.exec(t, `SELECT setval('pglock.ticket_seq', 5000)`)
	party := func(label string) *party { return p.party(label, "exclusive", time.Minute) }
	next := party("served").mustGet(t, "x")
	first := party("first").mustQueue(t, "x")
	waysToEnd["release_lease"](t, next) // its ticket is served
	first.find(t)
	party("second").mustQueue(t, "x")
	party("named").mustQueue(t, "x")
	p.exec(t, `SELECT setval('pglock.ticket_seq', 1)`)
	first.mustEnd(t, `SELECT outcome = 'handed over' FROM pglock.hand_over($1, $2, $3,
		'named')`, first.name, first.token, first.id)
	party("last").mustQueue(t, "x")
	if held, queued := heldBy(t, p, "x"), queuedFor(t, p, "x"); held != "named" || queued != "second last" {
		t.Errorf("I9: held by %q, and %q wait", held, queued)
	}
}

// A limit counts for as long as somebody who lives uses it: a dead waiter keeps nobody from naming another.
func TestALimitOfTheDeadDoesNotCount(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	p.party("writer", "exclusive", time.Minute).mustGet(t, "x")
	dead := p.party("dead", "limit 2", time.Minute).mustQueue(t, "x")
	other := p.party("other", "limit 3", time.Minute)
	if err := other.ask(t, "x", true, false); state(err) != "LK010" {
		t.Errorf("another limit than that of a waiter: %v, want LK010", err)
	}
	die(t, p, dead)
	for _, wait := range []bool{false, true} {
		if err := other.ask(t, "x", wait, false); err != nil || other.granted || (other.ticket > 0) != wait {
			t.Errorf("another limit than that of a dead waiter: ticket %d, %v", other.ticket, err)
		}
	}
	// Nor does the limit of somebody who was passed over, and is alive again.
	writer := p.party("writer", "exclusive", time.Minute).mustGet(t, "y")
	again := p.party("again", "limit 2", time.Minute).mustQueue(t, "y")
	die(t, p, again)
	waysToEnd["release_lease"](t, writer)
	again.look(t)
	other.mustGet(t, "y")
}

// sweep removes what nobody needs any more when it is old enough, and not before: tickets and sessions a minute after
// they were last alive, receipts after a week. A ticket of somebody who is alive stays, however long it has waited.
func TestSweepRemovesWhatIsOldEnoughAndNothingElse(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	p.party("holder", "exclusive", 20*time.Hour).mustGet(t, "x")
	waiting := p.party("waiting", "exclusive", time.Minute).mustQueue(t, "x")
	p.party("dead", "exclusive", time.Minute).mustQueue(t, "x") // a minute after its request
	receipt, write := uuid.New(), uuid.New()
	g := p.mustAcquire(t, "y", time.Minute)
	p.exec(t, `SELECT pglock.fence('y', $1, $2, p_receipt_id => $3, p_write_id => $4)`, g.token, g.id, receipt, write)
	want := func(when string, tickets, sessions int) {
		t.Helper()
		if _, queued := waiting.look(t); !queued { // which keeps its session alive
			t.Errorf("%s: the ticket of a live session is gone", when)
		}
		p.exec(t, `SELECT pglock.sweep()`)
		if n := one[int](t, p, `SELECT count(*) FROM pglock.list_waiters('x')`); n != tickets {
			t.Errorf("%s: %d tickets, want %d", when, n, tickets)
		}
		if n := one[int](t, p, `SELECT count(*) FROM pglock.sessions`); n != sessions {
			t.Errorf("%s: %d sessions, want %d", when, n, sessions)
		}
	}
	want("at once", 2, 2)
	letPass(t, p, time.Minute+55*time.Second)
	want("dead for 55 s", 2, 2)
	letPass(t, p, 10*time.Second)
	want("dead for 65 s", 1, 1)
	letPass(t, p, 10*time.Minute)
	want("after more than ten minutes", 1, 1)
	letPass(t, p, 7*24*time.Hour-20*time.Minute)
	p.exec(t, `SELECT pglock.sweep()`)
	wantCount(t, p, 1, "%d receipts within a week", `SELECT count(*) FROM pglock.receipts`)
	// which writes the receipt once more
	if !one[bool](t, p, `SELECT pglock.outcome($1, $2, pglock.database_id())`, receipt, write) {
		t.Error("within a week the outcome of a write is not known any more")
	}
	letPass(t, p, 7*24*time.Hour+time.Minute)
	p.exec(t, `SELECT pglock.sweep()`)
	wantCount(t, p, 0, "%d receipts after a week", `SELECT count(*) FROM pglock.receipts`)
}
