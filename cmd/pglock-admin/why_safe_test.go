package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/explain"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// Somebody who may look and no more hears which rights are missing, and still what is wrong.
func TestWhyWithoutRightsSaysWhichAreMissing(t *testing.T) {
	t.Parallel()
	server := pgtest.Dedicated(t, nil)
	at := freshDatabase(t, server.URL(), "app")
	stage := prepare(t, "idle-psql", at)
	defer stage.Close()
	config := must.Get(pgxpool.ParseConfig(at))(t)
	conn := must.Get(pgx.ConnectConfig(t.Context(), config.ConnConfig))(t)
	defer conn.Close(t.Context())
	must.Get(conn.Exec(t.Context(), "CREATE ROLE looker LOGIN PASSWORD 'secret' IN ROLE pglock_user"))(t)
	look := strings.Replace(at, "postgres:"+config.ConnConfig.Password+"@", "looker:secret@", 1)
	explain := func() answer {
		t.Helper()
		a := in(t, look, "why", stage.Lock).want(t, cli.ExitOK)
		a.stdout = strings.Join(strings.Fields(a.stdout), " ")
		return a
	}
	a := explain().want(t, cli.ExitOK, "its write waits in PostgreSQL", "a row of public.accounts", "user alice",
		"does not show what it does",
		"pg_read_all_stats", "role pglock_admin", "Needs a member of the role alice or of pg_signal_backend",
		"; hidden")
	if strings.Contains(a.stdout, "UPDATE accounts") {
		t.Errorf("the statement of another user is shown:\n%s", a.stdout)
	}
	must.Get(conn.Exec(t.Context(), "GRANT pg_read_all_stats, pglock_admin TO looker"))(t)
	a = explain().want(t, cli.ExitOK, "UPDATE accounts SET balance = 0", "idle in its transaction")
	if strings.Contains(a.stdout, "unseen") {
		t.Errorf("nothing is missing any more:\n%s", a.stdout)
	}
}

// Names, labels, reasons, statements and identifiers from outside control neither the terminal nor the shell.
func TestWhyIsNotTrickedByTextsFromOutside(t *testing.T) {
	t.Parallel()
	server := pgtest.Dedicated(t, map[string]string{"max_prepared_transactions": "5"})
	at := freshDatabase(t, server.URL(), "app")
	conn := must.Get(pgx.Connect(t.Context(), at))(t)
	defer conn.Close(t.Context())
	const nasty = "\x1b[2J<b>'; touch pwned; '\u202e$(touch pwned)`x`"
	run := func(sql string, args ...any) {
		t.Helper()
		must.Get(conn.Exec(t.Context(), sql, args...))(t)
	}
	names := append([]string{nasty, "--help", strings.Repeat("\x1b", 512), strings.Repeat("日", 170)}, awkward[:6]...)
	for _, name := range names {
		run("SELECT pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), $2, '1 h')", name, nasty)
		run("SELECT pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), $2, '1 h', p_wait => true, "+
			"p_session_ttl => '1 h')", name, nasty+"2")
		run("SELECT pglock.break_lock($1, $2, $3)", name, nasty, nasty)
		run("UPDATE pglock.locks SET renewed_at = clock_timestamp() - interval '50 min', expires_at = "+
			"clock_timestamp() + interval '10 min' WHERE name = $1", name)
	}
	run("BEGIN")
	run("UPDATE pglock.locks SET ttl = ttl WHERE name = $1", nasty)
	run("PREPARE TRANSACTION " + shown.SQL(nasty))
	const older, newer = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"
	for _, ask := range [][2]string{{"circle", older}, {"circle too", newer}, {"circle too", older},
		{"circle", newer}} {
		run("SELECT pglock.acquire_lease($1, gen_random_uuid(), $2, $3, '1 h', p_wait => true, p_session_ttl => '1 h')",
			ask[0], ask[1], nasty+ask[1])
	}
	run("UPDATE pglock.waiters SET enqueued_at = enqueued_at - interval '10 min' WHERE name LIKE 'circle%'")
	run("UPDATE pglock.locks SET acquired_at = acquired_at - interval '10 min' WHERE name LIKE 'circle%'")
	run("UPDATE pglock.locks SET acquired_at = acquired_at - interval '1 min' WHERE name = 'circle'")
	in(t, at, "why", "circle too").want(t, cli.ExitOK, "Perhaps a deadlock: ", "Or break one lease")
	pasted := 0
	for _, name := range append(names, "circle too") {
		for _, format := range []string{"table", "json", "yaml"} {
			a := in(t, at, "why", "-o", format, "--", name).want(t, cli.ExitOK)
			if !safe(strings.NewReplacer("\n", "", "█", "", "░", "").Replace(a.stdout)) {
				t.Errorf("%q: %q", name, a.stdout)
			}
			if format == "table" {
				for _, line := range strings.Split(a.stdout, "\n") {
					if command := strings.TrimSpace(line); strings.HasPrefix(command, "pglock-admin break ") ||
						strings.HasPrefix(command, "psql ") {
						checkPaste(t, command, name, nasty)
						pasted++
					}
				}
			}
		}
	}
	if pasted < len(names) {
		t.Errorf("of %d locks only %d commands were pasted: this shows little", len(names), pasted)
	}
	if _, err := os.Stat("pwned"); err == nil {
		t.Error("a command did what a name says")
	}
	run("ROLLBACK PREPARED " + shown.SQL(nasty))
	for _, s := range append(names, nasty, `\'; DROP TABLE x; --`) {
		var got string
		if err := conn.QueryRow(t.Context(), "SELECT "+shown.SQL(s),
			pgx.QueryExecModeSimpleProtocol).Scan(&got); err != nil || got != s {
			t.Errorf("%q became %q, %v", s, got, err)
		}
	}
}

