package drivers_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

// What GORM has for a connection inside Transaction is a transaction of database/sql, with prepared statements or
// without.
var (
	_ fencedstore.SQLTx = (*sql.Tx)(nil)
	_ fencedstore.SQLTx = (*gorm.PreparedStmtTX)(nil)
)

// sqlDrivers are the drivers of database/sql, with what their URLs have.
var sqlDrivers = map[string][2]string{"pgx": {"pgx", ""}, "lib/pq": {"postgres", ""},
	"lib/pq with binary parameters": {"postgres", "binary_parameters=yes"}}

func openDriver(t *testing.T, of [2]string, url string) *sql.DB {
	t.Helper()
	if of[1] != "" {
		url += map[bool]string{true: "&", false: "?"}[strings.Contains(url, "?")] + of[1]
	}
	return openSQL(t, of[0], url)
}

// warm opens the heartbeat's connection: on a busy machine that may take as long as a third of a short TTL.
func warm(t *testing.T, s *scene) *scene {
	t.Helper()
	l, err := s.holder.TryAcquire(t.Context(), "warm")
	if err == nil {
		_, err = l.Extend(t.Context(), pglock.MinTTL)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// gate makes COMMIT wait for a row that the test has locked, so that the test can do something to the COMMIT.
type gate struct {
	s    *scene
	lift func()
}

func newGate(t *testing.T, s *scene) *gate {
	t.Helper()
	if _, err := s.pool.Exec(t.Context(), `CREATE TABLE gate AS SELECT 1 AS n;
		CREATE TABLE done (n int);
		CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM FROM gate FOR UPDATE; RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON done DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait_at_gate()`); err != nil {
		t.Fatal(err)
	}
	tx, err := s.pool.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), `SELECT FROM gate FOR UPDATE`)
	}
	if err != nil {
		t.Fatal(err)
	}
	lift := func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }
	t.Cleanup(lift)
	return &gate{s, lift}
}

const atGate = `FROM pg_stat_activity WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0 AND query ILIKE 'commit%'`

// reached waits until a COMMIT waits at the gate.
func (g *gate) reached(t *testing.T) {
	t.Helper()
	g.s.eventually(t, "COMMIT to wait at the gate", `SELECT count(*) = 1 `+atGate)
}

// passed waits until the COMMIT is over.
func (g *gate) passed(t *testing.T) {
	t.Helper()
	g.s.eventually(t, "the COMMIT to be over", `SELECT count(*) = 0 FROM pg_stat_activity
		WHERE datname = current_database() AND xact_start IS NOT NULL AND query ILIKE 'commit%'`)
}

func (g *gate) rows(t *testing.T) (n int) {
	t.Helper()
	must.Do(t, g.s.pool.QueryRow(t.Context(), `SELECT count(*) FROM done`).Scan(&n))
	return n
}

