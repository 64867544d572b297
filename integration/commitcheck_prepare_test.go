package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgserver"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

// twoPhase starts a server that takes prepared transactions, with a ledger.
func twoPhase(t *testing.T) *pgserver.Server {
	t.Helper()
	server := pgtest.Dedicated(t, map[string]string{"max_prepared_transactions": "10", "track_commit_timestamp": "on"})
	must.Do(t, migrations.Up(t.Context(), server.URL()))
	newPeer(t, server.URL()).exec(t, `CREATE TABLE ledger (token bigint NOT NULL)`)
	return server
}

// prepare ends the transaction by PREPARE TRANSACTION, under the name of its token.
func (f *fencedTx) prepare(t *testing.T) (id string) {
	t.Helper()
	id = fmt.Sprintf("'token %d'", f.g.token)
	f.exec(t, `PREPARE TRANSACTION `+id)
	return id
}

func TestI4_A5_PrepareTransaction(t *testing.T) {
	t.Parallel()
	server := twoPhase(t)
	t.Run("holds the lock until it is ended", func(t *testing.T) { preparedHoldsTheLock(t, server) })
	t.Run("is refused after the lease", func(t *testing.T) { prepareIsRefused(t, server) })
	t.Run("in the callback of Write", func(t *testing.T) { callbackPrepares(t, server) })
	t.Run("keeps nobody in the queue", func(t *testing.T) { preparedKeepsNobodyQueued(t, server) })
}

// Those who have waited for a lock that a prepared transaction keeps leave no ticket, also where it had readers.
func preparedKeepsNobodyQueued(t *testing.T, server *pgserver.Server) {
	p, c := newPeer(t, server.URL()), newClient(t, newPool(t, server.URL()))
	mustRelease(t, mustTry(t, c, "left", pglock.WithShared()))
	g := p.mustAcquire(t, "left", time.Minute)
	p.exec(t, `BEGIN`)
	must.Do(t, p.fence(t.Context(), g, "left"))
	p.exec(t, `PREPARE TRANSACTION 'left'`)
	endNow(t, p, "left")
	for range 5 {
		if _, err := c.Acquire(t.Context(), "left", pglock.WithMaxWait(100*time.Millisecond)); !errors.Is(err,
			context.DeadlineExceeded) {
			t.Errorf("a wait beside a prepared transaction: %v", err)
		}
	}
	pgtest.Eventually(t, "the tickets to go", func() bool {
		return one[int](t, p, `SELECT count(*) FROM pglock.waiters WHERE name = 'left'`) == 0
	})
	p.exec(t, `ROLLBACK PREPARED 'left'`)
}

// A fenced transaction that is prepared was checked then, and holds the lock until it is ended, by whoever: safe, and
// not live. Its lease may end; nobody is granted the lock, no break, release or prune gets at it, and the fence stays
// closed. Renewals pass. The next grant comes after the end, with a greater token.
func preparedHoldsTheLock(t *testing.T, server *pgserver.Server) {
	hastyBreaks(t, newPeer(t, server.URL()))
	c := newClient(t, newPool(t, server.URL()))
	for _, end := range []string{"COMMIT PREPARED ", "ROLLBACK PREPARED "} {
		for _, level := range levels {
			t.Run(end+string(level), func(t *testing.T) {
				t.Parallel() // most of it is waiting
				f := beginFenced(t, server.URL(), level, time.Minute)
				id := f.prepare(t)
				f.renew(t) // while the lease runs
				wantWaits(t, f.look, breakSQL, f.g.name)
				wantWaits(t, f.look, `SELECT released FROM pglock.release_lease($1, $2, $3)`, f.g.name, f.g.token,
					f.g.id.String())

				endNow(t, f.look, f.g.name)
				wantNotGranted(t, f.look, f.g)
				f.look.prune(t)
				if !one[bool](t, f.look, `SELECT EXISTS (SELECT FROM pglock.locks WHERE name = $1)`, f.g.name) {
					t.Error("I21: the lock was pruned")
				}
				// A caller that waits is not granted it either, and leaves when its context ends.
				ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				defer cancel()
				if lease, err := c.Acquire(ctx, f.g.name); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("I4: Acquire answered %v, %v while the transaction is prepared", lease, err)
				}
				// Another lease meets the closed fence, for no longer than it lasts itself.
				f.look.exec(t, `SET lock_timeout = '1min'`)
				const ttl = 600 * time.Millisecond
				began, err := time.Now(), error(nil)
				// a busy machine comes too late for so short a lease
				for n := 0; n == 0 || state(err) == "LK001" && n < 20; n++ {
					other := f.look.mustAcquire(t, fmt.Sprint(t.Name(), "/other", n), ttl)
					began = time.Now()
					err = f.look.fence(t.Context(), other, f.g.name)
				}
				if state(err) != "55P03" || time.Since(began) > patience/2 {
					t.Errorf("I16: the fence of the prepared transaction was waited for %v, then %v", time.Since(began),
						err)
				}
				f.look.exec(t, `SET lock_timeout = '3s'`)
				pgtest.Eventually(t, "the caller to leave the queue", func() bool {
					return !one[bool](t, f.look, `SELECT EXISTS (SELECT FROM pglock.waiters WHERE name = $1)`, f.g.name)
				})

				f.look.exec(t, end+id)
				ended := one[time.Time](t, f.look,
					`SELECT coalesce((SELECT pg_xact_commit_timestamp(xmin) FROM ledger WHERE token = $1), 'epoch')`,
					f.g.token)
				rows := map[string]int{"COMMIT PREPARED ": 1, "ROLLBACK PREPARED ": 0}[end]
				if n := one[int](t, f.look, `SELECT count(*) FROM ledger WHERE token = $1`, f.g.token); n != rows {
					t.Errorf("%d rows were committed, want %d", n, rows)
				}
				var next grant
				pgtest.Eventually(t, "the next grant", func() bool { // the caller may still be leaving
					next, err = f.look.acquire(t.Context(), f.g.name, uuid.New(), time.Minute, false)
					return err == nil && next.granted
				})
				granted := one[time.Time](t, f.look, `SELECT acquired_at FROM pglock.locks WHERE name = $1`, f.g.name)
				if next.token <= f.g.token || !granted.After(ended) {
					t.Errorf("token %d, granted at %v, after token %d, committed at %v", next.token, granted, f.g.token,
						ended)
				}
				if err := f.look.fence(t.Context(), next, f.g.name); err != nil {
					t.Errorf("the fence is closed to the next holder: %v", err)
				}
			})
		}
	}
}

