package integration

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// prune prunes the locks that nobody uses. It gives way to whoever is at work, so it is tried until it comes through.
func (p *peer) prune(t *testing.T) {
	t.Helper()
	pgtest.Eventually(t, "a prune to come through", func() bool {
		_, err := p.Exec(t.Context(), `SELECT removed FROM pglock.prune_locks('0')`)
		if err != nil && state(err) != "55P03" {
			t.Fatal(err)
		}
		return err == nil
	})
}

// A pruner that never rests, against 3 clients that never rest: tokens still strictly increase, and fences keep what
// they saw.
func TestI21_PruneNeverLowersATokenNorReopensAFence(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	// The log that outlives the rows: the greatest token of each name.
	look.exec(t, `
		CREATE TABLE public.top (name text PRIMARY KEY, token bigint);
		CREATE TABLE public.inversions (name text, token bigint, after bigint);
		CREATE FUNCTION public.check_top() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		DECLARE m bigint;
		BEGIN
			INSERT INTO public.top VALUES (NEW.name, 0) ON CONFLICT DO NOTHING;
			SELECT token INTO m FROM public.top WHERE name = NEW.name FOR UPDATE;
			IF TG_OP = 'INSERT' AND NEW.token <= m OR NEW.token < m THEN
				INSERT INTO public.inversions VALUES (NEW.name, NEW.token, m);
			END IF;
			UPDATE public.top SET token = GREATEST(token, NEW.token) WHERE name = NEW.name;
			RETURN NULL;
		END $$;
		CREATE TRIGGER check_top AFTER INSERT OR UPDATE ON pglock.locks FOR EACH ROW EXECUTE FUNCTION public.check_top();`)
	patientWaits(t, look)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var granted atomic.Int64
	wg := pgtest.Group(t)
	for range 3 {
		p := newPeer(t, db.URL())
		wg.Go(func() {
			for ctx.Err() == nil {
				g, err := p.acquire(context.Background(), "x", uuid.New(), time.Minute, false)
				if err == nil && g.granted {
					granted.Add(1)
					_, err = p.release(context.Background(), g)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	pruner := newPeer(t, db.URL())
	pruned := 0
	few := func() bool { return granted.Load() < int64(3*10) || pruned < 15 }
	for began := time.Now(); ctx.Err() == nil && (few() || time.Since(began) < lasting(2*time.Second)); {
		var n int
		err := pruner.QueryRow(context.Background(), `SELECT removed FROM pglock.prune_locks('0')`).Scan(&n)
		if err != nil && state(err) != "55P03" {
			t.Fatal(err)
		}
		pruned += n
	}
	cancel()
	wg.Wait()
	wantCount(t, look, 0, "I21: %d grants have a token that is not greater than the one before",
		`SELECT count(*) FROM public.inversions`)
	if few() {
		t.Errorf("%d grants and %d pruned rows are too few to show anything", granted.Load(), pruned)
	}

	// The fence of a pruned lock still refuses the old token, and its new grants pass.
	old := look.mustAcquire(t, "y", time.Minute)
	must.Do(t, look.fence(t.Context(), old, "y"))
	must.Get(look.release(t.Context(), old))(t)
	// for so many changes the server may be tidying the table up
	pgtest.Eventually(t, "the row to be pruned", func() bool {
		if _, err := look.Exec(t.Context(), `SELECT removed FROM pglock.prune_locks('0')`); err != nil &&
			state(err) != "55P03" {
			t.Fatal(err)
		}
		return one[int](t, look, `SELECT count(*) FROM pglock.locks WHERE name = 'y'`) == 0
	})
	if last := one[int64](t, look, `SELECT last_token FROM pglock.fences WHERE resource = 'y'`); last != old.token {
		t.Errorf("I21: the fence remembers token %d, not %d", last, old.token)
	}
	if err := look.fence(t.Context(), old, "y"); state(err) != "LK003" {
		t.Errorf("I21: the old token at the fence of a pruned lock: %v", err)
	}
	next := look.mustAcquire(t, "y", time.Minute)
	if err := look.fence(t.Context(), next, "y"); err != nil || next.token <= old.token {
		t.Errorf("I21: token %d after %d: %v", next.token, old.token, err)
	}
}

// B has drawn the token of its INSERT and waits for A's; A is granted again, with a greater token, and prunes. Without
// the table lock the row would be gone when B goes on, and B would be granted the lower token.
func TestI21_PruneWaitsForAnInsertUnderWay(t *testing.T) {
	db := pgtest.Parallel(t)
	a, b, look := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	later, result := grantedTwiceBeforeTheFirstInsert(t, a, b, look)
	a.exec(t, "SAVEPOINT before")
	if _, err := a.Exec(t.Context(), `SELECT removed FROM pglock.prune_locks('0')`); err == nil {
		t.Error("I21: the prune did not wait")
	}
	a.exec(t, "ROLLBACK TO before")
	a.exec(t, "COMMIT")
	if last := <-result; !last.granted || last.token <= later.token {
		t.Errorf("I21: after token %d the waiting try got %+v", later.token, last)
	}
}

// Two that prune at once come one after the other: the second waits for the table and gives up, and neither ends in a
// deadlock. Both would write before they lock the table, if prune wrote anything there: this holds them up at that
// point.
func TestI25_PrunesAtOnceDoNotDeadlock(t *testing.T) {
	db := pgtest.Parallel(t)
	look, gate := newPeer(t, db.URL()), newPeer(t, db.URL())
	for _, name := range []string{"a", "b"} {
		look.mustAcquire(t, name, time.Minute)
		look.exec(t, `UPDATE pglock.locks SET expires_at = clock_timestamp(), ended_at = NULL WHERE name = $1`, name)
	}
	look.exec(t,
		`CREATE FUNCTION public.held_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END $$;
		CREATE TRIGGER held_up BEFORE UPDATE ON pglock.locks FOR EACH ROW EXECUTE FUNCTION public.held_up();
		ALTER FUNCTION pglock.prune_locks SET lock_timeout = '1min'`)
	gate.exec(t, `SELECT pg_advisory_lock(1)`)
	pruners, done := []*peer{newPeer(t, db.URL()), newPeer(t, db.URL())}, make(chan error, 2)
	for n, p := range pruners {
		go func() {
			// each has a name to itself
			_, err := p.Exec(t.Context(), `SELECT pglock.prune_locks('0', 1, $1)`, []string{"", "a"}[n])
			done <- err
		}()
	}
	pgtest.Eventually(t, "both to be held up, or to be done", func() bool {
		return len(done)+
			one[int](t, look,
				`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (
			SELECT oid FROM pg_database WHERE datname = current_database())`) == 2
	})
	gate.exec(t, `SELECT pg_advisory_unlock(1)`)
	for range pruners {
		if err := <-done; err != nil {
			t.Errorf("I25: %v", err)
		}
	}
	wantCount(t, look, 0, "%d locks are left", `SELECT count(*) FROM pglock.locks`)
	// With its usual patience the second gives up, and has done nothing.
	look.exec(t, `ALTER FUNCTION pglock.prune_locks SET lock_timeout = '1ms'`)
	pruners[0].exec(t, `BEGIN`)
	look.mustAcquire(t, "c", time.Minute)
	look.exec(t,
		`ALTER TABLE pglock.locks DISABLE TRIGGER held_up; UPDATE pglock.locks SET expires_at = clock_timestamp()`)
	pruners[0].exec(t, `SELECT pglock.prune_locks('0')`)
	pruners[0].liftLimits(t)
	if _, err := pruners[1].Exec(t.Context(), `SELECT pglock.prune_locks('0')`); state(err) != "55P03" {
		t.Errorf("I25: beside another one: %v; want 55P03", err)
	}
	pruners[0].exec(t, `COMMIT`)
}

// Held locks and locks that were free for a shorter time stay.
func TestPruneLeavesHeldAndRecentLocks(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newPeer(t, db.URL())
	p.mustAcquire(t, "held", time.Minute)
	for _, name := range []string{"recent", "expired long ago", "released long ago"} {
		must.Get(p.release(t.Context(), p.mustAcquire(t, name, time.Minute)))(t)
	}
	p.exec(t,
		`UPDATE pglock.locks SET expires_at = clock_timestamp() - interval '2 h', ended_at = NULL WHERE name = 'expired long ago'`)
	p.exec(t, `UPDATE pglock.locks SET ended_at = clock_timestamp() - interval '2 h' WHERE name = 'released long ago'`)
	p.exec(t, `SELECT removed FROM pglock.prune_locks('1 h')`)
	if left := one[string](t, p,
		`SELECT string_agg(name, ',' ORDER BY name) FROM pglock.locks`); left != "held,recent" {
		t.Errorf("after the prune there are %s", left)
	}
}

// I1, I21: a lock with slots that is pruned while a request waits for its head is granted once, to one caller, and
// nobody is left in a loop.
func TestI21_PruneBesideARequestForALockWithSlots(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"exclusive", "shared", "limit"} {
		t.Run(mode, func(t *testing.T) {
			db := pgtest.Database(t)
			look, pruner, waits := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
			patientWaits(t, look)
			var capacity any
			if mode == "limit" {
				capacity = 1
			}
			mustRelease(t, mustTry(t, newClient(t, db.Pool(t)), "x", pglock.WithShared())) // from now on it has a slot
			pruner.exec(t, "BEGIN")
			pruner.exec(t, `SELECT removed FROM pglock.prune_locks('0')`)
			type answer struct {
				queued
				err error
			}
			answered := must.Go(func() answer {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				w, err := waits.enqueue(ctx, "x", uuid.New(), mode, capacity)
				return answer{w, err}
			})
			waits.awaitBlocked(t, look)
			pruner.exec(t, "COMMIT")
			w := <-answered
			if w.err != nil || !w.granted {
				t.Fatalf("%+v; want a grant", w)
			}
			wantCount(t, look, 1, "%d leases, want 1",
				`SELECT count(*) FROM pglock.locks WHERE expires_at > clock_timestamp()`)
			wantCount(t, look, 0, "%d tickets are left", `SELECT count(*) FROM pglock.waiters`)
		})
	}
}

// Callers of all modes, some of which give up, beside an operator who prunes whatever is free, sweeps, and breaks
// locks: the log shows no overlap, nobody hangs, and nothing is left behind.
func TestI21_PruneSweepAndBreakUnderLoadOfAllModes(t *testing.T) {
	db := pgtest.Parallel(t)
	look, pruner := newPeer(t, db.URL()), newPeer(t, db.URL())
	logGrants(t, look)
	wg := pgtest.Group(t)
	var pruned atomic.Int64
	began := time.Now()
	options := [][]pglock.AcquireOption{nil, {pglock.WithShared()}, {pglock.WithLimit(2)}}
	for n := range 3 {
		c := newClient(t, db.Pool(t, maxConnections(4)))
		for m := range 4 {
			wg.Go(func() {
				for round := 0; round < 15 || pruned.Load() == 0 && time.Since(began) < patience; round++ {
					wait := patience
					if (n+m+round)%5 == 0 {
						wait = 10 * time.Millisecond // some give up
					}
					o := append([]pglock.AcquireOption{pglock.WithMaxWait(wait)}, options[(m+round)%3]...)
					err := c.Do(t.Context(), fmt.Sprint("n", (n+m+round)%3),
						func(context.Context, *pglock.Lease) error {
							return nil
						}, o...)
					if err != nil && !errors.Is(err, pglock.ErrLost) &&
						!(wait < patience && errors.Is(err, context.DeadlineExceeded)) {
						t.Error(err)
					}
					if round >= 15 {
						time.Sleep(50 * time.Millisecond) // leaves something to prune, where the machine is busy
					}
				}
			})
		}
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for pruning := true; pruning; {
		var n int64
		if err := pruner.QueryRow(t.Context(), `SELECT removed FROM pglock.prune_locks('0')`).Scan(&n); err != nil &&
			state(err) != "55P03" {
			t.Fatal(err)
		}
		pruned.Add(n)
		time.Sleep(4 * time.Millisecond) // leaves something to the callers
		must.Get(pruner.Exec(t.Context(), `SELECT pglock.sweep()`))(t)
		_, err := pruner.Exec(t.Context(), `SELECT pglock.break_lock(name, 'chaos', 'a test', token) FROM (
			SELECT name, token FROM pglock.locks WHERE expires_at > clock_timestamp() ORDER BY random() LIMIT 1) l`)
		if err != nil && state(err) != "LK006" { // released meanwhile
			t.Fatal(err)
		}
		select {
		case <-done:
			pruning = false
		default:
		}
	}
	<-done
	pgtest.Eventually(t, "every queue to be empty and every lock free", func() bool {
		return one[int](t, look,
			`SELECT (SELECT count(*) FROM pglock.waiters) + (SELECT count(*) FROM pglock.locks WHERE expires_at > clock_timestamp())`) == 0
	})
	checkModes(t, look)
	if n := pruned.Load(); n == 0 {
		t.Error("no row was pruned under the load")
	} else {
		t.Logf("%d rows pruned", n)
	}
}

// A pruned lock leaves the floor of tokens where it was, even if the sequence stands below the rows, as after a
// restore or a setval: the next grant of the name has a greater token.
func TestI21_PruneKeepsTheFloorWhereTheSequenceIsBehind(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newPeer(t, db.URL())
	p.exec(t, `SELECT setval('pglock.fencing_token_seq', 5000)`)
	last := freed(t, p, "x")
	p.exec(t, `SELECT setval('pglock.fencing_token_seq', 100)`)
	if n := one[int](t, p, `SELECT removed FROM pglock.prune_locks('0')`); n != 1 {
		t.Fatalf("%d locks were forgotten", n)
	}
	if again := p.mustAcquire(t, "x", time.Minute); again.token <= last.token {
		t.Errorf("I21: token %d after %d", again.token, last.token)
	}
}

// A request for a name that prune removes at that moment draws its token after prune, and so after every token that was
// pruned.
func TestI21_RequestThatWaitsForPruneDrawsItsTokenAfterIt(t *testing.T) {
	db := pgtest.Parallel(t)
	prune, p, look := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	for { // again where the request has waited for too long, on a busy machine
		prune.exec(t, `BEGIN; LOCK TABLE pglock.locks IN SHARE ROW EXCLUSIVE MODE`)
		done := make(chan error, 1)
		var g grant
		go func() {
			var err error
			g, err = p.grantBy(t.Context(), "acquire_lease", "x", uuid.New())
			done <- err
		}()
		pgtest.Eventually(t, "the request to wait for the table", func() bool {
			return len(done) > 0 ||
				one[bool](t, look,
					`SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'pglock.locks'::regclass AND NOT granted)`)
		})
		pruned := prune.mustAcquire(t, "x", time.Minute)
		prune.exec(t, `DELETE FROM pglock.locks; COMMIT`)
		switch err := <-done; {
		case state(err) == "55P03":
			continue
		case err != nil || !g.granted || g.token <= pruned.token:
			t.Errorf("I21: %+v, %v; the token that was pruned is %d", g, err, pruned.token)
		}
		return
	}
}

// Prune leaves a lock that somebody queues for, one that a reader holds or has just released, and one with a grant ID
// that was given up and may yet arrive; one that somebody watches, who would not hear of its next grant; and one of
// which a reader's COMMIT is under way.
func TestI21_PruneLeavesWhatIsStillNeeded(t *testing.T) {
	db := pgtest.Parallel(t)
	p, waits := newPeer(t, db.URL()), newPeer(t, db.URL())
	p.mustAcquire(t, "queued for", time.Hour)
	waits.mustEnqueue(t, "queued for", "exclusive", nil)
	endNow(t, p, "queued for") // nobody has found that out yet
	p.mustAsk(t, "read", "shared")
	freed(t, p, "given up")
	p.exec(t, `SELECT pglock.give_up(gen_random_uuid(), '{given up}', ARRAY[gen_random_uuid()], true)`)
	for range 2 {
		p.mustAsk(t, "under way", "shared")
	}
	p.exec(t, `UPDATE pglock.locks SET expires_at = clock_timestamp() WHERE name = 'under way' AND slot > 0`)
	// as the check inside COMMIT
	waits.exec(t, `BEGIN; SELECT FROM pglock.locks WHERE name = 'under way' AND slot = 1 FOR KEY SHARE`)
	freed(t, p, "watched")
	p.exec(t, `SELECT pglock.watch('watched', '1 h')`)
	freed(t, p, "no longer watched")
	p.exec(t, `SELECT pglock.watch('no longer watched', '1 h')`)
	p.exec(t, `UPDATE pglock.locks SET watched_until = clock_timestamp() WHERE name = 'no longer watched'`)
	freed(t, p, "free")
	p.exec(t, `SELECT pglock.prune_locks('0')`)
	if got := one[string](t, p,
		`SELECT string_agg(DISTINCT name, ', ' ORDER BY name) FROM pglock.locks`); got != "given up, queued for, "+
		"read, under way, watched" {
		t.Errorf("I21: prune has left %s", got)
	}
	waits.exec(t, `COMMIT`)
	if !one[bool](t, p,
		`SELECT more ->> 'watched' = 'true' FROM pglock.acquire_lease('watched', gen_random_uuid(), gen_random_uuid(), 'p', '1 min')`) {
		t.Error("nobody tells those who watch of the next grant")
	}
	p.exec(t,
		`SELECT pglock.release_lease(name, token, grant_id, slot) FROM pglock.locks WHERE name = 'read' AND slot > 0`)
	p.exec(t, `SELECT pglock.prune_locks('1 h')`)
	if n := one[int](t, p, `SELECT count(*) FROM pglock.locks WHERE name = 'read'`); n == 0 {
		t.Error("I21: prune has removed a lock that was read a moment ago")
	}
}
