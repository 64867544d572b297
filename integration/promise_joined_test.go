package integration

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// The ways to leave the queue, each with a session's key, a lock and a grant ID.
var waysToLeave = map[string]string{
	"give_up":     `SELECT pglock.give_up($1, ARRAY[$2], ARRAY[$3::uuid])`,
	"end_session": `SELECT pglock.end_session($1) WHERE $2 <> '' AND $3::uuid IS NOT NULL`,
}

// Whoever queues for a lock that is held, or leaves its queue, is in nobody's way, however long the transaction stays
// open: others queue behind, leave the queue, renew, and commit fenced writes. And whoever leaves waits for nobody who
// decides about the lock.
func TestI14_WhoeverQueuesOrLeavesIsInNobodysWay(t *testing.T) {
	db := pgtest.Parallel(t)
	patientTransactions(t, newPeer(t, db.URL()))
	for _, mode := range []string{"exclusive", "shared", "limit 1"} {
		p, joining, leaving := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
		holder := p.party("holder", mode, time.Minute).mustGet(t, mode)
		gone := p.party("gone", "exclusive", time.Minute).mustQueue(t, mode)
		behind := p.party("behind", "exclusive", time.Minute).mustQueue(t, mode)
		joining.exec(t, `BEGIN`)
		joined := joining.party("joined", "exclusive", time.Minute).mustQueue(t, mode)
		leaving.exec(t, `BEGIN`)
		way := "end_session"
		if mode == "exclusive" { // else somebody behind it might have their turn, for which it takes the head
			way = "give_up"
		}
		leaving.exec(t, waysToLeave[way], gone.key, mode, gone.id)

		last := p.party("last", "exclusive", time.Minute).mustQueue(t, mode)
		if last.ticket <= joined.ticket {
			t.Errorf("I9: %s: ticket %d behind %d", mode, last.ticket, joined.ticket)
		}
		if outcome, _ := holder.renew(t); outcome != "renewed" {
			t.Errorf("I14: %s: the renewal is %s", mode, outcome)
		}
		p.exec(t, `BEGIN`)
		p.exec(t, `SELECT pglock.fence($1, $2, $3)`, mode, holder.token, holder.id)
		p.exec(t, `COMMIT`)
		p.exec(t, waysToLeave[way], behind.key, mode, behind.id)
		joining.exec(t, `COMMIT`)
		leaving.exec(t, `COMMIT`)
		if got := queuedFor(t, p, mode); got != "joined last" {
			t.Errorf("I9: %s: %q wait", mode, got)
		}

		joining.exec(t, `BEGIN`) // and decides about the lock, for as long as it takes
		joining.exec(t, `SELECT FROM pglock.locks WHERE name = $1 AND slot = 0 FOR UPDATE`, mode)
		p.exec(t, `SET lock_timeout = '1ms'`)
		p.exec(t, waysToLeave["end_session"], last.key, mode, last.id)
		p.exec(t, waysToLeave[way], joined.key, mode, joined.id)
		joining.exec(t, `ROLLBACK`)
	}
}

// Whoever ends a lease waits for a ticket that is being written, and serves it: nobody waits for a lock that is free.
func TestI8_WhoeverEndsALeaseSeesATicketThatIsBeingWritten(t *testing.T) {
	db := pgtest.Parallel(t)
	p, waiter, look := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	patientWaits(t, look)
	patientCalls(t, look)
	for _, mode := range []string{"exclusive", "limit 1"} {
		for end, way := range waysToEnd {
			name := mode + ", " + end
			holder := p.party("holder", mode, time.Minute).mustGet(t, name)
			waiter.exec(t, `BEGIN`)
			waiter.party("waiter", mode, time.Minute).mustQueue(t, name)
			ended := make(chan struct{})
			pgtest.Group(t).Go(func() {
				defer close(ended)
				way(t, holder)
			})
			p.awaitBlocked(t, look)
			waiter.exec(t, `COMMIT`)
			<-ended
			if held := heldBy(t, look, name); held != "waiter" {
				t.Errorf("I8: %s: %q holds it", name, held)
			}
		}
	}
}

