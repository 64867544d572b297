package reversible_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore/reversible"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// databaseURL is the connection string of a database with the schema; an application has its own.
func databaseURL() string { return pgtest.URL() }

var errPrecondition = errors.New("precondition failed")

// object is an object of a store outside the database: a put succeeds only if the version is still the one that is
// named.
type object struct {
	mu      sync.Mutex
	body    string
	version int
}

func (o *object) get() (string, int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.body, o.version
}

func (o *object) put(body string, ifMatch int) (version int, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.version != ifMatch {
		return 0, fmt.Errorf("version is %d, not %d: %w", o.version, ifMatch, errPrecondition)
	}
	o.body, o.version = body, o.version+1
	return o.version, nil
}

// replace is the operation that puts another body into the object. Both writes are conditional.
func replace(o *object, body string) reversible.Operation {
	var before string
	var seen, ours int
	return reversible.Operation{
		Capture: func(context.Context) error {
			before, seen = o.get()
			return nil
		},
		Apply: func(context.Context) (err error) {
			ours, err = o.put(body, seen)
			return err
		},
		Restore: func(context.Context) error {
			if ours == 0 { // the put was refused: nothing to undo
				return nil
			}
			_, err := o.put(before, ours)
			if errors.Is(err, errPrecondition) {
				return fmt.Errorf("%w: %w", reversible.ErrOvertaken, err)
			}
			return err
		},
	}
}

func Example() {
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
	lease, err := client.Acquire(ctx, "price list")
	if err != nil {
		fmt.Println(err)
		return
	}
	admin, err := lockadmin.New(ctx, pool)
	if err != nil {
		fmt.Println(err)
		return
	}
	prices := &object{body: "old prices", version: 1} // of an object store with If-Match

	fmt.Println("first:", reversible.Run(ctx, lease, replace(prices, "new prices")))

	// In the middle of the second one an operator ends the lease.
	late := replace(prices, "late prices")
	apply := late.Apply
	late.Apply = func(ctx context.Context) error {
		if _, err := admin.Break(ctx, "price list", "the host is gone", lockadmin.BreakOptions{}); err != nil {
			return err
		}
		return apply(ctx)
	}
	err = reversible.Run(ctx, lease, late)
	fmt.Println("second: lost:", errors.Is(err, pglock.ErrLost), "undone:", errors.Is(err, reversible.ErrUndone))
	body, _ := prices.get()
	fmt.Println("there are", body)
	// Output:
	// first: <nil>
	// second: lost: true undone: true
	// there are new prices
}
