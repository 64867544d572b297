package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/leader"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

func TestMain(m *testing.M) {
	pgtest.Main(m, pgtest.WithTemplate(func(ctx context.Context, url string) error { return migrations.Up(ctx, url) }))
}

func TestALeaderGoesOnAfterAStepThatFails(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t).Pool(t)
	client, err := pglock.New(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(context.Background())
	candidate, err := leader.New(client, "leader/planner")
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	var tokens []pglock.Token
	err = Lead(ctx, candidate, fencedstore.New(pool), time.Millisecond,
		func(ctx context.Context, tx pgx.Tx, lease *pglock.Lease) error {
			tokens = append(tokens, lease.Token())
			if len(tokens) == 2 {
				end()
				return nil
			}
			_, err := tx.Exec(ctx, "SELECT 1 / 0")
			return err
		})
	if !errors.Is(err, context.Canceled) || len(tokens) != 2 || tokens[0] != tokens[1] {
		t.Errorf("%v after the steps of the terms %v", err, tokens)
	}
}
