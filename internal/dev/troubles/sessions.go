//go:build unix

package troubles

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

func itoa(n int) string { return strconv.Itoa(n) }

// reporter holds the lock, has written under its fence before, and others wait.
func (s *Stage) reporter(ctx context.Context) (*pgxpool.Pool, *pglock.Lease, error) {
	pool, lease, err := s.newReporter(ctx)
	if err == nil {
		err = fencedstore.New(pool).Write(ctx, fencedstore.Fence{Lease: lease, SameToken: true}, nothing)
	}
	return pool, lease, err
}

// newReporter holds the lock, under which nobody has written before, and others wait.
func (s *Stage) newReporter(ctx context.Context) (*pgxpool.Pool, *pglock.Lease, error) {
	if err := s.accounts(ctx); err != nil {
		return nil, nil, err
	}
	_, pool, lease, err := s.holder(ctx, "app-1/reporter[4711]", report)
	if err == nil {
		err = s.queue(ctx, report, "app-2/reporter[963]", "app-3/reporter[77]")
	}
	if err == nil {
		err = s.heldFor(ctx, lease, 7*time.Minute)
	}
	if err == nil {
		err = s.waiting(ctx, report, 6*time.Minute)
	}
	return pool, lease, err
}

// writes makes the holder write, and returns when the server has the statement or, if it is to block, when it does.
func (s *Stage) writes(ctx context.Context, pool *pgxpool.Pool, lease *pglock.Lease, sql string, blocks bool) error {
	s.wg.Go(func() {
		_ = fencedstore.New(pool).With(fencedstore.WithTimeLimit(time.Hour)).Write(s.ctx,
			fencedstore.Fence{Lease: lease, SameToken: true},
			func(ctx context.Context, tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, sql); err != nil {
					return err
				}
				<-ctx.Done() // the program does something else, and never comes back
				return ctx.Err()
			})
	})
	state, since := "state = 'idle in transaction'", "11.2 s" // idle for less is usual
	if blocks {
		state, since = "wait_event_type = 'Lock'", "1.1 s"
	}
	return s.until(ctx, "the holder's write", fmt.Sprintf("SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = "+
		"current_database() AND query LIKE 'UPDATE accounts%%' AND application_name LIKE 'pglock app-1%%' AND %s AND "+
		"state_change < clock_timestamp() - interval '%s'", state, since))
}

const pay = "UPDATE accounts SET balance = balance + 60 WHERE id = 16"

// blocked is a holder whose write waits for a session that works for long.
func blocked(ctx context.Context, s *Stage) error {
	pool, lease, err := s.reporter(ctx)
	if err != nil {
		return err
	}
	conn, err := s.session(ctx, "batch", "month-end", "BEGIN",
		"UPDATE accounts SET balance = balance - 1 WHERE id = 16")
	if err != nil {
		return err
	}
	s.works(conn, "SELECT sum(balance), pg_sleep(7200) FROM accounts")
	return s.writes(ctx, pool, lease, pay, true)
}

func idlePsql(ctx context.Context, s *Stage) error {
	pool, lease, err := s.reporter(ctx)
	if err == nil {
		_, err = s.session(ctx, "alice", "psql", "BEGIN", "UPDATE accounts SET balance = 0 WHERE id = 16")
	}
	if err == nil {
		err = s.writes(ctx, pool, lease, pay, true)
	}
	return err
}

// firstPsql is idlePsql for a lock under which nobody has written before: its fence has no row yet.
func firstPsql(ctx context.Context, s *Stage) error {
	pool, lease, err := s.newReporter(ctx)
	if err == nil {
		_, err = s.session(ctx, "alice", "psql", "BEGIN", "UPDATE accounts SET balance = 0 WHERE id = 16")
	}
	if err == nil {
		err = s.writes(ctx, pool, lease, pay, true)
	}
	return err
}

func idle(ctx context.Context, s *Stage) error {
	pool, lease, err := s.reporter(ctx)
	if err != nil {
		return err
	}
	return s.writes(ctx, pool, lease, pay, false)
}

func rowPsql(ctx context.Context, s *Stage) error {
	if _, _, err := s.reporter(ctx); err != nil {
		return err
	}
	_, err := s.session(ctx, "", "psql", "BEGIN", "SELECT name, holder, token FROM pglock.locks WHERE name = "+
		"'nightly-report' FOR UPDATE")
	if err == nil {
		err = s.until(ctx, "the age of the transaction", "SELECT count(*) > 0 FROM pg_stat_activity WHERE "+
			"application_name = 'psql' AND datname = current_database() AND state_change < clock_timestamp() - "+
			"interval '1.1 s'")
	}
	return err
}

// fence is a former holder's open transaction, at which the present holder's write waits.
func fence(ctx context.Context, s *Stage) error {
	pool, lease, err := s.reporter(ctx)
	if err != nil {
		return err
	}
	if err := s.writes(ctx, pool, lease, pay, false); err != nil {
		return err
	}
	return s.nextAtFence(ctx, lease)
}

