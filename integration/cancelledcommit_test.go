package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/advisory"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// lateCancels are the settings of a server that heeds the cancellation of a COMMIT after it, when it logs how long that
// took, and whose flushes take long enough for that.
func lateCancels(isolation string) map[string]string {
	return map[string]string{"log_min_duration_statement": "0", "commit_delay": "100000", "commit_siblings": "0",
		"fsync": "on", "default_transaction_isolation": isolation}
}

// cancelsCommit runs f, and cancels its COMMIT while it is flushed.
func cancelsCommit(t *testing.T, look *peer, f func() error) error {
	t.Helper()
	done, met := must.Go(f), false
	pgtest.Eventually(t, "a COMMIT to be flushed", func() bool {
		met = one[int](t, look, `SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
			WHERE pid <> pg_backend_pid() AND query ILIKE 'commit' AND state = 'active'`) > 0
		return met || len(done) > 0
	})
	if err := <-done; met {
		return err
	}
	t.Fatal("the call had ended before its COMMIT was seen")
	return nil
}

// Whatever a cancelled COMMIT is answered with: an error of a write that was committed must leave that open.
func TestI17_ACancelledCommitIsAskedAbout(t *testing.T) {
	t.Parallel()
	server := migrated(t, lateCancels("read committed"))
	look := newPeer(t, server.URL())
	look.exec(t, `CREATE TABLE done (n int)`)
	pool := newPool(t, server.URL())
	c := newClient(t, pool)
	l := mustTry(t, c, "report", pglock.WithTTL(10*time.Minute))
	held := must.Get(must.Get(advisory.New(c, advisory.Config{}))(t).TryAcquire(t.Context(), "x", advisory.Bigint(1),
		pglock.WithTTL(10*time.Minute)))(t)
	insert := func(n int) func(context.Context, pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO done VALUES ($1)`, n)
			return err
		}
	}
	for n := 1; n <= 3; n++ {
		for again, write := range []func() error{
			func() error {
				return fencedstore.New(pool).Write(t.Context(), fencedstore.Fence{Lease: l, SameToken: true}, insert(n))
			},
			func() error {
				again := fencedstore.Fence{Lease: held.Lease(), SameToken: true}
				return held.Under(again).Write(t.Context(), insert(-n))
			},
		} {
			err := cancelsCommit(t, look, write)
			rows := one[int](t, look, `SELECT count(*) FROM done WHERE n = $1`, n-2*n*again)
			if (err == nil) != (rows == 1) && !errors.Is(err, pglock.ErrOutcomeUnknown) {
				t.Errorf("round %d, write %d: %d rows, and the write said %v", n, again, rows, err)
			}
		}
	}
}

// Where the library sends its own COMMIT, because the sessions are not READ COMMITTED, what was committed is not done
// again: a second break would meet the next holder, and a second release would find its lease gone.
func TestI11_ACallWhoseCommitWasCancelledIsNotRepeated(t *testing.T) {
	t.Parallel()
	server := migrated(t, lateCancels("serializable"))
	look := newPeer(t, server.URL())
	look.exec(t, `SET default_transaction_isolation = 'read committed'`)
	admin := must.Get(lockadmin.New(t.Context(), newPool(t, server.URL())))(t)
	ends := map[string]func(l *pglock.Lease, session string) error{
		"release":   func(l *pglock.Lease, _ string) error { return l.Release(t.Context()) },
		"hand over": func(l *pglock.Lease, _ string) error { return l.HandOver(t.Context(), "next") },
		"break of a session": func(l *pglock.Lease, session string) error {
			broken, err := admin.BreakSession(t.Context(), session, "stuck", lockadmin.BreakOptions{})
			if len(broken) != 1 || broken[0].Token != l.Token() {
				t.Errorf("I11: the break ended %v, want token %d", broken, l.Token())
			}
			return err
		},
		"break": func(l *pglock.Lease, _ string) error {
			broken, err := admin.Break(t.Context(), l.Name(), "stuck", lockadmin.BreakOptions{})
			if broken.Token != l.Token() {
				t.Errorf("I11: the break ended %v, want token %d", broken, l.Token())
			}
			return err
		},
	}
	for what, end := range ends {
		l := mustTry(t, newClient(t, newPool(t, server.URL())), what, pglock.WithTTL(10*time.Minute))
		second := newClient(t, newPool(t, server.URL()))
		waiter := make(chan *pglock.Lease, 1)
		go func() {
			next, err := second.Acquire(t.Context(), what, pglock.WithTTL(10*time.Minute), pglock.WithHolder("next"))
			if err != nil {
				t.Error(err)
			}
			waiter <- next
		}()
		pgtest.Eventually(t, "the second to queue", func() bool {
			return one[int](t, look, `SELECT count(*) FROM pglock.waiters WHERE name = $1`, what) == 1
		})
		session := one[string](t, look, `SELECT session_id::text FROM pglock.locks WHERE name = $1`, what)
		if err := cancelsCommit(t, look, func() error { return end(l, session) }); err != nil {
			t.Errorf("I11: the %s was committed, and said %v", what, err)
		}
		next := <-waiter
		if _, err := next.Check(t.Context()); err != nil {
			t.Errorf("I11: after the %s the next holder has lost its lease: %v", what, err)
		}
	}
}
