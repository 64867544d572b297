package pglock_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

// newerSchema makes the schema one of the next version, which serves libraries from a version on.
func newerSchema(servesFrom int) string {
	return fmt.Sprintf(`CREATE OR REPLACE FUNCTION pglock.schema_version() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT %d';
		CREATE OR REPLACE FUNCTION pglock.serves_from() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT %d'`,
		pglock.SchemaVersion+1, servesFrom)
}

// Programs start again between the migration and the roll-out of the new library.
func TestClientWorksWithANewerSchemaThatServesItsVersion(t *testing.T) {
	db := pgtest.Parallel(t)
	execute(t, db.Conn(t), newerSchema(pglock.SchemaVersion))
	mustAcquire(t, startClient(t, db.Pool(t)), "report")
}

func TestClientRefusesASchemaThatDoesNotFitAndTellsWhatToRun(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, pool := db.Conn(t), db.Pool(t)
	where := fmt.Sprintf("database %q of ", db.Name())
	const sequence = "ALTER SEQUENCE pglock.fencing_token_seq "
	// as the migration makes it
	const right = sequence + "INCREMENT 1 MINVALUE 1 MAXVALUE 8796093022207 NO CYCLE CACHE 1;"
	for _, tc := range []struct {
		name, change string
		have         int
		says         []string
	}{
		{"cache", sequence + "CACHE 32", -1, []string{"fencing_token_seq", "ALTER SEQUENCE", "CACHE 1"}},
		{"maximum", right + sequence + "NO MAXVALUE", -1, []string{"fencing_token_seq", "MAXVALUE 8796093022207"}},
		{"cycle", right + sequence + "CYCLE", -1, []string{"fencing_token_seq", "NO CYCLE"}},
		{"backward", right + sequence + "INCREMENT -1 MINVALUE -10", -1, []string{"fencing_token_seq", "INCREMENT 1"}},
		{"newer", right + newerSchema(pglock.SchemaVersion+1), pglock.SchemaVersion + 1,
			[]string{fmt.Sprintf("version %d", pglock.SchemaVersion+1), "newer release"}},
		{"missing", "DROP SCHEMA pglock CASCADE", 0, []string{"migrate up", "migrations.Up", where}},
		{"empty", "CREATE SCHEMA pglock", 0, []string{"migrate up", "migrations.Up", where}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			execute(t, conn, tc.change)
			_, err := pglock.New(t.Context(), pool)
			if !errors.Is(err, pglock.ErrSchema) {
				t.Fatalf("%v, want ErrSchema", err)
			}
			var schema *pglock.SchemaError
			if errors.As(err, &schema) != (tc.have >= 0) {
				t.Errorf("%v, want a SchemaError: %v", err, tc.have >= 0)
			}
			if schema != nil && (schema.Have != tc.have || schema.Need != pglock.SchemaVersion ||
				schema.Schema != "pglock") {
				t.Errorf("%+v, want version %d", schema, tc.have)
			}
			for _, s := range tc.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q does not say %q", err, s)
				}
			}
		})
	}
}

func TestClientThatMeetsAnOlderSchemaSaysWhichVersionItNeedsAndHowToGetIt(t *testing.T) {
	t.Parallel()
	older := &pglock.SchemaError{Schema: "pglock", Have: 3, Need: 4}
	for _, s := range []string{`"pglock"`, "has version 3", "needs 4", "pglock-admin migrate up --schema pglock",
		"migrations.Up"} {
		if !strings.Contains(older.Error(), s) {
			t.Errorf("%q does not say %q", older, s)
		}
	}
	// What it says to run makes the schema fit.
	db := pgtest.EmptyDatabase(t)
	pool := db.Pool(t)
	_, err := pglock.New(t.Context(), pool)
	var schema *pglock.SchemaError
	if !errors.Is(err, pglock.ErrSchema) || !errors.As(err, &schema) ||
		schema.Schema != "pglock" || schema.Have != 0 || schema.Need != pglock.SchemaVersion {
		t.Fatalf("%v, want a SchemaError with versions 0 and %d", err, pglock.SchemaVersion)
	}
	must.Do(t, migrations.Up(t.Context(), db.URL()))
	mustAcquire(t, startClient(t, pool), "report")
}