// fencePsql is fence, and the former holder's transaction waits for a row that somebody's psql has locked.
func fencePsql(ctx context.Context, s *Stage) error {
	pool, lease, err := s.reporter(ctx)
	if err == nil {
		_, err = s.session(ctx, "alice", "psql", "BEGIN", "SELECT balance FROM accounts WHERE id = 16 FOR UPDATE")
	}
	if err == nil {
		err = s.writes(ctx, pool, lease, pay, true)
	}
	if err != nil {
		return err
	}
	return s.nextAtFence(ctx, lease)
}

// nextAtFence breaks the lease of a write that is open, and has the next holder wait at the fence.
func (s *Stage) nextAtFence(ctx context.Context, lease *pglock.Lease) error {
	var next int64
	const taken = `SELECT token FROM pglock.get_lock('nightly-report') WHERE held AND holder LIKE 'app-2%'`
	if err := s.exec(ctx, "SELECT pglock.break_lock('nightly-report', 'stuck', 'alice@ops', $1)",
		int64(lease.Token())); err != nil {
		return err
	}
	if err := s.until(ctx, "the next holder", "SELECT count(*) = 1 FROM ("+taken+") t"); err != nil {
		return err
	}
	if err := s.admin.QueryRow(ctx, taken).Scan(&next); err != nil {
		return err
	}
	conn, err := s.session(ctx, "", "reporter", "BEGIN")
	if err != nil {
		return err
	}
	s.works(conn, fmt.Sprintf("SELECT pglock.fence('nightly-report', %d, l.grant_id) FROM pglock.locks l WHERE "+
		"l.name = 'nightly-report'", next))
	return s.until(ctx, "the wait at the fence", "SELECT count(*) > 0 FROM pg_stat_activity WHERE pid = $1 AND "+
		"wait_event_type = 'Lock' AND state_change < clock_timestamp() - interval '1.1 s'", conn.PgConn().PID())
}

// prepared is half of a two-phase commit whose other half nobody knows any more. The program that made it is dead.
func prepared(ctx context.Context, s *Stage) error {
	var most int
	if err := s.admin.QueryRow(ctx,
		"SELECT current_setting('max_prepared_transactions')::int").Scan(&most); err != nil {
		return err
	}
	if most == 0 {
		return errNoPrepared
	}
	if err := s.accounts(ctx); err != nil {
		return err
	}
	p, err := s.process(ctx, rolePrepare)
	if err != nil {
		return err
	}
	s.atEnd(func() { _, _ = s.admin.Exec(context.Background(), "ROLLBACK PREPARED 'transfer-2026-11-22-0316'") })
	err = s.queue(ctx, report, "app-2/reporter[963]", "app-3/reporter[77]")
	if err == nil {
		err = p.Kill()
	}
	if err == nil {
		err = s.until(ctx, "the end of the lease", "SELECT NOT held FROM pglock.get_lock('nightly-report')")
	}
	if err == nil {
		err = s.waiting(ctx, report, 21*time.Minute)
	}
	return err
}

func free(ctx context.Context, s *Stage) error {
	c, _, err := s.client(ctx, "app-1/reporter[4711]")
	if err != nil {
		return err
	}
	lease, err := c.TryAcquire(ctx, report)
	if err != nil {
		return err
	}
	return lease.Release(ctx)
}

func broken(ctx context.Context, s *Stage) error {
	_, _, _, err := s.holder(ctx, "app-1/reporter[4711]", report)
	if err != nil {
		return err
	}
	return s.exec(ctx, "SELECT pglock.break_lock('nightly-report', 'host is down, ticket OPS-17', 'alice@ops')")
}

func similar(ctx context.Context, s *Stage) error {
	return s.exec(ctx, "SELECT pglock.acquire_lease(n, gen_random_uuid(), gen_random_uuid(), 'app-1/reporter[4711]', "+
		"'1 h') FROM unnest('{nightly-report,nightly-export,invoices,gpu}'::text[]) n")
}

// table is a maintenance job that somebody has left open.
func table(ctx context.Context, s *Stage) error {
	_, err := s.session(ctx, "", "psql", "BEGIN", "LOCK TABLE pglock.locks")
	return err
}

// tableWanted is a maintenance job that waits for the healthy write of a holder, and everybody else waits for the job.
func tableWanted(ctx context.Context, s *Stage) error {
	err := s.exec(ctx, "SELECT pglock.acquire_lease('nightly-report', gen_random_uuid(), gen_random_uuid(), "+
		"'app-1/reporter[4711]', '1 h')")
	if err != nil {
		return err
	}
	writes, err := s.session(ctx, "", "reporter", "BEGIN", "SELECT pglock.fence(l.name, l.token, l.grant_id) FROM "+
		"pglock.locks l WHERE l.name = 'nightly-report'")
	if err != nil {
		return err
	}
	s.works(writes, "SELECT pg_sleep(7200)")
	wants, err := s.session(ctx, "", "psql", "BEGIN")
	if err != nil {
		return err
	}
	s.works(wants, "LOCK TABLE pglock.locks")
	return s.until(ctx, "the wait for the table", "SELECT count(*) > 0 FROM pg_stat_activity WHERE pid = $1 AND "+
		"wait_event_type = 'Lock' AND state_change < clock_timestamp() - interval '1.1 s'", wants.PgConn().PID())
}
