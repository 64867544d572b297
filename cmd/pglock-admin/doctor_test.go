package main

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/explain"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

// finding gives the finding of an item.
func finding(tb testing.TB, v explain.DoctorView, item string) lockadmin.Finding {
	tb.Helper()
	i := slices.IndexFunc(v.Findings, func(f lockadmin.Finding) bool { return f.Item == item })
	if i < 0 {
		tb.Fatalf("no finding %q in %+v", item, v.Findings)
	}
	return v.Findings[i]
}

func fine(f lockadmin.Finding) bool { return f.Severity == lockadmin.SeverityOK }

func bad(f lockadmin.Finding) bool { return f.Severity == lockadmin.SeverityWarning }

func TestDoctorTellsWhatEachFindingMeans(t *testing.T) {
	db := pgtest.Parallel(t)
	partitioned(t, db)
	in(t, db.URL(), "guard", "add", "accounts", "--key", "id").want(t, cli.ExitOK)
	in(t, db.URL(), "doctor").want(t, cli.ExitOK).narrow(t).inOrder(t, "OK       schema  ", "pglock, "+latest+
		"\n         The version that this library needs.\n",
		"OK       server  ", "takes writes\n", "timeline  ", "NOTE     epoch  ", "OK       token sequence",
		"cache 1", "         Anything but cache 1",
		"OK       guard of public.accounts", "accounts/<id>\n         Every write")

	v := decode[explain.DoctorView](t, in(t, db.URL(), "doctor", "-o", "json").want(t, cli.ExitOK).stdout)
	var not []string
	for _, f := range v.Findings {
		if f.Item == "" || f.Value == "" || f.Meaning == "" {
			t.Errorf("%+v", f)
		}
		if bad(f) {
			not = append(not, f.Item)
		}
	}
	if !slices.Equal(not, v.Attention) {
		t.Errorf("attention %q, but not ok are %q", v.Attention, not)
	}
	if !fine(finding(t, v, "schema")) || !fine(finding(t, v, "server")) ||
		finding(t, v, "epoch").Severity != lockadmin.SeverityNote || !fine(finding(t, v, "guard of public.accounts")) {
		t.Errorf("%+v", v)
	}
}

func TestDoctorExitsWithZeroUnlessItIsStrict(t *testing.T) {
	db := pgtest.Parallel(t)
	always := decode[explain.DoctorView](t, in(t, db.URL(), "doctor", "-o", "json").want(t,
		cli.ExitOK).stdout).Attention
	code, says := cli.ExitAttention, "WARNING: "
	if len(always) == 0 {
		code, says = cli.ExitOK, "nothing needs attention"
	}
	in(t, db.URL(), "doctor", "--strict").want(t, code, says)

	partitioned(t, db)
	in(t, db.URL(), "guard", "add", "accounts").want(t, cli.ExitOK)
	execute(t, db, "CREATE TABLE accounts_3 PARTITION OF accounts FOR VALUES FROM (200) TO (300)")
	says = fmt.Sprintf("WARNING: %d of ", len(always)+1)
	in(t, db.URL(), "doctor").want(t, cli.ExitOK, says).inOrder(t, "WARNING  guard of public.accounts",
		"accounts_3 has no guard for TRUNCATE")
	strict := in(t, db.URL(), "doctor", "--strict").want(t, cli.ExitAttention, says, "guard of public.accounts")
	if !strings.Contains(strict.stdout, "accounts_3 has no guard") ||
		!strings.Contains(strict.stderr, "leave --strict out") {
		t.Errorf("%+v", strict)
	}
	strict = in(t, db.URL(), "doctor", "--strict", "-o", "json").want(t, cli.ExitAttention)
	if v, p := decode[explain.DoctorView](t, strict.stdout), decode[cli.Problem](t,
		strict.stderr); len(v.Attention) != len(always)+
		1 || p.Code != cli.ExitAttention {
		t.Errorf("%+v, %+v", v, p)
	}
}

func TestDoctorSaysWhenTheSchemaIsMissingOrOfAnotherVersion(t *testing.T) {
	t.Parallel()
	missing, newer := pgtest.EmptyDatabase(t), pgtest.Database(t)
	next := fmt.Sprint(migrations.Latest + 1)
	execute(t, newer,
		`CREATE OR REPLACE FUNCTION pglock.schema_version() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT `+next+`'`)
	execute(t, newer, `CREATE OR REPLACE FUNCTION pglock.serves_from() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT `+
		next+`'`)
	for _, tc := range []struct {
		db   *pgtest.DB
		says []string
		more bool // findings besides that of the schema
	}{
		{missing, []string{"WARNING  schema  pglock, missing", "try: pglock-admin migrate up\n"}, false},
		{newer, []string{"WARNING  schema  ", "pglock, version " + next,
			fmt.Sprint("knows version ", migrations.Latest), "a newer pglock-admin"}, true},
	} {
		in(t, tc.db.URL(), "doctor").want(t, cli.ExitSchema, tc.says...).narrow(t)
		a := in(t, tc.db.URL(), "doctor", "-o", "json").want(t, cli.ExitSchema)
		v, p := decode[explain.DoctorView](t, a.stdout), decode[cli.Problem](t, a.stderr)
		if !bad(finding(t, v, "schema")) || (len(v.Findings) > 1) != tc.more || v.Attention[0] != "schema" ||
			p.Code != cli.ExitSchema {
			t.Errorf("%+v, %+v", v, p)
		}
	}
	execute(t, newer, "DROP FUNCTION pglock.diagnose")
	in(t, newer.URL(), "doctor").want(t, cli.ExitSchema, "pglock, version "+next, "a newer pglock-admin")
}

