package integration

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// wait asks for the lock for a minute and waits for it; again says that it has asked before, and names another time
// now, which is not what it gets.
func (p *peer) wait(ctx context.Context, name string, id uuid.UUID, again bool) (g grant, err error) {
	g = grant{name: name, id: id}
	var token, us *int64
	err = p.QueryRow(ctx,
		`SELECT granted, token, (more ->> 'remaining_us')::bigint FROM pglock.acquire_lease($1, $2, $3, 'peer', CASE WHEN $4 THEN '5 min'::interval ELSE '1 min' END,
		p_retry => $4, p_wait => true, p_session_ttl => '1 min')`, name, id.String(), p.key.String(),
		again).Scan(&g.granted, &token, &us)
	g.token, g.remaining = orZero(token), time.Duration(orZero(us))*time.Microsecond
	return g, err
}

// A lease that has run out goes to the head of the queue when it asks, not before and to nobody else, with a token
// above all before it and with a note of whose it was.
func TestI1_I9_TakeOverIsForTheHeadOfTheQueueAfterTheExpiry(t *testing.T) {
	t.Parallel()
	for _, secondFirst := range []bool{false, true} { // asks when the lease has run out
		db := pgtest.Database(t)
		look, a, b := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
		held := look.mustAcquire(t, "x", time.Minute)
		look.exec(t, `UPDATE pglock.installation SET epoch = 3 << 8`)
		held.token = 3<<44 + 1_000_000 // as after a restore: the sequence is behind
		look.exec(t, `UPDATE pglock.locks SET token = $1`, held.token)
		ids := [2]uuid.UUID{uuid.New(), uuid.New()}
		ask := func(n int, again bool) grant {
			t.Helper()
			g := must.Get([2]*peer{a, b}[n].wait(t.Context(), "x", ids[n], again))(t)
			return g
		}
		for n := range ids {
			ask(n, false)
		}
		for n := range ids {
			if g := ask(n, true); g.granted {
				t.Errorf("I1: waiter %d was granted what is held: %+v", n, g)
			}
		}
		look.exec(t, `UPDATE pglock.locks SET expires_at = clock_timestamp() + interval '20 ms'`)
		awaitExpiry(t, look, "x")
		if secondFirst {
			if g := ask(1, true); g.granted {
				t.Errorf("I9: the second in the queue was granted the lock: %+v", g)
			}
		}
		g := ask(0, true)
		if !g.granted || g.token <= held.token || g.token>>36 != 3<<8+1 {
			t.Errorf("I2, I22: the head of the queue got %+v, after %d", g, held.token)
		}
		wantCount(t, look, 1, "%d notes of the take-over, want 1",
			`SELECT count(*) FROM pglock.events WHERE kind = 'takeover' AND lock_name = 'x' AND token = $1 AND new_token = $2 AND holder = 'peer'`, held.token, g.token)
		if left, err := a.left(t.Context(), g); err != nil || left <= 0 || left > time.Minute {
			t.Errorf("I7: the lease runs for %v, %v; want the minute that was asked for first", left, err)
		}
		if again := ask(0, true); !again.granted || again.token != g.token {
			t.Errorf("I6: asked again it got %+v, want %+v", again, g)
		}
		wantCount(t, look, 1, "I9: %d tickets of the second in the queue, want 1",
			`SELECT count(*) FROM pglock.waiters WHERE grant_id = $1`, ids[1].String())
	}
}

// A renewal that is under way when the lease would end keeps the lock held. Nobody waits for it: the first in the queue
// is told to ask again.
func TestI1_NoTakeOverBesideARenewalUnderWay(t *testing.T) {
	db := pgtest.Parallel(t)
	look, holder, a := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	patientWaits(t, look)
	held, id := holder.mustAcquire(t, "x", time.Minute), uuid.New()
	must.Get(a.wait(t.Context(), "x", id, false))(t)
	for renewed := false; !renewed; { // the time was too short, on a busy machine
		look.exec(t, `UPDATE pglock.locks SET expires_at = clock_timestamp() + interval '1 s'`)
		holder.exec(t, "BEGIN")
		outcome := must.Get(holder.renew(t.Context(), held, patience))(t)
		if renewed = outcome == "renewed"; !renewed {
			holder.exec(t, "ROLLBACK")
		}
	}
	awaitExpiry(t, look, "x") // as everybody else sees it
	if g, err := a.wait(t.Context(), "x", id, true); err != nil || g.granted || g.remaining > 0 {
		t.Errorf("I1: beside the renewal: %+v, %v; want to ask again soon", g, err)
	}
	holder.exec(t, "COMMIT")
	if g, err := a.wait(t.Context(), "x", id, true); err != nil || g.granted || g.remaining <= 0 {
		t.Errorf("I1: after the renewal: %+v, %v; want to ask again when it ends", g, err)
	}
}
