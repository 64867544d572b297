package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// full is an output that takes nothing.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// environment is one in which DATABASE_URL is the database.
func environment(url string) func(string) string {
	return func(name string) string {
		if name == "DATABASE_URL" {
			return url
		}
		return os.Getenv(name)
	}
}

func TestWhatWasDoneIsSaidToBeDoneWhenTheAnswerCannotBeWritten(t *testing.T) {
	db := pgtest.Parallel(t)
	execute(t, db, "CREATE TABLE jobs ()")
	lease := hold(t, db, "worker", "a")
	for _, command := range []string{"break a --reason r", "guard add jobs", "guard drop jobs --yes", "prune",
		"migrate up"} {
		for _, format := range []string{"", " -o json"} {
			if format != "" && (strings.HasPrefix(command, "break") || strings.HasPrefix(command, "guard drop")) {
				continue // is done already
			}
			var stderr bytes.Buffer
			code := obey(t.Context(), strings.Fields(command+format), environment(db.URL()), full{}, &stderr)
			answer{code: code, stderr: stderr.String()}.want(t, cli.ExitFailure, "it was done, but the answer could "+
				"not be written: no space left on device")
		}
	}
	if _, err := lease.Check(t.Context()); err == nil {
		t.Error("the lease was not broken")
	}
	var stderr bytes.Buffer
	if code := obey(t.Context(), []string{"list"}, environment(db.URL()), full{}, &stderr); code != cli.ExitFailure ||
		strings.Contains(stderr.String(), "done") {
		t.Errorf("a look: exit code %d: %s", code, stderr.String())
	}
}

// A reader that goes away, as head does, ends the program like every other: by SIGPIPE, and in silence.
func TestAReaderThatGoesAwayEndsTheProgramInSilence(t *testing.T) {
	db := pgtest.Parallel(t)
	self := must.Get(os.Executable())(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer w.Close()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), self, "list")
	cmd.Env = append(os.Environ(), asProgram+"=1", "DATABASE_URL="+db.URL())
	cmd.Stdout, cmd.Stderr = w, &stderr
	if err := cmd.Run(); err == nil || err.Error() != "signal: broken pipe" || stderr.Len() > 0 {
		t.Errorf("%v: %s", err, stderr.String())
	}
}

func TestAnInterruptInTheMiddleLeavesNothingHalfDone(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"guard add jobs --lock-timeout 1m", "prune", "migrate up"} {
		t.Run(command, func(t *testing.T) {
			db := pgtest.Parallel(t)
			if command == "migrate up" {
				db = pgtest.EmptyDatabase(t)
				execute(t, db, "SELECT") // a database that is there
			} else {
				idleSince(t, db, "25 h", "idle")
			}
			execute(t, db, "CREATE TABLE jobs ()")
			busy := db.Conn(t)
			for _, sql := range []string{"BEGIN", "INSERT INTO jobs DEFAULT VALUES"} {
				if state := written(t, busy, sql); state != "" {
					t.Fatal(state)
				}
			}
			switch command {
			case "prune":
				written(t, busy, "LOCK TABLE pglock.locks IN ROW EXCLUSIVE MODE")
			case "migrate up":
				written(t, busy, "SELECT pg_advisory_lock(hashtextextended('pglock migrations pglock', 0))")
			}
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			var stdout, stderr bytes.Buffer
			code := make(chan int, 1)
			go func() {
				code <- obey(ctx, append(strings.Fields(command), "--timeout", "2m"), environment(db.URL()), &stdout,
					&stderr)
			}()
			blocked(t, db)
			interrupt()
			answer{code: <-code, stdout: stdout.String(), stderr: stderr.String()}.want(t, cli.ExitInterrupted,
				"pglock-admin: interrupted", "\nat: ", "try: the same command again")
			if state := written(t, busy, "ROLLBACK"); state != "" {
				t.Fatal(state)
			}
			if n := ask[int](t, db, "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'jobs'::regclass"); n != 0 {
				t.Errorf("half a guard is left: %d triggers", n)
			}
			if command == "migrate up" {
				if there := ask[bool](t, db, "SELECT to_regnamespace('pglock') IS NOT NULL"); there {
					t.Error("half a schema is left")
				}
				return
			}
			if n := ask[int](t, db, "SELECT count(*) FROM pglock.locks"); n != 1 {
				t.Errorf("%d locks are left", n)
			}
		})
	}
}

// cutWhen is a way to the database that is cut when the client says this.
func cutWhen(t *testing.T, db *pgtest.DB, says string) (address string, cut *atomic.Bool) {
	t.Helper()
	u := must.Get(url.Parse(db.URL()))(t)
	server := u.Host
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	cut = &atomic.Bool{}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			upstream, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				continue
			}
			all.Go(func() {
				_, _ = io.Copy(client, upstream)
				client.Close()
			})
			all.Go(func() {
				defer client.Close()
				defer upstream.Close()
				buffer := make([]byte, 1<<16)
				for {
					n, err := client.Read(buffer)
					if err != nil {
						return
					}
					if bytes.Contains(buffer[:n], []byte(says)) {
						cut.Store(true)
						return
					}
					if _, err := upstream.Write(buffer[:n]); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		all.Wait()
	})
	u.Host = l.Addr().String()
	query := u.Query()
	query.Set("sslmode", "disable") // for the way to see what is said
	u.RawQuery = query.Encode()
	return u.String(), cut
}

func TestAServerThatIsGoneInTheMiddleIsToldApart(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ command, says, hint string }{
		{"list", "list_locks", "once the server is back"},
		{"show a", "list_waiters", "once the server is back"},
		{"guard list", "list_guards", "once the server is back"},
		{"guard add jobs", "guard_table", "guard list, to see whether it was done"},
		{"guard add jobs -o json", "Q\x00\x00\x00\x0bcommit", "guard list, to see whether it was done"},
		{"prune", "prune_history", "once the server is back"},
		{"break a --reason r", "break_lock", "show a, to see whether it was broken"},
		{"migrate version", "schema_version", "once the server is back"},
	} {
		t.Run(tc.command, func(t *testing.T) {
			db := pgtest.Parallel(t)
			lease := hold(t, db, "worker", "a")
			execute(t, db, "CREATE TABLE jobs ()")
			address, cut := cutWhen(t, db, tc.says)
			a := in(t, address, strings.Fields(tc.command)...)
			if !cut.Load() {
				t.Fatalf("the way was not cut: %+v", a)
			}
			a.want(t, cli.ExitUnreachable, tc.hint, "127.0.0.1:", "the connection was lost: ")
			if !lease.Valid() {
				t.Error("the lease ended")
			}
		})
	}
}

func TestASessionThatAnAdministratorEndsIsALostConnection(t *testing.T) {
	db := pgtest.Parallel(t)
	execute(t, db, "CREATE TABLE jobs ()")
	busy := db.Conn(t)
	for _, sql := range []string{"BEGIN", "INSERT INTO jobs DEFAULT VALUES"} {
		if state := written(t, busy, sql); state != "" {
			t.Fatal(state)
		}
	}
	done := make(chan answer, 1)
	go func() { done <- in(t, db.URL(), "guard", "add", "jobs", "--lock-timeout", "1m", "--timeout", "2m") }()
	blocked(t, db)
	execute(t, db, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND "+
		"application_name LIKE 'pglock %/pglock-admin%'")
	(<-done).want(t, cli.ExitUnreachable, "it is unknown whether it was done", "SQLSTATE 57P01",
		"try: pglock-admin guard list, to see")
}
