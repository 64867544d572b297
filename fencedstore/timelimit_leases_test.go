package fencedstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// Every lease of a write lasts for the time limit, whatever its mode, whichever client has it, and however it came.
func TestTimeLimitExtendsEveryLeaseOfAWrite(t *testing.T) {
	t.Parallel()
	b := newBench(t).warm(t)
	other := newBenchOn(t, b.db)
	const ttl, limit = 5 * time.Second, time.Minute
	var fences fencedstore.Fences
	add := func(l *pglock.Lease) { fences = append(fences, fencedstore.Fence{Lease: l}) }
	add(b.acquire(t, "exclusive", pglock.WithTTL(ttl)))
	add(b.acquire(t, "shared", pglock.WithTTL(ttl), pglock.WithShared()))
	add(other.acquire(t, "shared", pglock.WithTTL(ttl), pglock.WithShared()))
	add(other.acquire(t, "limited", pglock.WithTTL(ttl), pglock.WithLimit(2)))
	add(b.acquire(t, "graceful", pglock.WithTTL(ttl), pglock.WithGrace(time.Second)))
	another := b.acquire(t, "another", pglock.WithTTL(ttl))
	add(another)
	all := must.Get(b.client.AcquireAll(t.Context(), []string{"first of all", "second of all"}, pglock.WithTTL(ttl)))(t)
	for _, l := range all.All() {
		add(l)
	}
	fences = append(fences, fencedstore.Fence{Lease: another, Resource: "another resource"})
	if err := b.store.With(fencedstore.WithTimeLimit(limit)).Write(t.Context(), fences,
		func(ctx context.Context, tx pgx.Tx) error {
			if n := b.number(t,
				`SELECT count(*) FROM pglock.locks WHERE expires_at > clock_timestamp() + interval '50 s'`); n != len(fences)-1 {
				t.Errorf("%d leases last for the time limit, want %d", n, len(fences)-1)
			}
			_, err := tx.Exec(ctx, `SELECT pg_sleep($1)`, 1.25*ttl.Seconds())
			return err
		}); err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(t, "no lease is long any more", func() bool {
		return b.number(t,
			`SELECT count(*) FROM pglock.locks WHERE expires_at > clock_timestamp() + interval '6.5 s'`) == 0
	})
}

// Two writes of one lease run at once. The end of the longer one leaves the lease as long as the other needs it.
func TestTimeLimitOfOneWriteDoesNotEndWithAnother(t *testing.T) {
	t.Parallel()
	b := newBench(t).warm(t)
	l := b.acquire(t, "both", pglock.WithTTL(20*time.Second))
	begun, ended := make(chan struct{}), make(chan struct{})
	long := pgtest.Group(t)
	long.Go(func() {
		defer close(ended)
		if err := b.store.With(fencedstore.WithTimeLimit(time.Hour)).Write(t.Context(),
			fencedstore.Fence{Lease: l, Resource: "long"},
			func(context.Context, pgx.Tx) error {
				<-begun
				return nil
			}); err != nil {
			t.Error(err)
		}
	})
	pgtest.Eventually(t, "the longer write has extended the lease", func() bool {
		return b.left(t, "both") >= 50*time.Minute
	})
	if err := b.store.With(fencedstore.WithTimeLimit(10*time.Minute)).Write(t.Context(),
		fencedstore.Fence{Lease: l, Resource: "short"},
		func(context.Context, pgx.Tx) error {
			close(begun)
			<-ended
			pgtest.Eventually(t, "the lease lasts for the shorter write", func() bool {
				return b.left(t, "both") <= 20*time.Minute
			})
			if left, trusted := b.left(t, "both"), time.Until(l.Deadline()); left < 9*time.Minute ||
				trusted < 9*time.Minute {
				t.Errorf("the lease lasts for %v and is trusted for %v, want nearly ten minutes", left, trusted)
			}
			return nil
		}); err != nil {
		t.Error(err)
	}
	long.Wait()
}

// A lease that is lost while the transaction runs ends the write long before its time limit, at whatever level.
func TestLeaseThatIsLostInALongWriteEndsIt(t *testing.T) {
	t.Parallel()
	b := newBench(t).warm(t)
	b.exec(t, `CREATE TABLE done (n int)`)
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		l := b.acquire(t, string(level), pglock.WithTTL(5*time.Second))
		begin := time.Now()
		err := b.store.With(fencedstore.WithTimeLimit(time.Hour),
			fencedstore.WithTxOptions(pgx.TxOptions{IsoLevel: level})).Write(t.Context(), l,
			func(ctx context.Context, tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, `INSERT INTO done VALUES (1)`); err != nil {
					return err
				}
				b.breaks(t, l)
				_, err := tx.Exec(ctx, `SELECT pg_sleep(60)`)
				return err
			})
		if took := time.Since(begin); !errors.Is(err, pglock.ErrLost) || errors.Is(err, fencedstore.ErrTimeLimit) ||
			took > 20*time.Second {
			t.Errorf("%s: %v after %v", level, err, took)
		}
	}
	b.wantRows(t, 0, `done`)
}

