package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/explain"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
)

// as gives the connection string of another user and database of the same server.
func as(tb testing.TB, address, user, database string) string {
	tb.Helper()
	u := must.Get(url.Parse(address))(tb)
	u.User, u.Path = url.UserPassword(user, "secret"), "/"+database
	return u.String()
}

// A cluster without the roles: nobody is told to grant them, and what failed works once somebody has made them.
func TestWithoutTheRolesNobodyIsToldToGrantThem(t *testing.T) {
	t.Parallel()
	server := pgtest.Dedicated(t, nil)
	conn := must.Get(pgx.Connect(t.Context(), server.URL()))(t)
	defer conn.Close(t.Context()) //nolint:errcheck // nothing is lost
	do := func(sql string) {
		t.Helper()
		must.Get(conn.Exec(t.Context(), sql))(t)
	}
	for _, sql := range []string{"CREATE ROLE app LOGIN PASSWORD 'secret'", "CREATE ROLE other LOGIN PASSWORD 'secret'",
		"CREATE DATABASE mine OWNER app", "CREATE SCHEMA pglock"} {
		do(sql)
	}
	app := func(code int, args string, texts ...string) {
		t.Helper()
		if a := in(t, as(t, server.URL(), "app", "mine"), strings.Fields(args)...).want(t, code,
			texts...); strings.Contains(a.stderr, "GRANT") {
			t.Errorf("%s: %s", args, a.stderr)
		}
	}
	// A schema of another program, which happens to have the name: the user may not even look into it.
	for _, command := range []string{"list", "show a", "break a --reason r", "guard list", "doctor", "prune",
		"waiters"} {
		a := in(t, as(t, server.URL(), "other", "postgres"), strings.Fields(command)...).want(t, cli.ExitSchema,
			"does not contain pglock", "try: pglock-admin migrate up, as user postgres or a superuser\n")
		if strings.Contains(a.stderr, "GRANT") {
			t.Errorf("%s: %s", command, a.stderr)
		}
	}
	pgtest.Eventually(t, "the connections of these commands to end", func() (over bool) {
		if err := conn.QueryRow(t.Context(), `SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE
			starts_with(application_name, 'pglock '))`).Scan(&over); err != nil {
			t.Fatal(err)
		}
		return over
	})
	const first = "try: let an administrator run: CREATE ROLE pglock_user NOLOGIN; CREATE ROLE pglock_admin NOLOGIN " +
		"IN ROLE pglock_user; then pglock-admin migrate up\n"
	app(cli.ExitSchema, "list", first)
	for range 2 {
		app(cli.ExitPermission, "migrate up", "schema pglock stays missing", "user app cannot create the roles "+
			"pglock_user and pglock_admin",
			"try: Let an administrator run: CREATE ROLE pglock_user NOLOGIN; CREATE ROLE pglock_admin NOLOGIN IN "+
				"ROLE pglock_user; then the same command again")
		app(cli.ExitSchema, "list", first)
		app(cli.ExitSchema, "migrate version", "schema pglock: missing\n", first)
	}
	do("CREATE ROLE pglock_user NOLOGIN")
	do("CREATE ROLE pglock_admin NOLOGIN IN ROLE pglock_user")
	app(cli.ExitSchema, "list", "try: pglock-admin migrate up\n")
	app(cli.ExitOK, "migrate up", "it was missing")
	app(cli.ExitOK, "list")
	in(t, as(t, server.URL(), "other", "mine"), "list").want(t, cli.ExitPermission,
		`try: let an administrator run: GRANT pglock_user TO "other"`)
}

// A restored dump without its rights: no grant to the user would help.
func TestWhereTheRolesLackTheSchemaNobodyIsToldToGrantThem(t *testing.T) {
	db := pgtest.Parallel(t)
	user := asUser(t, db, "pglock_user")
	execute(t, db, "REVOKE USAGE ON SCHEMA pglock FROM pglock_user, pglock_admin")
	for _, command := range []string{"list", "doctor", "break a --reason r", "migrate version"} {
		a := in(t, user, strings.Fields(command)...)
		if a.code != cli.ExitPermission || strings.Contains(a.stderr, "GRANT") ||
			strings.Contains(a.stderr, "PGOPTIONS") {
			t.Errorf("%s, exit code %d: %s", command, a.code, a.stderr)
		}
	}
	const mends = "SELECT mend FROM \"pglock\".wrong_rights()"
	in(t, user, "list").want(t, cli.ExitPermission, "let the owner of the schema run in psql: "+mends+` \gexec`)
	execute(t, db, "DO $$ DECLARE m text; BEGIN FOR m IN "+mends+" LOOP EXECUTE m; END LOOP; END $$")
	in(t, user, "list").want(t, cli.ExitOK)
}

