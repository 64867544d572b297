package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
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
		switch steps++; steps {
		case 1:
			_, err = tx.Exec(ctx, "SELECT 1 / 0")
		case 2:
			err = pglock.ErrDeadlock // over another lock, which may be free the next time
		}
		return steps < 4, err
	}
	if err := Singleton(t.Context(), client, store, "shipping", step); err != nil || steps != 4 {
		t.Errorf("%d steps, %v", steps, err)
	}
	if err := client.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := Singleton(t.Context(), client, store, "shipping", step); !errors.Is(err, pglock.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// Whoever would wait for itself does not queue again, for ever: under a context that holds the lock already, or that
// holds what the lock's holder waits for.
func TestASingletonThatWouldWaitForItselfEnds(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t).Pool(t)
	client, err := pglock.New(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	admin, err := lockadmin.New(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	step := func(context.Context, pgx.Tx) (bool, error) { return false, nil }
	under := func(outer string, before func()) error {
		return client.Do(ctx, outer, func(ctx context.Context, _ *pglock.Lease) error {
			before()
			return Singleton(ctx, client, fencedstore.New(pool), "shipping", step)
		})
	}
	if err := under("shipping", func() {}); !errors.Is(err, pglock.ErrSelfDeadlock) || ctx.Err() != nil {
		t.Errorf("%v, want ErrSelfDeadlock at once", err)
	}

	lease, err := client.Acquire(ctx, "shipping")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	err = under("orders", func() {
		go func() { _, err := client.Acquire(lease.Context(), "orders"); got <- err }()
		pgtest.Eventually(t, "the holder of shipping to wait for orders", func() bool {
			info, err := admin.Get(ctx, "orders")
			return err == nil && info.Waiting == 1
		})
	})
	if !errors.Is(err, pglock.ErrDeadlock) || ctx.Err() != nil {
		t.Errorf("%v, want ErrDeadlock at once", err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
	if err := client.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
