package main

import (
	"context"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

func TestWrongCommandLinesExitWithTwo(t *testing.T) {
	for _, line := range []struct{ args, says string }{
		{"", "needs a command"},
		{"nonsense", "no command nonsense"},
		{"lits", "try: pglock-admin list\n"},
		{"list --nonsense", "unknown flag"},
		{"list a b", "list takes one PREFIX or none"},
		{"list --limit x", `--limit is "x": it must be a whole number`},
		{"list --limit", "--limit needs a value: a whole number"},
		{"list --all=maybe", `--all is "maybe": it must be true or false`},
		{"list --timeout 5", `--timeout is "5": it must be a duration such as`},
		{"migrate upp", "try: pglock-admin migrate up\n"},
		{"migrate version extra", "takes no arguments"},
		{"help nonsense", "there is no command nonsense"},
		{"version x", "takes no arguments"},
		{"completion tcsh", "tcsh"},
		{"list -o xml", "table, json or yaml"},
		{"list --timeout 0s", "--timeout"},
		{"list --limit -1", "--limit"},
		{"list --database-url postgres://[", "--database-url: it cannot be read as a connection string"},
		{"list --database-url pool_max_conns=x", "--database-url: it cannot be read as a connection string: cannot " +
			"parse pool_max_conns"},
		{"show", "name of one lock"},
		{"show a --events 0", "--events"},
		{"show a --waiters 0", "--waiters"},
		{"waiters a b", "name of one lock or none"},
		{"waiters --limit 0", "--limit"},
		{"waiters --limit 10000", "from 1 to 9999"},
		{"list --limit 0", "--limit is 0: it must be from 1 to 9999"},
		{"list --order size", `--order is "size": it must be name, age, recent, waiting or expiry`},
		{"list --mode any", `--mode is "any": it must be exclusive, shared or limit`},
		{"list --mode", "--mode needs a value: exclusive, shared or limit"},
		{"list --older 0s", "--older is 0s"},
		{"list --older soon", `--older is "soon": it must be a duration such as`},
		{"list --match=", "--match is empty"},
		{"list --after a --order age", "--after goes with --order name only, not with age"},
		{"list --after \"a", "must be quoted as in the output of list"},
		{"waiters a --after b", "--after does not go with a NAME"},
		{"waiters --order expiry", "it must be name or age"},
		{"sessions extra", "takes no arguments"},
		{"sessions --order expiry", "it must be name, age, leases or waiting"},
		{"fences a b", "name of one lock or none"},
		{"fences --mode shared", "unknown flag"},
		{"break a --session b --reason r", "a NAME or --session, not both"},
		{"break --session b --token 1 --reason r", "--token does not go with --session"},
		{"break --session b", "--reason is empty"},
		{"break a --reason r --token 0", "--token is 0: it must be greater than 0"},
		{"break a --reason r --token -1", "--token is -1: it must be greater than 0"},
		{"why a b", "name of one lock"},
		{"history a b", "name of one lock"},
		{"history --limit 0", "--limit is 0"},
		{"history --kind nonsense", "nonsense"},
		{"history --since soon", `--since is "soon": it must be a duration such as`},
		{"verify a b", "name of one lock"},
		{"record --level some", "some"},
		{"record extra", "takes no arguments"},
		{"record --by alice", "--by does not go without --level or --keep"},
		{"watch", "name of one lock"},
		{"watch a", "needs a terminal"},
		{"top", "needs a terminal"},
		{"top --interval 0s", "--interval is 0s"},
		{"serve --listen nonsense", "--listen"},
		{"serve extra", "takes no arguments"},
		{"break", "name of one lock"},
		{"break a", "--reason is empty"},
		{"break a --reason=", "--reason is empty"},
		{"migrate", "needs a command"},
		{"migrate sideways", "sideways"},
		{"migrate down", "--yes"},
		{"migrate force", "one version"},
		{"migrate force x", "whole number"},
		{"demo --workers 1", "from 2 to 8"},
		{"demo --workers 9", "from 2 to 8"},
		{"demo --ttl 1ms", "from 200ms"},
		{"demo --ttl 1h", "to 2.5s"},
		{"demo -o json", "--output json"},
		{"demo --schema s", "--schema"},
	} {
		t.Run(line.args, func(t *testing.T) {
			args := strings.Fields(line.args)
			admin(t, args...).want(t, cli.ExitUsage, line.says)
			if strings.Contains(line.args, "-o") && !strings.Contains(line.args, "--") {
				return
			}
			a := admin(t, append(args, "-o", "json")...).want(t, cli.ExitUsage)
			if p := decode[cli.Problem](t, a.stderr); p.Code != cli.ExitUsage || p.Message == "" || p.Hint == "" {
				t.Errorf("as JSON: %+v", p)
			}
		})
	}
}

func TestABlankReasonIsNoReason(t *testing.T) {
	admin(t, "break", "a", "--reason", "  ").want(t, cli.ExitUsage, `pglock-admin break a --reason "why"`)
}

func TestHelpDocumentsTheExitCodes(t *testing.T) {
	admin(t, "--help").want(t, cli.ExitOK, "130  interrupted", "5  the schema is missing", "DATABASE_URL", "PGHOST")
	for _, command := range []string{"list", "show", "waiters", "break", "migrate", "demo", "version"} {
		admin(t, command, "--help").want(t, cli.ExitOK, "Usage:")
	}
}

// Help of every command says where the address is looked for, and not what is found there. The flag may be given too.
func TestHelpDoesNotShowTheConnectionString(t *testing.T) {
	nobody := closedPort(t)
	address := "postgres://me:hush-hush@" + nobody + "/hidden"
	t.Setenv("DATABASE_URL", address)
	t.Setenv("PGPASSWORD", "hush-hush")
	for _, c := range commands(newRoot(&cli.Options{Getenv: os.Getenv})) {
		path := strings.Fields(c.CommandPath())[1:]
		for _, line := range [][]string{{"--help"}, {"--database-url", address, "--help"}, {"--nonsense"}} {
			a := admin(t, append(slices.Clone(path), line...)...)
			said := a.stdout + a.stderr
			if strings.Contains(said, "hush") || strings.Contains(said, nobody) || strings.Contains(said, "hidden") {
				t.Errorf("%v %v shows the address:\n%s", path, line, said)
			}
			if help := line[len(line)-1] == "--help"; help &&
				(a.code != cli.ExitOK || !strings.Contains(a.stdout, "--help")) || !help && a.code == cli.ExitOK {
				t.Errorf("%v %v exits with %d and says\n%s", path, line, a.code, said)
			}
		}
	}
	admin(t, "list", "--help").want(t, cli.ExitOK, "--database-url", "default $DATABASE_URL")
	admin(t, "list", "--timeout", "1s").want(t, cli.ExitUnreachable, nobody) // it is looked for there
}

func TestVersionTellsTheSchemaVersion(t *testing.T) {
	admin(t, "version").want(t, cli.ExitOK, "schema needed", latest)
	v := decode[programView](t, admin(t, "version", "-o", "json").want(t, cli.ExitOK).stdout)
	if v.SchemaVersion != pglock.SchemaVersion || v.Go == "" || v.Version == "" {
		t.Errorf("%+v", v)
	}
}

// closedPort is an address where nobody listens while the test runs: it is taken by the client of a connection.
func closedPort(tb testing.TB) string {
	tb.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(tb)
	conn := must.Get(net.Dial("tcp", l.Addr().String()))(tb)
	tb.Cleanup(func() {
		conn.Close()
		l.Close()
	})
	return conn.LocalAddr().String()
}

func TestAnUnreachableServerIsNamedAndThePasswordIsNot(t *testing.T) {
	addr := closedPort(t)
	for _, command := range []string{"list", "show a", "waiters", "sessions", "fences", "break a --reason r",
		"break --session 3b241101-e2bb-4255-8caf-4136c566a962 --reason r", "migrate up", "migrate down --yes",
		"migrate version", "migrate force 1"} {
		a := in(t, "postgres://me:secret@"+addr+"/db", strings.Fields(command)...).want(t, cli.ExitUnreachable, addr)
		if strings.Contains(a.stdout+a.stderr, "secret") {
			t.Errorf("%s tells the password: %s", command, a.stderr)
		}
	}
}

func TestTheEnvironmentNamesTheServer(t *testing.T) {
	addr := closedPort(t)
	host, port, _ := net.SplitHostPort(addr)
	t.Setenv("DATABASE_URL", "")
	t.Setenv("PGHOST", host)
	t.Setenv("PGPORT", port)
	admin(t, "list").want(t, cli.ExitUnreachable, addr)
	admin(t, "migrate", "version").want(t, cli.ExitUnreachable, addr)

	t.Setenv("DATABASE_URL", pgtest.Database(t).URL())
	admin(t, "list").want(t, cli.ExitOK, "no lock is held")
}

func TestAServerThatDoesNotAnswerIsGivenUp(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	in(t, "postgres://me@"+l.Addr().String()+"/db?sslmode=disable", "list", "--timeout", "50ms").want(t,
		cli.ExitUnreachable, "--timeout")
}

func TestAnUnknownDatabaseIsToldApart(t *testing.T) {
	u := must.Get(url.Parse(pgtest.Database(t).URL()))(t)
	u.Path = "/no_such_database"
	in(t, u.String(), "list").want(t, cli.ExitUnreachable, "createdb")
}

func TestAnInterruptExitsWith130(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stderr strings.Builder
	if code := obey(ctx, []string{"list", "--database-url", pgtest.Database(t).URL()}, os.Getenv, io.Discard,
		&stderr); code != cli.ExitInterrupted {
		t.Errorf("exit code %d: %s", code, stderr.String())
	}
}

func TestAConnectionStringThatCannotBeReadIsNotRepeated(t *testing.T) {
	t.Parallel()
	for _, given := range []string{
		"postgres://u:hush@ho st/db", "postgres://u:hu sh@host/db", "postgres://u:hu@hush:5x@host/db",
		"postgres://u:%zzhush@host/db", "host=h password=hush x",
		"host=h password='hush x", "host=h password = hush port=x", "postgres://h/d?password=hush&sslmode=nope",
		"postgres:/u:hush@h/d", "u:hush@h/d",
		"postgres://u:hush@h:5432:1/d", "postgres://u:`: hush@h:x/d", "postgres://u:x@hu sh hush@h/d",
	} {
		if a := in(t, given, "list").want(t, cli.ExitUsage,
			"DATABASE_URL: it cannot be read as a connection string: "); strings.Contains(a.stderr, "hush") {
			t.Errorf("%s: %s", given, a.stderr)
		}
	}
}
