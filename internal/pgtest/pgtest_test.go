package pgtest_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m, pgtest.WithTemplate(migrate)) }

func migrate(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "create table migrated (id int)")
	return err
}

func tables(tb testing.TB, db *pgtest.DB) int {
	tb.Helper()
	var n int
	if err := db.Pool(tb).QueryRow(tb.Context(), "select count(*) from pg_tables where schemaname = 'public'").Scan(&n); err != nil {
		tb.Fatal(err)
	}
	return n
}

func TestDatabaseIsACopyOfTheMigratedTemplate(t *testing.T) {
	t.Parallel()
	if n := tables(t, pgtest.Database(t)); n != 1 {
		t.Errorf("%d tables, want 1", n)
	}
}

func TestEmptyDatabaseHasNoTables(t *testing.T) {
	t.Parallel()
	if n := tables(t, pgtest.EmptyDatabase(t)); n != 0 {
		t.Errorf("%d tables, want 0", n)
	}
}
