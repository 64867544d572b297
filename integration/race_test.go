package integration

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// queued is what a peer hears that asks to wait.
type queued struct {
	grant
	ticket, place int64
	first         bool
}

// enqueue asks for the lock and waits in its queue.
func (p *peer) enqueue(ctx context.Context, name string, id uuid.UUID, mode string, capacity any) (queued, error) {
	q := queued{grant: grant{name: name, id: id}}
	var token, ticket, place, us *int64
	var first *bool
	err := p.QueryRow(ctx,
		`SELECT granted, token, (more ->> 'ticket')::bigint, (more ->> 'place')::bigint, (more ->> 'first')::boolean, (more ->> 'remaining_us')::bigint
			FROM pglock.acquire_lease($1, $2, $3, 'peer', '30 s',
			p_mode => $4, p_capacity => $5, p_wait => true)`, name, id.String(), p.key.String(), mode, capacity).
		Scan(&q.granted, &token, &ticket, &place, &first, &us)
	q.token, q.ticket, q.place, q.first = orZero(token), orZero(ticket), orZero(place), orZero(first)
	q.remaining = time.Duration(orZero(us)) * time.Microsecond
	return q, err
}

// patientWaits takes the second away for which calls wait at most for whoever decides about their lock, and the one for
// which a transaction that decides may be idle: a test that holds one up may stand still for longer than that.
func patientWaits(t *testing.T, p *peer) {
	t.Helper()
	p.exec(t, `DO $$ DECLARE f regprocedure; BEGIN
		FOR f IN SELECT oid FROM pg_proc WHERE pronamespace = 'pglock'::regnamespace AND 'lock_timeout=1s' = ANY (proconfig) LOOP
			EXECUTE format('ALTER FUNCTION %s SET lock_timeout = ''1min''', f);
		END LOOP;
	END $$`)
	patientTransactions(t, p)
}

// patientTransactions lets a transaction that has locked what others need go on for a minute, instead of a second.
func patientTransactions(t *testing.T, p *peer) {
	t.Helper()
	p.exec(t, `DO $$ BEGIN
		PERFORM set_config('search_path', 'pglock', true);
		EXECUTE regexp_replace(pg_get_functiondef('bound_rest'::regproc), '\y1000\)', '60000)', 'g');
	END $$`)
}

