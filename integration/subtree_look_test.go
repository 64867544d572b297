package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// Whoever grants a name has locked the table of locks before it looks for subtrees above, on every way. So a subtree
// whose ticket is committed after that look waits for the grant. On the ways here nothing was written to the table
// before the look.

// Several requests in one statement lose the lock on the table when grant_set is undone: here because the name lay
// below a subtree lately.
func TestI1_ASubtreeWaitsForAGrantOfSeveral(t *testing.T) {
	db := pgtest.Parallel(t)
	below, above := newPeer(t, db.URL()), newPeer(t, db.URL())
	below.mustEnd(t, below.mustAcquire(t, "t/x", time.Minute))
	above.mustEnd(t, above.mustSubtree(t, "t").grant)
	id := uuid.New()
	grantPaused(t, below, "t/x", func() error {
		return below.QueryRow(t.Context(), `SELECT granted FROM pglock.acquire_leases('{t/x}', ARRAY[gen_random_uuid()], $1,
			'{below}', '{1 min}', '{NULL}', '{f}', '{exclusive}', '{NULL}', '{f}', '10 s', '{NULL}', '{f}')`,
			below.key.String()).Scan(new(bool))
	}, func() {
		above.subtree(t, "t", id)
		if a := above.subtree(t, "t", id); a.granted {
			t.Errorf("%+v, while a grant below is under way", a)
		}
	})
}

// A request that is given up hands a free lock on, and has written nothing to the table before. The next ticket is
// higher than that of the subtree, which is not committed when it looks.
func TestI1_ASubtreeWaitsForAGrantByWhoGivesUp(t *testing.T) {
	db := pgtest.Parallel(t)
	top, above := newPeer(t, db.URL()), newPeer(t, db.URL())
	first, second := newPeer(t, db.URL()), newPeer(t, db.URL())
	held := top.mustSubtree(t, "t")
	id := uuid.New()
	above.exec(t, `BEGIN`)
	above.subtree(t, "t/u", id)
	above.liftLimits(t)
	p := first.queue(t, "t/u/x", uuid.New())
	second.queue(t, "t/u/x", uuid.New())
	top.mustEnd(t, held.grant)
	grantPaused(t, first, "t/u/x", func() error {
		_, err := first.Exec(t.Context(), `SELECT * FROM pglock.give_up($1, '{t/u/x}', ARRAY[$2::uuid])`,
			first.key.String(), p.id.String())
		return err
	}, func() {
		above.exec(t, `COMMIT`)
		if a := above.subtree(t, "t/u", id); a.granted {
			t.Errorf("%+v, while a grant below is under way", a)
		}
	})
}

// grantPaused lets a peer send a statement that grants a name, and calls then when it has looked at the tree and is
// about to write the grant.
func grantPaused(t *testing.T, p *peer, name string, send func() error, then func()) {
	t.Helper()
	if err := pausedIn(t, p, name, "grant_head", "require_durable_commit()",
		"require_durable_commit() AND pause_here(w.name)", send, then); err != nil {
		t.Fatal(err)
	}
	if one[int](t, newPeer(t, p.Config().ConnString()), `SELECT count(*)::int FROM pglock.locks
		WHERE expires_at > clock_timestamp()`) != 1 {
		t.Error("not one lease is held: the name's")
	}
}

// pausedIn lets a peer send a statement about a name, and calls then when it has come to the changed piece of a
// function, where pause_here stops it. It gives the statement's error.
func pausedIn(t *testing.T, p *peer, name, function, old, replacement string, send func() error, then func()) error {
	t.Helper()
	look, stop := newPeer(t, p.Config().ConnString()), newPeer(t, p.Config().ConnString())
	look.exec(t, `CREATE OR REPLACE FUNCTION pglock.pause_here(p_name text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
		WHILE p_name = '`+name+`' AND NOT pg_try_advisory_xact_lock_shared(1) LOOP PERFORM pg_sleep(0.01); END LOOP;
		RETURN true; END $$`)
	look.change(t, function, old, replacement)
	stop.exec(t, `SELECT pg_advisory_lock(1)`)
	result := must.Go(func() error { return send() })
	pgtest.Eventually(t, "the statement to have come to "+function, func() bool {
		return one[bool](t, look, `SELECT coalesce(wait_event = 'PgSleep', false) FROM pg_stat_activity WHERE pid = $1`,
			p.PgConn().PID())
	})
	then()
	stop.exec(t, `SELECT pg_advisory_unlock(1)`)
	return <-result
}