func TestDoctorWorksWhereProgramsRefuseToStart(t *testing.T) {
	db := pgtest.Parallel(t)
	execute(t, db, "ALTER SEQUENCE pglock.fencing_token_seq CACHE 32")
	in(t, db.URL(), "list").want(t, cli.ExitSchema)
	in(t, db.URL(), "doctor").want(t, cli.ExitOK, "WARNING  token sequence", "cache 32")
	execute(t, db, "ALTER SEQUENCE pglock.fencing_token_seq CACHE 1")

	u := must.Get(url.Parse(db.URL()))(t)
	query := u.Query()
	query.Set("default_transaction_read_only", "on")
	u.RawQuery = query.Encode()
	in(t, u.String(), "break", "a", "--reason", "r").want(t, cli.ExitUnreachable)
	v := decode[explain.DoctorView](t, in(t, u.String(), "doctor", "-o", "json").want(t, cli.ExitOK).stdout)
	if f := finding(t, v, "server"); !bad(f) || f.Value != "read-only" || !fine(finding(t, v, "schema")) ||
		!fine(finding(t, v, "token sequence")) {
		t.Errorf("%+v", v)
	}
}

func TestDoctorNeedsOnlyTheRightToUseLocks(t *testing.T) {
	db := pgtest.Parallel(t)
	user := asUser(t, db, "pglock_user")
	in(t, user, "doctor").want(t, cli.ExitOK, "token sequence")
	execute(t, db, "REVOKE pglock_user FROM "+db.Name()+"_user")
	in(t, user, "doctor").want(t, cli.ExitPermission, "pglock_user")
	addr := closedPort(t)
	in(t, "postgres://me:secret@"+addr+"/db", "doctor").want(t, cli.ExitUnreachable, addr)
}

func TestDoctorKeepsToTheWidthOfATerminal(t *testing.T) {
	db := pgtest.Parallel(t)
	long := strings.Repeat("x", 63)
	execute(t, db, fmt.Sprintf("CREATE SCHEMA %s CREATE TABLE %[1]s (id int) CREATE TABLE jobs (id int)", long))
	in(t, db.URL(), "guard", "add", long+"."+long, "--resource", strings.Repeat("y", pglock.MaxNameBytes)).want(t,
		cli.ExitOK)
	in(t, db.URL(), "doctor").want(t, cli.ExitOK, "yyyy").narrow(t)
}

func TestDiagnoseRefusesWrongArguments(t *testing.T) {
	t.Parallel()
	pool := pgtest.EmptyDatabase(t).Pool(t)
	for name, err := range map[string]error{
		"no pool":    second(lockadmin.Diagnose(t.Context(), nil)),
		"nil option": second(lockadmin.Diagnose(t.Context(), pool, nil)),
		"no schema":  second(lockadmin.Diagnose(t.Context(), pool, lockadmin.WithSchema(""))),
	} {
		if !errors.Is(err, pglock.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second(_ []lockadmin.Finding, err error) error { return err }

// The trial is for a database without a schema of ours, by a user who may make one.
func TestDoctorTriesAnEngineBeforeThereIsASchema(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	in(t, db.URL(), "doctor", "--engine", "--strict").want(t, cli.ExitOK).narrow(t).inOrder(t,
		"NOTE     engine             PostgreSQL ", "OK       time limits        as PostgreSQL does it\n",
		"OK       row locks ", "OK       FOR KEY SHARE ", "OK       SKIP LOCKED ", "OK       sequence ",
		"OK       clock ", "OK       check in COMMIT ", "OK       LISTEN and NOTIFY ",
		"As far as a trial can tell, locks are safe on this server. Nothing needs\nattention.")

	execute(t, db, "CREATE SCHEMA other")
	execute(t, db, "CREATE FUNCTION other.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT now()'")
	execute(t, db, "ALTER DATABASE "+db.Name()+" SET search_path = other, pg_catalog, public")
	in(t, db.URL(), "doctor", "--engine").want(t, cli.ExitOK, "WARNING  clock ", "not as PostgreSQL does it",
		"Locks are not safe on this server. WARNING: 1 of 9: clock.")
	in(t, db.URL(), "doctor", "--engine", "--strict").want(t, cli.ExitAttention, "1 finding marked WARNING")
	v := decode[explain.DoctorView](t, in(t, db.URL(), "doctor", "--engine", "-o", "json").want(t, cli.ExitOK).stdout)
	if !bad(finding(t, v, "clock")) || !fine(finding(t, v, "sequence")) || v.Verdict == "" {
		t.Errorf("%+v", v)
	}
	user := asUser(t, db, "pg_monitor")
	execute(t, db, "REVOKE CREATE ON DATABASE "+db.Name()+" FROM PUBLIC")
	in(t, user, "doctor", "--engine").want(t, cli.ExitPermission, "GRANT CREATE ON DATABASE")
	in(t, "postgres://me:secret@"+closedPort(t)+"/db", "doctor", "--engine").want(t, cli.ExitUnreachable)
}
