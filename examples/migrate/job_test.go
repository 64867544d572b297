package main

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

func TestMain(m *testing.M) {
	pgtest.Main(m, pgtest.WithTemplate(func(ctx context.Context, url string) error { return migrations.Up(ctx, url) }))
}

// The second application migrates while the first is in the middle of a migration of the same name: it neither waits
// for it nor takes it for its own.
func TestApplicationsMakeMigrationsOfTheSameName(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t).Pool(t)
	client := must.Get(pglock.New(t.Context(), pool))(t)
	defer client.Close(context.WithoutCancel(t.Context()))
	store := fencedstore.New(pool)
	var made []string
	migration := func(app string, up func(context.Context) error) []Migration {
		return []Migration{{Name: "0001 init", Limit: 20 * time.Second, Up: func(ctx context.Context, _ pgx.Tx) error {
			made = append(made, app)
			return up(ctx)
		}}}
	}
	nothing := func(context.Context) error { return nil }
	during := migration("shop", func(ctx context.Context) error {
		return Migrate(ctx, client, store, "billing", migration("billing", nothing))
	})
	if err := Migrate(t.Context(), client, store, "shop", during); err != nil {
		t.Error(err)
	}
	for _, app := range []string{"shop", "billing"} { // the next replicas
		if err := Migrate(t.Context(), client, store, app, migration(app, nothing)); err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(made, []string{"shop", "billing"}) {
		t.Errorf("made: %v, want each application's once", made)
	}
}
