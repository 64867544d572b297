package integration

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/pgtest"
)

// A pruner that never rests, against 6 clients that never rest: tokens still strictly increase, and fences keep what they saw.
func TestI21_PruneNeverLowersATokenNorReopensAFence(t *testing.T) {
	db := pgtest.Database(t)
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
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var wg sync.WaitGroup
	for range 6 {
		p := newPeer(t, db.URL())
		wg.Go(func() {
			for ctx.Err() == nil {
				g, err := p.acquire(context.Background(), "x", uuid.New(), time.Minute, false)
				if err == nil && g.granted {
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
	for began := time.Now(); ctx.Err() == nil && (pruned < 15 || time.Since(began) < 2*time.Second); {
		var n int
		err := pruner.QueryRow(context.Background(), `SELECT pglock.prune_locks('0')`).Scan(&n)
		if err != nil && state(err) != "55P03" {
			t.Fatal(err)
		}
		pruned += n
	}
	cancel()
	wg.Wait()
	if n := one[int](t, look, `SELECT count(*) FROM public.inversions`); n != 0 {
		t.Errorf("I21: %d grants have a token that is not greater than the one before", n)
	}
	if top := one[int](t, look, `SELECT token FROM public.top`); top < 30 || pruned < 15 {
		t.Errorf("%d tokens and %d pruned rows are too few to show anything", top, pruned)
	}

	// The fence of a pruned lock still refuses the old token, and its new grants pass.
	old := look.mustAcquire(t, "y", time.Minute)
	if err := look.fence(t.Context(), old, "y"); err != nil {
		t.Fatal(err)
	}
	if _, err := look.release(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	look.exec(t, `SELECT pglock.prune_locks('0')`)
	if n := one[int](t, look, `SELECT count(*) FROM pglock.locks WHERE name = 'y'`); n != 0 {
		t.Fatal("the row was not pruned")
	}
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

// B has drawn the token of its INSERT and waits for A's; A is granted again, with a greater token, and prunes. Without the
// table lock the row would be gone when B goes on, and B would be granted the lower token.
func TestI21_PruneWaitsForAnInsertUnderWay(t *testing.T) {
	db := pgtest.Database(t)
	a, b, look := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	later, result := grantedTwiceBeforeTheFirstInsert(t, a, b, look)
	a.exec(t, "SAVEPOINT before")
	if _, err := a.Exec(t.Context(), `SELECT pglock.prune_locks('0')`); err == nil {
		t.Error("I21: the prune did not wait")
	}
	a.exec(t, "ROLLBACK TO before")
	a.exec(t, "COMMIT")
	if last := <-result; !last.granted || last.token <= later.token {
		t.Errorf("I21: after token %d the waiting try got %+v", later.token, last)
	}
}

// Held locks and locks that were free for a shorter time stay.
func TestPruneLeavesHeldAndRecentLocks(t *testing.T) {
	db := pgtest.Database(t)
	p := newPeer(t, db.URL())
	p.mustAcquire(t, "held", time.Minute)
	for _, name := range []string{"recent", "expired long ago", "released long ago"} {
		if _, err := p.release(t.Context(), p.mustAcquire(t, name, time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	p.exec(t, `UPDATE pglock.locks SET expires_at = clock_timestamp() - interval '2 h', ended_at = NULL WHERE name = 'expired long ago'`)
	p.exec(t, `UPDATE pglock.locks SET ended_at = clock_timestamp() - interval '2 h' WHERE name = 'released long ago'`)
	p.exec(t, `SELECT pglock.prune_locks('1 h')`)
	if left := one[string](t, p, `SELECT string_agg(name, ',' ORDER BY name) FROM pglock.locks`); left != "held,recent" {
		t.Errorf("after the prune there are %s", left)
	}
}