func TestWhoLacksARightIsToldWhichStatementGivesIt(t *testing.T) {
	db := pgtest.Parallel(t)
	hold(t, db, "worker", "a")
	execute(t, db, "CREATE TABLE jobs ()")
	user := asUser(t, db, "")
	name := pgx.Identifier{db.Name() + "_user"}.Sanitize()
	obey := func(a answer) { // does what the advice says
		t.Helper()
		_, advice, found := strings.Cut(a.stderr, "let an administrator run: ")
		if !found {
			t.Fatalf("no advice: %s", a.stderr)
		}
		execute(t, db, advice)
	}
	for _, command := range []string{"list", "show a", "why a", "waiters", "sessions", "fences", "doctor", "migrate up",
		"migrate version", "guard list"} {
		in(t, user, strings.Fields(command)...).want(t, cli.ExitPermission, "let an administrator run: GRANT "+
			"pglock_user TO "+name)
	}
	in(t, user, "break", "a", "--reason", "r").want(t, cli.ExitPermission, "let an administrator run: GRANT "+
		"pglock_admin TO "+name)
	obey(in(t, user, "list"))
	for _, command := range []string{"list", "show a", "why a", "waiters", "sessions", "fences", "doctor", "migrate up",
		"migrate version", "guard list"} {
		in(t, user, strings.Fields(command)...).want(t, cli.ExitOK)
	}
	for _, command := range []string{"break a --reason r", "break --session 3b241101-e2bb-4255-8caf-4136c566a962 " +
		"--reason r", "prune"} {
		in(t, user, strings.Fields(command)...).want(t, cli.ExitPermission, "let an administrator run: GRANT "+
			"pglock_admin TO "+name)
	}
	me := ask[string](t, db, "SELECT current_user")
	for _, command := range []string{"migrate down --yes", "migrate force 1"} {
		in(t, user, strings.Fields(command)...).want(t, cli.ExitPermission, "lacks the rights of its owner",
			"try: the same command again as user "+me)
	}
	obey(in(t, user, "prune"))
	in(t, user, "break", "a", "--reason", "r").want(t, cli.ExitOK)
}

func TestAMemberThatDoesNotInheritIsToldToSetTheRole(t *testing.T) {
	db := pgtest.Parallel(t)
	user := asUser(t, db, "")
	execute(t, db, fmt.Sprintf("ALTER ROLE %s NOINHERIT", pgx.Identifier{db.Name() + "_user"}.Sanitize()))
	execute(t, db, fmt.Sprintf("GRANT pglock_admin TO %s", pgx.Identifier{db.Name() + "_user"}.Sanitize()))
	for _, command := range []string{"list", "migrate up", "migrate version"} {
		in(t, user, strings.Fields(command)...).want(t, cli.ExitPermission, "try: PGOPTIONS='-c role=pglock_user'")
	}
	u := must.Get(url.Parse(user))(t)
	query := u.Query()
	query.Set("options", "-c role=pglock_user")
	u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
	in(t, u.String(), "list").want(t, cli.ExitOK)
}

func TestAUserWhoMayNotConnectIsToldWhichStatementGivesIt(t *testing.T) {
	db := pgtest.Parallel(t)
	user := asUser(t, db, "pglock_user")
	execute(t, db, "REVOKE CONNECT ON DATABASE "+pgx.Identifier{db.Name()}.Sanitize()+" FROM PUBLIC")
	for _, command := range []string{"list", "migrate version"} {
		in(t, user, strings.Fields(command)...).want(t, cli.ExitPermission,
			fmt.Sprintf("try: let an administrator run: GRANT CONNECT ON DATABASE %q TO %q\n", db.Name(), db.Name()+
				"_user"))
	}
}

