//go:build unix

package troubles

import (
	"context"
	"errors"
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
func (s *Stage) reporter() (*pgxpool.Pool, *pglock.Lease) {
	pool, lease := s.newReporter()
	must(fencedstore.New(pool).Write(s.making, fencedstore.Fence{Lease: lease, SameToken: true}, nothing))
	return pool, lease
}

// newReporter holds the lock, under which nobody has written before, and others wait.
func (s *Stage) newReporter() (*pgxpool.Pool, *pglock.Lease) {
	s.accounts()
	_, pool, lease := s.holder("app-1/reporter[4711]", report)
	s.queue(report, "app-2/reporter[963]", "app-3/reporter[77]")
	s.heldFor(lease, 7*time.Minute)
	s.waiting(report, 6*time.Minute)
	return pool, lease
}

// writes makes the holder write, and returns when the server has the statement or, if it is to block, when it does.
func (s *Stage) writes(pool *pgxpool.Pool, lease *pglock.Lease, blocks bool) {
	s.wg.Go(func() {
		_ = fencedstore.New(pool).With(fencedstore.WithTimeLimit(time.Hour)).Write(s.ctx,
			fencedstore.Fence{Lease: lease, SameToken: true},
			func(ctx context.Context, tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, pay); err != nil {
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
	s.until("the holder's write", fmt.Sprintf("SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = "+
		"current_database() AND query LIKE 'UPDATE accounts%%' AND application_name LIKE 'pglock app-1%%' AND %s AND "+
		"state_change < clock_timestamp() - interval '%s'", state, since))
}

const pay = "UPDATE accounts SET balance = balance + 60 WHERE id = 16"

// blocked is a holder whose write waits for a session that works for long.
func blocked(s *Stage) {
	pool, lease := s.reporter()
	conn := s.session("batch", "month-end", "BEGIN",
		"UPDATE accounts SET balance = balance - 1 WHERE id = 16")
	s.works(conn, "SELECT sum(balance), pg_sleep(7200) FROM accounts")
	s.writes(pool, lease, true)
}

func idlePsql(s *Stage) {
	pool, lease := s.reporter()
	s.session("alice", "psql", "BEGIN", "UPDATE accounts SET balance = 0 WHERE id = 16")
	s.writes(pool, lease, true)
}

// firstPsql is idlePsql for a lock under which nobody has written before: its fence has no row yet.
func firstPsql(s *Stage) {
	pool, lease := s.newReporter()
	s.session("alice", "psql", "BEGIN", "UPDATE accounts SET balance = 0 WHERE id = 16")
	s.writes(pool, lease, true)
}

func idle(s *Stage) {
	pool, lease := s.reporter()
	s.writes(pool, lease, false)
}

func rowPsql(s *Stage) {
	s.reporter()
	s.session("", "psql", "BEGIN", "SELECT name, holder, token FROM pglock.locks WHERE name = "+
		"'nightly-report' FOR UPDATE")
	s.until("the age of the transaction", "SELECT count(*) > 0 FROM pg_stat_activity WHERE "+
		"application_name = 'psql' AND datname = current_database() AND state_change < clock_timestamp() - "+
		"interval '1.1 s'")
}

// fence is a former holder's open transaction, at which the present holder's write waits.
func fence(s *Stage) {
	pool, lease := s.reporter()
	s.writes(pool, lease, false)
	s.nextAtFence(lease)
}

// fencePsql is fence, and the former holder's transaction waits for a row that somebody's psql has locked.
func fencePsql(s *Stage) {
	pool, lease := s.reporter()
	s.session("alice", "psql", "BEGIN", "SELECT balance FROM accounts WHERE id = 16 FOR UPDATE")
	s.writes(pool, lease, true)
	s.nextAtFence(lease)
}

// nextAtFence breaks the lease of a write that is open, and has the next holder wait at the fence.
func (s *Stage) nextAtFence(lease *pglock.Lease) {
	var next int64
	const taken = `SELECT token FROM pglock.get_lock('nightly-report') WHERE held AND holder LIKE 'app-2%'`
	s.exec("SELECT pglock.break_lock('nightly-report', 'stuck', 'alice@ops', $1)", int64(lease.Token()))
	s.until("the next holder", "SELECT count(*) = 1 FROM ("+taken+") t")
	must(s.admin.QueryRow(s.making, taken).Scan(&next))
	conn := s.session("", "reporter", "BEGIN")
	s.works(conn, fmt.Sprintf("SELECT pglock.fence('nightly-report', %d, l.grant_id) FROM pglock.locks l WHERE "+
		"l.name = 'nightly-report'", next))
	s.until("the wait at the fence", "SELECT count(*) > 0 FROM pg_stat_activity WHERE pid = $1 AND "+
		"wait_event_type = 'Lock' AND state_change < clock_timestamp() - interval '1.1 s'", conn.PgConn().PID())
}

// prepared is half of a two-phase commit whose other half nobody knows any more. The program that made it is dead.
func prepared(s *Stage) {
	var most int
	must(s.admin.QueryRow(s.making, "SELECT current_setting('max_prepared_transactions')::int").Scan(&most))
	if most == 0 {
		must(errors.New("the server has max_prepared_transactions = 0"))
	}
	s.accounts()
	p := s.process(rolePrepare)
	s.atEnd(func() { _, _ = s.admin.Exec(context.Background(), "ROLLBACK PREPARED 'transfer-2026-11-22-0316'") })
	s.queue(report, "app-2/reporter[963]", "app-3/reporter[77]")
	must(p.Kill())
	s.until("the end of the lease", "SELECT NOT held FROM pglock.get_lock('nightly-report')")
	s.waiting(report, 21*time.Minute)
}

func free(s *Stage) {
	c, _ := s.client("app-1/reporter[4711]")
	must(get(c.TryAcquire(s.making, report)).Release(s.making))
}

func broken(s *Stage) {
	s.holder("app-1/reporter[4711]", report)
	s.exec("SELECT pglock.break_lock('nightly-report', 'host is down, ticket OPS-17', 'alice@ops')")
}

func similar(s *Stage) {
	s.exec("SELECT pglock.acquire_lease(n, gen_random_uuid(), gen_random_uuid(), 'app-1/reporter[4711]', " +
		"'1 h') FROM unnest('{nightly-report,nightly-export,invoices,gpu}'::text[]) n")
}

// table is a maintenance job that somebody has left open.
func table(s *Stage) {
	s.session("", "psql", "BEGIN", "LOCK TABLE pglock.locks")
}

// tableWanted is a maintenance job that waits for the healthy write of a holder, and everybody else waits for the job.
func tableWanted(s *Stage) {
	s.exec("SELECT pglock.acquire_lease('nightly-report', gen_random_uuid(), gen_random_uuid(), " +
		"'app-1/reporter[4711]', '1 h')")
	writes := s.session("", "reporter", "BEGIN", "SELECT pglock.fence(l.name, l.token, l.grant_id) FROM "+
		"pglock.locks l WHERE l.name = 'nightly-report'")
	s.works(writes, "SELECT pg_sleep(7200)")
	wants := s.session("", "psql", "BEGIN")
	s.works(wants, "LOCK TABLE pglock.locks")
	s.until("the wait for the table", "SELECT count(*) > 0 FROM pg_stat_activity WHERE pid = $1 AND "+
		"wait_event_type = 'Lock' AND state_change < clock_timestamp() - interval '1.1 s'", wants.PgConn().PID())
}
