package drivers_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/examples/drivers"
	"github.com/pglock-dev/pglock/examples/drivers/accounts"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// program runs f as an application does its work: with the connection string of its database, which has the schema and
// an account, and with a lease of the account's lock.
func program(f func(ctx context.Context, url string, pool *pgxpool.Pool, lease *pglock.Lease) error) {
	ctx, url := context.Background(), pgtest.URL()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, accountsSchema+"INSERT INTO accounts VALUES (16)"); err != nil {
		fmt.Println(err)
		return
	}
	client, err := pglock.New(ctx, pool)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(ctx)
	err = client.Do(ctx, "accounts/16", func(ctx context.Context, lease *pglock.Lease) error {
		return f(ctx, url, pool, lease)
	})
	switch {
	case err == nil:
	case errors.Is(err, pglock.ErrLost), errors.Is(err, fencedstore.ErrStaleToken):
		fmt.Println("overtaken: stop")
	default:
		fmt.Println(err)
	}
}

func ExampleLibPQ() {
	programs(drivers.LibPQ)
	// Output:
	// balance: 67
}

func ExampleWriteQueries() {
	program(func(ctx context.Context, _ string, pool *pgxpool.Pool, lease *pglock.Lease) error {
		store := fencedstore.New(pool)
		err := drivers.WriteQueries(ctx, store, lease, func(ctx context.Context, q *accounts.Queries) error {
			n, err := q.Deposit(ctx, accounts.DepositParams{ID: 16, Amount: 60})
			fmt.Println("accounts:", n)
			return err
		})
		return err
	})
	// Output:
	// accounts: 1
}

// An operator breaks the lock between the write and its COMMIT.
func ExampleWritePool_broken() {
	program(func(ctx context.Context, _ string, pool *pgxpool.Pool, lease *pglock.Lease) error {
		return drivers.WritePool(ctx, pool, lease, pgx.TxOptions{}, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance + 60 WHERE id = 16"); err != nil {
				return err
			}
			_, err := pool.Exec(ctx, "SELECT pglock.break_lock($1, 'its host is gone', 'alice')", lease.Name())
			return err
		})
	})
	// Output:
	// overtaken: stop
}
