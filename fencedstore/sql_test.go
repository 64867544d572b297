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
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// transaction is what both kinds of callbacks can do in the tests here.
type transaction interface {
	exec(ctx context.Context, sql string) error
	commit(ctx context.Context) error
	rollback(ctx context.Context) error
}

type pgxTransaction struct{ pgx.Tx }

func (t pgxTransaction) exec(ctx context.Context, sql string) error {
	_, err := t.Exec(ctx, sql)
	return err
}
func (t pgxTransaction) commit(ctx context.Context) error   { return t.Commit(ctx) }
func (t pgxTransaction) rollback(ctx context.Context) error { return t.Rollback(ctx) }

type sqlTransaction struct{ *sql.Tx }

func (t sqlTransaction) exec(ctx context.Context, sql string) error {
	_, err := t.ExecContext(ctx, sql)
	return err
}
func (t sqlTransaction) commit(context.Context) error   { return t.Commit() }
func (t sqlTransaction) rollback(context.Context) error { return t.Rollback() }

var errOwn = errors.New("the application's own")

// Store.Write and WriteSQL, Once and OnceSQL answer the same in every case, and leave the same.
func TestWritesThroughDatabaseSQLAnswerAsThoseOfAStore(t *testing.T) {
	t.Parallel()
	type scene struct {
		*bench
		l     *pglock.Lease
		admin *lockadmin.Admin
	}
	const insert = `INSERT INTO done VALUES (1)`
	shared := newBench(t)
	shared.exec(t, `CREATE TABLE done (n int)`)
	for what, c := range map[string]struct {
		own    bool // a database of its own, of which before changes something
		before func(t *testing.T, s scene)
		do     func(t *testing.T, s scene, ctx context.Context, tx transaction) error
		opts   []fencedstore.FenceOption
		want   error
		rows   int
	}{
		"committed": {do: func(_ *testing.T, _ scene, ctx context.Context, tx transaction) error {
			return tx.exec(ctx, insert)
		}, rows: 1},
		"an error of the callback": {do: func(_ *testing.T, _ scene, ctx context.Context, tx transaction) error {
			return errors.Join(tx.exec(ctx, insert), errOwn)
		}, want: errOwn},
		"an error that the callback hides": {do: func(_ *testing.T, _ scene, ctx context.Context,
			tx transaction) error {
			_ = tx.exec(ctx, insert)
			_ = tx.exec(ctx, `SELECT nonsense`)
			return nil
		}, want: &pgconn.PgError{Code: "25P02"}},
		"a stale token": {before: func(t *testing.T, s scene) {
			if err := s.write(t, s.l, "x", insert); err != nil {
				t.Fatal(err)
			}
		}, opts: []fencedstore.FenceOption{fencedstore.WithResource("x")}, want: fencedstore.ErrStaleToken, rows: 1},
		"the same token twice": {before: func(t *testing.T, s scene) {
			if err := s.write(t, s.l, "x", insert); err != nil {
				t.Fatal(err)
			}
		}, do: func(_ *testing.T, _ scene, ctx context.Context, tx transaction) error { return tx.exec(ctx, insert) },
			opts: []fencedstore.FenceOption{fencedstore.WithResource("x"), fencedstore.WithSameToken()}, rows: 2},
		"broken before": {before: func(t *testing.T, s scene) { mustBreak(t, s.admin, s.l) }, want: pglock.ErrLost},
		"broken meanwhile": {do: func(t *testing.T, s scene, ctx context.Context, tx transaction) error {
			mustBreak(t, s.admin, s.l)
			return tx.exec(ctx, insert)
		}, want: pglock.ErrLost},
		"released before": {before: func(t *testing.T, s scene) {
			if err := s.l.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}, want: pglock.ErrReleased},
		"rolled back inside": {do: func(_ *testing.T, _ scene, ctx context.Context, tx transaction) error {
			return errors.Join(tx.exec(ctx, insert), tx.rollback(ctx))
		}, want: fencedstore.ErrLeftFence},
		"committed inside": {do: func(_ *testing.T, _ scene, ctx context.Context, tx transaction) error {
			return errors.Join(tx.exec(ctx, insert), tx.commit(ctx))
		}, want: fencedstore.ErrLeftFence, rows: 1},
		"a raw COMMIT": {do: func(_ *testing.T, _ scene, ctx context.Context, tx transaction) error {
			return errors.Join(tx.exec(ctx, insert), tx.exec(ctx, `COMMIT`))
		}, want: fencedstore.ErrLeftFence, rows: 1},
		"a raw ROLLBACK": {do: func(_ *testing.T, _ scene, ctx context.Context, tx transaction) error {
			return errors.Join(tx.exec(ctx, insert), tx.exec(ctx, `ROLLBACK`))
		}, want: fencedstore.ErrLeftFence},
		"the check used up": {do: func(t *testing.T, s scene, ctx context.Context, tx transaction) error {
			err := tx.exec(ctx, `SET CONSTRAINTS ALL IMMEDIATE`)
			s.exec(t, `UPDATE pglock.locks SET expires_at = clock_timestamp()`)
			return errors.Join(err, tx.exec(ctx, insert))
		}, want: pglock.ErrLost},
		"a guarded table of another resource": {own: true, before: func(t *testing.T, s scene) {
			if err := fencedstore.GuardTable(t.Context(), s.pool, "done",
				fencedstore.WithTableResource("other")); err != nil {
				t.Fatal(err)
			}
		}, do: func(_ *testing.T, _ scene, ctx context.Context, tx transaction) error {
			return tx.exec(ctx, insert)
		}, want: fencedstore.ErrUnfenced},
		"SERIALIZABLE": {do: func(t *testing.T, s scene, ctx context.Context, tx transaction) error {
			return errors.Join(tx.exec(ctx,
				`SELECT 1 / (current_setting('transaction_isolation') = 'serializable')::int`), tx.exec(ctx, insert))
		}, opts: []fencedstore.FenceOption{fencedstore.WithTxOptions(pgx.TxOptions{IsoLevel: pgx.Serializable})},
			rows: 1},
		"read write after all": {own: true, before: func(t *testing.T, s scene) {
			s.exec(t,
				`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$`)
		}, do: func(_ *testing.T, _ scene, ctx context.Context, tx transaction) error { return tx.exec(ctx, insert) },
			opts: []fencedstore.FenceOption{fencedstore.WithTxOptions(pgx.TxOptions{AccessMode: pgx.ReadWrite})},
			rows: 1},
		"a bad option": {opts: []fencedstore.FenceOption{fencedstore.WithResource("")}, want: pglock.ErrInvalid},
		"a receipt": {opts: []fencedstore.FenceOption{fencedstore.WithReceipt(new(fencedstore.Receipt))},
			want: pglock.ErrInvalid},
	} {
		for how, write := range map[string]func(s scene, fn func(context.Context, transaction) error) error{
			"Write": func(s scene, fn func(context.Context, transaction) error) error {
				return fencedstore.New(s.db.Pool(t)).Write(t.Context(), s.l,
					func(ctx context.Context, tx pgx.Tx) error {
						return fn(ctx, pgxTransaction{tx})
					}, c.opts...)
			},
			"WriteSQL": func(s scene, fn func(context.Context, transaction) error) error {
				s.sqlDB.SetMaxOpenConns(1)
				return fencedstore.WriteSQL(t.Context(), s.sqlDB, s.l, func(ctx context.Context, tx *sql.Tx) error {
					return fn(ctx, sqlTransaction{tx})
				}, c.opts...)
			},
			"OnceSQL": func(s scene, fn func(context.Context, transaction) error) error {
				if what == "a stale token" { // Once lets the same token pass
					return fencedstore.ErrStaleToken
				}
				return fencedstore.OnceSQL(t.Context(), s.sqlDB, s.l, what,
					func(ctx context.Context, tx *sql.Tx) error {
						return fn(ctx, sqlTransaction{tx})
					}, c.opts...)
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
				admin, err := lockadmin.New(t.Context(), b.pool)
				if err != nil {
					t.Fatal(err)
				}
				s := scene{b, b.acquire(t, what+how), admin}
				if c.before != nil {
					c.before(t, s)
				}
				called := 0
				err = write(s, func(ctx context.Context, tx transaction) error {
					called++
					if c.do == nil {
						t.Error("called")
						return nil
					}
					return c.do(t, s, ctx, tx)
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
				if n := b.number(t, `SELECT count(*) FROM done`); n != c.rows {
					t.Errorf("%d rows, want %d", n, c.rows)
				}
				// A connection that was given up ends its transaction by itself, a moment later.
				const open = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'`
				pgtest.Eventually(t, "no transaction is left open", func() bool { return b.number(t, open) == 0 })
			})
		}
	}
}

func mustBreak(t *testing.T, admin *lockadmin.Admin, l *pglock.Lease) {
	t.Helper()
	if _, err := admin.Break(t.Context(), l.Name(), "a test"); err != nil {
		t.Fatal(err)
	}
}

// Whoever asks again gets ErrDone, through whatever it asks.
func TestWorkOfAKeyIsDoneOnceThroughWhateverAsks(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t, `CREATE TABLE done (n int)`)
	l := b.acquire(t, "job")
	insert := func(ctx context.Context, exec func(context.Context, string, ...any) error) error {
		return exec(ctx, `INSERT INTO done VALUES (1)`)
	}
	key := t.Name()
	db := b.sqlDB
	all := map[string]func() error{
		"Once":    func() error { return b.store.Once(t.Context(), l, key, inTx(insert)) },
		"OnceSQL": func() error { return fencedstore.OnceSQL(t.Context(), db, l, key, inSQL(insert)) },
		"GuardOnce": func() error {
			return pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error {
				if err := fencedstore.GuardOnce(t.Context(), tx, l, key); err != nil {
					return err
				}
				return inTx(insert)(t.Context(), tx)
			})
		},
		"GuardOnceSQL": func() error {
			return guardedSQL(t, b, l, insert, func(tx *sql.Tx) error {
				return fencedstore.GuardOnceSQL(t.Context(), tx, l, key)
			})
		},
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
		if n := b.number(t, `SELECT count(*) FROM done`); n != 1 {
			t.Errorf("%s: done %d times", first, n)
		}
	}
}