// PostgreSQL lets those who join a row pass whoever waits to take it. So a stream of calls that queue could keep a
// holder from ending its lease for ever, and an operator from breaking it. They let whoever takes the head go first.
func TestI8_WhoeverEndsALeaseIsNotPassedByThoseWhoQueue(t *testing.T) {
	db := pgtest.Parallel(t)
	p, joined, late, look := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	heir := newPeer(t, db.URL())
	patientWaits(t, look)
	patientCalls(t, look)
	look.change(t, "give_way", "'1 s'", "'1 min'")
	ways := maps.Clone(waysToEnd)
	ways["hand_over"] = func(t *testing.T, a *party) {
		a.mustEnd(t, `SELECT outcome = 'handed over' FROM pglock.hand_over($1, $2, $3, 'heir')`, a.name, a.token,
			a.id)
	}
	ways["give_up, spent"] = func(t *testing.T, a *party) {
		a.mustEnd(t, `SELECT ended FROM pglock.give_up($1, ARRAY[$2], ARRAY[$3::uuid], true)`, a.key, a.name, a.id)
	}
	for queue, sql := range waysToQueue {
		for end, way := range ways {
			name := queue + ", " + end
			holder := p.party("holder", "exclusive", time.Minute).mustGet(t, name)
			next, behind := "joined", "late"
			if end == "hand_over" { // which waits for the row only if somebody waits for the lock
				heir.party("heir", "exclusive", time.Minute).mustQueue(t, name)
				next, behind = "heir", "joined late"
			}
			joined.exec(t, `BEGIN`)
			joined.party("joined", "exclusive", time.Minute).mustQueue(t, name)
			ended, queued := make(chan struct{}), make(chan error, 1)
			pgtest.Group(t).Go(func() {
				defer close(ended)
				way(t, holder)
			})
			p.awaitBlocked(t, look)
			go func() {
				_, err := late.Exec(t.Context(), sql, name, uuid.New(), uuid.New())
				queued <- err
			}()
			pgtest.Eventually(t, "whoever comes late to wait", func() bool {
				if len(queued) > 0 {
					t.Fatalf("I8: %s: somebody queues before whoever ends the lease", name)
				}
				return one[bool](t, look, `SELECT coalesce(wait_event, '') = 'PgSleep' FROM pg_stat_activity
					WHERE pid = $1`, late.PgConn().PID())
			})
			joined.exec(t, `COMMIT`)
			<-ended
			if err := <-queued; err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if held, waiting := heldBy(t, look, name), queuedFor(t, look, name); held != next || waiting != behind {
				t.Errorf("I8: %s: %q holds it, %q waits", name, held, waiting)
			}
		}
	}
}

// The ways to queue, each for a lock, with a grant ID and a session's key.
var waysToQueue = map[string]string{
	"acquire_lease": `SELECT pglock.acquire_lease($1, $2, $3, 'late', '1 min', p_wait => true)`,
	"acquire_leases": `SELECT pglock.acquire_leases(ARRAY[$1], ARRAY[$2::uuid], $3, ARRAY['late'], ARRAY[interval '1 min'],
		ARRAY[NULL::jsonb], ARRAY[false], ARRAY['exclusive'], ARRAY[NULL::int], ARRAY[true], '1 min', ARRAY[NULL::uuid],
		ARRAY[false])`,
}

// Several requests for one lock in a statement let others go first once: whoever waits for the lock then waits for the
// statement. Whoever asks again without queueing joins the head too. Whoever has been granted the lock lets nobody go
// first: they would wait for it. Whoever was only refused still does. Whoever is granted a free lock need not.
func TestI8_AStatementForManyGivesWayOnceForEachLock(t *testing.T) {
	t.Parallel()
	p := newPeer(t, pgtest.Database(t).URL())
	patientTransactions(t, p)
	for _, name := range []string{"x", "y", "z"} {
		p.party("holder", "exclusive", time.Minute).mustGet(t, name)
	}
	p.exec(t, `SET track_functions = 'all'`)
	for what, c := range map[string]struct {
		names, waits, retries string
		want                  int
	}{
		"four for each of three held ones": {"x x x x y y y y z z z z", "t t t t t t t t f f f f",
			"f f f f f f f f t t t t", 3},
		"tries of a held one": {"x x", "f f", "f f", 0},
		"one behind a try":    {"x x", "f t", "f f", 1},
		"one behind a grant":  {"free free", "f t", "f f", 0},
		"free ones":           {"free free2", "t t", "f f", 0},
	} {
		const gaveWay = `SELECT coalesce(pg_stat_get_xact_function_calls('pglock.give_way'::regproc), 0)`
		n := len(strings.Fields(c.names))
		p.exec(t, `BEGIN`)
		before := one[int](t, p, gaveWay) // in transactions that the server has not collected yet
		p.exec(t,
			`SELECT pglock.acquire_leases(string_to_array($1, ' '), ARRAY(SELECT gen_random_uuid() FROM generate_series(1, $5)), $2,
			array_fill('many'::text, ARRAY[$5::int]), array_fill(interval '1 min', ARRAY[$5]), array_fill(NULL::jsonb, ARRAY[$5]),
			string_to_array($4, ' ')::boolean[], array_fill('exclusive'::text, ARRAY[$5]), array_fill(NULL::int, ARRAY[$5]),
			string_to_array($3, ' ')::boolean[], '1 min', array_fill(NULL::uuid, ARRAY[$5]), array_fill(false, ARRAY[$5]))`,
			c.names, uuid.New(), c.waits, c.retries, n)
		if got := one[int](t, p, gaveWay) - before; got != c.want {
			t.Errorf("I8: %s gave way %d times, want %d", what, got, c.want)
		}
		p.exec(t, `ROLLBACK`)
	}
}

