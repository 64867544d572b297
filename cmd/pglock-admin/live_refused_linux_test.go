package main

import (
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgserver"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
)

// A screen needs a terminal. Where there is none, the message names the command that does without.
func TestAScreenRefusesWhatIsNoTerminal(t *testing.T) {
	t.Parallel()
	for _, line := range []struct{ args, says, try string }{
		{"top", "this needs a terminal", "try: pglock-admin list, "},
		{"watch a", "this needs a terminal", "try: pglock-admin show a, "},
		{"watch --schema s -- -x", "this needs a terminal", `try: pglock-admin show '"-x"' --schema s, `},
		{"top -o json", "--output json means nothing to a screen that moves", "pglock-admin list -o json"},
		{"watch a -o json", "--output json means nothing to a screen that moves", "pglock-admin show a -o json"},
		{"top --interval 10ms", "--interval is 10ms: it must be from 100ms to 1m", "--interval 1s"},
		{"top --interval 2m", "--interval is 2m: it must be from 100ms to 1m", "--interval 1s"},
		{"top x", "takes no arguments", "--help"},
		{"watch", "name of one lock", "watch NAME"},
		{"watch a b", "name of one lock", "watch NAME"},
		{`watch "x`, "must be quoted", "watch -- "},
	} {
		in(t, "postgres://nobody@127.0.0.1:1/none", strings.Fields(line.args)...).want(t, cli.ExitUsage, line.says,
			line.try)
	}
}

// What is wrong from the start is said as by other commands, before the screen is touched.
func TestAScreenThatCannotBeginSaysWhy(t *testing.T) {
	db := pgtest.Parallel(t)
	away := must.Get(url.Parse(db.URL()))(t)
	away.Host = closedPort(t)
	for _, c := range []struct {
		url  string
		args string
		code int
		says string
	}{
		{db.URL(), "watch jobs/none", cli.ExitNotHeld, "lock jobs/none does not exist"},
		{away.String(), "top", cli.ExitUnreachable, "cannot connect"},
		{pgtest.EmptyDatabase(t).URL(), "top", cli.ExitSchema, "is missing"},
		{asUser(t, db, ""), "top", cli.ExitPermission, "GRANT pglock_user TO"},
	} {
		s := onScreen(t, c.url, 120, 40, strings.Fields(c.args)...)
		s.exits(c.code)
		s.shows(c.says, "try: ")
		if strings.Contains(s.written(), "\x1b") {
			t.Errorf("%s has touched the screen: %q", c.args, s.written())
		}
		s.asItWas()
	}
}

// After a failover an address may lead to a standby, which shows the past.
func TestAScreenThatComesToAStandbySaysSoAndFindsThePrimary(t *testing.T) {
	t.Parallel()
	primary, standby := pgtest.Dedicated(t, nil), pgtest.Dedicated(t, nil)
	at := must.Get(url.Parse(primary.URL()))(t)
	password, _ := at.User.Password()
	for holder, server := range map[string]*pgserver.Server{"worker-1": primary, "worker-2": standby} {
		must.Do(t, migrations.Up(t.Context(), server.URL()))
		conn := must.Get(pgx.Connect(t.Context(), server.URL()))(t)
		all := []string{"SELECT pglock.acquire_lease('jobs/a', gen_random_uuid(), gen_random_uuid(), '" + holder +
			"', '1 h')"}
		if server == standby {
			all = append(all, "ALTER ROLE postgres PASSWORD '"+password+"'",
				"COPY (SELECT WHERE false) TO '"+server.DataDir()+"/standby.signal'")
		}
		for _, sql := range all {
			must.Get(conn.Exec(t.Context(), sql))(t)
		}
		must.Do(t, conn.Close(t.Context()))
	}
	must.Do(t, standby.Restart(t.Context()))
	g, through := newGate(t, primary.URL())
	s := onScreen(t, through, 120, 40, "watch", "jobs/a")
	s.shows("● worker-1", "every ")
	g.lead(must.Get(url.Parse(standby.URL()))(t).Host)
	g.cut(true)
	g.cut(false)
	s.shows("OLD: of ", "the server is a standby: this command needs the primary", "● worker-1")
	g.lead(at.Host) // only new connections find it
	s.until("fresh data", func(text string) bool {
		return strings.Contains(text, "every ") && !strings.Contains(text, "OLD: ")
	})
	s.types("q")
	s.ends(cli.ExitOK)
}
