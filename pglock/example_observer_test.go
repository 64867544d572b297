package pglock_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/pglock-dev/pglock/pglock"
)

// An observer that counts grants, and how long leases were held.
func ExampleWithObserver() {
	ctx := context.Background()
	// One goroutine calls the observer, and Close joins it. So these need no mutex.
	grants, waited := 0, 0
	var held time.Duration
	client, err := pglock.Open(ctx, databaseURL(),
		pglock.WithObserver(pglock.ObserverFunc(func(_ context.Context, e pglock.Event) {
			switch e.Kind {
			case pglock.EventGrant:
				grants++
				if e.Place > 0 {
					waited++
				}
			case pglock.EventRelease, pglock.EventLost:
				held += e.Held
			}
		})))
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		if err := client.Do(ctx, "observed", func(context.Context, *pglock.Lease) error { return nil }); err != nil {
			fmt.Println(err)
		}
	}
	if err := client.Close(ctx); err != nil {
		fmt.Println(err)
	}
	fmt.Println(grants, waited, held > 0)
	// Output: 3 0 true
}

// Log what a person must act on: nothing, while all is well.
func ExampleSlogObserver() {
	ctx := context.Background()
	withoutTime := &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}
	logger := slog.New(slog.NewTextHandler(os.Stdout, withoutTime))
	client, err := pglock.Open(ctx, databaseURL(), pglock.WithObserver(pglock.SlogObserver(logger)))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(ctx)
	if err := client.Do(ctx, "logged", func(context.Context, *pglock.Lease) error { return nil }); err != nil {
		fmt.Println(err)
	}
	fmt.Println("nothing was logged")
	// Output: nothing was logged
}
