package lockadmin_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// databaseURL is the connection string of a database with the schema; an application has its own.
func databaseURL() string { return pgtest.URL() }

// An operator looks who holds a lock, and ends a lease whose holder is gone.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, databaseURL())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	client, err := pglock.New(ctx, pool, pglock.WithDefaultHolder("worker 1"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(ctx)
	lease, err := client.Acquire(ctx, "jobs/report")
	if err != nil {
		fmt.Println(err)
		return
	}

	admin, err := lockadmin.New(ctx, pool)
	if err != nil {
		fmt.Println(err)
		return
	}
	var token pglock.Token
	for lock, err := range admin.Locks(ctx, lockadmin.LocksQuery{Prefix: "jobs/"}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(lock.Name, "is held by", lock.Holder)
		token = lock.Token
	}
	broken, err := admin.Break(ctx, "jobs/report", "its host is gone",
		lockadmin.BreakOptions{Token: &token, Actor: "ada"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("broke the lease of", broken.Holder, broken.NewToken > broken.Token)
	for event, err := range admin.History(ctx, lockadmin.HistoryQuery{Lock: "jobs/report", PageSize: 1}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(event.Kind, "by", event.Actor+":", event.Reason)
		break // the newest alone
	}
	_, err = lease.Check(ctx)
	fmt.Println("the holder has lost it:", errors.Is(err, pglock.ErrLost))
	_, err = admin.Break(ctx, "jobs/report", "once more", lockadmin.BreakOptions{})
	fmt.Println("nothing is left to break:", errors.Is(err, lockadmin.ErrNotHeld))
	// Output:
	// jobs/report is held by worker 1
	// broke the lease of worker 1 true
	// break by ada: its host is gone
	// the holder has lost it: true
	// nothing is left to break: true
}

// Who waits for a lock, and for how many.
func ExampleAdmin_Waiters() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, databaseURL())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	admin, err := lockadmin.New(ctx, pool)
	if err != nil {
		fmt.Println(err)
		return
	}
	for waiter, err := range admin.Waiters(ctx, lockadmin.WaitersQuery{Lock: "nobody waits for this"}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(waiter.Place, waiter.Holder, "waits for", waiter.Behind)
	}
	_, err = admin.Get(ctx, "nobody waits for this")
	fmt.Println("never used:", errors.Is(err, lockadmin.ErrNotFound))
	// Output: never used: true
}

func ExampleDiagnose() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, databaseURL())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	findings, err := lockadmin.Diagnose(ctx, pool)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, f := range findings[:2] {
		fmt.Println(f.Item, f.Severity)
	}
	// Output:
	// schema ok
	// server ok
}

func ExampleAdmin_Prune() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, databaseURL())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	admin, err := lockadmin.New(ctx, pool)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // for as long as others may keep the table in use
	defer cancel()
	pruned, err := admin.Prune(ctx, lockadmin.PruneOptions{Idle: new(7 * 24 * time.Hour)})
	fmt.Println(pruned.Locks, err)
	// Output: 0 <nil>
}

// Somebody looks for the program that holds a lock.
func ExampleAdmin_Backends() {
	ctx, url := context.Background(), databaseURL()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	client, err := pglock.Open(ctx, url)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(ctx)
	if _, err := client.TryAcquire(ctx, "report", pglock.WithHolder("worker 1"),
		pglock.WithTTL(6*time.Second)); err != nil {
		fmt.Println(err)
		return
	}

	admin, err := lockadmin.New(ctx, pool)
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 600 { // until the client's first heartbeat
		backends, err := admin.Backends(ctx, "report")
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, b := range backends { // b.PID, b.Client and b.Application lead to the program
			if b.State == "idle" { // between two renewals
				fmt.Println(b.Holder, "renews over a process of the server:", b.PID > 0)
				return
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	// Output:
	// worker 1 renews over a process of the server: true
}
