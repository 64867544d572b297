package integration

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// syncStandby makes every commit wait for a standby of that name; "" ends it.
func syncStandby(t *testing.T, look *peer, name string) {
	t.Helper()
	look.exec(t, `ALTER SYSTEM SET synchronous_standby_names = '`+name+`'`)
	look.exec(t, `SELECT pg_reload_conf()`)
	if name == "" {
		return
	}
	t.Cleanup(func() { // a test that fails half-way must not leave everything waiting
		_, _ = look.Exec(context.Background(), `ALTER SYSTEM RESET synchronous_standby_names`)
		_, _ = look.Exec(context.Background(), `SELECT pg_reload_conf()`)
	})
	// It is in force when the checkpointer has read it, which no setting shows: a commit that waits does.
	probe := newPeer(t, look.Config().ConnString())
	for inForce := false; !inForce; {
		done := must.Go(func() error {
			_, err := probe.Exec(context.Background(), `SELECT pg_logical_emit_message(true, 'probe', '')`)
			return err
		})
		pgtest.Eventually(t, "the setting to be in force", func() bool {
			inForce = one[bool](t, look,
				`SELECT coalesce((SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $1), false)`,
				probe.PgConn().PID())
			return inForce || len(done) == 1
		})
		if inForce {
			look.exec(t, `SELECT pg_cancel_backend($1)`, probe.PgConn().PID())
		}
		must.Do(t, <-done)
	}
	must.Do(t, probe.Close(t.Context()))
}

func waiting(t *testing.T, look *peer, event string) int {
	t.Helper()
	return one[int](t, look, `SELECT count(*) FROM pg_stat_activity WHERE wait_event = $1`, event)
}

// endCommit waits until a COMMIT waits for a standby, and calls pg_cancel_backend or pg_terminate_backend for it.
func endCommit(t *testing.T, look *peer, end string) {
	t.Helper()
	pgtest.Eventually(t, "COMMIT to wait for the standby", func() bool {
		return one[int](t, look, `SELECT count(`+end+`(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`) == 1
	})
}

// write makes one fenced write in the background.
func write(pool *pgxpool.Pool, lease *pglock.Lease) chan error {
	return writeBy(fencedstore.New(pool), lease)
}

func writeBy(store *fencedstore.Store, lease *pglock.Lease) chan error {
	done := make(chan error, 1)
	go func() {
		done <- store.Write(context.Background(), lease, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO ledger (token) VALUES ($1)`, lease.Token())
			return err
		})
	}()
	return done
}

// writeSQL is write through database/sql.
func writeSQL(db *sql.DB, lease *pglock.Lease) chan error {
	done := make(chan error, 1)
	go func() {
		done <- fencedstore.NewSQL(db).Write(context.Background(), lease, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO ledger (token) VALUES ($1)`, int64(lease.Token()))
			return err
		})
	}()
	return done
}

