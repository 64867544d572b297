package integration

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// What another transaction may have done to the row that we waited for.
var interruptions = map[string]struct{ during, after string }{
	"only locked": {`SELECT FROM pglock.locks WHERE name = 'x' FOR UPDATE`, "COMMIT"},
	"updated":     {`UPDATE pglock.locks SET metadata = '1' WHERE name = 'x'`, "COMMIT"},
	"aborted":     {`UPDATE pglock.locks SET metadata = '1' WHERE name = 'x'`, "ROLLBACK"},
}

// Another transaction may also undo the first use of a name, which a grant waits for.
const firstUse = `SELECT pglock.acquire_lease('x', gen_random_uuid(), gen_random_uuid(), 'other', '1 min')`

// A statement that waited for the row must compute its values after the wait: a lease is as long at the answer as was
// asked for, less what came after the wait.
func TestI15_LeaseIsFullAfterAWait(t *testing.T) {
	t.Parallel() // most of it is waiting
	db := pgtest.Database(t)
	a, b, look := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	patientWaits(t, look)
	const ttl = time.Second
	for how, x := range interruptions {
		for what, ask := range map[string]func(*peer, grant) (time.Duration, error){
			"first use": func(p *peer, _ grant) (time.Duration, error) {
				again, err := p.acquire(context.Background(), "x", uuid.New(), ttl, false)
				if err != nil || !again.granted {
					return 0, err
				}
				return p.left(context.Background(), again)
			},
			"hand-over": func(p *peer, g grant) (left time.Duration, err error) {
				if _, err := p.release(context.Background(), g); err != nil {
					return 0, err
				}
				err = p.QueryRow(context.Background(),
					`SELECT expires_at - clock_timestamp() FROM pglock.locks WHERE grant_id <> $1`,
					g.id.String()).Scan(&left)
				return left, err
			},
			"acquire again": func(p *peer, g grant) (time.Duration, error) {
				again, err := p.acquire(context.Background(), "x", g.id, ttl, true)
				if err != nil || !again.granted {
					return 0, err
				}
				return p.left(context.Background(), again)
			},
			"renew": func(p *peer, g grant) (us time.Duration, err error) {
				err = p.QueryRow(context.Background(),
					`SELECT remaining_us FROM pglock.renew_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], '{0}', '10 s')`,
					g.name, g.token, g.id.String()).Scan(&us)
				return us * time.Microsecond, err
			},
		} {
			t.Run(what+"/"+how, func(t *testing.T) {
				a.exec(t, `ROLLBACK`) // of a case before that failed
				look.exec(t, `DELETE FROM pglock.locks`)
				g := b.mustAcquire(t, "x", 10*time.Second)
				look.exec(t, `UPDATE pglock.locks SET ttl = '1 s' WHERE name = 'x'`)
				look.exec(t,
					`SELECT pglock.acquire_lease('x', gen_random_uuid(), $1, 'waiter', '1 s', p_wait => true, p_session_ttl => '1 h')`, uuid.NewString())
				x := x
				if what == "first use" {
					x = struct{ during, after string }{firstUse, "ROLLBACK"}
					look.exec(t, `DELETE FROM pglock.locks`)
				}
				a.exec(t, "BEGIN")
				a.exec(t, x.during)
				type result struct {
					remaining time.Duration
					err       error
				}
				done := must.Go(func() result { remaining, err := ask(b, g); return result{remaining, err} })
				b.awaitBlocked(t, look)
				a.exec(t, "SELECT pg_sleep(0.3)") // the wait whose length must not be taken off the lease
				ended := time.Now()
				a.exec(t, x.after)
				r := <-done
				if late := time.Since(ended); r.err != nil || r.remaining < ttl-late-5*time.Millisecond {
					t.Fatalf("I15: %v left of %v at the answer, %v after the row was ours (%v)", r.remaining, ttl, late,
						r.err)
				}
			})
		}
	}
}

// A renewal that waits for the row past the lease's end must find it ended: the clock is read after the wait.
func TestTrap3_RenewalThatWaitedPastTheEndIsRefused(t *testing.T) {
	db := pgtest.Parallel(t)
	a, b, look := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	for how, x := range interruptions {
		t.Run(how, func(t *testing.T) {
			a.exec(t, `ROLLBACK`) // of a case before that failed
			look.exec(t, `DELETE FROM pglock.locks`)
			g := b.mustAcquire(t, "x", 300*time.Millisecond)
			a.exec(t, "BEGIN")
			a.exec(t, x.during)
			done := make(chan string, 1)
			pgtest.Group(t).Go(func() {
				outcome, err := b.renew(context.Background(), g, patience)
				if err != nil {
					t.Error(err)
				}
				done <- outcome
			})
			b.awaitBlocked(t, look)
			awaitExpiry(t, look, "x")
			a.exec(t, x.after)
			if outcome := <-done; outcome != "expired" {
				t.Fatalf("a renewal after the end answered %s, want expired", outcome)
			}
		})
	}
}

// now() stands still in a transaction: an acquire inside a long one must still grant a full lease, and see an expiry
// that came after the transaction began.
func TestTrap3_TransactionTimeIsNotThePresent(t *testing.T) {
	db := pgtest.Parallel(t)
	a, b := newPeer(t, db.URL()), newPeer(t, db.URL())
	patientTransactions(t, a)
	a.mustAcquire(t, "run out", 200*time.Millisecond)
	b.exec(t, "BEGIN")
	b.exec(t, "SELECT now()")
	awaitExpiry(t, a, "run out")
	freed(t, a, "released")
	for _, name := range []string{"run out", "released", "new"} {
		g, err := b.acquire(t.Context(), name, uuid.New(), time.Minute, false)
		if err != nil || !g.granted {
			t.Fatalf("a lock that is %s was refused inside an older transaction: %+v, %v", name, g, err)
		}
	}
	b.exec(t, "COMMIT")
	if left := one[float64](t, a,
		`SELECT min(extract(epoch FROM expires_at - acquired_at))::float8 FROM pglock.locks`); left < 60 {
		t.Fatalf("the lease lasts %v s, want 60", left)
	}
}
