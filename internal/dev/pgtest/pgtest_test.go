package pgtest_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
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
	if err := db.Pool(tb).QueryRow(tb.Context(),
		"select count(*) from pg_tables where schemaname = 'public'").Scan(&n); err != nil {
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

func TestDatabaseGoesWithItsTestWhoeverIsConnected(t *testing.T) {
	t.Parallel()
	var name string
	t.Run("test", func(t *testing.T) {
		db := pgtest.Database(t)
		name = db.Name()
		// Left open on purpose.
		must.Get(pgx.Connect(context.WithoutCancel(t.Context()), db.URL()))(t)
	})
	n := pgtest.One[int](t, pgtest.EmptyDatabase(t).Conn(t), "select count(*) from pg_database where datname "+
		"= $1", name)
	if n != 0 {
		t.Errorf("database %s is still there", name)
	}
}

func TestDatabasesAreApart(t *testing.T) {
	t.Parallel()
	a, b := pgtest.Database(t), pgtest.Database(t)
	must.Get(a.Conn(t).Exec(t.Context(), "insert into migrated values (1)"))(t)
	n := pgtest.One[int](t, b.Conn(t), "select count(*) from migrated")
	if n != 0 {
		t.Errorf("%d rows of another test", n)
	}
}

func TestDedicatedServerCanBeKilledAndRestarted(t *testing.T) {
	t.Parallel()
	s := pgtest.Dedicated(t, map[string]string{"max_connections": "17"})
	must.Do(t, s.Kill())
	must.Do(t, s.Restart(t.Context()))
	conn := must.Get(pgx.Connect(t.Context(), s.URL()))(t)
	defer conn.Close(t.Context())
	var n string
	if err := conn.QueryRow(t.Context(), "show max_connections").Scan(&n); err != nil || n != "17" {
		t.Errorf("max_connections %s, %v", n, err)
	}
}