// A COMMIT that waits for its standby when the wait is cancelled, or its backend terminated, is committed here and
// maybe nowhere else: that is unknown, not success and not failure.
func TestI17_CancelledStandbyWaitIsUnknown(t *testing.T) {
	t.Parallel()
	server := migrated(t, nil)
	look := newPeer(t, server.URL())
	look.exec(t, `SET synchronous_commit = local`)
	look.exec(t, `CREATE TABLE ledger (token bigint)`)
	pool := newPool(t, server.URL(), func(c *pgxpool.Config) {
		pglock.ObserveCommits(c.ConnConfig)
		c.ConnConfig.RuntimeParams["client_min_messages"] = "error" // the warning comes all the same
	})
	c, store := newClient(t, pool), fencedstore.New(pool)
	db := stdlib.OpenDB(*pool.Config().ConnConfig)
	defer db.Close()
	ways := map[string]func(*pglock.Lease) chan error{
		"Write":    func(l *pglock.Lease) chan error { return writeBy(store, l) },
		"WriteSQL": func(l *pglock.Lease) chan error { return writeSQL(db, l) },
	}
	for how, write := range ways {
		for _, end := range []string{"pg_cancel_backend", "pg_terminate_backend"} {
			if !pgtest.EveryTest && how == "WriteSQL" && end == "pg_terminate_backend" {
				continue // five seconds, as after that of Write
			}
			t.Run(how+", "+end, func(t *testing.T) {
				// no renewal waits for the standby too
				lease, err := c.TryAcquire(t.Context(), how+end, pglock.WithTTL(10*time.Minute))
				if err != nil {
					t.Fatal(err)
				}
				syncStandby(t, look, "nobody")
				done := write(lease)
				endCommit(t, look, end)
				err = <-done
				var unknown *fencedstore.OutcomeUnknownError
				if !errors.Is(err, pglock.ErrOutcomeUnknown) || !errors.As(err, &unknown) {
					t.Fatalf("I17: %s answered %v", how, err)
				}
				if errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v is taken for a timeout of the caller's, whose context lives", err)
				}
				syncStandby(t, look, "")
				// Later writes leave the receipt alone.
				for range 3 {
					next := mustTry(t, c, how+end+" and on")
					must.Do(t, <-write(next))
					mustRelease(t, next)
				}
				if outcome, err := store.Outcome(t.Context(),
					unknown.Receipt); outcome != fencedstore.OutcomeCommitted {
					t.Errorf("I17: the write of %v resolves to %q, %v", unknown, outcome, err)
				}
				outcome, err := fencedstore.NewSQL(db).Outcome(t.Context(), unknown.Receipt)
				if outcome != fencedstore.OutcomeCommitted {
					t.Errorf("I17: the write of %v resolves to %q, %v through database/sql", unknown, outcome, err)
				}
			})
		}
	}
}

// A commit of the application's own that the standby has not confirmed, on a connection of the pool, says nothing of
// the confirmed writes and grants that come after it.
func TestI17_UnconfirmedCommitOfTheApplicationIsNotTakenForAWrite(t *testing.T) {
	t.Parallel()
	server := migrated(t, nil)
	look := newPeer(t, server.URL())
	look.exec(t, `SET synchronous_commit = local`)
	look.exec(t, `CREATE TABLE ledger (token bigint)`)
	pool := newPool(t, server.URL(), maxConnections(1), func(c *pgxpool.Config) { pglock.ObserveCommits(c.ConnConfig) })
	c := newClient(t, pool)
	lease := mustTry(t, c, "x")
	unconfirmed := func() {
		syncStandby(t, look, "nobody")
		done := must.Go(func() error {
			_, err := pool.Exec(context.Background(), `INSERT INTO ledger (token) VALUES (0)`)
			return err
		})
		endCommit(t, look, "pg_cancel_backend")
		must.Do(t, <-done)
		syncStandby(t, look, "")
	}
	unconfirmed()
	if err := <-write(pool, lease); err != nil {
		t.Errorf("I17: a write that was committed: %v", err)
	}
	unconfirmed()
	if l, err := c.TryAcquire(t.Context(), "y"); err != nil {
		t.Errorf("I17: a grant that was committed: %v, %v", l, err)
	}
}

// A grant whose standby wait was cancelled is asked for again, and answered only when it is safe.
func TestI17_GrantWaitsForTheStandbyAgain(t *testing.T) {
	t.Parallel()
	server := migrated(t, nil)
	look := newPeer(t, server.URL())
	look.exec(t, `SET synchronous_commit = local`)
	logGrants(t, look)
	c := newClient(t, newPool(t, server.URL(), func(c *pgxpool.Config) { pglock.ObserveCommits(c.ConnConfig) }))
	syncStandby(t, look, "nobody")
	type result struct {
		lease *pglock.Lease
		err   error
	}
	done := must.Go(func() result {
		lease, err := c.TryAcquire(context.Background(), "x", pglock.WithTTL(time.Minute))
		return result{lease, err}
	})
	began := ""
	for _, end := range []string{"pg_cancel_backend", "pg_terminate_backend"} {
		var pid uint32
		// in another statement than the one before
		pgtest.Eventually(t, "the grant to wait for the standby", func() bool {
			err := look.QueryRow(t.Context(),
				`SELECT pid, query_start::text FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query_start::text <> $1`, began).Scan(&pid, &began)
			return err == nil
		})
		look.exec(t, `SELECT `+end+`($1)`, pid)
	}
	pgtest.Eventually(t, "the third attempt to wait for the standby", func() bool {
		return waiting(t, look, "SyncRep") == 1
	})
	if len(done) != 0 {
		t.Fatalf("I17: a grant that no standby has was answered: %+v", <-done)
	}
	syncStandby(t, look, "")
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	holdsAsGranted(t, look, r.lease)
}

