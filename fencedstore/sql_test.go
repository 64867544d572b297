package fencedstore_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

var errOwn = errors.New("the application's own")

// Store.Write and WriteSQL, Once and OnceSQL answer the same in every case, and leave the same.
func TestWritesThroughDatabaseSQLAnswerAsThoseOfAStore(t *testing.T) {
	t.Parallel()
	type scene struct {
		t *testing.T
		*bench
		l *pglock.Lease
	}
	const insert = `INSERT INTO done VALUES (1)`
	inserts := func(_ scene, ctx context.Context, tx transaction) error { return tx.exec(ctx, insert) }
	writesX := func(s scene) {
		must.Do(s.t, s.write(s.t, s.l, "x", insert))
	}
	shared := newBench(t)
	shared.exec(t, `CREATE TABLE done (n int)`)
	for what, c := range map[string]struct {
		own    bool // a database of its own, of which before changes something
		before func(s scene)
		do     func(s scene, ctx context.Context, tx transaction) error
		fence  fencedstore.Fence // but for its lease
		opts   []fencedstore.Option
		want   error
		rows   int
	}{
		"committed": {do: inserts, rows: 1},
		"an error of the callback": {do: func(_ scene, ctx context.Context, tx transaction) error {
			return errors.Join(tx.exec(ctx, insert), errOwn)
		}, want: errOwn},
		"an error that the callback hides": {do: func(_ scene, ctx context.Context, tx transaction) error {
			_ = tx.exec(ctx, insert)
			_ = tx.exec(ctx, `SELECT nonsense`)
			return nil
		}, want: &pgconn.PgError{Code: "25P02"}},
		"a stale token": {before: writesX, fence: fencedstore.Fence{Resource: "x"}, want: fencedstore.ErrStaleToken,
			rows: 1},
		"the same token twice": {before: writesX, do: inserts,
			fence: fencedstore.Fence{Resource: "x", SameToken: true}, rows: 2},
		"broken before": {before: func(s scene) { s.breaks(s.t, s.l) }, want: pglock.ErrLost},
		"broken meanwhile": {do: func(s scene, ctx context.Context, tx transaction) error {
			s.breaks(s.t, s.l)
			return tx.exec(ctx, insert)
		}, want: pglock.ErrLost},
		"released before": {before: func(s scene) {
			must.Do(s.t, s.l.Release(s.t.Context()))
		}, want: pglock.ErrReleased},
		"rolled back inside": {do: func(_ scene, ctx context.Context, tx transaction) error {
			return errors.Join(tx.exec(ctx, insert), tx.rollback(ctx))
		}, want: fencedstore.ErrLeftFence},
		"committed inside": {do: func(_ scene, ctx context.Context, tx transaction) error {
			return errors.Join(tx.exec(ctx, insert), tx.commit(ctx))
		}, want: fencedstore.ErrLeftFence, rows: 1},
		"a raw COMMIT": {do: func(_ scene, ctx context.Context, tx transaction) error {
			return errors.Join(tx.exec(ctx, insert), tx.exec(ctx, `COMMIT`))
		}, want: fencedstore.ErrLeftFence, rows: 1},
		"a raw ROLLBACK": {do: func(_ scene, ctx context.Context, tx transaction) error {
			return errors.Join(tx.exec(ctx, insert), tx.exec(ctx, `ROLLBACK`))
		}, want: fencedstore.ErrLeftFence},
		"the check used up": {do: func(s scene, ctx context.Context, tx transaction) error {
			err := tx.exec(ctx, `SET CONSTRAINTS ALL IMMEDIATE`)
			s.exec(s.t, `UPDATE pglock.locks SET expires_at = clock_timestamp()`)
			return errors.Join(err, tx.exec(ctx, insert))
		}, want: pglock.ErrLost},
		"a guarded table of another resource": {own: true, before: func(s scene) {
			if err := fencedstore.GuardTable(s.t.Context(), s.pool, "done",
				fencedstore.WithTableResource("other")); err != nil {
				s.t.Fatal(err)
			}
		}, do: inserts, want: fencedstore.ErrUnfenced},
		"SERIALIZABLE": {do: func(s scene, ctx context.Context, tx transaction) error {
			return errors.Join(tx.exec(ctx,
				`SELECT 1 / (current_setting('transaction_isolation') = 'serializable')::int`), tx.exec(ctx, insert))
		}, opts: []fencedstore.Option{fencedstore.WithTxOptions(pgx.TxOptions{IsoLevel: pgx.Serializable})},
			rows: 1},
		"read write after all": {own: true, before: func(s scene) {
			s.exec(s.t,
				`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$`)
		}, do: inserts,
			opts: []fencedstore.Option{fencedstore.WithTxOptions(pgx.TxOptions{AccessMode: pgx.ReadWrite})},
			rows: 1},
		"a bad resource": {fence: fencedstore.Fence{Resource: "\xff"}, want: pglock.ErrInvalid},
		"a receipt":      {opts: []fencedstore.Option{fencedstore.WithReceipt()}, want: pglock.ErrInvalid},
	} {
		for how, write := range map[string]func(s scene, fn work) error{
			"Write": func(s scene, fn work) error {
				return fencedstore.New(s.db.Pool(t)).With(c.opts...).Write(t.Context(), c.fence, inTx(fn))
			},
			"WriteSQL": func(s scene, fn work) error {
				s.sqlDB.SetMaxOpenConns(1)
				return fencedstore.NewSQL(s.sqlDB).With(c.opts...).Write(t.Context(), c.fence, inSQL(fn))
			},
			"OnceSQL": func(s scene, fn work) error {
				if what == "a stale token" { // Once lets the same token pass
					return fencedstore.ErrStaleToken
				}
				return fencedstore.NewSQL(s.sqlDB).With(c.opts...).Once(t.Context(), c.fence, what, inSQL(fn))
			},
		} {
			if !pgtest.EveryTest && how != "WriteSQL" && what != "committed" && what != "rolled back inside" {
				continue
			}
			t.Run(what+"/"+how, func(t *testing.T) {
				b := shared
				if c.own {
					b = newBench(t)
					b.exec(t, `CREATE TABLE done (n int)`)
				}
				b.exec(t, `TRUNCATE done`)
				s := scene{t, b, b.acquire(t, what+how)}
				c.fence.Lease = s.l
				if c.before != nil {
					c.before(s)
				}
				called := 0
				err := write(s, func(ctx context.Context, tx transaction) error {
					called++
					if c.do == nil {
						t.Error("called")
						return nil
					}
					return c.do(s, ctx, tx)
				})
				var refused, want *pgconn.PgError
				switch {
				case errors.As(c.want, &want):
					if !errors.As(err, &refused) || refused.Code != want.Code {
						t.Errorf("%v, want SQLSTATE %s", err, want.Code)
					}
					if !strings.Contains(err.Error(), "the callback did not return its error") {
						t.Errorf("%v, want what the callback has hidden", err)
					}
				case !errors.Is(err, c.want):
					t.Errorf("%v, want %v", err, c.want)
				}
				b.wantRows(t, c.rows, `done`)
				// A connection that was given up ends its transaction by itself, a moment later.
				const open = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'`
				pgtest.Eventually(t, "no transaction is left open", func() bool { return b.number(t, open) == 0 })
			})
		}
	}
}

