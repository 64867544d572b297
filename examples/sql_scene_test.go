package examples_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

const lock = "accounts/16" // protects the account with the ID 16

// A scriptScene is a database with one account of balance 0, and somebody else's client.
type scriptScene struct {
	url   string
	pool  *pgxpool.Pool
	other *pglock.Client
	admin *lockadmin.Admin
}

func newScriptScene(t *testing.T) *scriptScene {
	t.Helper()
	db := pgtest.Database(t)
	s := &scriptScene{url: db.URL(), pool: db.Pool(t)}
	s.exec(t, `CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL DEFAULT 0)`)
	s.exec(t, `INSERT INTO accounts VALUES (16)`)
	var err error
	if s.other, err = pglock.New(t.Context(), s.pool, pglock.WithDefaultHolder("the other")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.other.Close(context.WithoutCancel(t.Context())) })
	if s.admin, err = lockadmin.New(t.Context(), s.pool); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *scriptScene) exec(t *testing.T, query string, args ...any) {
	t.Helper()
	must.Get(s.pool.Exec(t.Context(), query, args...))(t)
}

func one[T any](t *testing.T, s *scriptScene, query string, args ...any) T {
	t.Helper()
	var v T
	must.Do(t, s.pool.QueryRow(t.Context(), query, args...).Scan(&v))
	return v
}

// has fails the test unless the account has the balance.
func (s *scriptScene) has(t *testing.T, balance int64) {
	t.Helper()
	if got := one[int64](t, s, `SELECT balance FROM accounts WHERE id = 16`); got != balance {
		t.Errorf("the balance is %d, want %d", got, balance)
	}
}

// acquire is the other's; the lock must be free.
func (s *scriptScene) acquire(t *testing.T) *pglock.Lease {
	t.Helper()
	l := must.Get(s.other.TryAcquire(t.Context(), lock))(t)
	return l
}

// breakLock ends the lease of whoever holds the lock.
func (s *scriptScene) breakLock(t *testing.T) {
	t.Helper()
	must.Get(s.admin.Break(t.Context(), lock, "its host is gone", lockadmin.BreakOptions{}))(t)
}

// hold begins a transaction that holds the row of the query's, until it ends.
func (s *scriptScene) hold(t *testing.T, query string) pgx.Tx {
	t.Helper()
	tx := must.Get(s.pool.Begin(t.Context()))(t)
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	tag := must.Get(tx.Exec(t.Context(), query+" FOR UPDATE"))(t)
	if tag.RowsAffected() != 1 {
		t.Fatalf("%q holds %d rows, want 1", query, tag.RowsAffected())
	}
	return tx
}

// blocks waits until the script waits for the transaction.
func (s *scriptScene) blocks(t *testing.T, tx pgx.Tx, r *run) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !one[bool](t, s, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
			AND application_name = 'psql' AND pg_blocking_pids(pid) @> ARRAY[$1::int])`,
		int32(tx.Conn().PgConn().PID())) {
		select {
		case <-r.done:
			t.Fatalf("the script ended early, with code %d:\n%s%s", r.code, &r.stdout, &r.stderr)
		case <-time.After(2 * time.Millisecond): // between two looks; nothing depends on its length
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %v in vain for the script to be blocked", patience)
		}
	}
}

// A run is a script that psql runs. After done is closed, it has ended, and the other fields are final.
type run struct {
	done           chan struct{}
	code           int
	stdout, stderr bytes.Buffer
}

// start runs the script with the variables that -v takes. It is ended with its test.
func (s *scriptScene) start(t *testing.T, script string, variables ...string) *run {
	t.Helper()
	psql, err := exec.LookPath("psql")
	if err != nil {
		t.Skipf("needs psql on this machine: %v", err)
	}
	args := []string{"-X", "-d", s.url, "-f", script}
	for _, v := range variables {
		args = append(args, "-v", v)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	cmd := exec.CommandContext(ctx, psql, args...)
	cmd.Env = append(os.Environ(), "PGAPPNAME=psql")
	r := &run{done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &r.stdout, &r.stderr
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	var waitErr error
	go func() {
		defer close(r.done)
		waitErr = cmd.Wait()
		r.code = cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(func() {
		cancel()
		<-r.done
		if _, exited := errors.AsType[*exec.ExitError](waitErr); waitErr != nil && !exited {
			t.Errorf("psql: %v", waitErr)
		}
	})
	return r
}

// ends waits for the script's end.
func (r *run) ends(t *testing.T) {
	t.Helper()
	<-r.done // start bounds it
	t.Logf("exit code %d\n%s%s", r.code, &r.stdout, &r.stderr)
}
