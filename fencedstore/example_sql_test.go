package fencedstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// The nightly job takes longer than the TTL, and is done once each night through database/sql.
func ExampleSQLStore_Once() {
	ctx := context.Background()
	url := databaseURL()
	pool, err := pgxpool.New(ctx, url)
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
	db, err := sql.Open("pgx", url) // or any other driver for PostgreSQL
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()

	store := fencedstore.NewSQL(db).With(fencedstore.WithTimeLimit(20 * time.Minute))
	nightly := func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "SELECT pg_sleep(3.5)") // one statement, longer than the TTL
		return err
	}
	for range 2 {
		err = client.Do(ctx, "nightly", func(ctx context.Context, lease *pglock.Lease) error {
			return store.Once(ctx, lease, "nightly 2026-03-01", nightly)
		}, pglock.WithTTL(3*time.Second))
		fmt.Println("done before:", errors.Is(err, fencedstore.ErrDone), "too late:",
			errors.Is(err, fencedstore.ErrTimeLimit))
	}
	// Output:
	// done before: false too late: false
	// done before: true too late: false
}

// The application commits its transaction by itself: the guard first, the seal last, and a receipt for a COMMIT without
// an answer.
func ExampleWithReceipt() {
	ctx := context.Background()
	url := databaseURL()
	pool, err := pgxpool.New(ctx, url)
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
	db, err := sql.Open("pgx", url)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	lease, err := client.Acquire(ctx, "report")
	if err != nil {
		fmt.Println(err)
		return
	}

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer tx.Rollback()
	guarded, err := fencedstore.GuardSQL(ctx, tx, lease, fencedstore.WithReceipt())
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := tx.ExecContext(ctx, "CREATE TABLE reports (at timestamptz)"); err != nil {
		fmt.Println(guarded.Explain(err))
		return
	}
	if err := guarded.Seal(ctx); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("committed:", guarded.Explain(tx.Commit()))

	// Had COMMIT not been answered, this would tell.
	outcome, err := fencedstore.NewSQL(db).Outcome(ctx, guarded.Receipt())
	fmt.Println("outcome:", outcome, err)
	// Output:
	// committed: <nil>
	// outcome: committed <nil>
}
