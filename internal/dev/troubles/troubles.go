//go:build unix

// Package troubles prepares locks in trouble on a real server, for tests of what explains them and for people who want
// to see such a lock. Each trouble is made as it happens in life: with processes that are killed or stopped, sessions
// that leave transactions open, and transactions that nobody ends. Only the clock is helped along: rows are made older,
// so that nobody waits for half an hour.
package troubles

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/pglock"
)

// Trouble is a lock in trouble.
type Trouble struct {
	Name string
	Lock string // to look at
	Mend string // what ends it, for whoever judges
	make func(s *Stage)
}

// All lists the troubles. The first eight are those that an explanation is judged by.
func All() []Trouble { return slices.Clone(all) }

const report = "nightly-report"

var all = []Trouble{
	{"crashed-holder", report, "the holder was killed: break the lease, or wait", crashed},
	{"stopped-holder", report, "the holder is stopped by SIGSTOP: let it go on (kill -CONT), or end it, or break the " +
		"lease", stopped},
	{"blocked-holder", report, "the holder's write waits for a row that another session's long statement has locked: " +
		"cancel that", blocked},
	{"idle-holder", report, "the holder's own fenced transaction is open and idle: end it, or the program", idle},
	{"deadlock", report, "three holders wait for each other: end one, or break its lease", deadlock},
	{"prepared-transaction", report, "a prepared transaction has locked the lock's row and the fence: end it",
		prepared},
	{"long-queue", report, "nothing is broken: the holder works slowly, and 200 wait", longQueue},
	{"wrong-database", report, "the lock is in database app of the same server", wrongDatabase},

	{"stopped-early", report, "as stopped-holder, and the holder has never renewed", stoppedEarly},
	{"handed-past", report, "two programs hand the lock to each other, past a third one", handedPast},
	{"writer-first", report, "nothing: a writer waits for two readers, and a third reader waits behind it",
		writerFirst},
	{"idle-psql", report,
		"somebody's psql is idle in a transaction that has locked a row of the holder's write: end it", idlePsql},
	{"first-psql", report, "as idle-psql, and the write that waits is the first one under the lock", firstPsql},
	{"row-psql", report, "somebody's psql has locked the lock's own row: end it", rowPsql},
	{"fence", report, "a write waits at the fence for the open transaction of a former holder", fence},
	{"fence-psql", report, "a write waits at the fence for a former holder's, which waits for a row that somebody's " +
		"psql has locked: end that", fencePsql},
	{"waits", report, "the holder waits for another lock", waits},
	{"waits-unsaid", report, "the holder waits for another lock, without the context of its lease", waitsUnsaid},
	{"subtree-above", importer, "nothing: a program has the whole subtree above", subtreeAbove},
	{"subtree-below", tenant, "nothing: a program wants a whole subtree, and another holds a lock below", subtreeBelow},
	{"subtree-before", importer, "nothing: a request for the subtree above came before", subtreeBefore},
	{"wrong-database-empty", report, "as wrong-database, but the database has no pglock at all", wrongDatabaseEmpty},
	{"own-queue", report, "nothing: another goroutine of the holder's program waits for its turn", ownQueue},
	{"healthy", report, "nothing", healthy},
	{"free", report, "nothing", free},
	{"broken", report, "nothing: somebody broke the lease a moment ago", broken},
	{"limit", "gpu", "nothing: three of four places are taken", limit},
	{"similar", "nightly_reprot", "the name is wrong", similar},
	{"pooler", report, "nothing: the holder comes through a pooler", pooler},
	{"table", report, "somebody has locked the whole table: end that", table},
	{"table-wanted", report, "somebody waits to lock the whole table, behind the holder's healthy write: end whoever " +
		"waits", tableWanted},
}

// Stage is where a trouble is. Close ends everything that belongs to it but the database.
type Stage struct {
	Lock string
	URL  string // of the database that the person on call looks into

	url    string // of a superuser, in the database of the trouble
	admin  *pgxpool.Pool
	ends   []func()
	making context.Context //nolint:containedctx // of Prepare
	ctx    context.Context //nolint:containedctx // of everything that goes on until Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// Prepare makes a trouble in a database with pglock's schema; its user is a superuser. It ends when ctx does, at the
// latest. The caller closes the Stage. A prepared transaction needs a server with max_prepared_transactions.
func Prepare(ctx context.Context, name, url string) (*Stage, error) {
	at := slices.IndexFunc(all, func(t Trouble) bool { return t.Name == name })
	if at < 0 {
		return nil, fmt.Errorf("troubles: there is none of the name %q", name)
	}
	s := &Stage{Lock: all[at].Lock, URL: url, url: url, making: ctx}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := s.prepare(all[at]); err != nil {
		s.Close()
		return nil, fmt.Errorf("troubles: %s: %w", name, err)
	}
	return s, nil
}

// failed is what ends the making of a trouble.
type failed struct{ error }

// must ends the making of a trouble if there is an error. Only its own goroutine calls it.
func must(err error) {
	if err != nil {
		panic(failed{err})
	}
}

func get[T any](v T, err error) T {
	must(err)
	return v
}

func (s *Stage) prepare(t Trouble) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failed:
			err = r.error
		default:
			panic(r)
		}
	}()
	s.admin = get(pgxpool.New(s.ctx, s.url))
	t.make(s)
	return nil
}

