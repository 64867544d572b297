package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
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

// A program on database/sql, an ORM or another driver has no pgxpool.Pool. The client opens a small one, and Close ends
// it.
func ExampleOpen() {
	ctx := context.Background()
	client, err := pglock.Open(ctx, databaseURL())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(ctx)

	err = client.Do(ctx, "nightly report", func(ctx context.Context, lease *pglock.Lease) error {
		fmt.Println("holding", lease.Name())
		return ctx.Err()
	})
	fmt.Println("done:", err)
	// Output:
	// holding nightly report
	// done: <nil>
}

func ExampleClient_Do() {
	ctx := context.Background()
	client, err := pglock.Open(ctx, databaseURL())
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
	client, err := pglock.Open(ctx, databaseURL(), pglock.WithDefaultHolder("worker 1"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(ctx)

	if _, err := client.TryAcquire(ctx, "import"); err != nil {
		fmt.Println(err)
		return
	}
	_, err = client.TryAcquire(ctx, "import", pglock.WithHolder("worker 2"))
	var held *pglock.HeldError
	if errors.As(err, &held) {
		fmt.Printf("%s is held by %s\n", held.Lock, held.Holder)
	}
	fmt.Println(errors.Is(err, pglock.ErrHeld))
	// Output:
	// import is held by worker 1
	// true
}

func ExampleClient_Acquire() {
	ctx := context.Background()
	client, err := pglock.Open(ctx, databaseURL(), pglock.WithDefaultHolder("worker 1"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(ctx)

	first, err := client.Acquire(ctx, "invoices")
	if err != nil {
		fmt.Println(err)
		return
	}
	done := make(chan pglock.Token)
	go func() {
		defer close(done)
		// Waits in the queue. In a program of yours this is another process.
		second, err := client.Acquire(ctx, "invoices")
		if err != nil {
			fmt.Println(err)
			return
		}
		defer second.Release(ctx)
		done <- second.Token()
	}()
	_ = first.Release(ctx) // hands the lock to the next in the queue
	fmt.Println("a greater token:", <-done > first.Token())
	<-done
	// Output:
	// a greater token: true
}

func ExampleWithMaxWait() {
	ctx := context.Background()
	client, err := pglock.Open(ctx, databaseURL(), pglock.WithDefaultHolder("worker 1"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(ctx)

	if _, err := client.Acquire(ctx, "ledger"); err != nil {
		fmt.Println(err)
		return
	}
	_, err = client.Acquire(ctx, "ledger", pglock.WithHolder("worker 2"), pglock.WithMaxWait(3*time.Second))
	var held *pglock.HeldError
	if errors.As(err, &held) {
		fmt.Printf("%s is held by %s; left place %d of the queue\n", held.Lock, held.Holder, held.Place)
	}
	fmt.Println(errors.Is(err, pglock.ErrHeld), errors.Is(err, context.DeadlineExceeded))
	// Output:
	// ledger is held by worker 1; left place 1 of the queue
	// true true
}

func ExampleWithShared() {
	ctx := context.Background()
	client, err := pglock.Open(ctx, databaseURL(), pglock.WithDefaultHolder("worker 1"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(ctx)

	for range 2 {
		reader, err := client.Acquire(ctx, "catalogue", pglock.WithShared())
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("reading in slot", reader.Slot())
	}
	_, err = client.TryAcquire(ctx, "catalogue") // to write, alone
	fmt.Println("the writer has to wait:", errors.Is(err, pglock.ErrHeld))
	// Output:
	// reading in slot 1
	// reading in slot 2
	// the writer has to wait: true
}

func ExampleWithLimit() {
	ctx := context.Background()
	client, err := pglock.Open(ctx, databaseURL(), pglock.WithDefaultHolder("worker 1"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(ctx)

	for range 3 {
		lease, err := client.TryAcquire(ctx, "printers", pglock.WithLimit(2))
		if err != nil {
			fmt.Println("no place is free:", errors.Is(err, pglock.ErrHeld))
			continue
		}
		fmt.Println("holding place", lease.Slot(), "with the fence of", lease.Resource())
	}
	_, err = client.TryAcquire(ctx, "printers", pglock.WithLimit(3))
	fmt.Println("another limit:", errors.Is(err, pglock.ErrLimit))
	// Output:
	// holding place 1 with the fence of printers#1
	// holding place 2 with the fence of printers#2
	// no place is free: true
	// another limit: true
}

func ExampleClient_AcquireAll() {
	ctx := context.Background()
	client, err := pglock.Open(ctx, databaseURL(), pglock.WithDefaultHolder("worker 1"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(ctx)

	leases, err := client.AcquireAll(ctx, []string{"accounts/17", "accounts/16"}, pglock.WithMaxWait(time.Minute))
	if err != nil {
		fmt.Println(err) // and none of them is held
		return
	}
	for _, lease := range leases.All() {
		fmt.Println("holding", lease.Name())
	}
	// What is asked for under their context is asked for by the same owner.
	_, err = client.Acquire(leases.Context(), "accounts/16", pglock.WithMaxWait(5*time.Second))
	fmt.Println("held by myself:", errors.Is(err, pglock.ErrSelfDeadlock))
	// Output:
	// holding accounts/17
	// holding accounts/16
	// held by myself: true
}

func ExampleClient_Watch() {
	ctx := context.Background()
	client, err := pglock.Open(ctx, databaseURL(), pglock.WithDefaultHolder("worker 1"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(ctx)

	var lease *pglock.Lease
	for change, err := range client.Watch(ctx, "deployment") {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(change.Kind, "holders:", len(change.Holders))
		switch change.Kind {
		case pglock.ChangeState: // the state at first
			lease, err = client.Acquire(ctx, "deployment")
		case pglock.ChangeGranted:
			fmt.Println("to", change.Lease.Holder, change.Lease.Token == lease.Token())
			err = lease.Release(ctx)
		case pglock.ChangeReleased:
			return
		}
		if err != nil {
			fmt.Println(err)
			return
		}
	}
	// Output:
	// state holders: 0
	// granted holders: 1
	// to worker 1 true
	// released holders: 0
}
