package fencedstore_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// Whoever uses the pool inside the function has passed the right fence, but in another transaction than its
// statement's. Whoever shares a lock has passed the fence of a slot.
func TestUnfencedWriteIsToldWhereItsFenceWent(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t, `CREATE TABLE accounts (id int)`)
	b.guard(t, "accounts")
	const insert = `INSERT INTO accounts VALUES (1)`
	lease := b.acquire(t, "accounts")
	err := b.store.Write(t.Context(), lease, func(ctx context.Context, _ pgx.Tx) error {
		_, err := b.pool.Exec(ctx, insert)
		return err
	})
	if !errors.Is(err, fencedstore.ErrUnfenced) || !strings.Contains(err.Error(), "through the pool") {
		t.Errorf("outside the transaction: %v", err)
	}
	release(t, lease)
	err = b.write(t, b.acquire(t, "accounts", pglock.WithShared()), "", insert)
	if !errors.Is(err, fencedstore.ErrUnfenced) || !strings.Contains(err.Error(), `the slot "accounts#1"`) {
		t.Errorf("with a shared lease: %v", err)
	}
}