// Whoever asks again gets ErrDone, through whatever it asks.
func TestWorkOfAKeyIsDoneOnceThroughWhateverAsks(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t, `CREATE TABLE done (n int)`)
	l := b.acquire(t, "job")
	insert := does(`INSERT INTO done VALUES (1)`)
	key := t.Name()
	db := b.sqlDB
	all := map[string]func() error{
		"Once":     func() error { return b.store.Once(t.Context(), l, key, inTx(insert)) },
		"OnceSQL":  func() error { return fencedstore.NewSQL(db).Once(t.Context(), l, key, inSQL(insert)) },
		"Guard":    func() error { return guarded(t, b, l, insert, fencedstore.WithKey(key)) },
		"GuardSQL": func() error { return guardedSQL(t, b, l, insert, fencedstore.WithKey(key)) },
	}
	for first, do := range all {
		b.exec(t, `TRUNCATE pglock.done_keys, done`)
		if err := do(); err != nil {
			t.Errorf("%s: %v", first, err)
		}
		for again, do := range all {
			var done *fencedstore.DoneError
			if err := do(); !errors.As(err, &done) || done.Key != key || done.Lock != "job" ||
				done.Token != l.Token() || time.Since(done.At) > time.Minute {
				t.Errorf("%s, then %s: %v", first, again, err)
			}
		}
		b.wantRows(t, 1, `done`)
	}
}

// A transaction of the application's own leaves a receipt when it is asked to, and whoever has it learns what became of
// it.
func TestI17_TransactionOfTheApplicationsOwnLeavesAReceipt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l := b.acquire(t, "job")
	db := b.sqlDB
	type guard = func(tx *sql.Tx) (*fencedstore.Guarded, error)
	for how, guard := range map[string]guard{
		"one": func(tx *sql.Tx) (*fencedstore.Guarded, error) {
			return fencedstore.GuardSQL(t.Context(), tx, fencedstore.Fence{Lease: l, SameToken: true},
				fencedstore.WithReceipt())
		},
		"a key": func(tx *sql.Tx) (*fencedstore.Guarded, error) {
			return fencedstore.GuardSQL(t.Context(), tx, l, fencedstore.WithKey(time.Now().String()),
				fencedstore.WithReceipt())
		},
		"several": func(tx *sql.Tx) (*fencedstore.Guarded, error) {
			return fencedstore.GuardSQL(t.Context(), tx, fencedstore.Fences{{Lease: l, SameToken: true},
				{Lease: l, Resource: "other", SameToken: true}}, fencedstore.WithReceipt())
		},
	} {
		for _, want := range []fencedstore.Outcome{fencedstore.OutcomeCommitted, fencedstore.OutcomeRolledBack} {
			tx := b.beginSQL(t)
			g := must.Get(guard(tx))(t)
			r := g.Receipt()
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			if got, err := fencedstore.NewSQL(db).Outcome(ctx, r); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: of an open transaction: %q, %v", how, got, err)
			}
			cancel()
			end := tx.Rollback
			if want == fencedstore.OutcomeCommitted {
				end = tx.Commit
			}
			must.Do(t, end())
			bySQL, err := fencedstore.NewSQL(db).Outcome(t.Context(), r)
			byPgx, err2 := b.store.Outcome(t.Context(), r)
			if bySQL != want || byPgx != want || err != nil || err2 != nil {
				t.Errorf("%s: %q and %q, want %q: %v, %v", how, bySQL, byPgx, want, err, err2)
			}
		}
	}
}

