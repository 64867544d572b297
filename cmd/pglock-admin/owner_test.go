package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/explain"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// statementsOf gives the first SQL that docs/install.md tells under a heading.
func statementsOf(t *testing.T, heading string) string {
	t.Helper()
	text := must.Get(os.ReadFile("../../docs/install.md"))(t)
	_, below, _ := strings.Cut(string(text), "\n"+heading+"\n")
	_, below, _ = strings.Cut(below, "```sql\n")
	sql, _, found := strings.Cut(below, "```")
	if !found {
		t.Fatalf("no SQL under %q", heading)
	}
	return sql
}

// newOwner gives the schema to a role as the docs tell, when it is called.
func newOwner(t *testing.T, db *pgtest.DB) (name string, give func()) {
	t.Helper()
	name = db.Name() + "_owner" // roles belong to all databases of the server
	conn := db.Conn(t)
	after := context.WithoutCancel(t.Context())
	t.Cleanup(func() {
		if _, err := conn.Exec(after, "DROP OWNED BY "+name+" CASCADE; DROP ROLE "+name); err != nil {
			t.Error(err)
		}
	})
	return name, func() {
		t.Helper()
		if _, err := conn.Exec(t.Context(), strings.ReplaceAll(statementsOf(t, "### The owner"), "pglock_owner", name),
			pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDoctorSaysWhenTheOwnerIsASuperuserAndTheDocsTellHowToChangeThat(t *testing.T) {
	db := pgtest.Parallel(t)
	owner, give := newOwner(t, db)
	execute(t, db, "CREATE TABLE guarded (id int)")
	in(t, db.URL(), "guard", "add", "guarded").want(t, cli.ExitOK)
	lease := hold(t, db, "worker", "a")
	await(t, db, "next", "a", pglock.ModeExclusive, 0)
	found := func() lockadmin.Finding {
		t.Helper()
		return finding(t, decode[explain.DoctorView](t, in(t, db.URL(), "doctor", "-o", "json").want(t,
			cli.ExitOK).stdout), "owner")
	}
	if f, me := found(), ask[string](t, db, "SELECT quote_ident(current_user)"); !bad(f) || f.Value != me+
		", a superuser" || !strings.Contains(f.Meaning, "no superuser limits") {
		t.Errorf("%+v, want attention to %s", f, me)
	}
	execute(t, db, "ALTER SCHEMA pglock OWNER TO pg_monitor")
	if f := found(); !bad(f) {
		t.Errorf("the schema alone has been given away: %+v", f)
	}
	give()
	if f := found(); !fine(f) || f.Value != owner {
		t.Errorf("%+v, want %s", f, owner)
	}
	if left := ask[string](t, db, `SELECT coalesce(string_agg(what, ', '), 'nothing') FROM (
		SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'pglock'::regnamespace AND proowner <> $1::text::regrole
		UNION SELECT relname FROM pg_class WHERE relnamespace = 'pglock'::regnamespace AND relowner <> $1::text::regrole
		UNION SELECT typname FROM pg_type WHERE typnamespace = 'pglock'::regnamespace AND typowner <> $1::text::regrole
		UNION SELECT nspname FROM pg_namespace WHERE nspname = 'pglock' AND nspowner <> $1::text::regrole) x (what)`,
		owner); left != "nothing" {
		t.Errorf("of others are still %s", left)
	}

	// Everything works as before, for users and for operators.
	must.Note(t, fencedWrite(t, db, lease, func(pgx.Tx) error { return nil }))
	if state := written(t, db.Conn(t), "INSERT INTO guarded VALUES (1)"); state != "LK011" {
		t.Errorf("a write past the guard: %q", state)
	}
	user := asUser(t, db, "pglock_admin")
	for _, command := range []string{"list", "show a", "waiters", "doctor", "guard list", "break a --reason r", "prune",
		"migrate up"} {
		in(t, user, strings.Fields(command)...).want(t, cli.ExitOK)
	}
	in(t, db.URL(), "guard", "drop", "guarded", "--yes").want(t, cli.ExitOK)
	hold(t, db, "worker", "b")
}

func TestTheOwnerThatTheDocsMakeMayMigrate(t *testing.T) {
	db := pgtest.Parallel(t)
	owner, give := newOwner(t, db)
	give()
	execute(t, db, "GRANT CREATE ON DATABASE "+db.Name()+" TO "+owner)
	as := withOptions(t, db.URL(), "-c role="+owner)
	in(t, as, "migrate", "down", "--yes").want(t, cli.ExitOK, "missing")
	in(t, as, "migrate", "up").want(t, cli.ExitOK, "it was missing")
	if f := finding(t, decode[explain.DoctorView](t, in(t, as, "doctor", "-o", "json").want(t, cli.ExitOK).stdout),
		"owner"); !fine(f) || f.Value != owner {
		t.Errorf("%+v", f)
	}
}

// The server refuses writes when there are no more of them; until then nothing else tells.
func TestDoctorShowsHowNearTheLimitOfMultixactsIs(t *testing.T) {
	db := pgtest.Parallel(t)
	f := finding(t, decode[explain.DoctorView](t, in(t, db.URL(), "doctor", "-o", "json").want(t, cli.ExitOK).stdout),
		"multixacts")
	var used, limit int64
	if _, err := fmt.Sscanf(f.Value, "%d of %d", &used, &limit); err != nil || !fine(f) || limit != 1<<31 ||
		used > 1_000_000 {
		t.Errorf("%+v, %v", f, err)
	}
}
