package integration

import (
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// One client sweeps for all, and goes on soon if it has left some: whoever finds that somebody has swept lately, or has
// tried to, leaves it at that.
func TestWhoeverSweepsDoesSoForAll(t *testing.T) {
	t.Parallel()
	p := newHastyPeer(t, pgtest.Database(t).URL())
	const asClientsDo = `SELECT coalesce(pglock.sweep(p_every => '1 min'), -1)` // -1: left to others
	const goesOn = `SELECT coalesce(pglock.sweep(p_every => '1 s'), -1)`
	old := func(n int) {
		p.exec(t, `INSERT INTO pglock.spent_grants SELECT gen_random_uuid(), now() - interval '2 hours'
			FROM generate_series(1, $1)`, n)
	}
	history := func(old, young int) {
		p.exec(t, `INSERT INTO pglock.events (at, kind, lock_name, token)
			SELECT now() - (n <= $1)::int * interval '91 days', 'takeover', 'x', n FROM generate_series(1, $1 + $2::int) n`,
			old, young)
	}
	swept := func(ago time.Duration) {
		p.exec(t, `SELECT setval('pglock.swept_seq', floor(extract(epoch FROM clock_timestamp() - $1::interval))::bigint)`, ago)
	}
	sweeps := func(what, how string, want int) {
		t.Helper()
		if n := one[int](t, p, how); n != want {
			t.Errorf("%s: %d rows, want %d", what, n, want)
		}
	}
	old(2500)
	sweeps("2,500 rows, a thousand at once", asClientsDo, 1000)
	sweeps("others meanwhile", asClientsDo, -1)
	for _, want := range []int{1000, 500} {
		swept(2 * time.Second)
		sweeps("who goes on", goesOn, want)
	}
	old(3)
	sweeps("soon after", asClientsDo, -1)
	swept(55 * time.Second)
	sweeps("within a minute", asClientsDo, -1)
	swept(65 * time.Second)
	sweeps("after a minute", asClientsDo, 3)
	p.exec(t, `BEGIN; SELECT pglock.sweep(); ROLLBACK`)
	old(1003)
	sweeps("after one that was undone, and left some", `SELECT pglock.sweep()`, 1000)
	swept(2 * time.Minute)
	sweeps("after that", asClientsDo, 3)
	old(3)
	sweeps("who says nothing of others", `SELECT pglock.sweep()`, 3)
	old(3)
	sweeps("after that", asClientsDo, -1)
	swept(-time.Hour)
	sweeps("a clock that was set back", asClientsDo, 3)

	swept(2 * time.Minute)
	sweeps("without the history", `SELECT pglock.sweep(1000, false)`, 0)
	old(3)
	sweeps("after that which was not all", asClientsDo, 3)
	history(1500, 0)
	for _, want := range []int{1000, 500} {
		swept(2 * time.Minute)
		sweeps("1,500 old entries of the history", asClientsDo, want)
	}
	swept(2 * time.Minute)
	history(1, 3000)
	sweeps("an old entry among young ones", asClientsDo, 1)
	old(3)
	swept(2 * time.Minute)
	p.exec(t, `BEGIN`)
	p.exec(t, `SELECT pglock.sweep(p_every => '1 min')`)
	p.exec(t, `ROLLBACK`)
	sweeps("after one that has failed", asClientsDo, -1)

	swept(2 * time.Minute)
	p.exec(t, `SELECT pglock.sweep(1, p_every => '0')`)
	sweeps("after one that has done less than a client", asClientsDo, 2)
}

// However many receipts there are, a sweep of a client takes no longer, or none of what it removes would go. The others
// find those that it has not looked at.
func TestASweepOfAClientLooksAtSomePagesOfTheReceipts(t *testing.T) {
	p := newPeer(t, pgtest.Parallel(t).URL())
	receipts := func(n int, age time.Duration) {
		p.exec(t, `INSERT INTO pglock.receipts SELECT gen_random_uuid(), gen_random_uuid(), clock_timestamp() - $2::interval
			FROM generate_series(1, $1)`, n, age)
	}
	receipts(5000, time.Hour)
	receipts(300, 8*24*time.Hour)
	p.exec(t, `BEGIN`)
	p.exec(t, `SELECT pglock.sweep(10, p_every => '0')`)
	if n := one[int](t, p, `SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_all_tables
		WHERE relid = 'pglock.receipts'::regclass`); n > 10*150 {
		t.Errorf("looked at %d receipts, want those of ten pages", n)
	}
	p.exec(t, `COMMIT`)
	left := func() int { return one[int](t, p, `SELECT count(*) FROM pglock.receipts`) }
	for n := 0; left() > 5000; n++ {
		if n == 2000 {
			t.Fatalf("%d old receipts are left", left()-5000)
		}
		p.exec(t, `SELECT pglock.sweep(50, p_every => '0')`)
	}
	receipts(300, 8*24*time.Hour)
	if n := one[int](t, p, `SELECT pglock.sweep(1000)`); n != 300 || left() != 5000 {
		t.Errorf("a sweep of an operator has removed %d, want all 300", n)
	}
}

// A look says for how long the session lives at least. Requests do not shorten that, and a look that could not note it
// says so.
func TestI8_ALookKeepsASessionForAsLongAsItSays(t *testing.T) {
	db := pgtest.Parallel(t)
	p, other := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
	p.party("holder", "exclusive", time.Hour).mustGet(t, "x")
	a := p.party("waiter", "exclusive", time.Minute).mustQueue(t, "x")
	const look = `SELECT bool_and(kept) FROM pglock.look($1, $2, '17.5 s')`
	lives := func(what string, least time.Duration) {
		t.Helper()
		left := one[float64](t, p, `SELECT extract(epoch FROM alive_until - clock_timestamp())::float8 FROM pglock.sessions
			WHERE session_id = pglock.session_of($1)`, a.key)
		if least -= 2 * time.Second; left < least.Seconds() {
			t.Errorf("%s: the session lives for %.1f s, want %v at least", what, left, least)
		}
	}
	p.exec(t, `UPDATE pglock.sessions SET alive_until = clock_timestamp() + interval '5 s'`)
	for _, after := range []time.Duration{0, 4900 * time.Millisecond, 10 * time.Second} {
		letPass(t, p, after)
		if !one[bool](t, p, look, a.key, a.label) {
			t.Errorf("after %v it was not kept", after)
		}
		lives("after a look", 17500*time.Millisecond)
	}
	p.exec(t, `SELECT FROM pglock.look($1, $2, '30 s')`, a.key, a.label)
	letPass(t, p, 6*time.Second)
	p.exec(t, `SELECT FROM pglock.look($1, $2, '10 s')`, a.key, a.label)
	lives("after one that asks for less", 24*time.Second)
	letPass(t, p, 12*time.Second)
	other.exec(t, `BEGIN; SELECT FROM pglock.sessions FOR NO KEY UPDATE`)
	if one[bool](t, p, look, a.key, a.label) {
		t.Error("kept, while another transaction has locked the session")
	}
	other.exec(t, `ROLLBACK`)
	if !one[bool](t, p, look, a.key, a.label) {
		t.Error("not kept after that")
	}
}
