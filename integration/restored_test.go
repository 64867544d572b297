package integration

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// A restored dump is another database than the one of the write, though its installation has the same ID and the
// database has the same OID.
func TestI17_ARestoredDumpRefusesTheReceiptsOfBefore(t *testing.T) {
	pgtest.Whole(t, "TestI17_WriteLostInAFailoverNeverHappened")
	t.Parallel() // it has servers of its own
	primary := newPrimary(t)
	_ = clientProgram(t, primary, "pg_dump") // or skip before there is work
	const identities = `SELECT array[pglock.database_id()::text, oid::text] FROM pg_database
		WHERE datname = current_database()`
	p := newPeer(t, primary.url)
	was := one[[]string](t, p, identities)
	refuses := func(what string, of *node) {
		t.Helper()
		p := newPeer(t, of.url)
		is := one[[]string](t, p, identities)
		if is[0] == was[0] || is[1] != was[1] {
			t.Errorf("%s: identity and OID are %v, were %v: want another identity for the same OID", what, is, was)
		}
		if _, err := p.Exec(t.Context(), `SELECT pglock.outcome($1, $2, $3)`, uuid.New(), uuid.New(),
			was[0]); state(err) != "LK007" {
			t.Errorf("I17: %s: the outcome of a write of before: %v", what, err)
		}
	}
	server := pgtest.Dedicated(t, nil)
	restored := &node{server, server.URL()}
	newPeer(t, restored.url).exec(t, `CREATE ROLE pglock_user; CREATE ROLE pglock_admin IN ROLE pglock_user`)
	restore(t, primary, restored)
	refuses("another server", restored)
	restore(t, primary, primary, "--clean")
	refuses("the same server", primary)
	p.exec(t, `UPDATE pglock.installation SET id = DEFAULT`)
	if is := one[[]string](t, newPeer(t, primary.url), identities); is[0] == was[0] {
		t.Error("a new ID of the installation leaves the identity as it was")
	}
}

// Without the row of the installation nobody is granted anything or told what became of a write, and the hint is the
// statement that mends it.
func TestI17_WithoutTheRowOfTheInstallationNothingIsAnswered(t *testing.T) {
	p := newPeer(t, pgtest.Parallel(t).URL())
	home := one[uuid.UUID](t, p, `SELECT pglock.database_id()`)
	before := p.mustAcquire(t, "before", time.Minute)
	p.exec(t, `DELETE FROM pglock.installation`)
	calls := []string{`SELECT pglock.outcome(gen_random_uuid(), gen_random_uuid(), '` + home.String() + `')`,
		`SELECT pglock.start_client()`, `SELECT pglock.diagnose()`, `SELECT pglock.advance_epoch('restored', 'alice')`,
		`SELECT pglock.acquire_lease('new', gen_random_uuid(), gen_random_uuid(), 'peer', '1 min')`}
	const mend = "INSERT INTO pglock.installation DEFAULT VALUES"
	for _, call := range calls {
		_, err := p.Exec(t.Context(), call)
		var refusal *pgconn.PgError
		if !errors.As(err, &refusal) || refusal.Code != "55000" ||
			refusal.Hint != "As the owner of the schema: "+mend+"." {
			t.Errorf("I17: without the row %s said %+v", call, err)
		}
	}
	p.exec(t, mend)
	if g := p.mustAcquire(t, "after", time.Minute); g.token <= before.token {
		t.Errorf("I22: token %d after token %d", g.token, before.token)
	}
	for _, call := range calls[1:] {
		p.exec(t, call)
	}
}
