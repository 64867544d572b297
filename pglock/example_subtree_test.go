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
	client, err := pglock.Open(ctx, databaseURL())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(ctx)

	err = client.Do(ctx, "tenants/7", func(mine context.Context, lease *pglock.Lease) error {
		_, err := client.TryAcquire(ctx, "tenants/7/import/5") // other work
		var held *pglock.HeldError
		fmt.Println(errors.As(err, &held), held.By)
		inner, err := client.TryAcquire(mine, "tenants/7/import/5") // the same work
		if err != nil {
			return err
		}
		fmt.Println(inner.Token() > lease.Token())
		return inner.Release(ctx)
	}, pglock.WithSubtree())
	fmt.Println(err)
	// Output:
	// true tenants/7
	// true
	// <nil>
}
