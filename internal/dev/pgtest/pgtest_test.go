package pgtest_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

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
		if _, err := pgx.Connect(context.WithoutCancel(t.Context()), db.URL()); err != nil {
			t.Fatal(err)
		}
	})
	var n int
	if err := pgtest.EmptyDatabase(t).Conn(t).QueryRow(t.Context(), "select count(*) from pg_database where datname "+
		"= $1", name).Scan(&n); err != nil {
		t.Fatal(err)
	}
	if n != 0 {
		t.Errorf("database %s is still there", name)
	}
}

func TestDatabasesAreApart(t *testing.T) {
	t.Parallel()
	a, b := pgtest.Database(t), pgtest.Database(t)
	if _, err := a.Conn(t).Exec(t.Context(), "insert into migrated values (1)"); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := b.Conn(t).QueryRow(t.Context(), "select count(*) from migrated").Scan(&n); err != nil {
		t.Fatal(err)
	}
	if n != 0 {
		t.Errorf("%d rows of another test", n)
	}
}

func TestDedicatedServerCanBeKilledAndRestarted(t *testing.T) {
	t.Parallel()
	s := pgtest.Dedicated(t, map[string]string{"max_connections": "17"})
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var n string
	if err := conn.QueryRow(t.Context(), "show max_connections").Scan(&n); err != nil || n != "17" {
		t.Errorf("max_connections %s, %v", n, err)
	}
}