// A release that hands the lock over, and whose standby wait was cancelled, tells nobody of the grant: the waiter asks
// for it, and has it only when a standby has it.
func TestI17_AnnouncedGrantWaitsForTheStandby(t *testing.T) {
	t.Parallel()
	server := migrated(t, nil)
	look := newPeer(t, server.URL())
	look.exec(t, `SET synchronous_commit = local`)
	observing := func(c *pgxpool.Config) { pglock.ObserveCommits(c.ConnConfig) }
	a, b := newClient(t, newPool(t, server.URL(), observing)), newClient(t, newPool(t, server.URL(), observing))
	got := make(chan fetched, 1)
	handTo := func(c *pglock.Client, by *pglock.Lease) *pglock.Lease {
		acquireInBackground(t.Context(), c, 0, "x", got, pglock.WithTTL(time.Minute))
		awaitQueue(t, look, "x", 1)
		mustRelease(t, by)
		return served(t, got)
	}
	// From now on a's release expects that another client waits.
	lease := handTo(a, handTo(b, mustTry(t, a, "x")))
	acquireInBackground(t.Context(), b, 0, "x", got, pglock.WithTTL(time.Minute))
	awaitQueue(t, look, "x", 1)

	syncStandby(t, look, "nobody")
	released := must.Go(func() error { return lease.Release(context.Background()) })
	endCommit(t, look, "pg_cancel_backend")
	must.Do(t, <-released)
	pgtest.Eventually(t, "the waiter to ask for its grant", func() bool {
		return len(got) == 1 || waiting(t, look, "SyncRep") == 1
	})
	if len(got) == 1 {
		t.Fatalf("I17: a grant that no standby has was told: %+v", <-got)
	}
	syncStandby(t, look, "")
	if _, err := served(t, got).Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// A write that the server does not know never happened there.
func TestI17_WriteLostInAFailoverNeverHappened(t *testing.T) {
	db := pgtest.Parallel(t)
	home := one[uuid.UUID](t, newPeer(t, db.URL()), `SELECT pglock.database_id()`)
	outcome, err := fencedstore.New(db.Pool(t)).Outcome(t.Context(),
		fencedstore.Receipt{DatabaseID: home, Schema: "pglock", ID: uuid.New(), Write: uuid.New()})
	if outcome != fencedstore.OutcomeRolledBack || err != nil {
		t.Fatalf("%q, %v", outcome, err)
	}
}

// A receipt without a write is refused, also where a write of before has left the receipt's row, and changes nothing.
func TestI11_I17_AReceiptWithoutAWriteIsRefused(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newPeer(t, db.URL())
	g := p.mustAcquire(t, "held", time.Minute)
	receipt, write := uuid.New(), uuid.New()
	const fence = `SELECT FROM pglock.fence($1, $2, $3, p_allow_same_token => true, p_receipt_id => $4, p_write_id => $5)`
	for _, left := range []bool{false, true} {
		if _, err := p.Exec(t.Context(), fence, g.name, g.token, g.id, receipt, nil); state(err) != "22023" {
			t.Errorf("I11: without a write, after another left a receipt %v: %v", left, err)
		}
		p.exec(t, fence, g.name, g.token, g.id, receipt, write)
	}
	if !one[bool](t, p, `SELECT pglock.outcome($1, $2, pglock.database_id())`, receipt, write) {
		t.Error("I17: the refused fence has changed the receipt")
	}
}
