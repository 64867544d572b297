package fencedstore_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// A time limit and the grace of its lease have 24 hours together, and whoever asks for more is told the field by name.
func TestTimeLimitBesideAGraceMayBeAsLongAsTheRuleSays(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t).Pool(t)
	client, err := pglock.New(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(t.Context())
	lease, err := client.TryAcquire(t.Context(), "a", pglock.WithGrace(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	write := func(limit time.Duration) error {
		return fencedstore.New(pool).Write(t.Context(), lease, func(context.Context, pgx.Tx) error { return nil },
			fencedstore.WithTimeLimit(limit), fencedstore.WithSameToken())
	}
	if err := write(23 * time.Hour); err != nil {
		t.Error(err)
	}
	if err := write(23*time.Hour + time.Minute); !errors.Is(err, pglock.ErrInvalid) || !strings.Contains(err.Error(), "time limit is 23h1m0s") {
		t.Error(err)
	}
}

// A connection that an administrator ends after the time limit is not ended by it.
func TestTerminationIsNotTakenForTheTimeLimit(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	pool := db.Pool(t)
	client, err := pglock.New(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(t.Context())
	lease, err := client.TryAcquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	const limit = 3 * time.Second
	other := db.Conn(t)
	err = fencedstore.New(pool).Write(t.Context(), lease, func(ctx context.Context, tx pgx.Tx) error {
		pid := tx.Conn().PgConn().PID()
		if _, err := other.Exec(ctx, "SELECT pg_terminate_backend($1)", pid); err != nil {
			return err
		}
		time.Sleep(limit + 100*time.Millisecond) // the error is read after the limit
		_, err := tx.Exec(ctx, "SELECT 1")
		return err
	}, fencedstore.WithTimeLimit(limit))
	if err == nil || errors.Is(err, fencedstore.ErrTimeLimit) || !strings.Contains(err.Error(), "57P01") {
		t.Error(err)
	}
}
