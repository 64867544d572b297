package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/pglock"
)

// looking is every command that shows something of the database, and operating every one that needs the role
// pglock_admin; X is the name of a lock.
var (
	looking = [][]string{
		{"list"}, {"list", "--order", "waiting"}, {"show", "X"}, {"why", "X"}, {"waiters"}, {"waiters", "X"},
		{"waiters", "--order", "age"},
		{"sessions"}, {"fences"}, {"fences", "X"},
	}
	operating = [][]string{
		{"history"}, {"history", "X"}, {"verify"}, {"verify", "X"}, {"record"}, {"break", "X", "--reason", "r"},
		{"break", "--session", "3b241101-e2bb-4255-8caf-4136c566a962", "--reason", "r"}, {"prune"},
	}
)

// naming gives the commands for a lock.
func naming(name string, commands ...[][]string) (all [][]string) {
	for _, some := range commands {
		for _, command := range some {
			line := append([]string{}, command...)
			for i, word := range line {
				if word == "X" {
					line[i] = name
				}
			}
			all = append(all, line)
		}
	}
	return all
}

func TestEveryCommandSaysThatTheServerCannotBeReached(t *testing.T) {
	t.Parallel()
	addr := closedPort(t)
	for _, line := range append(naming("a", looking, operating), []string{"serve", "--listen", "127.0.0.1:0"},
		[]string{"doctor"}) {
		for _, format := range cli.Outputs {
			a := in(t, "postgres://me:hush@"+addr+"/db", append(line, "-o", format)...).want(t, cli.ExitUnreachable,
				addr)
			if strings.Contains(a.stdout+a.stderr, "hush") || a.stdout != "" {
				t.Errorf("%q: %s%s", line, a.stdout, a.stderr)
			}
		}
	}
}

func TestEveryCommandSaysThatTheSchemaDoesNotFit(t *testing.T) {
	t.Parallel()
	// Whoever looks hears of other databases of the server in which pglock is in use.
	empty, newer := pgtest.Dedicated(t, nil).URL(), pgtest.Database(t)
	execute(t, newer,
		fmt.Sprintf(`CREATE OR REPLACE FUNCTION pglock.schema_version() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT %[1]d';
		CREATE OR REPLACE FUNCTION pglock.serves_from() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT %[1]d'`,
			pglock.SchemaVersion+1))
	for _, line := range append(naming("a", looking, operating), []string{"serve", "--listen", "127.0.0.1:0"},
		[]string{"doctor"}, []string{"guard", "list"}) {
		a := in(t, empty, line...).want(t, cli.ExitSchema)
		if !strings.Contains(a.stderr, "migrate up") {
			t.Errorf("%q: %s", line, a.stderr)
		}
		in(t, newer.URL(), line...).want(t, cli.ExitSchema, "a newer pglock-admin")
	}
}

func TestEveryCommandNamesTheRoleThatItNeeds(t *testing.T) {
	db := pgtest.Parallel(t)
	hold(t, db, "worker", "a")
	user := asUser(t, db, "")
	name := pgx.Identifier{db.Name() + "_user"}.Sanitize()
	needs := func(commands [][]string, role string) {
		t.Helper()
		for _, line := range commands {
			in(t, user, line...).want(t, cli.ExitPermission, "permission denied", "let an administrator run: GRANT "+
				role+
				" TO "+name)
		}
	}
	needs(naming("a", looking), "pglock_user")
	needs(naming("a", operating), "pglock_admin")
	execute(t, db, "GRANT pglock_user TO "+name)
	for _, line := range naming("a", looking) {
		in(t, user, line...).want(t, cli.ExitOK)
	}
	needs(naming("a", operating), "pglock_admin")
	execute(t, db, "GRANT pglock_admin TO "+name)
	in(t, user, "prune").want(t, cli.ExitOK)
}

