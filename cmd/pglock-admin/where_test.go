package main

import (
	"net"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/internal/shown"
)

// everyCommand is every command that speaks to a database, with what it needs to succeed once the lock and the table
// are there; in this order each of them does.
var everyCommand = [][]string{
	{"migrate", "up"}, {"migrate", "version"}, {"list"}, {"list", "--all"}, {"sessions"}, {"fences"},
	{"show", "my lock"}, {"waiters"}, {"waiters", "my lock"},
	{"guard", "add", "jobs"}, {"guard", "list"}, {"doctor"}, {"guard", "drop", "jobs", "--yes"},
	{"break", "my lock", "--reason", "r"}, {"prune"}, {"migrate", "down", "--yes"},
}

func TestEveryAnswerNamesTheServerAndTheDatabase(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{cli.DefaultSchema, "My locks"} {
		db := pgtest.EmptyDatabase(t)
		config := must.Get(pgx.ParseConfig(db.URL()))(t)
		place := cli.Where{Server: server.Addresses(config)[0], Database: db.Name(), Schema: schema}
		line := "at " + place.Server + ", database " + db.Name()
		if schema != cli.DefaultSchema {
			line += `, schema "My locks"`
		}
		execute(t, db, "CREATE TABLE jobs ()")
		for _, format := range map[string][]string{cli.DefaultSchema: {"table"},
			"My locks": {"table", "json"}}[schema] {
			for _, command := range everyCommand {
				a := in(t, db.URL(), append(command, "--schema", schema, "-o", format)...).want(t, cli.ExitOK)
				if format == "json" {
					if got := decode[struct{ At cli.Where }](t, a.stdout).At; got != place {
						t.Errorf("%q is at %+v, want %+v", command, got, place)
					}
				} else if first, _, _ := strings.Cut(a.stdout, "\n"); first != line {
					t.Errorf("%q begins with %q, want %q", command, first, line)
				}
				if strings.Count(a.stdout, db.Name()) != 1 || config.Password != "" &&
					strings.Contains(a.stdout+a.stderr, config.Password) {
					t.Errorf("%q tells too much:\n%s%s", command, a.stdout, a.stderr)
				}
				if command[0] == "migrate" && command[1] == "up" {
					execute(t, db, "SELECT "+pgx.Identifier{schema, "acquire_lease"}.Sanitize()+
						"('my lock', gen_random_uuid(), gen_random_uuid(), 'holder', '1 hour')")
				}
			}
		}
	}
}

func TestEveryErrorNamesTheServerAndTheDatabase(t *testing.T) {
	t.Parallel()
	addr := closedPort(t)
	address := "postgres://me:hush-hush@" + addr + "/app"
	for _, command := range append(everyCommand, []string{"migrate", "force", "1"}, []string{"migrate", "down"},
		[]string{"guard", "drop", "jobs"}, []string{"list", "--limit", "-1"}, []string{"prune", "--idle", "-1s"}) {
		a := in(t, address, append(command, "--schema", "mine")...)
		if !strings.Contains(a.stderr, "\nat: "+addr+", database app, schema mine\ntry: ") || a.code == cli.ExitOK {
			t.Errorf("%q, exit code %d: %s", command, a.code, a.stderr)
		}
		p := decode[cli.Problem](t, in(t, address, append(command, "--schema", "mine", "-o", "json")...).stderr)
		if p.At == nil || *p.At != (cli.Where{Server: addr, Database: "app", Schema: "mine"}) {
			t.Errorf("%q is at %+v", command, p.At)
		}
		if strings.Contains(a.stderr, "hush-hush") {
			t.Errorf("%q tells the password: %s", command, a.stderr)
		}
	}
	// have nothing to do with a server
	for _, command := range []string{"version", "list --nonsense", "demo --workers 1"} {
		if a := in(t, address, strings.Fields(command)...); strings.Contains(a.stdout+a.stderr, addr) {
			t.Errorf("%s speaks of a server: %s%s", command, a.stdout, a.stderr)
		}
	}
}

func TestOfSeveralServersTheOneThatAnsweredIsNamed(t *testing.T) {
	t.Parallel()
	u := must.Get(url.Parse(pgtest.Database(t).URL()))(t)
	closed, open := closedPort(t), u.Host
	u.Host = closed + "," + open
	for _, command := range []string{"list", "migrate version"} {
		a := in(t, u.String(), strings.Fields(command)...).want(t, cli.ExitOK)
		host, port, _ := net.SplitHostPort(open)
		ips, err := net.LookupHost(host)
		if err != nil || !strings.HasPrefix(a.stdout, "at "+net.JoinHostPort(ips[0], port)+", database ") {
			t.Errorf("%s, of %s and %s (%v): %s", command, closed, open, err, a.stdout)
		}
	}
	u.Host = closed + "," + closedPort(t)
	in(t, u.String(), "list").want(t, cli.ExitUnreachable, "at: "+strings.ReplaceAll(u.Host, ",", ", ")+", database ",
		closed+": connect: connection refused; ")
}

// A reason that came twice, with TLS and without, is told once, and the server stands on its own line alone.
func TestWhyThereIsNoConnectionIsToldOnce(t *testing.T) {
	t.Parallel()
	addr := closedPort(t)
	a := in(t, "postgres://me@"+addr+"/db?sslmode=prefer", "list").want(t, cli.ExitUnreachable,
		"pglock-admin: cannot connect as user me: connect: connection refused\nat: "+addr+", database db\n")
	if strings.Count(a.stderr, "refused") != 1 || strings.Count(a.stderr, addr) != 1 {
		t.Error(a.stderr)
	}
}

// A suggested command leads to the same database, also when the environment names another one.
func TestASuggestedCommandGoesToTheSameDatabase(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	u := must.Get(url.Parse(db.URL()))(t)
	u.User = url.User(u.User.Username())
	admin(t, "prune", "--database-url", db.URL(), "--schema", "my locks").want(t, cli.ExitSchema,
		"try: pglock-admin migrate up --schema 'my locks' --database-url "+shown.Argument(u.String())+"\n")
}

func TestTheEnvironmentIsReadWhereNoFlagIsGiven(t *testing.T) {
	db := pgtest.Parallel(t)
	elsewhere := func(name string) string {
		if name == "DATABASE_URL" {
			return "postgres://me@" + closedPort(t) + "/db"
		}
		return os.Getenv(name)
	}
	with(t, elsewhere, "list").want(t, cli.ExitUnreachable)
	with(t, elsewhere, "list", "--database-url", db.URL()).want(t, cli.ExitOK)
}
