package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// databaseURL is the connection string of a database with the schema; an application has its own.
func databaseURL() string { return pgtest.URL() }

func ExampleNew() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, databaseURL())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	client, err := pglock.New(ctx, pool)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(ctx)

	lease, err := client.Acquire(ctx, "nightly report", pglock.WithTTL(30*time.Second))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("holding", lease.Name(), lease.Valid())
	if err := lease.Release(ctx); err != nil {
		fmt.Println(err)
	}
	fmt.Println(lease.Err())
	// Output:
	// holding nightly report true
	// pglock: lease is released
}

func ExampleClient_Do() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, databaseURL())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	client, err := pglock.New(ctx, pool)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(ctx)

	err = client.Do(ctx, "billing run", func(ctx context.Context, lease *pglock.Lease) error {
		// ctx ends when the lease is lost: pass it on to everything that works under the lock.
		fmt.Println("working as the only one:", lease.Name())
		return ctx.Err()
	})
	fmt.Println("done:", err)
	// Output:
	// working as the only one: billing run
	// done: <nil>
}

func ExampleClient_TryAcquire() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, databaseURL())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	client, err := pglock.New(ctx, pool, pglock.WithHolder("worker 1"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(ctx)

	if _, err := client.TryAcquire(ctx, "import"); err != nil {
		fmt.Println(err)
		return
	}
	_, err = client.TryAcquire(ctx, "import", pglock.WithLabel("worker 2"))
	var held *pglock.HeldError
	if errors.As(err, &held) {
		fmt.Printf("%s is held by %s\n", held.Name, held.Holder)
	}
	fmt.Println(errors.Is(err, pglock.ErrHeld))
	// Output:
	// import is held by worker 1
	// true
}