// Names that control a terminal, or turn a line around, or are HTML: nothing of it reaches the terminal.
func TestNoNameReachesTheTerminalAsItIs(t *testing.T) {
	db := pgtest.Parallel(t)
	hostile := "\x1b[2J\x1b]0;title\x07a\u202eb\u2066\u0085line\nbreak\r\b<script>alert(1)</script>' ; " +
		"touch x #tab\t\u00ad\ufeff"
	for n, name := range []string{hostile, strings.Repeat("\x01", 512)} {
		hold(t, db, name[:min(len(name), 200)], name, pglock.WithMetadata([]byte(`{"x": "\u001b[31m\u202e"}`)))
		await(t, db, "w\x1b[31m", name, pglock.ModeExclusive, 0)
		lines := naming(name, looking, operating)
		if n == 0 {
			lines = append(lines, naming(name+" is nothing", looking, operating)...)
		}
		for i, line := range lines {
			a := in(t, db.URL(), append([]string{"-o", cli.Outputs[i%len(cli.Outputs)]}, line...)...)
			for _, r := range a.stdout + a.stderr {
				if r != '\n' && !shown.AllPrint(string(r)) {
					t.Fatalf("%q writes %U:\n%q\n%q", line, r, a.stdout, a.stderr)
				}
			}
			if a.code == cli.ExitFailure || a.code == cli.ExitInterrupted {
				t.Errorf("%q ends with %d: %s", line, a.code, a.stderr)
			}
		}
	}
}

// An interrupt while the server works: the command ends at once, and the server soon.
func TestEveryCommandCanBeInterruptedWhileTheServerWorks(t *testing.T) {
	db := pgtest.Parallel(t)
	lease := hold(t, db, "worker", "a")
	conn, look := db.Conn(t), db.Conn(t)
	for _, line := range naming("a", looking, operating) {
		if line[0] == "record" || line[0] == "why" { // they wait for no lock
			continue
		}
		tx := must.Get(conn.Begin(t.Context()))(t)
		if _, err := tx.Exec(t.Context(), "LOCK TABLE pglock.locks, pglock.waiters, pglock.sessions, pglock.fences, "+
			"pglock.events, pglock.installation IN ACCESS EXCLUSIVE MODE"); err != nil {
			t.Fatal(err)
		}
		blocked := func() (n int) {
			must.Do(t, look.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = "+
				"current_database() AND wait_event_type = 'Lock'").Scan(&n))
			return n
		}
		ctx, cancel := context.WithCancel(t.Context())
		var stdout, stderr bytes.Buffer
		ended := make(chan int)
		go func() {
			ended <- obey(ctx, append(line, "--database-url", db.URL(), "--timeout", "20s"), os.Getenv, &stdout,
				&stderr)
		}()
		pgtest.Eventually(t, "the server works", func() bool { return blocked() > 0 })
		cancel()
		if code := <-ended; code != cli.ExitInterrupted || !strings.Contains(stderr.String(), "interrupted") ||
			stdout.Len() > 0 {
			t.Errorf("%q ends with %d: %s%s", line, code, stdout.String(), stderr.String())
		}
		must.Do(t, tx.Rollback(t.Context()))
	}
	if !lease.Valid() {
		t.Error("an interrupted command broke the lease")
	}
}

// What a command writes goes to a reader that has gone, or to a full disk.
func TestEveryCommandEndsWhenItsOutputCannotBeWritten(t *testing.T) {
	db := pgtest.Parallel(t)
	hold(t, db, "worker", "a")
	program := must.Get(os.Executable())(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("no full disk: %v", err)
	}
	defer full.Close()
	for _, line := range naming("a", looking, [][]string{{"history"}, {"verify"}, {"record"}, {"doctor"}}) {
		var stderr bytes.Buffer
		started := func(out *os.File) *exec.Cmd {
			cmd := exec.CommandContext(t.Context(), program, line...)
			cmd.Env = append(os.Environ(), asProgram+"=1", "DATABASE_URL="+db.URL())
			cmd.Stdout, cmd.Stderr = out, &stderr
			return cmd
		}
		want := "pglock-admin: write /dev/stdout: no space left on device"
		if err := started(full).Run(); err == nil || !strings.HasPrefix(stderr.String(), want) ||
			!strings.Contains(stderr.String(), "try: send the output where it can be written") {
			t.Errorf("%q to a full disk: %v, %s", line, err, stderr.String())
		}
		stderr.Reset()
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Close()
		cmd := started(w)
		err = cmd.Run()
		_ = w.Close()
		if err == nil || stderr.Len() > 0 {
			t.Errorf("%q without a reader: %v, %s; want a silent end", line, err, stderr.String())
		}
	}
}
