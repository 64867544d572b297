//go:build unix

package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/run"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

func TestAKeyIsDoneOnceByEightRunsAtTheSameTime(t *testing.T) {
	db := pgtest.Parallel(t)
	file := filepath.Join(t.TempDir(), "done")
	script := sh("echo at work >> " + file + "; read line")
	var all []*errandProcess
	for range 8 {
		all = append(all, running(t, db.URL(), append([]string{"a", "--once", "2026-11-22"}, script...)...))
	}
	queued(t, db, "a", 7)
	for _, p := range all {
		_, _ = io.WriteString(p.stdin, "go\n") // the first lets the others go on: they may have ended already
	}
	codes := map[int]int{}
	for _, p := range all {
		codes[<-p.code]++
	}
	if codes[0] != 1 || codes[run.ExitDone] != 7 {
		t.Errorf("exit codes %v, want one 0 and seven %d", codes, run.ExitDone)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "at work\n" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestAKeyIsDoneWhenItsCommandHasSucceeded(t *testing.T) {
	db := pgtest.Parallel(t)
	once := func(script string, flags ...string) *errandProcess {
		return running(t, db.URL(), append(append([]string{"a", "--once", "slot 7"}, flags...), sh(script)...)...)
	}
	once("echo $PGLOCK_KEY; exit 9").ends(t, 9)
	once("kill -TERM $$").ends(t, run.ExitSignal+15)
	if p := once("echo $PGLOCK_KEY"); true {
		p.says(t, "a slot 7")
		p.ends(t, 0)
	}
	if out := once("echo again").ends(t, run.ExitDone, `"a slot 7" was done at 20`, " under token 3 of lock a; "+
		"COMMAND has not run"); out != "" {
		t.Errorf("the command says %q", out)
	}
	once("echo again", "--done-exit-code", "0").ends(t, 0, "was done at")
	if p := once("echo again", "--quiet", "--done-exit-code", "0"); p.ends(t, 0) != "" || p.stderr.String() != "" {
		t.Error(p.stderr.String())
	}
	// Each name has its own keys.
	running(t, db.URL(), line("b --once", append([]string{"slot 7"}, sh("exit 0")...))...).ends(t, 0)
}

// psqlOrSkip needs a client that is no part of this project.
func psqlOrSkip(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("psql"); err != nil {
		t.Skip("no psql")
	}
}

// The way to exactly once, as docs/run.md tells it.
func TestACommandMayNoteItsKeyInItsOwnTransaction(t *testing.T) {
	t.Parallel()
	psqlOrSkip(t)
	db := pgtest.Database(t)
	execute(t, db, "CREATE TABLE payouts (day text)")
	script := fromDocs(t, "once.sql")
	file := filepath.Join(t.TempDir(), "once.sql")
	must.Do(t, os.WriteFile(file, []byte(script), 0o600))
	command := `psql -X -q -d "$DATABASE_URL" -f ` + file
	p := running(t, db.URL(), append([]string{"payouts", "--once", "2026-11-22"}, sh(command+" && exit 3")...)...)
	p.ends(t, 3) // the work is done, and run thinks that it is not
	p = running(t, db.URL(), append([]string{"payouts", "--once", "2026-11-22"}, sh(command)...)...)
	p.ends(t, run.ExitDone)
	p = running(t, db.URL(), append([]string{"payouts", "--once", "2026-11-23"}, sh(command)...)...)
	p.ends(t, 0) // both note the key
	if days := ask[string](t, db,
		"SELECT string_agg(day, ' ' ORDER BY day) FROM payouts"); days != "payouts 2026-11-22 payouts 2026-11-23" {
		t.Errorf("paid on %s", days)
	}
}

func TestAKeyThatIsTooOldIsRefusedAndOneThatIsYoungIsNot(t *testing.T) {
	db := pgtest.Parallel(t)
	today := time.Now().UTC().Format(time.DateOnly)
	old := running(t, db.URL(), append([]string{"a", "--once", "2020-01-01", "--keep", "90d"}, sh("echo never")...)...)
	if out := old.ends(t, run.ExitRunBase+cli.ExitUsage,
		`"a 2020-01-01" is older than --keep 90d; nobody knows any more whether it is done, so COMMAND has not run`); out != "" {
		t.Error(out)
	}
	running(t, db.URL(), append([]string{"a", "--once", today, "--keep", "90d"}, sh("exit 0")...)...).ends(t, 0)
	running(t, db.URL(), append([]string{"a", "--once", today, "--keep", "90d"}, sh("exit 0")...)...).ends(t,
		run.ExitDone)
	running(t, db.URL(), append([]string{"a", "--once", "job 7", "--of", today, "--keep", "90d"},
		sh("exit 0")...)...).ends(t, 0)
	in(t, db.URL(), "list").want(t, cli.ExitOK, "no lock is held")
}

func TestASuccessThatCannotBeNotedSaysSo(t *testing.T) {
	db := pgtest.Parallel(t)
	p := running(t, db.URL(), append([]string{"a", "--once", "k"}, sh("echo ready; read line")...)...)
	p.says(t, "ready")
	execute(t, db,
		`CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''the disk is full''; END';
		CREATE TRIGGER refuse BEFORE INSERT ON pglock.done_keys FOR EACH ROW EXECUTE FUNCTION public.refuse()`)
	p.goesOn(t)
	p.ends(t, run.ExitUnmarked,
		`COMMAND has succeeded, but "a k" is not recorded as done: the disk is full (SQLSTATE P0001)`,
		"the next run may run it again")
	in(t, db.URL(), "list").want(t, cli.ExitOK, "no lock is held")
}

// A lock that is broken when the command has just succeeded: another may be at work for the same key.
func TestAKeyIsNotNotedUnderALeaseThatIsLost(t *testing.T) {
	db := pgtest.Parallel(t)
	p := running(t, db.URL(), append([]string{"a", "--once", "k", "--ttl", "1h"}, sh("echo ready; read line")...)...)
	p.says(t, "ready")
	in(t, db.URL(), "break", "a", "--reason", "test").want(t, cli.ExitOK)
	p.goesOn(t)
	p.ends(t, run.ExitUnmarked, `COMMAND has succeeded, but "a k" is not recorded as done`, "broken")
	running(t, db.URL(), append([]string{"a", "--once", "k"}, sh("echo again")...)...).ends(t, 0)
}

func TestARunWhoseLockWasBrokenUnnoticedSaysSoAtTheEnd(t *testing.T) {
	db := pgtest.Parallel(t)
	p := running(t, db.URL(), append([]string{"a", "--ttl", "1h"}, sh("echo ready; read line")...)...)
	p.says(t, "ready")
	in(t, db.URL(), "break", "a", "--reason", "test").want(t, cli.ExitOK)
	p.goesOn(t)
	p.ends(t, run.ExitLost, "somebody has broken lock a; COMMAND has ended with exit code 0")
}

func TestRunRefusesWhatItCannotDoBeforeItDoesAnything(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 513)
	for _, c := range []struct{ args, says string }{
		{"", "run needs the NAME of a lock before --"},
		{"-- true", "run needs the NAME of a lock before --"},
		{"a", "run needs a COMMAND after --"},
		{"a --", "run needs a COMMAND after --"},
		{"-- a --", "run needs a COMMAND after --"},
		{"a true", "run needs -- before the COMMAND"},
		{"a b -- true", "run takes the name of one lock, not 2"},
		{"a --nonsense -- true", "unknown flag"},
		{"a --try --wait 1s -- true", "--try does not wait, and --wait does"},
		{"a --shared --limit 2 -- true", "--shared lets any number"},
		{"a --shared --once k -- true", "--once needs the lock for itself"},
		{"a --limit 2 --once k -- true", "--once needs the lock for itself"},
		{"a --subtree --limit 2 -- true", "--subtree takes everything below NAME"},
		{"a/ --subtree -- true", "NAME is a/: with --subtree it must not begin or end with /"},
		{"a --limit 0 -- true", "--limit is 0: it must be from 1 to 1000"},
		{"a --limit 1001 -- true", "--limit is 1001"},
		{"a --wait -1s -- true", "--wait is -1s: it must not be negative"},
		{"a --ttl 1ms -- true", "--ttl is 1ms: it must be from 100ms to 1d"},
		{"a --ttl 2d -- true", "--ttl is 2d"},
		{"a --ttl x -- true", `--ttl is "x": it must be a duration such as`},
		{"a --kill-after 11s -- true", "--kill-after is 11s: it must be at most a third of --ttl, here 10s"},
		{"a --kill-after -1s -- true", "--kill-after is -1s"},
		{"a --keep 1d -- true", "belong to --once"},
		{"a --of 2026-11-22 -- true", "belong to --once"},
		{"a --done-exit-code 0 -- true", "belong to --once"},
		{"a --once k --keep 1d -- true", "KEY is no time"},
		{"a --once k --of yesterday --keep 1d -- true", `--of is "yesterday": it must be a date or a time`},
		{"a --once k --of 2026-11-22 -- true", "--keep for how long"},
		{"a --once 2026-11-22 --keep 0s -- true", "--keep is 0s: it must be at least 1s"},
		{"a --once k --done-exit-code 256 -- true", "--done-exit-code is 256: it must be from 0 to 255"},
		{"a --held-exit-code -1 -- true", "--held-exit-code is -1"},
		{"a --once " + long + " -- true", "--once is \"xxx"},
		{"a --once " + long[:511] + " -- true", "NAME and KEY have 512 bytes together: they must have at most 511"},
		{"a --once \xff -- true", "be valid UTF-8"},
		{"a --once= -- true", "--once is empty: it must have 1 to 512 bytes"},
		{long + " -- true", "try: a name of 1 to 512 bytes"},
		{"\xff -- true", "try: a name in valid UTF-8"},
		{"a --holder " + long + " -- true", "--holder is "},
		{"a --metadata { -- true", "--metadata"},
		{`" -- true`, `a name that begins with " must be quoted`},
		{"a --timeout 0s -- true", "--timeout"},
		{"a -o xml -- true", "table, json or yaml"},
		{"a --database-url postgres://[ -- true", "cannot be read as a connection string"},
	} {
		// Nobody answers there: a server that were asked first would be the error.
		a := in(t, "postgres://127.0.0.1:1/nowhere", append([]string{"run"}, strings.Fields(c.args)...)...)
		a.want(t, run.ExitRunBase+cli.ExitUsage, c.says)
		if a.stdout != "" {
			t.Errorf("%s: %s", c.args, a.stdout)
		}
	}
	in(t, "postgres://127.0.0.1:1/nowhere", "run", "a", "--", "").want(t, run.ExitRunBase+cli.ExitUsage,
		"COMMAND is empty")
	in(t, "postgres://127.0.0.1:1/nowhere", "run", "", "--", "true").want(t, run.ExitRunBase+cli.ExitUsage,
		"NAME is empty")
	in(t, "postgres://127.0.0.1:1/nowhere", "run", "a", "--try", "-o", "json", "--wait", "1s", "--", "true").want(t,
		run.ExitRunBase+cli.ExitUsage, `"code": 112`)
}

func TestRunTakesANameAsItIsForScripts(t *testing.T) {
	db := pgtest.Parallel(t)
	for _, name := range []string{"--help", `"quoted`, "a b"} {
		p := running(t, db.URL(), append([]string{"--try", "--", name}, sh(`echo "$PGLOCK_NAME"`)...)...)
		p.says(t, name)
		p.ends(t, 0)
	}
}

func TestRunSaysWhyTheServerDoesNotGiveALock(t *testing.T) {
	t.Parallel()
	db, empty := pgtest.Database(t), pgtest.EmptyDatabase(t)
	other := pgtest.Database(t)
	full := asUser(t, other, "pglock_user")
	execute(t, other, "ALTER ROLE "+other.Name()+"_user CONNECTION LIMIT 0")
	for name, c := range map[string]struct {
		url  string
		code int
		says string
	}{
		"no room": {full, cli.ExitUnreachable, "try: the same command again in a moment"},
		"away":    {"postgres://me@" + closedPort(t) + "/db", cli.ExitUnreachable, "connection refused"},
		"read-only": {withOptions(t, db.URL(), "-c default_transaction_read_only=on"), cli.ExitUnreachable,
			"the server accepts no writes"},
		"no schema":   {empty.URL(), cli.ExitSchema, "pglock-admin migrate up"},
		"no right":    {asUser(t, db, ""), cli.ExitPermission, "GRANT pglock_user"},
		"no database": {strings.Replace(db.URL(), db.Name(), "nothing_here", 1), cli.ExitUnreachable, "nothing_here"},
	} {
		t.Run(name, func(t *testing.T) {
			p := running(t, c.url, line("a", sh("echo never"))...)
			if out := p.ends(t, run.ExitRunBase+c.code, c.says, "try: "); out != "" {
				t.Errorf("the command says %q", out)
			}
		})
	}
}

func TestRunWorksWithStandardInputClosed(t *testing.T) {
	db := pgtest.Parallel(t)
	p := prepared(t, db.URL(), line("a", sh(`read line || echo "nothing to read"; echo three >&3`))...)
	p.cmd.Args = append([]string{"sh", "-c", `exec "$0" "$@" 3>&1 <&-`, p.cmd.Path}, p.cmd.Args[1:]...)
	p.cmd.Path = "/bin/sh"
	p.start(t)
	p.says(t, "nothing to read")
	p.says(t, "three")
	p.ends(t, 0)
}
