package pglock_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/pglock-dev/pglock/pglock"
)

// Whoever moves a tenant holds everything below its name, without knowing the names.
func ExampleWithSubtree() {
	ctx := context.Background()
	pool := examplePool(ctx)
	defer pool.Close()
	mover, worker := exampleClient(ctx, pool), exampleClient(ctx, pool)
	defer mover.Close(ctx)
	defer worker.Close(ctx)

	lease, err := mover.Acquire(ctx, "tenants/7", pglock.WithSubtree())
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = worker.TryAcquire(ctx, "tenants/7/import/5")
	var held *pglock.HeldError
	fmt.Println(errors.As(err, &held), held.By)
	if _, err = worker.TryAcquire(ctx, "tenants/70"); err == nil { // not below tenants/7
		fmt.Println("elsewhere nobody waits")
	}
	inner, err := mover.TryAcquire(lease.Context(), "tenants/7/import/5") // the same work
	fmt.Println(err, inner.Token() > lease.Token())
	// Output:
	// true tenants/7
	// elsewhere nobody waits
	// <nil> true
}