// checkPaste has a shell read a command, as if it were pasted.
func checkPaste(t *testing.T, command, name, gid string) {
	t.Helper()
	words, err := exec.Command("sh", "-c", "DATABASE_URL=url; printf '%s\\0' "+command).Output()
	if err != nil {
		t.Errorf("%s: %v", command, err)
		return
	}
	all := strings.Split(strings.TrimSuffix(string(words), "\x00"), "\x00")
	if all[0] == "psql" {
		if sql := all[len(all)-1]; !strings.HasSuffix(sql, " PREPARED "+shown.SQL(gid)) {
			t.Errorf("%s is read as %q", command, all)
		}
		return
	}
	if got, err := read(all[2]); err != nil || got != name || all[3] != "--token" || all[5] != "--reason" ||
		len(all) < 7 {
		t.Errorf("%s is read as %q: %q, %v", command, all, got, err)
	}
}

func TestWhyRefusesWhatItCannotDo(t *testing.T) {
	db := pgtest.Parallel(t)
	in(t, db.URL(), "why", "report", "--limit", "5").want(t, cli.ExitUsage, "--limit is for why without a name")
	in(t, db.URL(), "why", "--limit", "0").want(t, cli.ExitUsage, "limit is 0: it must be from 1 to 1000")
	in(t, db.URL(), "why", "a", "b").want(t, cli.ExitUsage)
	in(t, db.URL(), "why", strings.Repeat("x", 513)).want(t, cli.ExitUsage, "512")
	in(t, db.URL(), "why", "report", "--schema", "none").want(t, cli.ExitSchema, "schema pglock has it")
	in(t, pgtest.EmptyDatabase(t).URL(), "why", "report").want(t, cli.ExitSchema)
	in(t, asUser(t, db, ""), "why", "report").want(t, cli.ExitPermission, "pglock_user")
	in(t, "postgres://nobody@127.0.0.1:1/x?connect_timeout=1", "why", "report").want(t, cli.ExitUnreachable)
}

// While somebody has locked a whole table, the answer comes in half of --timeout, and names them.
func TestWhyAnswersInTimeWhileATableIsLocked(t *testing.T) {
	t.Parallel()
	const free = "obody has used a lock named report"
	for table, says := range map[string]string{
		// which it can do without
		"locks": "has locked the whole", "waiters": "has locked the whole", "fences": free, "events": free,
		"locks, pglock.events": "has locked the whole",
	} {
		t.Run(table, func(t *testing.T) {
			db := pgtest.Parallel(t)
			tx := must.Get(db.Conn(t).Begin(t.Context()))(t)
			must.Get(tx.Exec(t.Context(), "LOCK TABLE pglock."+table))(t)
			began := time.Now()
			a := in(t, db.URL(), "why", "report", "--timeout", "20s").want(t, cli.ExitOK, says)
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it took %v, want half of --timeout at most", took)
			}
			text := strings.Join(strings.Fields(a.stdout), " ")
			if named := strings.Contains(text, "LOCK TABLE pglock."+table); named != (says != free) {
				t.Errorf("who has locked the table is named: %v\n%s", named, a.stdout)
			}
			must.Do(t, tx.Rollback(t.Context()))
		})
	}
}