// Whoever leaves the queue of a lock that those behind can have now has it granted to them, at once and in order.
func TestI8_WhoeverLeavesTheQueueServesThoseBehind(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	for _, c := range []struct {
		holder, leaves, behind string
		want                   string // who holds it then
	}{
		{"shared", "exclusive", "shared", "holder behind"},
		{"limit 2", "exclusive", "limit 2", "holder behind"},
		{"limit 1", "exclusive", "limit 1", "holder"},
		{"exclusive", "exclusive", "exclusive", "holder"},
		{"exclusive that ran out", "exclusive", "exclusive", "behind"},
		{"shared that ran out", "exclusive", "exclusive", "behind"},
	} {
		name := fmt.Sprint(c)
		mode, ranOut := strings.CutSuffix(c.holder, " that ran out")
		p.party("holder", mode, time.Minute).mustGet(t, name)
		first := p.party("first", c.leaves, time.Minute).mustQueue(t, name)
		p.party("behind", c.behind, time.Minute).mustQueue(t, name)
		if ranOut {
			endNow(t, p, name)
		}
		p.exec(t, waysToLeave["give_up"], first.key, name, first.id)
		if held := heldBy(t, p, name); held != c.want {
			t.Errorf("I8: %s: %q holds it, want %q", name, held, c.want)
		}
	}
}

// A ticket that somebody is taking back is in nobody's way: the next one is served, whoever ends the lease, and does
// not wait. If the ticket stays after all, it counts no more: nobody sees it, and whoever asks again stands at the end.
func TestI9_ATicketThatIsBeingTakenBackIsPassedOver(t *testing.T) {
	db := pgtest.Parallel(t)
	p, leaving := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
	patientTransactions(t, p)
	for leave, sql := range waysToLeave {
		for _, mode := range []string{"exclusive", "shared", "limit 1"} {
			for end, way := range waysToEnd {
				name := fmt.Sprint(mode, ", ", leave, " beside ", end)
				holder := p.party("holder", "exclusive", time.Minute).mustGet(t, name)
				first := p.party("first", mode, time.Minute).mustQueue(t, name)
				second := p.party("second", mode, time.Minute).mustQueue(t, name)
				third := p.party("third", "exclusive", time.Minute).mustQueue(t, name)
				leaving.exec(t, `BEGIN`)
				leaving.exec(t, sql, first.key, name, first.id)
				way(t, holder)
				leaving.exec(t, `ROLLBACK`)
				if held, queued := heldBy(t, p, name), queuedFor(t, p, name); held != "second" || queued != "third" {
					t.Fatalf("I9: %s: %q holds it, and %q wait", name, held, queued)
				}
				if s, queued := first.look(t); queued {
					t.Errorf("I8: %s: a look tells whoever was passed over %+v", name, s)
				}
				shown := one[int](t, p, `SELECT coalesce(max(waiting), 0)::int * 100
						+ (SELECT count(*)::int FROM pglock.list_waiters($1, p_order => 'age'))
					FROM pglock.get_lock($1)`, name)
				if shown != 101 {
					t.Errorf("%s: %d are shown to wait, and %d listed; want one", name, shown/100, shown%100)
				}
				second.find(t)
				const sql = `SELECT outcome FROM pglock.hand_over($1, $2, $3, 'first', true)`
				if mode == "exclusive" && one[string](t, p, sql, name, second.token, second.id) != "nobody" {
					t.Errorf("I9: %s: whoever was passed over may be named as the next", name)
				}
				was := first.ticket
				if err := first.ask(t, name, true, true); err != nil || first.granted || first.ticket <= third.ticket {
					t.Errorf("I9: %s: asked again, ticket %d, which was %d, granted %v, %v; want one after %d",
						name, first.ticket, was, first.granted, err, third.ticket)
				}
				waysToEnd["release_lease"](t, second)
				if held, queued := heldBy(t, p, name), queuedFor(t, p, name); held != "third" || queued != "first" {
					t.Errorf("I9: %s: then %q holds it, and %q wait", name, held, queued)
				}
			}
		}
	}
	// Nor is it chosen as the next, nor waited for by an operator who ends its session.
	holder := p.party("holder", "exclusive", time.Minute).mustGet(t, "named")
	for range 2 {
		next := p.party("next", "exclusive", time.Minute).mustQueue(t, "named")
		leaving.exec(t, `BEGIN`)
		leaving.exec(t, waysToLeave["give_up"], next.key, "named", next.id)
		const sql = `SELECT outcome FROM pglock.hand_over('named', $1, $2, 'next')`
		if got := one[string](t, p, sql, holder.token, holder.id); got != "nobody" ||
			heldBy(t, p, "named") != "holder" {
			t.Fatalf("handed to whoever is leaving: %s", got)
		}
		wantCount(t, p, 0, "%d tickets were taken back twice",
			`SELECT count(*) FROM pglock.break_session($1, 'test', 'test')
			WHERE ticket IS NOT NULL OR token IS NOT NULL`, next.session())
		leaving.exec(t, `COMMIT`)
	}
}