func insertDone(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO done VALUES (1)`)
	return err
}

// The answer to COMMIT is lost, after the COMMIT or instead of it. The write says what is true, whatever the driver.
func TestI17_LostAnswerToTheCOMMITOfAnyDriverIsResolved(t *testing.T) {
	t.Parallel()
	for name, of := range sqlDrivers {
		for what, c := range map[string]struct {
			strike func(t *testing.T, g *gate, w *wire)
			rows   int
		}{
			"committed, then cut": {func(_ *testing.T, g *gate, w *wire) {
				w.cut()
				g.lift()
			}, 1},
			"cut, then rolled back": {func(t *testing.T, g *gate, w *wire) {
				w.cut()
				if _, err := g.s.pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) `+atGate); err != nil {
					t.Error(err)
				}
			}, 0},
			"committed in silence": {func(_ *testing.T, g *gate, w *wire) {
				w.silence(false)
				g.lift()
			}, 1},
			"rolled back in silence": {func(t *testing.T, g *gate, w *wire) {
				w.silence(false)
				if _, err := g.s.pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) `+atGate); err != nil {
					t.Error(err)
				}
			}, 0},
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				t.Parallel()
				s := newScene(t)
				g, w := newGate(t, s), newWire(t, s.url)
				db := openDriver(t, of, w.url)
				lease := s.lease(t)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				done := make(chan error, 1)
				go func() { done <- fencedstore.NewSQL(db).Write(ctx, lease, insertDone) }()
				g.reached(t)
				c.strike(t, g, w)
				g.passed(t)
				time.Sleep(100 * time.Millisecond) // the answer is on its way, and goes nowhere
				w.mend()
				if strings.HasSuffix(what, "silence") { // which lasts for longer than the caller waits
					cancel()
				}
				err := <-done
				if rows := g.rows(t); (err == nil) != (rows == 1) || rows != c.rows ||
					errors.Is(err, pglock.ErrOutcomeUnknown) {
					t.Errorf("I17: it answered %v and there are %d rows, want %d", err, rows, c.rows)
				}
			})
		}
	}
}

// labelled runs f in a goroutine whose goroutines carry the name of the test.
func labelled(t *testing.T, f func()) {
	t.Helper()
	name := t.Name()
	go pprof.Do(t.Context(), pprof.Labels("test", name), func(context.Context) { f() })
}

// goesOn returns what a write that labelled has run left behind: the goroutines of package fencedstore.
func goesOn(t *testing.T) (left []string) {
	t.Helper()
	var all strings.Builder
	must.Do(t, pprof.Lookup("goroutine").WriteTo(&all, 1))
	for one := range strings.SplitSeq(all.String(), "\n\n") {
		if strings.Contains(one, fmt.Sprintf("%q", t.Name())) && strings.Contains(one, "pglock/fencedstore.") {
			left = append(left, one)
		}
	}
	return left
}

// Where nobody answers, the client of the lease neither, the write says that it does not know, in time, and its receipt
// answers later. By then nothing of the write goes on, though the line is still silent.
func TestI17_OutcomeThatNobodyTellsIsUnknownAndCanBeAskedForLater(t *testing.T) {
	t.Parallel()
	for name, of := range sqlDrivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			g, w := newGate(t, s), newWire(t, s.url)
			db := openDriver(t, of, w.url)
			pool, err := pgxpool.New(t.Context(), w.url)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			s.holder = newClient(t, pool)
			lease := s.lease(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			labelled(t, func() { done <- fencedstore.NewSQL(db).Write(ctx, lease, insertDone) })
			g.reached(t)
			w.silence(true)
			g.lift()
			g.passed(t)
			cancel() // the caller waits no longer
			begin := time.Now()
			err = <-done
			var unknown *fencedstore.OutcomeUnknownError
			if !errors.As(err, &unknown) || !errors.Is(err, pglock.ErrOutcomeUnknown) {
				t.Fatalf("I17: %v, want an OutcomeUnknownError", err)
			}
			if took := time.Since(begin); took > 15*time.Second {
				t.Errorf("it took %v", took)
			}
			if errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v is taken for a timeout of the caller's, who has canceled", err)
			}
			for _, left := range goesOn(t) {
				t.Errorf("it goes on:\n%s", left)
			}
			w.mend()
			w.end() // what the driver itself has left behind sees its connections go
			got, err := fencedstore.NewSQL(db).Outcome(t.Context(), unknown.Receipt)
			if got != fencedstore.OutcomeCommitted || err != nil {
				t.Errorf("I17: %q, %v", got, err)
			}
			if rows := g.rows(t); rows != 1 {
				t.Errorf("%d rows", rows)
			}
		})
	}
}

// A transaction that takes too long is ended by the server, and the error says by which limit, also where the driver
// says "driver: bad connection".
func TestI16_TimeLimitIsToldWhateverTheDriver(t *testing.T) {
	t.Parallel()
	const limit = 4 * time.Second
	for name, of := range sqlDrivers {
		for what, do := range map[string]func(context.Context, *sql.Tx) error{
			"a statement": func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, `SELECT pg_sleep(30)`)
				return err
			},
			"a pause": func(ctx context.Context, tx *sql.Tx) error {
				time.Sleep(limit + 500*time.Millisecond)
				_, err := tx.ExecContext(context.WithoutCancel(ctx), `SELECT 1`)
				return err
			},
			"a pause whose error is hidden": func(context.Context, *sql.Tx) error {
				time.Sleep(limit + 20*time.Millisecond)
				return nil
			},
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				t.Parallel()
				s := warm(t, newScene(t))
				store := fencedstore.NewSQL(openDriver(t, of, s.url)).With(fencedstore.WithTimeLimit(limit))
				err := store.Write(t.Context(), s.leaseOf(t, time.Minute), do)
				var late *fencedstore.TimeLimitError
				if !errors.As(err, &late) || late.Limit != limit || !strings.Contains(err.Error(), "WithTimeLimit") {
					t.Errorf("%v, want a TimeLimitError of %v", err, limit)
				}
			})
		}
	}
}

// Work that takes longer than the TTL is committed, whatever the driver.
func TestWorkLongerThanATTLIsCommittedWhateverTheDriver(t *testing.T) {
	t.Parallel()
	for name, of := range sqlDrivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := warm(t, newScene(t))
			must.Get(s.pool.Exec(t.Context(), `CREATE TABLE done (n int)`))(t)
			db, lease := openDriver(t, of, s.url), s.leaseOf(t, 4*time.Second)
			for i := range 2 {
				store := fencedstore.NewSQL(db).With(fencedstore.WithTimeLimit(time.Minute))
				err := store.Once(t.Context(), lease, "nightly",
					func(ctx context.Context, tx *sql.Tx) error {
						if _, err := tx.ExecContext(ctx, `SELECT pg_sleep(5)`); err != nil {
							return err
						}
						return insertDone(ctx, tx)
					})
				if want := map[int]error{0: nil, 1: fencedstore.ErrDone}[i]; !errors.Is(err, want) {
					t.Errorf("%v, want %v", err, want)
				}
			}
			var n int
			if err := s.pool.QueryRow(t.Context(), `SELECT count(*) FROM done`).Scan(&n); err != nil || n != 1 {
				t.Errorf("%d rows: %v", n, err)
			}
		})
	}
}

// The connections of the pool may all have died while nobody used them. Some drivers notice that at BEGIN alone.
func TestWriteReplacesDeadConnectionsWhateverTheDriver(t *testing.T) {
	t.Parallel()
	for name, of := range sqlDrivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			db, lease := openDriver(t, of, s.url), s.lease(t)
			db.SetMaxIdleConns(10)
			conns := make([]*sql.Conn, 10)
			pids := make([]int, len(conns))
			for i := range conns {
				var err error
				if conns[i], err = db.Conn(t.Context()); err == nil {
					err = conns[i].QueryRowContext(t.Context(), `SELECT pg_backend_pid()`).Scan(&pids[i])
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			for _, c := range conns {
				_ = c.Close()
			}
			for _, pid := range pids {
				must.Get(s.pool.Exec(t.Context(), `SELECT pg_terminate_backend($1, 10000)`, pid))(t)
			}
			if err := fencedstore.NewSQL(db).Write(t.Context(), lease, func(context.Context, *sql.Tx) error {
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

// A guard takes what GORM has for a connection inside Transaction, and refuses none of its writes.
func TestGuardTakesTheTransactionOfGORM(t *testing.T) {
	t.Parallel()
	for _, prepares := range []bool{false, true} {
		s := newScene(t)
		db, err := gorm.Open(postgres.New(postgres.Config{Conn: openSQL(t, "pgx", s.url)}),
			&gorm.Config{PrepareStmt: prepares})
		if err != nil {
			t.Fatal(err)
		}
		lease := s.lease(t)
		err = db.WithContext(t.Context()).Transaction(func(tx *gorm.DB) error {
			inner, ok := tx.Statement.ConnPool.(fencedstore.SQLTx)
			if !ok {
				t.Fatalf("GORM has a %T", tx.Statement.ConnPool)
			}
			guarded, err := fencedstore.GuardSQL(t.Context(), inner, lease, fencedstore.WithTimeLimit(time.Hour))
			if err != nil {
				return err
			}
			if err := tx.Exec("UPDATE accounts SET balance = balance + 60").Error; err != nil {
				return err
			}
			return guarded.Seal(t.Context())
		})
		if err != nil {
			t.Errorf("prepared statements %v: %v", prepares, err)
		}
		s.has(t, 60)
	}
}