func orZero[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// I8: no wake-up is missed between looking and waiting. A waiter that has found the lock held, and not yet committed
// its ticket, is waited for by the release, which then hands the lock over to it.
func TestI8_Trap7_ReleaseWaitsForATicketThatIsBeingWritten(t *testing.T) {
	t.Parallel()
	for _, lock := range []struct {
		mode     string
		capacity any
		slot     int
	}{{"exclusive", nil, 0}, {"limit", 1, 1}} {
		t.Run(lock.mode, func(t *testing.T) {
			db := pgtest.Database(t)
			look, holder, waiter := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
			patientWaits(t, look)
			held, err := holder.enqueue(t.Context(), "x", uuid.New(), lock.mode, lock.capacity)
			if err != nil || !held.granted {
				t.Fatalf("%+v, %v", held, err)
			}
			waiter.exec(t, "BEGIN")
			w, err := waiter.enqueue(t.Context(), "x", uuid.New(), lock.mode, lock.capacity)
			if err != nil || w.granted || w.ticket == 0 || w.place != 1 || !w.first {
				t.Fatalf("%+v, %v; want a ticket", w, err)
			}
			released := make(chan error, 1)
			go func() {
				var ok bool
				released <- holder.QueryRow(t.Context(), `SELECT released FROM pglock.release_lease('x', $1, $2, $3)`,
					held.token, held.id.String(), lock.slot).Scan(&ok)
			}()
			holder.awaitBlocked(t, look)
			waiter.exec(t, "COMMIT")
			must.Do(t, <-released)
			wantCount(t, look, 1, "the waiter has not been granted the lock",
				`SELECT count(*) FROM pglock.locks WHERE name = 'x' AND grant_id = $1 AND expires_at > clock_timestamp()`, w.id.String())
			wantCount(t, look, 0, "%d tickets are left", `SELECT count(*) FROM pglock.waiters`)
		})
	}
}

// I8, the other order: a release that has not committed yet is waited for by who looks, and who then finds the lock
// free is told to ask again at once.
func TestI8_WaiterLooksAgainAfterAReleaseUnderWay(t *testing.T) {
	t.Parallel()
	for _, lock := range []struct {
		mode     string
		capacity any
		slot     int
	}{{"exclusive", nil, 0}, {"limit", 1, 1}} {
		t.Run(lock.mode, func(t *testing.T) {
			db := pgtest.Database(t)
			look, holder, waiter := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
			patientWaits(t, look)
			held, err := holder.enqueue(t.Context(), "x", uuid.New(), lock.mode, lock.capacity)
			if err != nil || !held.granted {
				t.Fatalf("%+v, %v", held, err)
			}
			holder.exec(t, "BEGIN")
			holder.exec(t, `SELECT pglock.release_lease('x', $1, $2, $3)`, held.token, held.id.String(), lock.slot)
			waiter.notes(t)
			type answer struct {
				queued
				err error
			}
			answered := make(chan answer, 1)
			id := uuid.New()
			go func() {
				w, err := waiter.enqueue(t.Context(), "x", id, lock.mode, lock.capacity)
				answered <- answer{w, err}
			}()
			waiter.awaitBlocked(t, look)
			holder.exec(t, "COMMIT")
			w := <-answered
			if w.err != nil || w.granted || w.remaining > 0 || w.ticket != 0 && !w.first {
				t.Fatalf("%+v; want to ask again at once", w)
			}
			again, err := waiter.enqueue(t.Context(), "x", id, lock.mode, lock.capacity)
			if err != nil || !again.granted {
				t.Errorf("asked again: %+v, %v", again, err)
			}
		})
	}
}

// I8: hints that are lost cost one look.
func TestI8_LostHintsCostALook(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, look *peer){
		"no listener ever": func(*testing.T, *peer) {},
		"the connection that listens is ended before every release": func(t *testing.T, look *peer) {
			pgtest.Eventually(t, "a connection that listens to be ended", func() bool {
				return one[int](t, look,
					`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'pglock %'`) > 0
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			db := pgtest.Database(t)
			look := newPeer(t, db.URL())
			a := newClient(t, db.Pool(t, func(p *pgxpool.Config) {
				p.ConnConfig.RuntimeParams["application_name"] = "a" // for its own connection, too: only b's is ended
			}))
			opts := []pglock.Option{}
			if name == "no listener ever" {
				opts = append(opts, pglock.WithListenConfig(nowhere(t)))
			}
			b := newClient(t, db.Pool(t), opts...)
			took := make([]time.Duration, rounds(10))
			for n := range took {
				holder, err := a.Acquire(t.Context(), "x")
				if err != nil {
					t.Fatal(err)
				}
				got := make(chan fetched, 1)
				acquireInBackground(t.Context(), b, n, "x", got)
				awaitQueue(t, look, "x", 1)
				lose(t, look)
				began := time.Now()
				must.Do(t, holder.Release(t.Context()))
				next := served(t, got)
				took[n] = time.Since(began)
				must.Do(t, next.Release(t.Context()))
			}
			slices.Sort(took)
			t.Logf("the grants took %v", took)
			if half := took[len(took)/2]; half > 5*time.Second { // a busy machine delays some of them
				t.Errorf("I8: half of the grants were found no sooner than %v after the release", half)
			}
		})
	}
}

// I7: a waiter that learns of its grant by a hint trusts it for no longer than the server keeps it, even if the grant
// took long to commit, so that later looks still saw the ticket.
func TestI7_TrustInAHintEndsBeforeTheLease(t *testing.T) {
	t.Parallel() // most of it is waiting
	db := pgtest.Database(t)
	look, holder := newPeer(t, db.URL()), newPeer(t, db.URL())
	patientTransactions(t, look)
	held := holder.mustAcquire(t, "x", time.Minute)
	got := make(chan fetched, 1)
	acquireInBackground(t.Context(), newClient(t, db.Pool(t)), 1, "x", got, pglock.WithTTL(20*time.Second))
	awaitQueue(t, look, "x", 1)
	holder.exec(t, "BEGIN")
	holder.exec(t, `SELECT pglock.release_lease('x', $1, $2)`, held.token, held.id.String())
	time.Sleep(3 * time.Second) // the time that this commit takes: some looks long
	holder.exec(t, "COMMIT")
	holder.exec(t, `SELECT pglock.announce('{x}', '{0}')`)
	next := served(t, got)
	before := time.Now()
	trusted := time.Until(next.Deadline())
	left := must.Get(next.Check(t.Context()))(t)
	if trusted > left+time.Since(before) {
		t.Errorf("I7: trusted for %v, the server has %v left", trusted, left)
	}
	t.Logf("trusted for %v, the server has %v left", trusted, left)
}
