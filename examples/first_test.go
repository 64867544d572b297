package examples_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

const patience = 30 * time.Second

// programs is the folder of the README's program, built in a module of its own, as somebody does who begins with go mod
// init, and of pglock-admin.
type programs string

func buildFirst(t *testing.T) programs {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name string, content []byte, err error) {
		t.Helper()
		must.Do(t, errors.Join(err, os.WriteFile(filepath.Join(dir, name), content, 0o600)))
	}
	program, err := os.ReadFile("first/main.go")
	write("main.go", program, err)
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	write("go.sum", sums, err)
	write("go.mod", fmt.Appendf(nil, "module example\n\ngo 1.26\n\nrequire github.com/pglock-dev/pglock v0.0.0\n\n"+
		"replace github.com/pglock-dev/pglock => %s\n", root), nil)
	for _, b := range []struct{ folder, modules, target, program string }{
		{dir, "-mod=mod", ".", "example"}, {root, "-mod=readonly", "./cmd/pglock-admin", "pglock-admin"},
	} {
		// go run, which hands the program to cp, keeps it in its cache, as go build does not.
		cmd := exec.CommandContext(t.Context(), "go", "run", "-ldflags=-s -w", b.modules, "-exec", "cp", b.target,
			filepath.Join(dir, b.program))
		cmd.Dir = b.folder
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
	}
	return programs(dir)
}

// A firstScene is a database in which the README's SQL was run, for a user who has nothing but what it grants.
type firstScene struct {
	programs
	db     *pgtest.DB
	owner  *pgx.Conn
	asUser string // the connection string of the program's user
	admin  *lockadmin.Admin
}

func newFirstScene(t *testing.T, in programs) *firstScene {
	t.Helper()
	s := &firstScene{programs: in, db: pgtest.Database(t)}
	s.owner = s.db.Conn(t)
	user := s.db.Name() + "_app" // roles belong to all databases of the server
	after := context.WithoutCancel(t.Context())
	t.Cleanup(func() {
		if _, err := s.owner.Exec(after, "DROP OWNED BY "+user+" CASCADE; DROP ROLE "+user); err != nil {
			t.Error(err)
		}
	})
	s.run(t, regexp.MustCompile(`\bapp\b`).ReplaceAllString(blocksOf(t, "sql")[0], user))
	s.run(t, "ALTER ROLE "+user+" PASSWORD 'first'")
	config, err := pgx.ParseConfig(s.db.URL())
	if err != nil {
		t.Fatal(err)
	}
	s.asUser = fmt.Sprintf("host=%s port=%d dbname=%s user=%s password=first",
		config.Host, config.Port, config.Database, user)
	if s.admin, err = lockadmin.New(t.Context(), s.db.Pool(t)); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *firstScene) run(t *testing.T, statements string) {
	t.Helper()
	if _, err := s.owner.Exec(t.Context(), statements, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%s: %v", statements, err)
	}
}

func (s *firstScene) balance(t *testing.T) (balance int) {
	t.Helper()
	must.Do(t, s.owner.QueryRow(t.Context(), "SELECT balance FROM accounts WHERE id = 16").Scan(&balance))
	return balance
}

// A process is the README's program at work, or pglock-admin.
type process struct {
	cmd  *exec.Cmd
	out  bytes.Buffer
	done chan error
}

func (in programs) start(t *testing.T, url, command string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(filepath.Join(string(in), command), args...), done: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), "DATABASE_URL="+url)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	must.Do(t, p.cmd.Start())
	ended := make(chan struct{})
	go func() { p.done <- p.cmd.Wait(); close(ended) }()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-ended
	})
	return p
}

// wait gives the exit code and what the process said.
func (p *process) wait(t *testing.T) (code int, said string) {
	t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode(), p.out.String()
	case <-time.After(patience):
		t.Fatalf("%s has not ended", p.cmd)
		return 0, ""
	}
}

func (p *process) want(t *testing.T, code int, said string) {
	t.Helper()
	if got, out := p.wait(t); got != code || !strings.Contains(out, said) {
		t.Errorf("%s: exit code %d and %q, want %d and %q", p.cmd, got, out, code, said)
	}
}

func TestTheFirstProgram(t *testing.T) {
	t.Parallel()
	in := buildFirst(t)
	for name, test := range map[string]func(*testing.T, *firstScene){
		"writes also to a guarded table":                                  guarded,
		"fails with an exit code":                                         fails,
		"gives its lock to the next holder within a second after SIGTERM": terminated,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newFirstScene(t, in))
		})
	}
}

