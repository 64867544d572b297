package fencedstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// blocker opens a session as psql would, runs the statement in a transaction, and leaves that open.
func (b *bench) blocker(t *testing.T, sql string) *pgx.Conn {
	t.Helper()
	config := must.Get(pgx.ParseConfig(b.db.URL()))(t)
	config.RuntimeParams["application_name"] = "psql"
	conn := must.Get(pgx.ConnectConfig(t.Context(), config))(t)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	must.Get(conn.Exec(t.Context(), "BEGIN; "+sql))(t)
	return conn
}

// waits runs a statement in the background, and returns when it waits for one other session.
func (b *bench) waits(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	t.Cleanup(func() { cancel(); <-ended })
	go func() {
		defer close(ended)
		_, _ = conn.Exec(ctx, sql)
	}()
	pgtest.Eventually(t, sql+" waits", func() bool {
		return b.number(t, `SELECT cardinality(pg_blocking_pids($1))`, conn.PgConn().PID()) == 1
	})
}

// told calls write until its error says who stood in the way. A machine that stands still when the write looks for that
// keeps it from seeing; then the error says so, and the next attempt tells more.
func toldWho(t *testing.T, write func() error) (late *fencedstore.TimeLimitError) {
	t.Helper()
	for range 5 {
		late = nil
		err := write()
		if !errors.As(err, &late) || !errors.Is(err, fencedstore.ErrTimeLimit) {
			t.Fatalf("%v, want a TimeLimitError", err)
		}
		if late.Wait != nil {
			return late
		}
		t.Logf("nobody could see whom it waited for: %v", err)
	}
	t.Fatalf("five times nobody could see whom it waited for")
	return nil
}

// A write behind a row that somebody has locked says which table, who that is, what became of the write, and how to
// find more. More time would not help, so it does not advise that.
func TestWriteBehindALockedRowSaysWhoHasLockedIt(t *testing.T) {
	t.Parallel()
	b := newWideBench(t)
	user := b.db.Conn(t).Config().User
	update := func(table string) work { return does(`UPDATE ` + table + ` SET n = 1`) }
	for name, c := range map[string]struct {
		locks, place string
		do           func(table string) work
	}{
		"a row":   {`UPDATE %s SET n = 2`, "a row of public.%s", update},
		"a table": {`LOCK TABLE %s`, "table public.%s", update},
		"a row, after a while": {`UPDATE %s SET n = 2`, "a row of public.%s", func(table string) work {
			return func(ctx context.Context, tx transaction) error {
				if err := tx.exec(ctx, `SELECT pg_sleep(0.6)`); err != nil { // so that another limit comes first
					return err
				}
				return update(table)(ctx, tx)
			}
		}},
		"an advisory lock": {`SELECT pg_advisory_xact_lock(hashtext('%s'))`, "an advisory lock",
			func(table string) work {
				return does(`SELECT pg_advisory_xact_lock(hashtext('` + table + `'))`)
			}},
	} {
		for _, how := range []string{"Write", "Write of several", "Once", "WriteSQL", "WriteSQL of several",
			"OnceSQL"} {
			switch {
			case name != "a row" && how != "Write" && how != "WriteSQL": // the others share the rest
				continue
			}
			t.Run(name+"/"+how, func(t *testing.T) {
				t.Parallel()
				table := fmt.Sprint("t", tables.Add(1))
				b.exec(t, `CREATE TABLE `+table+` AS SELECT 0 AS n`)
				// of the case's own: whoever waits in front is in the way, too
				conn := b.blocker(t, fmt.Sprintf(c.locks, table))
				pid := int(conn.PgConn().PID())
				lease := b.acquire(t, t.Name())
				late := toldWho(t, func() error {
					return ways[how](t, b, lease, c.do(table),
						fencedstore.WithTimeLimit(3*time.Second))
				})
				place := strings.ReplaceAll(c.place, "%s", table)
				if late.Wait.For != place || len(late.Wait.By) != 1 || late.Wait.By[0].PID != pid ||
					late.Wait.By[0].Application != "psql" || late.Wait.By[0].User != user ||
					late.Wait.By[0].Transaction <= 0 {
					t.Errorf("%+v, want %s by process %d (psql, user %s)", late.Wait, place, pid, user)
				}
				for _, want := range []string{place, fmt.Sprint("process ", pid), "psql", "user " + user,
					"idle in transaction",
					"nothing was written", fmt.Sprint("pg_stat_activity WHERE pid = ", pid), late.Setting} {
					if !strings.Contains(late.Error(), want) {
						t.Errorf("%q does not say %q", late, want)
					}
				}
				if strings.Contains(late.Error(), "WithTimeLimit") {
					t.Errorf("%q advises more time", late)
				}
				must.Do(t, conn.Close(t.Context()))
				if n := b.number(t, `SELECT n FROM `+table); n != 0 {
					t.Errorf("n is %d", n)
				}
			})
		}
	}
}