// The callback's panic goes on, and its transaction is rolled back.
func TestPanicInAWriteThroughDatabaseSQLRollsBack(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t, `CREATE TABLE done (n int)`)
	l := b.acquire(t, "job")
	func() {
		defer func() {
			if r := recover(); r != "stop" {
				t.Errorf("recovered %v", r)
			}
		}()
		_ = fencedstore.NewSQL(b.sqlDB).Write(t.Context(), l, func(ctx context.Context, tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, `INSERT INTO done VALUES (1)`); err != nil {
				t.Error(err)
			}
			panic("stop")
		})
	}()
	b.wantRows(t, 0, `done`)
	if err := b.write(t, l, "job", `INSERT INTO done VALUES (2)`); err != nil {
		t.Errorf("the fence is still taken: %v", err)
	}
}

// The end of ctx ends a callback's transaction, and nothing is left of it.
func TestWriteThroughDatabaseSQLEndsWithItsContext(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t, `CREATE TABLE done (n int)`)
	l := b.acquire(t, "job")
	ctx, cancel := context.WithCancel(t.Context())
	err := fencedstore.NewSQL(b.sqlDB).Write(ctx, l, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO done VALUES (1)`)
		cancel()
		return err
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want context.Canceled", err)
	}
	b.wantRows(t, 0, `done`)
}

func TestI11_WritesThroughDatabaseSQLRefuseBadInput(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l := b.acquire(t, "job")
	db := b.sqlDB
	fn := func(context.Context, *sql.Tx) error { t.Error("called"); return nil }
	tx := b.beginSQL(t)
	_, noDB := fencedstore.NewSQL(nil).Outcome(t.Context(), fencedstore.Receipt{})
	for what, c := range map[string]struct {
		err   error
		field string
	}{
		"Write without db":       {fencedstore.NewSQL(nil).Write(t.Context(), l, fn), "db"},
		"Write without fn":       {fencedstore.NewSQL(db).Write(t.Context(), l, nil), "fn"},
		"Write without lease":    {fencedstore.NewSQL(db).Write(t.Context(), (*pglock.Lease)(nil), fn), "lease"},
		"Write without anything": {fencedstore.NewSQL(db).Write(t.Context(), nil, fn), "fenced"},
		"Write without fences":   {fencedstore.NewSQL(db).Write(t.Context(), fencedstore.Fences{}, fn), "fences"},
		"Write under what is like": {fencedstore.NewSQL(db).Write(t.Context(), struct{ *pglock.Lease }{l}, fn),
			"fenced"},
		"Once without a key":     {fencedstore.NewSQL(db).Once(t.Context(), l, "", fn), "key"},
		"Outcome without db":     {noDB, "db"},
		"GuardSQL without tx":    {refused(fencedstore.GuardSQL(t.Context(), nil, l)), "tx"},
		"GuardSQL with a nil tx": {refused(fencedstore.GuardSQL(t.Context(), (*sql.Tx)(nil), l)), "tx"},
		"Guard without tx":       {refused(fencedstore.Guard(t.Context(), nil, l)), "tx"},
		"GuardSQL with no key":   {refused(fencedstore.GuardSQL(t.Context(), tx, l, fencedstore.WithKey(""))), "key"},
		"GuardSQL with a level": {refused(fencedstore.GuardSQL(t.Context(), tx, l, fencedstore.WithKey("k"),
			fencedstore.WithTxOptions(pgx.TxOptions{}))), "WithTxOptions"},
		"GuardSQL with retention": {refused(fencedstore.GuardSQL(t.Context(), tx, l,
			fencedstore.WithRetention(time.Now(), time.Hour))), "WithRetention"},
		"a time limit that is none": {fencedstore.NewSQL(db).With(fencedstore.WithTimeLimit(0)).Write(t.Context(), l,
			fn), "time limit"},
		"a time limit below a moment": {fencedstore.NewSQL(db).With(fencedstore.WithTimeLimit(pglock.MinTTL-1)).Write(
			t.Context(), l, fn), "time limit"},
		"a time limit beyond a day": {b.store.With(fencedstore.WithTimeLimit(24*time.Hour+1)).Write(t.Context(), l,
			nothing), "time limit"},
	} {
		var bad *pglock.ArgumentError
		if !errors.As(c.err, &bad) || !errors.Is(c.err, pglock.ErrInvalid) || bad.Field != c.field {
			t.Errorf("%s: %v, want an ArgumentError for %s", what, c.err, c.field)
		}
	}
	b.wantRows(t, 0, `pglock.fences`)
}
