package fencedstore_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/pglock"
)

// What the server refuses a statement of the application for is the application's affair, whether or not pglock knows
// the SQLSTATE from its own statements.
func TestExplainLeavesTheApplicationsOwnErrorsAsTheyAre(t *testing.T) {
	t.Parallel()
	o := &observed{}
	b := newBench(t, pglock.WithObserver(o))
	l := b.acquire(t, "report")
	for state, statement := range map[string]string{
		"42883": `SELECT 'a'::text = 1`, "3F000": `CREATE TABLE nowhere.rows ()`, "22P02": `SELECT 'a'::int`,
		"22003": `SELECT 99999999999::int`, "22023": `SELECT set_config('lock_timeout', 'a', true)`,
		"42501": `DO $$ BEGIN RAISE insufficient_privilege; END $$`,
		"25006": `SET TRANSACTION READ ONLY; CREATE TABLE rows ()`,
	} {
		tx := b.begin(t)
		guarded := must.Get(fencedstore.Guard(t.Context(), tx, l))(t)
		_, own := tx.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol)
		if protocol.State(own) != state {
			t.Errorf("%s: %v, want %s", statement, own, state)
		}
		if err := guarded.Explain(own); err != own { //nolint:errorlint // as it is
			t.Errorf("Explain(%v) = %v", own, err)
		}
		must.Do(t, tx.Rollback(t.Context()))
	}
	if err := b.client.Close(t.Context()); err != nil { // which joins the observer
		t.Fatal(err)
	}
	if got := o.words(); len(got) != 0 {
		t.Errorf("events %q", got)
	}
}

// The last check before COMMIT runs as the role that the transaction has taken: one without pglock_user is refused, and
// told what to do.
func TestATransactionThatHasTakenARoleWithoutRightsIsToldSo(t *testing.T) {
	t.Parallel()
	o := &observed{}
	b := newBench(t, pglock.WithObserver(o))
	l := b.acquire(t, "report")
	role := pgx.Identifier{b.db.Name() + "_tenant"}.Sanitize()
	b.exec(t, "CREATE ROLE "+role)
	t.Cleanup(func() {
		if _, err := b.pool.Exec(context.WithoutCancel(t.Context()), "DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	take := "SET LOCAL ROLE " + role
	var want []string
	for _, name := range []string{"Write", "WriteSQL", "Guard", "GuardSQL"} {
		if err := ways[name](t, b, l, does(take)); !errors.Is(err, pglock.ErrPermission) ||
			!strings.Contains(err.Error(), "RESET ROLE at its end") {
			t.Errorf("%s: %v, want an ErrPermission that tells of the role", name, err)
		}
		want = append(want, "refused: report")
	}
	if err := b.write(t, l, "report", take+"; RESET ROLE"); err != nil {
		t.Errorf("with the role given back: %v", err)
	}
	want = append(want, "write: report")
	if err := b.client.Close(t.Context()); err != nil { // which joins the observer
		t.Fatal(err)
	}
	if got := o.words(); !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
}