var tables atomic.Int32

// Of those that wait in line for a row, each is told who holds up all of them.
func TestEveryWriteInLineForARowIsToldWhoHasLockedIt(t *testing.T) {
	t.Parallel()
	b := newWideBench(t)
	b.exec(t, `CREATE TABLE accounts AS SELECT 0 AS n`)
	pid := int(b.blocker(t, `UPDATE accounts SET n = 2`).PgConn().PID())
	b.waits(t, b.blocker(t, `SELECT`), `UPDATE accounts SET n = 3`) // somebody else is the first in line
	for i := range 3 {
		limit := time.Duration(4+2*i) * time.Second // one at a time: whose wait has just ended waits for nobody
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			lease := b.acquire(t, t.Name())
			late := toldWho(t, func() error {
				return written(t, b, fencedstore.Fence{Lease: lease, SameToken: true},
					does(`UPDATE accounts SET n = 1`), fencedstore.WithTimeLimit(limit))
			})
			if late.Wait.For != "a row of public.accounts" || len(late.Wait.By) != 1 || late.Wait.By[0].PID != pid {
				t.Errorf("%+v, want process %d", late.Wait, pid)
			}
		})
	}
}

// Whoever has locked the row may wait too, for somebody who has not: that one is not said to have locked it.
func TestAWriteBehindOneThatWaitsIsToldWhoHoldsUpBoth(t *testing.T) {
	t.Parallel()
	b := newWideBench(t)
	b.exec(t, `CREATE TABLE accounts AS SELECT 0 AS n`)
	b.exec(t, `CREATE TABLE rates AS SELECT 0 AS n`)
	pid := int(b.blocker(t, `UPDATE rates SET n = 2`).PgConn().PID())
	b.waits(t, b.blocker(t, `UPDATE accounts SET n = 2`), `UPDATE rates SET n = 3`) // who has locked the row waits
	lease := b.acquire(t, t.Name())
	late := toldWho(t, func() error {
		return written(t, b, fencedstore.Fence{Lease: lease, SameToken: true}, does(`UPDATE accounts SET n = 1`),
			fencedstore.WithTimeLimit(2*time.Second))
	})
	want := fmt.Sprintf("the transaction waited for a row of public.accounts, held up by process %d (", pid)
	if len(late.Wait.By) != 1 || late.Wait.By[0].PID != pid || !strings.Contains(late.Error(), want) {
		t.Errorf("%v, want %q", late, want)
	}
}

// A write that waits at its fence for a predecessor's open transaction says whose that is, and so does a Guard.
func TestWriteThatWaitsAtItsFenceSaysForWhom(t *testing.T) {
	t.Parallel()
	b := newWideBench(t)
	for _, how := range []string{"Write", "WriteSQL", "Guard", "GuardSQL", "Guard of several"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			before, lease := b.acquire(t, t.Name()+" before"), b.acquire(t, t.Name())
			// so that the fence's row is there to see
			must.Do(t, b.write(t, before, lease.Name(), `SELECT 1`))
			tx := b.begin(t)
			fence := fencedstore.Fence{Lease: before, Resource: lease.Name(), SameToken: true}
			must.Get(fencedstore.Guard(t.Context(), tx, fence))(t)
			pid := int(tx.Conn().PgConn().PID())
			late := toldWho(t, func() error {
				return ways[how](t, b, lease, func(context.Context, transaction) error {
					t.Error("called")
					return nil
				}, fencedstore.WithTimeLimit(1200*time.Millisecond))
			})
			place, w := fmt.Sprintf("the fence of '%s'", lease.Name()), late.Wait
			if w.For != place || len(w.By) != 1 || w.By[0].PID != pid {
				t.Errorf("%+v, want %s by process %d", late.Wait, place, pid)
			}
		})
	}
}

// A write that has passed its fence, and waits for whoever does the same key, is not told that it holds itself up.
func TestOnceBehindTheSameKeySaysWhoHasIt(t *testing.T) {
	t.Parallel()
	b := newWideBench(t)
	before, lease := b.acquire(t, "before"), b.acquire(t, "lease")
	if err := b.write(t, lease, "", `SELECT 1`); err != nil { // so that the fence's row is there to see
		t.Fatal(err)
	}
	tx := b.begin(t)
	must.Get(fencedstore.Guard(t.Context(), tx, before, fencedstore.WithKey("job")))(t)
	late := toldWho(t, func() error {
		return b.store.With(fencedstore.WithTimeLimit(2*time.Second)).Once(t.Context(),
			fencedstore.Fence{Lease: lease, SameToken: true}, "job", func(context.Context, pgx.Tx) error { return nil })
	})
	if pid := int(tx.Conn().PgConn().PID()); len(late.Wait.By) != 1 || late.Wait.By[0].PID != pid {
		t.Errorf("%+v, want process %d", late.Wait, pid)
	}
}