// Close ends the trouble's processes, sessions and clients.
func (s *Stage) Close() {
	s.cancel()
	for _, end := range slices.Backward(s.ends) {
		end()
	}
	s.wg.Wait()
	if s.admin != nil {
		s.admin.Close()
	}
}

func (s *Stage) atEnd(f func()) { s.ends = append(s.ends, f) }

func (s *Stage) exec(sql string, args ...any) {
	_, err := s.admin.Exec(s.making, sql, args...)
	must(err)
}

// until waits for what a query finds.
func (s *Stage) until(what, query string, args ...any) {
	for {
		var so bool
		if err := s.admin.QueryRow(s.making, query, args...).Scan(&so); err != nil {
			must(fmt.Errorf("%s: %w", what, err))
		}
		if so {
			return
		}
		if !pauseBriefly(s.making) {
			must(fmt.Errorf("%s: %w", what, s.making.Err()))
		}
	}
}

// client is a program of its own, as far as pglock knows.
func (s *Stage) client(label string, opts ...pglock.Option) (*pglock.Client, *pgxpool.Pool) {
	config := get(pgxpool.ParseConfig(s.url))
	config.MaxConns = 3
	config.ConnConfig.RuntimeParams["application_name"] = "pglock " + label
	pool := get(pgxpool.NewWithConfig(s.ctx, config))
	s.atEnd(pool.Close)
	c := get(pglock.New(s.making, pool, append([]pglock.Option{pglock.WithDefaultHolder(label)}, opts...)...))
	s.atEnd(func() {
		s.settle()
		_ = c.Close(context.Background()) // its locks are of no interest any more
	})
	return c, pool
}

// settle ends what keeps clients from closing.
func (s *Stage) settle() {
	_, _ = s.admin.Exec(context.Background(), `SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a
		WHERE a.datname = current_database() AND a.xact_start < clock_timestamp() - interval '100 ms' AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend'`)
}

// wait queues for a lock until the stage is closed, and returns when the ticket is there.
func (s *Stage) wait(c *pglock.Client, under context.Context, lock string, opts ...pglock.AcquireOption) {
	var before int
	must(s.admin.QueryRow(s.making, "SELECT count(*) FROM pglock.waiters WHERE name = $1", lock).Scan(&before))
	s.wg.Go(func() {
		waiting, cancel := context.WithCancel(under)
		defer cancel()
		defer context.AfterFunc(s.ctx, cancel)()
		_, _ = c.Acquire(waiting, lock, opts...) // granted or not: its client gives it back
	})
	s.until("a ticket of "+lock, "SELECT count(*) > $2 FROM pglock.waiters WHERE name = $1", lock, before)
}

// session is a connection that somebody works on by hand.
func (s *Stage) session(user, application string, statements ...string) *pgx.Conn {
	config := get(pgx.ParseConfig(s.url))
	config.RuntimeParams["application_name"] = application
	if user != "" {
		s.role(user)
		config.User, config.Password = user, "secret"
	}
	conn := get(pgx.ConnectConfig(s.making, config))
	s.atEnd(func() { _ = conn.Close(context.Background()) })
	for _, sql := range statements {
		if _, err := conn.Exec(s.making, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			must(fmt.Errorf("%s: %w", sql, err))
		}
	}
	return conn
}

// works runs a statement on a session until the stage is closed.
func (s *Stage) works(conn *pgx.Conn, sql string) {
	done := make(chan struct{})
	s.atEnd(func() { <-done }) // before the session is closed
	s.wg.Go(func() {
		defer close(done)
		_, _ = conn.Exec(s.ctx, sql, pgx.QueryExecModeSimpleProtocol)
	})
}

// role makes a user who may write to the application's table. Roles belong to the whole server: it may exist.
func (s *Stage) role(user string) {
	name := pgx.Identifier{user}.Sanitize()
	s.exec(`DO $$ BEGIN CREATE ROLE ` + name +
		` LOGIN PASSWORD 'secret'; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$;
		GRANT pglock_user TO ` + name + `; GRANT ALL ON accounts TO ` + name)
}

// accounts makes the application's table.
func (s *Stage) accounts() {
	s.exec("CREATE TABLE IF NOT EXISTS accounts (id int PRIMARY KEY, balance int NOT NULL); INSERT INTO " +
		"accounts VALUES (16, 0) ON CONFLICT DO NOTHING")
}