// An operator who ends a session waits for a row of one of its leases. Meanwhile another of its leases of the same lock
// runs out, and both places go to the next two in the queue: their leases stay, and the break succeeds.
func TestABreakOfASessionEndsNobodyElsesLease(t *testing.T) {
	db := pgtest.Parallel(t)
	p, stuck, operator := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL()), newPeer(t, db.URL())
	patientWaits(t, p)
	party := func(label string) *party { return p.party(label, "limit 2", time.Minute) }
	one1, two := party("one"), party("two")
	two.key = one1.key
	one1.mustGet(t, "x")
	two.mustGet(t, "x")
	party("next").mustQueue(t, "x")
	party("last").mustQueue(t, "x")
	stuck.exec(t, `BEGIN; SELECT FROM pglock.locks WHERE name = 'x' AND slot = 1 FOR KEY SHARE`)
	broken := must.Go(func() error {
		_, err := operator.Exec(t.Context(), `SELECT FROM pglock.break_session($1, 'test', 'test')`, one1.session())
		return err
	})
	operator.awaitBlocked(t, p)
	p.exec(t, `UPDATE pglock.locks SET expires_at = clock_timestamp() WHERE name = 'x' AND slot = 2`)
	stuck.exec(t, `COMMIT`)
	if err := <-broken; err != nil {
		t.Errorf("the break of the session: %v", err)
	}
	if held := heldBy(t, p, "x"); held != "next last" {
		t.Errorf("%q hold the lock", held)
	}
}

// Whoever finds that those who queue are dead passes over them once for all: nobody reads them again, or sees them.
func TestThoseWhoDiedInTheQueueAreReadOnce(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	for _, mode := range []string{"exclusive", "shared", "limit 2"} {
		for _, live := range []bool{false, true} {
			name := fmt.Sprint(mode, ", behind them one who lives: ", live)
			holder := p.party("holder", mode, time.Minute).mustGet(t, name)
			for n := range 3 {
				die(t, p, p.party(fmt.Sprint("dead ", n), "exclusive", time.Minute).mustQueue(t, name))
			}
			want := ""
			if live {
				want = "alive"
				p.party(want, "exclusive", time.Minute).mustQueue(t, name)
			}
			waysToEnd["release_lease"](t, holder)
			if n := one[int](t, p, `SELECT count(*) FROM pglock.list_waiters($1)`, name); n != 0 ||
				heldBy(t, p, name) != want {
				t.Errorf("%s: %d of the dead are listed, and %q holds it", name, n, heldBy(t, p, name))
			}
		}
	}
	// A tidy-up removes what counts no more, though the session is alive again.
	again := p.party("again", "exclusive", time.Minute)
	holder := p.party("holder", "exclusive", time.Minute).mustGet(t, "again")
	again.mustQueue(t, "again")
	die(t, p, again)
	waysToEnd["release_lease"](t, holder)
	again.look(t)
	p.exec(t, `UPDATE pglock.waiters SET enqueued_at = clock_timestamp() - interval '2 min'`)
	p.exec(t, `SELECT pglock.sweep()`)
	wantCount(t, p, 0, "%d tickets are left that count no more", `SELECT count(*) FROM pglock.waiters WHERE name = 'again'`)
}

