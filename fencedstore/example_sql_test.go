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
func ExampleOnceSQL() {
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

	nightly := func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "SELECT pg_sleep(3.5)") // one statement, longer than the TTL
		return err
	}
	for range 2 {
		err = client.Do(ctx, "nightly", func(ctx context.Context, lease *pglock.Lease) error {
			return fencedstore.OnceSQL(ctx, db, lease, "nightly 2026-03-01", nightly,
				fencedstore.WithTimeLimit(20*time.Minute))
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

	var receipt fencedstore.Receipt
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer tx.Rollback()
	if err := fencedstore.GuardSQL(ctx, tx, lease, fencedstore.WithReceipt(&receipt)); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := tx.ExecContext(ctx, "CREATE TABLE reports (at timestamptz)"); err != nil {
		fmt.Println(fencedstore.Explain(err, lease))
		return
	}
	if err := fencedstore.SealSQL(ctx, tx, lease); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("committed:", fencedstore.Explain(tx.Commit(), lease))

	// Had COMMIT not been answered, this would tell.
	outcome, err := fencedstore.OutcomeSQL(ctx, db, receipt)
	fmt.Println("outcome:", outcome, err)
	// Output:
	// committed: <nil>
	// outcome: committed <nil>
}
