package engine

import (
	"context"
	"errors"
	"flag"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "4") // they wait more than they work
	pgtest.Main(m)
}

// tried gives the findings of the checks on a database, without that of the engine's name.
func tried(t *testing.T, db *pgtest.DB, checks []check) []lockadmin.Finding {
	t.Helper()
	config := must.Get(pgx.ParseConfig(db.URL()))(t)
	findings := must.Get(try(t.Context(), config, checks))(t)
	var left int
	db.Look(t, func(conn *pgx.Conn) {
		const schemas = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'pglock%'"
		must.Do(t, conn.QueryRow(t.Context(), schemas).Scan(&left))
	})
	if left > 0 {
		t.Errorf("%d schemas are left", left)
	}
	if engine := findings[0]; engine.Item != "engine" || engine.Severity != lockadmin.SeverityNote ||
		!strings.HasPrefix(engine.Value, "PostgreSQL ") {
		t.Errorf("%+v", engine)
	}
	return findings[1:]
}

func TestPostgreSQLHasWhatTheProtocolNeeds(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	began := time.Now()
	findings := tried(t, db, checks)
	t.Logf("took %v", time.Since(began))
	if len(findings) != 8 {
		t.Errorf("%d findings, want eight", len(findings))
	}
	for _, f := range findings {
		if f.Severity != lockadmin.SeverityOK {
			t.Errorf("%+v", f)
		}
	}
}

// wantOnly fails unless this one check has found something, in these words.
func wantOnly(t *testing.T, findings []lockadmin.Finding, item string, words string) {
	t.Helper()
	for _, f := range findings {
		severity := lockadmin.SeverityOK
		switch {
		case f.Item == item && item == "LISTEN and NOTIFY":
			severity = lockadmin.SeverityNote
		case f.Item == item:
			severity = lockadmin.SeverityWarning
		}
		if f.Severity != severity || f.Item == item && !strings.Contains(f.Meaning, words) {
			t.Errorf("want %s with %q of %+v", severity, words, f)
		}
	}
}

// A function of the same name, which statements find first, does what other engines do.
func TestAnEngineWhoseFunctionsDoSomethingElseIsFoundOut(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ function, item, words string }{
		"a clock that stands still in a transaction": {
			"clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT pg_catalog.now()'",
			"clock", ": f, and not t"},
		"a clock for each connection": {
			`clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
			$$ SELECT pg_catalog.clock_timestamp() + pg_catalog.pg_backend_pid() * interval '1 s' $$`,
			"clock", "and not above"},
		"a sequence with a cache for each connection": {
			`nextval(text) RETURNS bigint LANGUAGE sql AS
			$$ SELECT pg_catalog.nextval($1::regclass) + pg_catalog.pg_backend_pid() * 100 $$`, "sequence", "and not above"},
		"a sequence that is rolled back": {
			`nextval(text) RETURNS bigint LANGUAGE sql AS $$ SELECT pg_catalog.nextval($1::regclass) WHERE false $$`,
			"sequence", "and not above"},
		"settings that are ignored": {
			`set_config(text, text, boolean) RETURNS text LANGUAGE sql AS 'SELECT $2'`, "time limits", "and not 55P03"},
		"settings that outlast their transaction": {
			`set_config(text, text, boolean) RETURNS text LANGUAGE sql AS 'SELECT pg_catalog.set_config($1, $2, false)'`,
			"time limits", "'51ms'\": t, and not f"},
		"no numbers of transactions": {
			`pg_current_xact_id() RETURNS xid8 LANGUAGE sql AS $$ SELECT '7'::xid8 $$`, "check in COMMIT", ": 1, and not 0"},
		"notifications that nobody hears": {
			`pg_notify(text, text) RETURNS void LANGUAGE sql AS ''`, "LISTEN and NOTIFY", "It heard nothing, and not kept."},
	} {
		t.Run(name, func(t *testing.T) {
			db := pgtest.EmptyParallel(t)
			db.Look(t, func(conn *pgx.Conn) {
				for _, sql := range []string{"CREATE SCHEMA other", "CREATE FUNCTION other." + c.function,
					"ALTER DATABASE " + db.Name() + " SET search_path = other, pg_catalog, public"} {
					must.Get(conn.Exec(t.Context(), sql))(t)
				}
			})
			wantOnly(t, tried(t, db, checks), c.item, c.words)
		})
	}
}