func guarded(t *testing.T, s *firstScene) {
	s.start(t, s.asUser, "example").want(t, 0, "balance: 60")

	guard := ""
	for _, block := range blocksOf(t, "sh") {
		for line := range strings.Lines(block) {
			if strings.HasPrefix(line, "pglock-admin guard add ") {
				guard, _, _ = strings.Cut(line, "#")
			}
		}
	}
	s.start(t, s.db.URL(), "pglock-admin", strings.Fields(guard)[1:]...).want(t, 0, "is guarded from now on")
	s.start(t, s.asUser, "example").want(t, 0, "balance: 120")

	for _, statement := range strings.Split(strings.TrimSpace(blocksOf(t, "sql")[1]), "\n") {
		var refused *pgconn.PgError
		if _, err := s.owner.Exec(t.Context(), statement); !errors.As(err, &refused) || refused.Code != "LK011" {
			t.Errorf("%s: %v, want LK011", statement, err)
		}
	}
	if b := s.balance(t); b != 120 {
		t.Errorf("the balance is %d, want 120", b)
	}
}

func fails(t *testing.T, s *firstScene) {
	s.run(t, "DELETE FROM accounts")
	s.start(t, s.asUser, "example").want(t, 1, "no rows in result set")
	s.start(t, "postgres://nobody@127.0.0.1:1/nothing?connect_timeout=2", "example").want(t, 1, "127.0.0.1")
}

// The row of the account is locked while the first process works, so that SIGTERM finds it at work.
func terminated(t *testing.T, s *firstScene) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no SIGTERM")
	}
	for _, guarded := range []bool{false, true} {
		if guarded {
			s.start(t, s.db.URL(), "pglock-admin", "guard", "add", "accounts", "--key", "id").want(t, 0, "is guarded")
		}
		before := s.balance(t)
		tx := must.Get(s.db.Conn(t).Begin(t.Context()))(t)
		must.Get(tx.Exec(t.Context(), "SELECT FROM accounts WHERE id = 16 FOR UPDATE"))(t)
		first := s.start(t, s.asUser, "example")
		s.awaitBlocked(t)
		next := s.start(t, s.asUser, "example")
		held := s.await(t, first, 1)

		must.Do(t, first.cmd.Process.Signal(syscall.SIGTERM))
		signalled := time.Now()
		granted := s.await(t, next, 0)
		// on a busy machine; the lease would last for half a minute
		if took := time.Since(signalled); took > 10*time.Second {
			t.Errorf("the next holder had the lock after %v, want within a second", took)
		} else {
			t.Logf("the next holder had the lock after %v", took)
		}
		if granted.Token <= held.Token {
			t.Errorf("token %d after %d", granted.Token, held.Token)
		}
		first.want(t, 1, "context canceled")
		must.Do(t, tx.Rollback(t.Context()))
		next.want(t, 0, fmt.Sprintf("balance: %d", before+60))
	}
}

// await gives the lock when the process holds it and so many wait.
func (s *firstScene) await(t *testing.T, holder *process, waiting int) pglock.LockInfo {
	t.Helper()
	var lock pglock.LockInfo
	pid := fmt.Sprintf("[%d]", holder.cmd.Process.Pid)
	s.until(t, func() (_ bool, err error) {
		lock, err = s.admin.Get(t.Context(), "accounts/16")
		if errors.Is(err, lockadmin.ErrNotFound) {
			return false, nil
		}
		return lock.Held && lock.Waiting == waiting && strings.HasSuffix(lock.Holder, pid), err
	})
	return lock
}

// awaitBlocked returns when the program's statement waits for the row of the account.
func (s *firstScene) awaitBlocked(t *testing.T) {
	t.Helper()
	s.until(t, func() (blocked bool, err error) {
		err = s.owner.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE 'UPDATE accounts%')`).Scan(&blocked)
		return blocked, err
	})
}

func (s *firstScene) until(t *testing.T, is func() (bool, error)) {
	t.Helper()
	for limit := time.Now().Add(patience); ; {
		switch ok, err := is(); {
		case err != nil:
			t.Fatal(err)
		case ok:
			return
		case time.Now().After(limit):
			t.Fatal("it does not come to that")
		}
		time.Sleep(2 * time.Millisecond) // another process does it; the server shows when
	}
}
