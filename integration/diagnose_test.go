package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
)

// A transaction that has written and sits idle has no snapshot, but keeps row versions like one that reads. One whose
// age nobody sees may be old.
func TestDoctorSeesATransactionThatHasWrittenAndIsIdle(t *testing.T) {
	t.Parallel()                                                          // it has a server of its own
	server := migrated(t, map[string]string{"intervalstyle": "iso_8601"}) // it writes the age as it always does
	look, writer := newPeer(t, server.URL()), newPeer(t, server.URL())
	writer.exec(t, `CREATE TABLE ledger (n int)`)
	writer.exec(t, `BEGIN`)
	writer.exec(t, `INSERT INTO ledger VALUES (1)`)
	pgtest.Eventually(t, "the transaction to be two seconds old, and without a snapshot", func() bool {
		return one[bool](t, look,
			`SELECT xact_start < clock_timestamp() - interval '2 s' AND backend_xmin IS NULL FROM pg_stat_activity WHERE pid = $1`, writer.PgConn().PID())
	})
	f := findingOf(t, server.URL(), "oldest transaction")
	if f.Severity != lockadmin.SeverityOK || f.Value < "00:00:02" || f.Value > "24:00:00" {
		t.Errorf("%+v, want an oldest transaction of two seconds or more", f)
	}
	writer.exec(t, `SET track_activities = off`)
	f = findingOf(t, server.URL(), "oldest transaction")
	if f.Severity != lockadmin.SeverityNote || !strings.HasSuffix(f.Value, ", and 1 of unknown age") ||
		!strings.Contains(f.Meaning, "track_activities") {
		t.Errorf("%+v, want that one's age is not known", f)
	}
}

// findingOf is one finding of the doctor.
func findingOf(t *testing.T, url, item string) lockadmin.Finding {
	t.Helper()
	findings := must.Get(lockadmin.Diagnose(t.Context(), newPool(t, url)))(t)
	for _, f := range findings {
		if f.Item == item {
			return f
		}
	}
	t.Fatalf("no word of %s", item)
	return lockadmin.Finding{}
}