// PostgreSQL does as it is told. So the check tells it to do what an engine does that lacks the feature.
func TestAnEngineWhoseStatementsDoSomethingElseIsFoundOut(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ item, from, to, words string }{
		"it has one isolation level": {"row locks", "READ COMMITTED", "SERIALIZABLE",
			"serializable, and not read committed"},
		"it fails instead of waiting": {"row locks", "UPDATE @.rows SET token = 9 WHERE id = 1 AND token = 1",
			"SELECT id FROM @.rows FOR UPDATE NOWAIT", "error 55P03"},
		"it forgets the condition after a wait": {"row locks", "WHERE id = 1 AND token = 1", "WHERE id = 1",
			"UPDATE 1, and not UPDATE 0"},
		"its ON CONFLICT forgets the condition": {"row locks", "WHERE r.token = 2", "",
			"INSERT 0 1, and not INSERT 0 0"},
		"its readers do not lock":                 {"FOR KEY SHARE", "FOR KEY SHARE", "", "UPDATE 1, and not waits"},
		"it has one strength of locks":            {"FOR KEY SHARE", "FOR KEY SHARE", "FOR SHARE", "and not UPDATE 1"},
		"it does not skip":                        {"SKIP LOCKED", "SKIP LOCKED", "", "and not 2"},
		"it skips nothing":                        {"SKIP LOCKED", "LIMIT 1 FOR UPDATE", "LIMIT 1", "1, and not 2"},
		"its sequence caches for each connection": {"sequence", "CACHE 1", "CACHE 100", "2, and not above 101"},
		"its triggers cannot be deferred": {"check in COMMIT", "INITIALLY DEFERRED", "INITIALLY IMMEDIATE",
			"\"UPDATE held SET token = 2\": error no answer"}, // the check has locked the lease at once
		"it has no constraint triggers": {"check in COMMIT", "CREATE CONSTRAINT TRIGGER", "CREATE DEFERRED TRIGGER",
			"error 42601"},
		"its triggers are not run":   {"check in COMMIT", "RAISE EXCEPTION 'lost'", "NULL", "COMMIT, and not P0001"},
		"it tells before the commit": {"LISTEN and NOTIFY", begin, "SELECT 1", "It heard lost, and not nothing."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			others := slices.Clone(checks)
			n := slices.IndexFunc(others, func(o check) bool { return o.item == c.item })
			others[n].steps = slices.Clone(others[n].steps)
			changed := false
			for i, s := range others[n].steps {
				others[n].steps[i].sql = strings.Replace(s.sql, c.from, c.to, 1)
				changed = changed || others[n].steps[i].sql != s.sql
			}
			if !changed {
				t.Fatalf("no statement has %q", c.from)
			}
			wantOnly(t, tried(t, pgtest.EmptyDatabase(t), others[n:n+1]), c.item, c.words)
		})
	}
}

func TestATrialThatIsInterruptedLeavesNothing(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	config := must.Get(pgx.ParseConfig(db.URL()))(t)
	schemas := func() (n int) {
		db.Look(t, func(conn *pgx.Conn) {
			const sql = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'pglock%'"
			must.Note(t, conn.QueryRow(t.Context(), sql).Scan(&n))
		})
		return n
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stand := check{item: "stand", steps: []step{{a, "SELECT pg_sleep(4)", anything}}} // less than a step may last
	done := must.Go(func() error { _, err := try(ctx, config, []check{stand, stand}); return err })
	pgtest.Eventually(t, "the schema of the trial", func() bool { return schemas() == 1 })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("want the interruption: %v", err)
	}
	if n := schemas(); n > 0 {
		t.Errorf("%d schemas are left", n)
	}
}