// The limits do not end a transaction that lifts them, as any user may. The holder cannot renew meanwhile, and its
// release waits.
func TestHole_AUserMayKeepALocksRowLocked(t *testing.T) {
	db := pgtest.Parallel(t)
	holder, user := newPeer(t, db.URL()), newPeer(t, db.URL())
	g := holder.mustAcquire(t, "x", time.Minute)
	user.exec(t, `BEGIN; SELECT FROM pglock.watch('x', '1 min'); `+liftingLimits)
	time.Sleep(1500 * time.Millisecond) // longer than the limits
	if outcome := one[string](t, holder,
		`SELECT outcome FROM pglock.renew_leases(ARRAY['x'], ARRAY[$1::bigint], ARRAY[$2::uuid], '{0}')`,
		g.token, g.id); outcome != "busy" {
		t.Errorf("a renewal is %s", outcome)
	}
	if _, err := holder.release(t.Context(), g); state(err) != "55P03" {
		t.Errorf("a release does not wait: %v", err)
	}
	user.exec(t, `ROLLBACK`)
	holder.mustRenew(t, g)
}

// A transaction that has locked what others need is ended by the server if it goes on for long: between its statements,
// and in any but a last one. One that has locked only its own lease may work on. A lower limit of the user stays.
func TestI13_WhoeverHasLockedWhatOthersNeedHasASecond(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	patientTransactions(t, p) // a minute stands for the second
	const leases = `(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], '{0}'`
	const requests = `(ARRAY[$1], ARRAY[gen_random_uuid()], $4, '{p}', '{1 min}', '{NULL}', '{false}',
		'{exclusive}', '{NULL}', '{true}', '10 s', '{NULL}', '{false}'`
	limits := func() string {
		return one[string](t, p,
			`SELECT string_agg(setting, ' ' ORDER BY name <> 'idle_in_transaction_session_timeout', name)
			FROM pg_settings
			WHERE name IN ('idle_in_transaction_session_timeout', 'statement_timeout', 'transaction_timeout')`)
	}
	unset := strings.Fields(limits())
	for what, call := range map[string]string{
		"a request that waits":             `acquire_lease($1, $5, $4, 'p', '1 min', p_wait => true)`,
		"requests that wait":               `acquire_leases` + requests + `)`,
		"a release":                        `release_lease($1, $2, $3)`,
		"releases":                         `release_leases` + leases + `)`,
		"a hand-over":                      `hand_over($1, $2, $3, 'next')`,
		"leaving the queue":                `give_up($4, ARRAY[$1], ARRAY[gen_random_uuid()])`,
		"a watch":                          `watch($1, '1 min')`,
		"a request that waits, alone":      `acquire_lease($1, $5, $4, 'p', '1 min', p_wait => true, p_alone => true)`,
		"releases alone":                   `release_leases` + leases + `, true)`,
		"leaving the queue, alone":         `give_up($4, ARRAY[$1], ARRAY[gen_random_uuid()], p_alone => true)`,
		"a release that serves":            `release_lease($1, $2, $3, 0)`,
		"a try that takes over":            `acquire_lease($1, $5, $4, 'p', '1 min')`,
		"leaving the queue of a free lock": `give_up($4, ARRAY[$1], ARRAY[gen_random_uuid()], true)`,
		"a break":                          `break_lock($1, 'test', 'test')`,
		"a break of a session":             `break_session(pglock.session_of($4), 'test', 'test')`,
		"the end of a session":             `end_session($4)`,
		"a sweep":                          `sweep()`,
		"a prune":                          `prune_locks('0')`,
		"a prune of the history":           `prune_history()`,
		"a change of the history":          `set_history('test', 'all')`,
		"a new epoch":                      `advance_epoch('test', 'test')`,
		"nothing: the history as it is":    `set_history('test', 'losses')`,
		"idle: a try for a free lock":      `acquire_lease($1, $5, $4, 'p', '1 min')`,
		"tries for a free lock":            `acquire_leases` + strings.ReplaceAll(requests, "{true}", "{false}") + `)`,
		"idle: a try for a new lock":       `acquire_lease($1 || gen_random_uuid(), $5, $4, 'p', '1 min')`,
		"idle: a renewal":                  `renew_leases` + leases + `)`,
		"idle: a renewal that waits":       `renew_leases` + leases + `, '1 s')`,
		"nothing: a try that is refused":   `acquire_lease($1, $5, $4, 'p', '1 min')`,
		"nothing: a check":                 `check_leases` + leases + `)`,
	} {
		g := p.mustAcquire(t, what, time.Minute)
		switch what {
		case "a hand-over", "a release that serves":
			p.party("next", "exclusive", time.Minute).mustQueue(t, what)
		case "a try that takes over":
			endNow(t, p, what)
		case "a prune of the history":
			p.exec(t, `INSERT INTO pglock.events (kind, lock_name, token, at) VALUES ('takeover', 'a', 1, '2020-01-01')`)
		case "leaving the queue of a free lock", "idle: a try for a free lock", "tries for a free lock", "a prune":
			p.mustReleaseBy(t, "release_lease", g)
		}
		for _, own := range []string{"", "30000", "90000"} {
			want := slices.Repeat([]string{"60000"}, len(unset))
			if strings.Contains(what, "alone") || strings.HasPrefix(what, "idle") {
				want = append([]string{"60000"}, unset[1:]...)
			} else if strings.HasPrefix(what, "nothing") {
				want = slices.Clone(unset)
			}
			p.exec(t, `BEGIN`)
			if own != "" {
				p.exec(t, `SELECT set_config(name, $1, true) FROM pg_settings
					WHERE name IN ('idle_in_transaction_session_timeout', 'statement_timeout', 'transaction_timeout')`,
					own)
				for n := range want {
					if own == "30000" || want[n] == "0" {
						want[n] = own
					}
				}
			}
			p.exec(t, `SELECT FROM (SELECT $1::text, $2::bigint, $3::uuid, $4::uuid, $5::uuid) AS used, pglock.`+call,
				what, g.token, g.id, p.key, uuid.New())
			if got := limits(); got != strings.Join(want, " ") {
				t.Errorf("%s, own limits of %q: they are %s, want %s", what, own, got, want)
			}
			p.exec(t, `ROLLBACK`)
		}
	}
	if after := limits(); after != strings.Join(unset, " ") {
		t.Errorf("after the transactions they are %s", after)
	}
}