// Where nobody can be asked, the error says so, with what the server itself has said, and how to look.
func TestWriteBehindALockThatNobodyCanSeeSaysSo(t *testing.T) {
	t.Parallel()
	b := newWideBench(t)
	b.exec(t, `DROP FUNCTION pglock.list_blockers`)
	for _, how := range []string{"Write", "WriteSQL", "GuardSQL"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			// each is the first in line, so that the server says which row it is
			table := "behind_" + strings.ToLower(how)
			b.exec(t, `CREATE TABLE `+table+` AS SELECT 0 AS n`)
			b.blocker(t, `UPDATE `+table+` SET n = 2`)
			lease := b.acquire(t, t.Name())
			err := ways[how](t, b, lease,
				does(`UPDATE `+table+` SET n = 1`), fencedstore.WithTimeLimit(time.Second))
			var late *fencedstore.TimeLimitError
			if !errors.As(err, &late) || late.Wait != nil {
				t.Fatalf("%v, want a TimeLimitError without a Wait", err)
			}
			if late.Setting == "lock_timeout" { // where the machine stood still it may be another one
				for _, want := range []string{"nobody could see", table, "nothing was written", "pg_blocking_pids"} {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%q does not say %q", err, want)
					}
				}
				if strings.Contains(err.Error(), "WithTimeLimit") {
					t.Errorf("%q advises more time", err)
				}
			}
		})
	}
}

// A write that is not slow asks nobody anything: it sends what it sent before, and opens no connection.
func TestWriteThatIsNotSlowLooksForNobody(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t, `CREATE TABLE done (n int)`)
	var looks atomic.Int32
	b = b.through(t, func(c *pgxpool.Config) {
		c.ConnConfig.Tracer = tracer(func(sql string) {
			if strings.Contains(sql, "list_blockers") {
				looks.Add(1)
			}
		})
	})
	lease := b.acquire(t, "a")
	write := func(seconds float64, limit time.Duration) error {
		return written(t, b, fencedstore.Fence{Lease: lease, SameToken: true}, sleeps(seconds),
			fencedstore.WithTimeLimit(limit))
	}
	for range 10 {
		must.Do(t, write(0.05, time.Minute))
	}
	if n := looks.Load(); n != 0 {
		t.Errorf("it looked %d times", n)
	}
	for i := 0; i < 5 && looks.Load() == 0; i++ { // a machine that stands still may keep it from looking in time
		err := write(60, 600*time.Millisecond)
		if !errors.Is(err, fencedstore.ErrTimeLimit) || !strings.Contains(err.Error(), "WithTimeLimit") {
			t.Errorf("%v, want a TimeLimitError that advises more time", err)
		}
	}
	if looks.Load() == 0 {
		t.Error("the test would not have seen a look")
	}
}

type tracer func(sql string)

func (tr tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	tr(data.SQL)
	return ctx
}

func (tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A wait for a lock ends before its statement would, however short the limit, so that the error says that it was a
// lock. A lower limit of the user stays.
func TestWaitForALockMayTakeLessThanItsStatement(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	lease := b.acquire(t, "a")
	of := func(store *fencedstore.Store, limit time.Duration) (lock, statement int, err error) {
		for range 10 { // a busy machine may need all of a short limit
			err = store.With(fencedstore.WithTimeLimit(limit)).Write(t.Context(),
				fencedstore.Fence{Lease: lease, SameToken: true},
				func(ctx context.Context, tx pgx.Tx) error {
					return tx.QueryRow(ctx, `SELECT a.setting::int, b.setting::int FROM pg_settings a, pg_settings b
					WHERE a.name = 'lock_timeout' AND b.name = 'statement_timeout'`).Scan(&lock, &statement)
				})
			if !errors.Is(err, fencedstore.ErrTimeLimit) {
				break
			}
		}
		return lock, statement, err
	}
	for limit, want := range map[time.Duration]int{
		100 * time.Millisecond: 80, 200 * time.Millisecond: 180, time.Second: 950, 10 * time.Second: 9500,
		time.Minute: 59000,
	} {
		lock, statement, err := of(b.store, limit)
		if err != nil || lock != want || statement != int(limit.Milliseconds()) {
			t.Errorf("%v: lock_timeout is %d ms, want %d ms, and statement_timeout is %d ms: %v",
				limit, lock, want, statement, err)
		}
	}
	low := b.db.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["lock_timeout"] = "700" })
	if lock, statement, err := of(fencedstore.New(low), time.Second); err != nil || lock != 700 || statement != 1000 {
		t.Errorf("lock_timeout is %d ms and statement_timeout is %d ms, want 700 ms and a second: %v", lock, statement,
			err)
	}
}