// PREPARE TRANSACTION is refused as COMMIT is, when the lease has ended by then.
func prepareIsRefused(t *testing.T, server *pgserver.Server) {
	for _, tc := range []struct {
		row                 string
		ttl                 time.Duration
		committed, snapshot string
		ends                func(t *testing.T, f *fencedTx)
	}{
		{"expired", time.Second, "LK001", "LK001", func(t *testing.T, f *fencedTx) {
			awaitExpiry(t, f.look, f.g.name)
		}},
		{"taken over", time.Second, "LK003", "40001", func(t *testing.T, f *fencedTx) {
			awaitExpiry(t, f.look, f.g.name)
			f.look.mustAcquire(t, f.g.name, time.Minute)
		}},
		{"broken", time.Minute, "LK003", "40001", func(t *testing.T, f *fencedTx) {
			f.look.exec(t, breakSQL, f.g.name)
		}},
	} {
		for _, level := range levels {
			t.Run(tc.row+"/"+string(level), func(t *testing.T) {
				t.Parallel()
				f := beginFenced(t, server.URL(), level, tc.ttl)
				tc.ends(t, f)
				want := tc.committed
				if level != pgx.ReadCommitted {
					want = tc.snapshot
				}
				_, err := f.Exec(t.Context(), fmt.Sprintf(`PREPARE TRANSACTION 'token %d'`, f.g.token))
				if state(err) != want {
					t.Errorf("I4: PREPARE TRANSACTION answered %v, want SQLSTATE %s", err, want)
				}
				wantCount(t, f.look, 0, "I4: the transaction is prepared",
					`SELECT count(*) FROM pg_prepared_xacts WHERE gid = $1`,
					fmt.Sprintf("token %d", f.g.token))
			})
		}
	}
}

// A prepared transaction holds the lock over a crash too, until it is ended.
func TestI4_PreparedTransactionHoldsTheLockOverACrash(t *testing.T) {
	t.Parallel() // most of it is waiting
	server := twoPhase(t)
	f := beginFenced(t, server.URL(), pgx.ReadCommitted, 3*time.Second)
	id := f.prepare(t)
	must.Do(t, server.Kill())
	must.Do(t, server.Restart(t.Context()))
	look := newPeer(t, server.URL())
	awaitExpiry(t, look, f.g.name)
	wantNotGranted(t, look, f.g)
	look.exec(t, `SET lock_timeout = '50ms'`)
	other := look.mustAcquire(t, "other", time.Minute)
	if err := look.fence(t.Context(), other, f.g.name); state(err) != "55P03" {
		t.Errorf("the fence of the prepared transaction answered %v", err)
	}
	look.exec(t, `COMMIT PREPARED `+id)
	wantCount(t, look, 1, "%d rows were committed, want 1", `SELECT count(*) FROM ledger`)
	if next := look.mustAcquire(t, f.g.name, time.Minute); next.token <= f.g.token {
		t.Errorf("I2: token %d after %d", next.token, f.g.token)
	}
}

// A callback that prepares its transaction gets the error that it has left the fence; the prepared transaction stays,
// and holds the lock.
func callbackPrepares(t *testing.T, server *pgserver.Server) {
	look := newPeer(t, server.URL())
	pool := newPool(t, server.URL())
	c := newClient(t, pool)
	lease := mustTry(t, c, "x", pglock.WithTTL(time.Minute))
	err := fencedstore.New(pool).Write(t.Context(), lease, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO ledger VALUES ($1)`, lease.Token()); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `PREPARE TRANSACTION 'mine'`)
		return err
	})
	if !errors.Is(err, fencedstore.ErrLeftFence) {
		t.Errorf("Write answered %v", err)
	}
	endNow(t, look, "x")
	if g, err := look.acquire(t.Context(), "x", uuid.New(), time.Minute, false); err != nil || g.granted {
		t.Errorf("I4: the lock was granted while the transaction is prepared: %+v, %v", g, err)
	}
	// It keeps the row of its receipt, too. Writes under other locks use others.
	err = fencedstore.New(pool).With(fencedstore.WithTimeLimit(5*time.Second)).Write(t.Context(), mustTry(t, c, "y"),
		func(context.Context, pgx.Tx) error { return nil })
	if err != nil {
		t.Errorf("a write under another lock: %v", err)
	}
	look.exec(t, `ROLLBACK PREPARED 'mine'`)
	look.mustAcquire(t, "x", time.Minute)
}