// An operator waits for whoever has locked the row at most five seconds, and is told who that is.
func TestABreakWaitsForARowForFiveSecondsAndNamesWhoHasLockedIt(t *testing.T) {
	t.Parallel() // most of it is waiting
	db := pgtest.Database(t)
	p, other := newHastyPeer(t, db.URL()), newPeer(t, db.URL())
	other.exec(t, `BEGIN`)
	names := fmt.Sprintf("its row is locked by process %d", one[int](t, other, `SELECT pg_backend_pid()`))
	calls := map[string]string{
		"break_lock":    `SELECT pglock.break_lock('break_lock', 'test', 'test') WHERE $1::uuid IS NOT NULL`,
		"break_session": `SELECT pglock.break_session($1, 'test', 'test')`,
	}
	told := make(chan error, len(calls))
	for what, sql := range calls {
		holder, b := p.party("holder", "exclusive", time.Minute).mustGet(t, what), newPeer(t, db.URL())
		other.exec(t, `SELECT FROM pglock.locks WHERE name = $1 FOR UPDATE`, what)
		b.exec(t, `SET statement_timeout = '20s'`) // should it wait for ever
		go func() {
			_, err := b.Exec(context.WithoutCancel(t.Context()), sql, holder.session())
			if state(err) != "55P03" || !strings.Contains(err.Error(), names) {
				told <- fmt.Errorf("%s: %w; want 55P03, and that %s", what, err, names)
				return
			}
			told <- nil
		}()
	}
	for range calls {
		must.Note(t, <-told)
	}
	other.exec(t, `ROLLBACK`)
	for what := range calls {
		if heldBy(t, p, what) != "holder" {
			t.Errorf("%s was refused, and has done something", what)
		}
	}
}