// No lock hangs because of its history, so nobody ends the connection of whoever has locked that.
func TestWhyAndListGoOnWhileTheHistoryIsLocked(t *testing.T) {
	db := pgtest.Parallel(t)
	execute(t, db, "SELECT pglock.acquire_lease('report', gen_random_uuid(), gen_random_uuid(), 'app-1', '1 h')")
	for _, user := range []string{db.URL(), asUser(t, db, "pglock_user")} {
		t.Run("", func(t *testing.T) {
			tx := must.Get(db.Conn(t).Begin(t.Context()))(t)
			defer tx.Rollback(t.Context()) //nolint:errcheck // nothing is lost
			must.Get(tx.Exec(t.Context(), "LOCK TABLE pglock.events"))(t)
			unseen := "the history of takeovers and breaks: you need the role pglock_admin"
			if user == db.URL() { // whom a break waits for
				unseen = fmt.Sprintf("the history of takeovers and breaks: somebody has locked its table: server "+
					"process %d ", tx.Conn().PgConn().PID())
			}
			a := in(t, user, "why", "report").want(t, cli.ExitOK, "report is held by app-1")
			if text := strings.Join(strings.Fields(a.stdout), " "); !strings.Contains(text, unseen) ||
				strings.Contains(text, "Nobody can use any lock") || strings.Contains(text, "pg_terminate_backend") {
				t.Errorf("%s", a.stdout)
			}
			for _, command := range []string{"why", "list"} {
				a := in(t, user, command).want(t, cli.ExitOK)
				if strings.Contains(a.stdout, "whole table") || strings.Contains(a.stdout, "Nobody can use any") {
					t.Errorf("%s: %s", command, a.stdout)
				}
			}
		})
	}
}

func TestWhyTakesThreeLinesIfNothingIsToBeDone(t *testing.T) {
	t.Parallel()
	config := must.Get(pgxpool.ParseConfig("postgres://app@127.0.0.1/app"))(t)
	o := &cli.Options{Schema: cli.DefaultSchema, Config: config, Getenv: func(string) string { return "" }}
	held := lockadmin.HolderFacts{LockInfo: pglock.LockInfo{Held: true, Holder: "worker", Mode: pglock.ModeExclusive,
		Token: 1}}
	well := lockadmin.Verdict{Kind: "held", Severity: lockadmin.SeverityOK,
		Text: "report is held by worker.", Because: "Nobody waits for it."}
	dead := lockadmin.Verdict{Kind: "dead waiters", Severity: lockadmin.SeverityOK, Text: "1 waiter is passed over.",
		Steps: []lockadmin.Step{{Do: "Nothing to do."}}}
	list := lockadmin.Step{Do: "Look at the list.", Run: lockadmin.RunAdmin, Command: "list"}
	again := lockadmin.Step{Do: "Look again.", Run: lockadmin.RunAdmin, Command: "why report"}
	soon := lockadmin.Verdict{Kind: "slow", Severity: lockadmin.SeverityBusy, Text: "1 waits.",
		Steps: []lockadmin.Step{again}}
	slow := soon
	slow.Steps = []lockadmin.Step{again, {Do: "Look at the program."}}
	free := lockadmin.Verdict{Kind: "free", Severity: lockadmin.SeverityOK, Text: "report is free.",
		Steps: []lockadmin.Step{
			again, list}}
	for name, c := range map[string]struct {
		verdicts []lockadmin.Verdict
		want     string
		all      bool
	}{
		"held": {[]lockadmin.Verdict{well}, "OK  report is held by worker. Nobody waits for it.\n  " +
			"holder    worker,", false},
		"free": {[]lockadmin.Verdict{free}, "OK  report is free.\n  Look again.\n  Look at the list: " +
			"pglock-admin list", false},
		"with dead waiters":              {[]lockadmin.Verdict{well, dead}, "Also: 1 waiter is passed over.", true},
		"others wait":                    {[]lockadmin.Verdict{soon}, "BUSY  1 waits.\n  holder    worker,", false},
		"others wait long":               {[]lockadmin.Verdict{slow}, "BUSY  1 waits.", true},
		"others wait, with dead waiters": {[]lockadmin.Verdict{soon, dead}, "Also: 1 waiter", true},
	} {
		e := lockadmin.Explanation{Lock: "report", State: lockadmin.LockHeld, Verdicts: c.verdicts}
		if c.verdicts[0].Kind != "free" {
			e.Holders = []lockadmin.HolderFacts{held}
		}
		p := &cli.Page{Width: 100}
		explain.DrawWhy(p, o, e)
		screen := p.String()
		if !strings.Contains(strings.ReplaceAll(screen, " --database-url postgres://app@127.0.0.1/app", ""), c.want) ||
			strings.Contains(screen, "WHAT TO DO NEXT") != c.all {
			t.Errorf("%s: want %q in\n%s", name, c.want, screen)
		}
	}
}
