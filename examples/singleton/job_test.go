package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

func TestMain(m *testing.M) {
	pgtest.Main(m, pgtest.WithTemplate(func(ctx context.Context, url string) error { return migrations.Up(ctx, url) }))
}

func TestASingletonGoesOnAfterAStepThatFails(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t).Pool(t)
	client, err := pglock.New(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	store, steps := fencedstore.New(pool), 0
	step := func(ctx context.Context, tx pgx.Tx) (more bool, err error) {
		if steps++; steps == 1 {
			_, err = tx.Exec(ctx, "SELECT 1 / 0")
		}
		return steps < 3, err
	}
	if err := Singleton(t.Context(), client, store, "shipping", step); err != nil || steps != 3 {
		t.Errorf("%d steps, %v", steps, err)
	}
	if err := client.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := Singleton(t.Context(), client, store, "shipping", step); !errors.Is(err, pglock.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// Under a context that holds the lock already, whoever queues again waits for itself, for ever.
func TestASingletonDoesNotQueueBehindItsOwnLease(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t).Pool(t)
	client, err := pglock.New(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	step := func(context.Context, pgx.Tx) (bool, error) { return false, nil }
	err = client.Do(ctx, "shipping", func(ctx context.Context, _ *pglock.Lease) error {
		return Singleton(ctx, client, fencedstore.New(pool), "shipping", step)
	})
	if !errors.Is(err, pglock.ErrSelfDeadlock) || ctx.Err() != nil {
		t.Errorf("%v, want ErrSelfDeadlock at once", err)
	}
	if err := client.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