// A holder that hands over has written nothing either. What its own owner asks for meanwhile is not kept by its lease.
func TestI1_ASubtreeWaitsForAHandOverBelow(t *testing.T) {
	db := pgtest.Parallel(t)
	holder, next, above := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	owner := `, p_owner_id => '` + uuid.NewString() + `'`
	held := holder.request(t, "acquire_lease", "t/x", uuid.New(), owner)
	id := uuid.New()
	above.exec(t, `BEGIN`)
	above.request(t, "acquire_subtree", "t", id, owner+", p_nested => true")
	above.liftLimits(t)
	next.queue(t, "t/x", uuid.New())
	grantPaused(t, holder, "t/x", func() error {
		_, err := holder.Exec(t.Context(), `SELECT * FROM pglock.hand_over('t/x', $1, $2, 'peer')`, held.token,
			held.id.String())
		return err
	}, func() {
		above.exec(t, `COMMIT`)
		if a := above.request(t, "acquire_subtree", "t", id, owner+", p_nested => true"); a.granted {
			t.Errorf("%+v, while a grant below to somebody else is under way", a)
		}
	})
}

// A grant looks for subtrees above its name by the order of names. It finds the same as whoever compares each of them.
// The bytes of the names lie before and behind '/' in that order.
func TestAGrantFindsTheSubtreesAboveIt(t *testing.T) {
	t.Parallel()
	inOrders(t, findSubtreesAbove)
}

func findSubtreesAbove(t *testing.T, url string) {
	t.Helper()
	p := newPeer(t, url)
	p.exec(t, `SET search_path = pglock, pg_temp`)
	p.exec(t, `CREATE TEMP TABLE names AS SELECT DISTINCT array_to_string(ARRAY(
			SELECT ('{a,a-,a!,a0,b,b%,ä,""}'::text[])[1 + floor(random() * 8)::int]
			FROM generate_series(0, (n + random() * 4)::int % 5)), '/') COLLATE "C" AS name
		FROM generate_series(1, 1500) n`)
	for n := range 12 {
		p.exec(t, `DELETE FROM subtrees`)
		p.exec(t, `INSERT INTO subtrees (ticket, name, grant_id, mode, xact)
			SELECT row_number() OVER (), name, gen_random_uuid(), 'shared', pg_current_xact_id()
			FROM (SELECT name FROM names ORDER BY random() LIMIT `+fmt.Sprint(n*n)+`) n`)
		if wrong := one[string](t, p, `SELECT coalesce(string_agg(quote_literal(n.name), ', '), '') FROM names n
			WHERE is_below(n.name) <> EXISTS (SELECT FROM subtrees s WHERE starts_with(n.name, s.name || '/'))`); wrong != "" {
			t.Fatalf("of %d subtrees: %s", n*n, wrong)
		}
	}
}

// A subtree waits for the grants that may not have seen its ticket, and for none that came later elsewhere: on a busy
// server some are always under way.
func TestI9_LaterGrantsElsewhereDoNotHoldUpASubtree(t *testing.T) {
	db := pgtest.Parallel(t)
	p, first, later := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	grant := func(p *peer, name string) {
		t.Helper()
		p.exec(t, `BEGIN`)
		if g, err := p.acquire(t.Context(), name, uuid.New(), time.Minute, false); err != nil || !g.granted {
			t.Fatalf("%+v, %v", g, err)
		}
		p.liftLimits(t)
	}
	grant(first, "u/first")
	id := uuid.New()
	for range 3 {
		if a := p.subtree(t, "t", id); a.granted {
			t.Fatalf("%+v while a grant is under way", a)
		}
	}
	grant(later, "u/later")
	first.exec(t, `COMMIT`)
	if a := p.subtree(t, "t", id); !a.granted {
		t.Errorf("%+v while a later grant is under way", a)
	}
	later.exec(t, `COMMIT`)
}

// A restart gives a prepared transaction another name. It has still granted what it has.
func TestI1_ASubtreeWaitsForAPreparedGrantOverARestart(t *testing.T) {
	t.Parallel() // it has a server of its own
	server := migrated(t, map[string]string{"max_prepared_transactions": "5"})
	p, below := newPeer(t, server.URL()), newPeer(t, server.URL())
	below.exec(t, `BEGIN`)
	if g, err := below.acquire(t.Context(), "t/x", uuid.New(), time.Hour, false); err != nil || !g.granted {
		t.Fatalf("%+v, %v", g, err)
	}
	below.liftLimits(t)
	id := uuid.New()
	ask := func(when string) {
		t.Helper()
		if a := p.subtree(t, "t", id); a.granted {
			t.Fatalf("%s: %+v while a grant below is under way", when, a)
		}
	}
	ask("first")
	ask("open")
	below.exec(t, `PREPARE TRANSACTION 'p'`)
	ask("prepared")
	must.Do(t, server.Kill())
	must.Do(t, server.Restart(t.Context()))
	key := p.key
	p = newPeer(t, server.URL())
	p.key = key
	ask("restarted")
	p.exec(t, `COMMIT PREPARED 'p'`)
	ask("committed")
}
