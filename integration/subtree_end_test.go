package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// release is the statement that releases a lease, as a transaction of the user's own may have it.
func (r reply) release() string {
	return fmt.Sprintf(`SELECT pglock.release_lease('%s', %d, '%s'); `, r.name, r.token, r.id)
}

// A subtree and a lock below it end in one transaction, while somebody waits for the subtree. What was written under
// the lower one at REPEATABLE READ is not committed any more: the end is a change of the key, whatever the transaction
// did to that row before. Where it would be none, the second end is refused.
func TestI4_AWriteDoesNotOutliveLeasesThatEndTogether(t *testing.T) {
	t.Parallel()
	for how, end := range map[string]func(upper, lower reply) string{
		"release_leases": func(upper, lower reply) string {
			return fmt.Sprintf(`SELECT FROM pglock.release_leases('{%s,%s}', '{%d,%d}', '{%s,%s}', '{1,0}')`, upper.name,
				lower.name, upper.token, lower.token, upper.id, lower.id)
		},
		"break_session": nil,
		"release_lease, refused after one in a savepoint": func(upper, lower reply) string {
			return `BEGIN; SAVEPOINT one; ` + upper.release() + `RELEASE SAVEPOINT one; ` + lower.release() + `COMMIT`
		},
		"release_leases, refused after a release_lease": func(upper, lower reply) string {
			return `BEGIN; ` + upper.release() + fmt.Sprintf(`SELECT FROM pglock.release_leases('{%s}', '{%d}', '{%s}',
				'{0}'); COMMIT`, lower.name, lower.token, lower.id)
		},
	} {
		t.Run(how, func(t *testing.T) {
			db := pgtest.Parallel(t)
			owner, writer, other := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
			mode := map[bool]string{true: "shared", false: "exclusive"}[how == "release_leases"]
			line, outer, inner, next := uuid.New(), uuid.New(), uuid.New(), uuid.New()
			owned := fmt.Sprintf(", p_owner_id => '%s'", line)
			var upper reply
			for range 2 {
				upper = owner.request(t, "acquire_subtree", "t", outer, owned+", p_mode => '"+mode+"'")
			}
			lower := owner.request(t, "acquire_lease", "t/b", inner, owned+", p_nested => true")
			for range 2 {
				other.subtree(t, "t", next)
			}
			if !upper.granted || !lower.granted {
				t.Fatalf("%+v, %+v", upper, lower)
			}
			writer.exec(t, `BEGIN ISOLATION LEVEL REPEATABLE READ`)
			must.Do(t, writer.fence(t.Context(), lower.grant, lower.name))
			writer.exec(t, `CREATE TABLE written AS SELECT 1 AS n`)
			sql := `SELECT FROM pglock.break_session(pglock.session_of('` + owner.key.String() + `'), 'a test', 'test')`
			if end != nil {
				sql = end(upper, lower)
			}
			_, err := owner.Exec(t.Context(), sql)
			refused := strings.Contains(how, "refused")
			if err != nil && !refused || refused && state(err) != "55000" {
				t.Errorf("the end of both: %v, want it to be refused: %v", err, refused)
			}
			if err != nil {
				owner.exec(t, `ROLLBACK`)
			}
			a := other.subtree(t, "t", next)
			if a.granted == refused {
				t.Errorf("whoever waits for the subtree: %+v", a)
			}
			if _, err := writer.Exec(t.Context(), `COMMIT`); (err == nil) == a.granted || err != nil && state(err) != "40001" {
				t.Errorf("I4: the COMMIT of a write under the lower lease: %v, want 40001 if that has ended", err)
			}
		})
	}
}

// A statement for many has drawn a ticket below a subtree, and waits for another lock. A later request for the subtree
// waits for it, though it has tried before, in vain, to be granted everything at once.
func TestI1_ASubtreeWaitsForAStatementForManyThatHasDrawnATicket(t *testing.T) {
	db := pgtest.Parallel(t)
	newly := func() *peer { return newPeer(t, db.URL()) }
	look, joined, knocking, many, above := newly(), newly(), newly(), newly(), newly()
	old := look.party("old", "shared", time.Minute).mustGet(t, "t/b") // so that its head has slots
	waysToEnd["release_lease"](t, old)
	look.mustAcquire(t, "tz", time.Minute)
	look.change(t, "give_way", "'50 ms'", "'1 min'")
	knocking.exec(t, `BEGIN; SET LOCAL search_path = pglock, pg_temp;
		SELECT pg_advisory_xact_lock_shared(knock_key('tz'))`)
	joined.exec(t, `BEGIN; SELECT FROM pglock.locks WHERE name = 't/b' AND slot = 0 FOR KEY SHARE`)
	done := must.Go(func() error {
		_, err := many.Exec(t.Context(), `SELECT FROM pglock.acquire_leases('{tz,t/b}', ARRAY[gen_random_uuid(),
			gen_random_uuid()], $1, '{m,m}', '{1 min,1 min}', '{NULL,NULL}', '{f,f}', '{exclusive,exclusive}', '{NULL,NULL}',
			'{t,t}', '1 min', ARRAY[NULL, NULL]::uuid[], '{f,f}')`, many.key)
		return err
	})
	pgtest.Eventually(t, "the statement for many to wait for whoever knocks", func() bool {
		return len(done) > 0 || one[bool](t, look,
			`SELECT coalesce(wait_event, '') = 'PgSleep' FROM pg_stat_activity WHERE pid = $1`, many.PgConn().PID())
	})
	id := uuid.New()
	above.subtree(t, "t", id)
	joined.exec(t, `COMMIT`)
	if a := above.subtree(t, "t", id); a.granted {
		t.Errorf("I1: the subtree is granted over a ticket below it: %+v", a)
	}
	knocking.exec(t, `COMMIT`)
	must.Note(t, <-done)
	if a := above.subtree(t, "t", id); a.granted {
		t.Errorf("I1: the subtree is granted before whoever came earlier: %+v", a)
	}
}