// A snapshot shows the lease as it was when the snapshot was taken. In a write that is after the extension, so work
// that is longer than the TTL commits. A guard that comes after the snapshot is refused.
func TestI18_TimeLimitHoldsAtEveryIsolationLevel(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			b := newBench(t).warm(t)
			const ttl = 3 * time.Second
			options := pgx.TxOptions{IsoLevel: level}
			for _, name := range []string{"Write", "WriteSQL"} {
				if !pgtest.EveryTest && (name == "WriteSQL") != (level == pgx.RepeatableRead) {
					continue // in the short tier one way for each level
				}
				nightly := b.acquire(t, "nightly "+name, pglock.WithTTL(ttl))
				if err := ways[name](t, b, nightly, sleeps(4), fencedstore.WithTimeLimit(time.Minute),
					fencedstore.WithTxOptions(options)); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			l := b.acquire(t, "guarded", pglock.WithTTL(ttl))
			for _, late := range []bool{false, true} {
				tx, err := b.pool.BeginTx(t.Context(), options)
				if err != nil {
					t.Fatal(err)
				}
				if late {
					must.Get(tx.Exec(t.Context(), `SELECT`))(t)
				}
				_, err = fencedstore.Guard(t.Context(), tx, fencedstore.Fence{Lease: l, SameToken: true},
					fencedstore.WithTimeLimit(3*time.Minute))
				if refused := late && level != pgx.ReadCommitted; refused != errors.Is(err, pglock.ErrInvalid) ||
					!refused && err != nil {
					t.Errorf("Guard, late %v: %v", late, err)
				}
				if err == nil {
					_, err = tx.Exec(t.Context(), `SELECT pg_sleep(4)`)
					if err == nil {
						err = tx.Commit(t.Context())
					}
					if err != nil {
						t.Errorf("guarded, late %v: %v", late, err)
					}
				}
				_ = tx.Rollback(t.Context())
				release(t, l)
				l = b.acquire(t, "guarded", pglock.WithTTL(ttl))
			}
		})
	}
}

// What ends a statement sooner than the limits of the fence is not taken for one of them.
func TestLowerLimitOfTheUserIsNotTakenForTheTimeLimit(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, way := range ways {
		if !tried(name) {
			continue
		}
		for what, c := range map[string]struct {
			do   []string
			code string
		}{
			"a statement_timeout": {[]string{`SET LOCAL statement_timeout = 50`, `SELECT pg_sleep(30)`}, "57014"},
			"a cancelled backend": {[]string{`SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(30)`}, "57014"},
			"a NOWAIT":            {[]string{`DO $$ BEGIN RAISE lock_not_available; END $$`}, "55P03"},
		} {
			l := b.acquire(t, name+what)
			err := way(t, b, l, func(ctx context.Context, tx transaction) error {
				for _, statement := range c.do {
					if err := tx.exec(ctx, statement); err != nil {
						return err
					}
				}
				return nil
			}, fencedstore.WithTimeLimit(time.Minute))
			if code(err) != c.code || errors.Is(err, fencedstore.ErrTimeLimit) {
				t.Errorf("%s: %s: %v", name, what, err)
			}
		}
	}
}

// What ends a transaction without a time limit is what its lease had left, and the error says that.
func TestI16_WithoutATimeLimitTheErrorTellsWhatTheLeaseHadLeft(t *testing.T) {
	t.Parallel()
	b := newWideBench(t)
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := b.acquire(t, name, pglock.WithTTL(5*time.Second))
			err := way(t, b, l, sleeps(30))
			var late *fencedstore.TimeLimitError
			if !errors.As(err, &late) || late.Given || late.Limit > 5*time.Second || late.Limit < 300*time.Millisecond {
				t.Errorf("%v, want a TimeLimitError of the lease", err)
			}
		})
	}
}

// The next lease of a lock, also of the same client, has nothing of an extension of the one before.
func TestTheNextLeaseHasNothingOfAnExtension(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const ttl = 20 * time.Second
	first := b.acquire(t, "report")
	calls := pgtest.Group(t)
	for range 5 {
		calls.Go(func() {
			l, err := b.client.Acquire(t.Context(), "report", pglock.WithTTL(ttl))
			if err != nil {
				t.Error(err)
				return
			}
			if left := b.left(t, "report"); left > ttl {
				t.Errorf("the lock is taken for %v at the beginning of a lease", left)
			}
			if left := time.Until(l.Deadline()); left > ttl {
				t.Errorf("a lease is trusted for %v at its beginning", left)
			}
			if _, err := l.Extend(t.Context(), time.Hour); err != nil {
				t.Error(err)
			}
			must.Note(t, l.Release(t.Context()))
		})
	}
	pgtest.Eventually(t, "somebody waits", func() bool {
		return b.number(t, `SELECT count(*) FROM pglock.waiters`) > 0
	})
	release(t, first)
	calls.Wait()
}