// A transaction of the application's own leaves a receipt when it is asked to, and whoever has it learns what became of
// it.
func TestI17_TransactionOfTheApplicationsOwnLeavesAReceipt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l := b.acquire(t, "job")
	db := b.sqlDB
	guards := map[string]func(tx *sql.Tx, r *fencedstore.Receipt) error{
		"GuardSQL": func(tx *sql.Tx, r *fencedstore.Receipt) error {
			return fencedstore.GuardSQL(t.Context(), tx, l, fencedstore.WithReceipt(r), fencedstore.WithSameToken())
		},
		"GuardOnceSQL": func(tx *sql.Tx, r *fencedstore.Receipt) error {
			return fencedstore.GuardOnceSQL(t.Context(), tx, l, r.String()+time.Now().String(),
				fencedstore.WithReceipt(r))
		},
		"GuardAllSQL": func(tx *sql.Tx, r *fencedstore.Receipt) error {
			return fencedstore.GuardAllSQL(t.Context(), tx, []fencedstore.Fence{{Lease: l}}, fencedstore.WithReceipt(r),
				fencedstore.WithSameToken())
		},
	}
	for how, guard := range guards {
		for _, want := range []fencedstore.Outcome{fencedstore.OutcomeCommitted, fencedstore.OutcomeRolledBack} {
			var r fencedstore.Receipt
			tx, err := db.BeginTx(t.Context(), nil)
			if err == nil {
				err = guard(tx, &r)
			}
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			if got, err := fencedstore.OutcomeSQL(ctx, db, r); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: of an open transaction: %q, %v", how, got, err)
			}
			cancel()
			if want == fencedstore.OutcomeCommitted {
				err = tx.Commit()
			} else {
				err = tx.Rollback()
			}
			if err != nil {
				t.Fatal(err)
			}
			bySQL, err := fencedstore.OutcomeSQL(t.Context(), db, r)
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
		_ = fencedstore.WriteSQL(t.Context(), b.sqlDB, l, func(ctx context.Context, tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, `INSERT INTO done VALUES (1)`); err != nil {
				t.Error(err)
			}
			panic("stop")
		})
	}()
	if n := b.number(t, `SELECT count(*) FROM done`); n != 0 {
		t.Errorf("%d rows", n)
	}
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
	err := fencedstore.WriteSQL(ctx, b.sqlDB, l, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO done VALUES (1)`)
		cancel()
		return err
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want context.Canceled", err)
	}
	if n := b.number(t, `SELECT count(*) FROM done`); n != 0 {
		t.Errorf("%d rows", n)
	}
}

func TestI11_WritesThroughDatabaseSQLRefuseBadInput(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l := b.acquire(t, "job")
	db := b.sqlDB
	fn := func(context.Context, *sql.Tx) error { t.Error("called"); return nil }
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // it did nothing
	_, noDB := fencedstore.OutcomeSQL(t.Context(), nil, fencedstore.Receipt{})
	for what, c := range map[string]struct {
		err   error
		field string
	}{
		"WriteSQL without db":        {fencedstore.WriteSQL(t.Context(), nil, l, fn), "db"},
		"WriteSQL without fn":        {fencedstore.WriteSQL(t.Context(), db, l, nil), "fn"},
		"WriteSQL without lease":     {fencedstore.WriteSQL(t.Context(), db, nil, fn), "lease"},
		"WriteAllSQL without fences": {fencedstore.WriteAllSQL(t.Context(), db, nil, fn), "fences"},
		"OnceSQL without a key":      {fencedstore.OnceSQL(t.Context(), db, l, "", fn), "key"},
		"OutcomeSQL without db":      {noDB, "db"},
		"GuardOnceSQL without tx":    {fencedstore.GuardOnceSQL(t.Context(), nil, l, "k"), "tx"},
		"GuardOnceSQL with a nil tx": {fencedstore.GuardOnceSQL(t.Context(), (*sql.Tx)(nil), l, "k"), "tx"},
		"GuardOnce without tx":       {fencedstore.GuardOnce(t.Context(), nil, l, "k"), "tx"},
		"GuardOnceSQL without a key": {fencedstore.GuardOnceSQL(t.Context(), tx, l, ""), "key"},
		"GuardOnceSQL with a level": {fencedstore.GuardOnceSQL(t.Context(), tx, l, "k",
			fencedstore.WithTxOptions(pgx.TxOptions{})), "WithTxOptions"},
		"GuardSQL with retention": {fencedstore.GuardSQL(t.Context(), tx, l,
			fencedstore.WithRetention(time.Now(), time.Hour)), "WithRetention"},
		"a receipt without a place": {fencedstore.GuardSQL(t.Context(), tx, l, fencedstore.WithReceipt(nil)),
			"receipt"},
		"a time limit that is none": {fencedstore.WriteSQL(t.Context(), db, l, fn, fencedstore.WithTimeLimit(0)),
			"time limit"},
		"a time limit below a moment": {fencedstore.WriteSQL(t.Context(), db, l, fn,
			fencedstore.WithTimeLimit(pglock.MinTTL-1)), "time limit"},
		"a time limit beyond a day": {b.store.Write(t.Context(), l, nothing, fencedstore.WithTimeLimit(24*time.Hour+1)),
			"time limit"},
		"a time limit for Run": {b.store.Run(t.Context(), l, fencedstore.Reversible{Apply: func(context.Context) error {
			return nil
		},
			Restore: func(context.Context) error {
				return nil
			}}, fencedstore.WithTimeLimit(time.Hour)), "WithTimeLimit or WithReceipt"},
	} {
		var bad *pglock.ArgumentError
		if !errors.As(c.err, &bad) || !errors.Is(c.err, pglock.ErrInvalid) || bad.Field != c.field {
			t.Errorf("%s: %v, want an ArgumentError for %s", what, c.err, c.field)
		}
	}
	if n := b.number(t, `SELECT count(*) FROM pglock.fences`); n != 0 {
		t.Errorf("%d fences", n)
	}
}