// A line of work has a subtree and a lock below it, and has queued for that lock once more. It ends both in one
// statement: the lower one later, because somebody is writing its row, and its end serves the second ticket. A write
// under the subtree at REPEATABLE READ is not committed any more, though that grant was decided while the subtree ran.
// Where the end of the subtree would be no change of the key, as after an end of the lower one in a savepoint, it is
// refused.
func TestI4_AWriteDoesNotOutliveASubtreeThatEndsAfterALeaseBelow(t *testing.T) {
	t.Parallel()
	t.Run("release_leases", func(t *testing.T) {
		t.Parallel()
		endsAfterALeaseBelow(t, func(owner, look *peer, upper, lower reply) error {
			busy, done := newPeer(t, look.Config().ConnString()), make(chan error, 1)
			busy.exec(t, `BEGIN; SELECT FROM pglock.locks WHERE name = 't/b' FOR UPDATE`)
			go func() {
				_, err := owner.Exec(t.Context(), `SELECT FROM pglock.release_leases('{t,t/b}', ARRAY[$1, $2]::bigint[],
					ARRAY[$3, $4]::uuid[], '{0,0}')`, upper.token, lower.token, upper.id.String(), lower.id.String())
				done <- err
			}()
			owner.awaitBlocked(t, look)
			busy.exec(t, `COMMIT`)
			return <-done
		})
	})
	t.Run("release_lease, refused after one in a savepoint", func(t *testing.T) {
		t.Parallel()
		endsAfterALeaseBelow(t, func(owner, _ *peer, upper, lower reply) error {
			_, err := owner.Exec(t.Context(), `BEGIN; SAVEPOINT one; `+lower.release()+`RELEASE SAVEPOINT one; `+
				upper.release()+`COMMIT`)
			return err
		})
	})
}

func endsAfterALeaseBelow(t *testing.T, end func(owner, look *peer, upper, lower reply) error) {
	db := pgtest.Database(t)
	owner, writer, other := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	look := newPeer(t, db.URL())
	patientCalls(t, look)
	owned := fmt.Sprintf(", p_owner_id => '%s', p_nested => true", uuid.New())
	first, second, outer, next := uuid.New(), uuid.New(), uuid.New(), uuid.New()
	before := other.mustAcquire(t, "t/b", time.Minute)
	for _, id := range []uuid.UUID{first, second} {
		owner.request(t, "acquire_lease", "t/b", id, owned+", p_wait => true")
	}
	owner.request(t, "acquire_subtree", "t", outer, owned)
	other.mustEnd(t, before)
	lower := owner.request(t, "acquire_lease", "t/b", first, owned+", p_wait => true")
	upper := owner.request(t, "acquire_subtree", "t", outer, owned)
	if !lower.granted || !upper.granted {
		t.Fatalf("%+v, %+v", lower, upper)
	}
	other.queue(t, "t", next)
	writer.exec(t, `BEGIN ISOLATION LEVEL REPEATABLE READ`)
	must.Do(t, writer.fence(t.Context(), upper.grant, upper.name))
	writer.exec(t, `CREATE TABLE written AS SELECT 1 AS n`)
	owner.mustRenew(t, upper.grant)
	refused := strings.Contains(t.Name(), "refused")
	err := end(owner, look, upper, lower)
	if err != nil && !refused || refused && state(err) != "55000" {
		t.Errorf("the end of both: %v, want it to be refused: %v", err, refused)
	}
	if err != nil {
		owner.exec(t, `ROLLBACK`)
	}
	var granted bool
	for name, id := range map[string]uuid.UUID{"t/b": second, "t": next} {
		is := one[bool](t, look, `SELECT EXISTS (SELECT FROM pglock.locks WHERE name = $1 AND grant_id = $2)`, name,
			id.String())
		if granted = granted || is; is == refused {
			t.Errorf("whether the release has granted %q to the next: %v", name, is)
		}
	}
	if _, err := writer.Exec(t.Context(), `COMMIT`); (err == nil) == granted || err != nil && state(err) != "40001" {
		t.Errorf("I4: the COMMIT of a write under the subtree: %v, want 40001 if that has ended", err)
	}
}

