package pglock_test

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/pglock"
)

// charge is code that is called while a lock is held, and wants to know under which token.
func charge(ctx context.Context, amount int) {
	if lease, found := pglock.LeaseFromContext(ctx); found {
		fmt.Println("charged", amount, "under the lock", lease.Name())
	}
}

func ExampleLeaseFromContext() {
	ctx := context.Background()
	client, err := pglock.Open(ctx, databaseURL())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(ctx)

	err = client.Do(ctx, "charges", func(ctx context.Context, _ *pglock.Lease) error {
		charge(ctx, 60)
		return nil
	})
	fmt.Println(err)
	// Output:
	// charged 60 under the lock charges
	// <nil>
}

// A program that calls the SQL functions by itself shows them the grant. Package fencedstore does that for pgx and
// database/sql.
func ExampleLease_Export() {
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
	lease, err := client.Acquire(ctx, "exported")
	if err != nil {
		fmt.Println(err)
		return
	}

	grant := lease.Export()
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT pglock.fence($1, $2, $3)", grant.Lock, int64(grant.Token), grant.ID)
		return err // and then what it protects
	})
	fmt.Println("under the fence of", grant.Resource, err)
	// Output: under the fence of exported <nil>
}

// The next step takes longer than the TTL and must not depend on a renewal, as the network may be away meanwhile.
func ExampleLease_Extend() {
	ctx := context.Background()
	client, err := pglock.Open(ctx, databaseURL())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(ctx)
	lease, err := client.Acquire(ctx, "firmware", pglock.WithTTL(10*time.Second))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Release(ctx)

	end, err := lease.Extend(ctx, 5*time.Minute)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer end() // the lease has its TTL again
	fmt.Println("more than four minutes:", time.Until(lease.Deadline()) > 4*time.Minute)
	// Output:
	// more than four minutes: true
}