// The doctor names whoever is in the way, what that keeps locked, and the command that ends it.
func TestDoctorNamesOldTransactionsAndWhatTheyKeepLocked(t *testing.T) {
	t.Parallel() // it has a server of its own
	server := migrated(t, map[string]string{"max_prepared_transactions": "5"})
	look := newPeer(t, server.URL())
	look.exec(t, `SET check_function_bodies = off`) // its names are found when diagnose calls it
	look.change(t, "diagnose_transactions", "'10 minutes'", "'1 s'")
	look.change(t, "diagnose_transactions", "'1 minute'", "'1 s'")
	look.exec(t, `CREATE TABLE ledger (n int); CREATE ROLE bob SUPERUSER`)
	two, three := look.mustAcquire(t, "it's two", time.Hour), look.mustAcquire(t, "three", time.Hour)
	look.mustAcquire(t, "four", time.Hour)
	for _, g := range []grant{two, three} {
		if err := look.fence(t.Context(), g, "data of "+g.name); err != nil { // its fence has a row
			t.Fatal(err)
		}
	}
	begin := func(program string, statements ...string) *peer {
		p := newPeer(t, server.URL())
		p.exec(t, `SET application_name = '`+program+`'`)
		for _, sql := range append([]string{`BEGIN`}, statements...) {
			p.exec(t, sql)
		}
		return p
	}
	fence := func(g grant) string {
		name := strings.ReplaceAll(g.name, "'", "''")
		return fmt.Sprintf(`SELECT pglock.fence('%s', %d, '%s', 'data of %[1]s', true)`, name, g.token, g.id)
	}
	begin("coordinator", `SET ROLE bob`, fence(two), `PREPARE TRANSACTION 'half'`)
	begin("coordinator", `INSERT INTO ledger VALUES (1)`, `PREPARE TRANSACTION 'plain'`)
	writer := begin("writer", fence(three))
	person := begin("psql", `SAVEPOINT s`, `SELECT FROM pglock.locks WHERE name = 'four' FOR SHARE`)
	other := begin("other", `SELECT FROM pglock.locks WHERE name >= 'it' ORDER BY name FOR SHARE`,
		`INSERT INTO ledger VALUES (1)`)
	begin("last", `INSERT INTO ledger VALUES (1)`)
	pgtest.Eventually(t, "all to be a second old", func() bool {
		return one[bool](t, look, `SELECT least(min(clock_timestamp() - xact_start),
				(SELECT min(clock_timestamp() - prepared) FROM pg_prepared_xacts)) > interval '1.1 s'
			FROM pg_stat_activity WHERE application_name IN ('writer', 'psql', 'other', 'last')`)
	})

	f := findingOf(t, server.URL(), "prepared transactions")
	for _, words := range []string{
		"'half' of user bob, 00:00:0", "old: COMMIT PREPARED 'plain' or ROLLBACK PREPARED 'plain' ends it.",
		"old, keeps lock 'it''s two': COMMIT PREPARED 'half' or ROLLBACK PREPARED 'half' ends it.",
	} {
		if f.Severity != lockadmin.SeverityWarning || !strings.Contains(f.Meaning, words) {
			t.Errorf("no %q in %+v", words, f)
		}
	}
	f = findingOf(t, server.URL(), "oldest transaction")
	at := 0
	for _, words := range []string{
		fmt.Sprintf("process %d, 'writer' of user postgres, idle in transaction, open for 00:00:0",
			writer.PgConn().PID()),
		"keeps lock 'three'",
		fmt.Sprintf(": SELECT pg_terminate_backend(%d) ends it.", writer.PgConn().PID()),
		fmt.Sprintf("process %d, 'psql' of user postgres", person.PgConn().PID()), "keeps lock 'four'",
		fmt.Sprintf("process %d, 'other' of user postgres", other.PgConn().PID()), "keeps lock 'it''s two', 'three': " +
			"SELECT",
		"Older than ten minutes, too: 1 more.",
	} {
		n := strings.Index(f.Meaning[at:], words)
		if f.Severity != lockadmin.SeverityWarning || n < 0 {
			t.Fatalf("no %q in its place in %+v", words, f)
		}
		at += n
	}
	for _, p := range []*peer{writer, person, other} {
		p.exec(t, `ROLLBACK`)
	}
	f = findingOf(t, server.URL(), "oldest transaction")
	if !strings.Contains(f.Meaning, "'last'") || strings.Contains(f.Meaning, "keeps lock") {
		t.Errorf("of a transaction that has locked nothing here: %+v", f)
	}
}

// Whoever owns the schema can switch the check inside COMMIT off, and nothing fails then.
func TestDoctorSeesThatTheCheckInsideCommitIsOff(t *testing.T) {
	db := pgtest.Parallel(t)
	owner := newPeer(t, db.URL())
	found := func() lockadmin.Finding { return findingOf(t, db.URL(), "check inside COMMIT") }
	const mend = `ALTER TABLE pglock.fences ENABLE ALWAYS TRIGGER fence_commit`
	for _, tc := range []struct{ statement, value string }{
		{`ALTER TABLE pglock.fences DISABLE TRIGGER fence_commit`, "switched off"},
		{`ALTER TABLE pglock.fences ENABLE TRIGGER fence_commit`, "off under session_replication_role"},
		{`ALTER TABLE pglock.fences ENABLE REPLICA TRIGGER fence_commit`, "on under session_replication_role alone"},
		{`ALTER TABLE pglock.fences DISABLE TRIGGER ALL`, "switched off"},
	} {
		owner.exec(t, tc.statement)
		if f := found(); f.Severity != lockadmin.SeverityWarning || f.Value != tc.value ||
			!strings.Contains(f.Meaning, mend) {
			t.Errorf("%s: %+v", tc.statement, f)
		}
		owner.exec(t, mend)
		if f := found(); f.Severity != lockadmin.SeverityOK || f.Value != "always on" {
			t.Errorf("mended after %s: %+v", tc.statement, f)
		}
	}
	owner.exec(t, `DROP TRIGGER fence_commit ON pglock.fences`)
	if f := found(); f.Severity != lockadmin.SeverityWarning || f.Value != "missing" ||
		!strings.Contains(f.Meaning, "make its trigger fence_commit again") {
		t.Errorf("without the trigger: %+v", f)
	}
}