// A sweep marks the head of a lock that was a subtree's once. The lease that the lock has now does not end in the same
// transaction: to a write at REPEATABLE READ that would be no change of the key.
func TestI4_ALeaseDoesNotEndAfterASweepThatHasMarkedIt(t *testing.T) {
	db := pgtest.Parallel(t)
	owner, writer := newPeer(t, db.URL()), newPeer(t, db.URL())
	owner.mustEnd(t, owner.mustSubtree(t, "t").grant)
	g := owner.mustAcquire(t, "t", time.Minute)
	writer.exec(t, `BEGIN ISOLATION LEVEL REPEATABLE READ`)
	must.Do(t, writer.fence(t.Context(), g, g.name))
	writer.exec(t, `CREATE TABLE written AS SELECT 1 AS n`)
	_, ended := owner.Exec(t.Context(), fmt.Sprintf(`BEGIN; SELECT pglock.sweep(); SELECT FROM pglock.release_leases(
		'{t}', '{%d}', '{%s}', '{0}'); COMMIT`, g.token, g.id))
	if state(ended) != "55000" {
		t.Errorf("the end after a sweep: %v, want 55000", ended)
	}
	if _, err := writer.Exec(t.Context(), `COMMIT`); (err == nil) == (ended == nil) {
		t.Errorf("I4: the COMMIT of a write: %v, and the end of its lease before it: %v", err, ended)
	}
}

// The end of a subtree is told to the first of each queue below whose session is alive: those before it are dead, and
// would not ask.
func TestI8_TheEndOfASubtreeIsToldToTheLiving(t *testing.T) {
	db := pgtest.Parallel(t)
	above, dead, alive := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	held := above.mustSubtree(t, "t")
	dead.queue(t, "t/b", uuid.New())
	waits := alive.queue(t, "t/b", uuid.New())
	above.exec(t, `UPDATE pglock.sessions SET alive_until = clock_timestamp() - interval '1 ms' WHERE session_id = $1`,
		dead.session().String())
	alive.exec(t, `LISTEN "`+alive.channel()+`"`)
	above.mustEnd(t, held.grant)
	above.exec(t, `SELECT pglock.announce('{t}', '{NULL}')`)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	n, err := alive.WaitForNotification(ctx)
	if err != nil {
		t.Fatalf("nobody told the first who is alive: %v", err)
	}
	if n.Payload != one[string](t, alive, `SELECT pglock.hint($1, 0, 0, 0, $2)`, waits.ticket, waits.id.String()) {
		t.Errorf("it was told %q", n.Payload)
	}
	if a := alive.queue(t, "t/b", waits.id); !a.granted {
		t.Errorf("%+v", a)
	}
}

// A look at a hand-over in a tree says what a hand-over would do, and changes nothing: none goes out of a subtree, nor
// to a request for a subtree that has not waited for grants under way, or has a lease below in its way.
func TestALookAtAHandOverInATreeSaysWhatItWouldDo(t *testing.T) {
	db := pgtest.Parallel(t)
	owner, above, below := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	owned := fmt.Sprintf(", p_owner_id => '%s', p_nested => ", uuid.New())
	outer := owner.request(t, "acquire_subtree", "t", uuid.New(), owned+"false")
	outer = owner.request(t, "acquire_subtree", "t", outer.id, owned+"false")
	inner := owner.request(t, "acquire_lease", "t/x", uuid.New(), owned+"true")
	if !outer.granted || !inner.granted {
		t.Fatalf("%+v, %+v", outer, inner)
	}
	says := func(when string, held reply, want string) {
		t.Helper()
		for _, look := range []bool{true, false} {
			if outcome := one[string](t, owner, `SELECT outcome FROM pglock.hand_over($1, $2, $3, 'peer', $4)`, held.name,
				held.token, held.id.String(), look); outcome != want {
				t.Errorf("%s, look %v: %s, want %s", when, look, outcome, want)
			}
		}
	}
	next := above.subtree(t, "t", uuid.New())
	below.queue(t, "t/x", uuid.New())
	says("out of the owner's subtree", inner, "nobody")
	owner.mustEnd(t, inner.grant)
	says("to a request that has not waited yet", outer, "nobody")
	inner = owner.request(t, "acquire_lease", "t/x", uuid.New(), owned+"true")
	above.subtree(t, "t", next.id)
	says("while a lease below goes on", outer, "nobody")
	owner.mustEnd(t, inner.grant)
	says("when nothing is in the way", outer, "handed over")
}