// A person on call may have a user who can look and do nothing else.
func TestAReadOnlyUserMayLook(t *testing.T) {
	db := pgtest.Parallel(t)
	lease := hold(t, db, "worker", "a")
	looks := []string{"list", "list --order age", "show a", "why a", "why", "waiters", "waiters --order age",
		"sessions", "fences", "fences --order age", "doctor", "guard list", "migrate version"}

	sessions := asUser(t, db, "pglock_admin")
	execute(t, db, fmt.Sprintf("ALTER ROLE %s SET default_transaction_read_only = on",
		pgx.Identifier{db.Name() + "_user"}.Sanitize()))
	for _, command := range looks {
		in(t, sessions, strings.Fields(command)...).want(t, cli.ExitOK)
	}
	for _, command := range []string{"break a --reason r", "break --session 3b241101-e2bb-4255-8caf-4136c566a962 " +
		"--reason r", "prune"} {
		in(t, sessions, strings.Fields(command)...).want(t, cli.ExitUnreachable, "in a read-only transaction")
	}
	if !lease.Valid() {
		t.Error("the lease was broken")
	}
}

// The page says what such a user needs, and this is it.
func TestAUserWithTheRightsOfThePageMayLookAndDoNothingElse(t *testing.T) {
	t.Parallel()
	page := must.Get(os.ReadFile("../../docs/command-line.md"))(t)
	_, rest, _ := strings.Cut(string(page), "CREATE ROLE viewer LOGIN;\n")
	grants, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("the page has no such user")
	}
	db := pgtest.Database(t)
	lease := hold(t, db, "worker", "a")
	user := asUser(t, db, "")
	name := pgx.Identifier{db.Name() + "_user"}.Sanitize()
	execute(t, db, strings.ReplaceAll(grants, "viewer", name))
	defer execute(t, db, "DROP OWNED BY "+name)
	for _, command := range []string{"list", "list --order age", "show a", "why a", "why", "waiters",
		"waiters --order age", "sessions", "fences", "fences --order age", "doctor"} {
		in(t, user, strings.Fields(command)...).want(t, cli.ExitOK)
	}
	for _, command := range []string{"break a --reason r", "break --session 3b241101-e2bb-4255-8caf-4136c566a962 " +
		"--reason r", "prune"} {
		in(t, user, strings.Fields(command)...).want(t, cli.ExitPermission, "let an administrator run: GRANT "+
			"pglock_admin TO "+name)
	}
	in(t, user, "run", "b", "--", "true").want(t, 116)
	if !lease.Valid() {
		t.Error("the lease was broken")
	}
}

// A new partition gets the guard's trigger, and PostgreSQL asks whether whoever makes it may call the function.
func TestDoctorNotesAnOwnerWhoCanMakeNoPartitionOfAGuardedTable(t *testing.T) {
	db := pgtest.Parallel(t)
	partitioned(t, db)
	conn, owner := db.Conn(t), must.Get(pgx.Connect(t.Context(), asUser(t, db, "")))(t)
	name := db.Name() + "_user"
	t.Cleanup(func() {
		must.Note(t, owner.Close(context.WithoutCancel(t.Context())))
		_, err := conn.Exec(context.WithoutCancel(t.Context()), "DROP OWNED BY "+name+" CASCADE")
		must.Note(t, err)
	})
	execute(t, db, "GRANT CREATE ON SCHEMA public TO "+name+"; ALTER TABLE accounts OWNER TO "+name)
	in(t, db.URL(), "guard", "add", "accounts").want(t, cli.ExitOK, "needs the role pglock_user")
	const create, item = "CREATE TABLE accounts_3 PARTITION OF accounts DEFAULT", "partitions of public.accounts"
	if state := written(t, owner, create); state != "42501" {
		t.Errorf("an owner without the role makes a partition: %q", state)
	}
	f := finding(t, decode[explain.DoctorView](t, in(t, db.URL(), "doctor", "-o", "json").want(t,
		cli.ExitOK).stdout), item)
	grant := "GRANT pglock_user TO " + name
	if f.Severity != lockadmin.SeverityNote || !strings.Contains(f.Meaning, grant) {
		t.Errorf("%+v", f)
	}
	execute(t, db, grant)
	if state := written(t, owner, create); state != "" {
		t.Errorf("after the GRANT: %q", state)
	}
	if a := in(t, db.URL(), "doctor").want(t, cli.ExitOK); strings.Contains(a.stdout, item) {
		t.Errorf("after the GRANT:\n%s", a.stdout)
	}
}
