package fencedstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// databaseURL is the connection string of a database with the schema; an application has its own.
func databaseURL() string { return pgtest.URL() }

func ExampleStore_Write() {
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
	if _, err := pool.Exec(ctx, "CREATE TABLE reports (day date, total int)"); err != nil {
		fmt.Println(err)
		return
	}

	lease, err := client.Acquire(ctx, "daily report")
	if err != nil {
		fmt.Println(err)
		return
	}
	store := fencedstore.New(pool)
	write := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO reports VALUES ('2026-03-01', 42)")
		return err
	}
	fmt.Println("first:", store.Write(ctx, lease, write))
	// One grant writes once, so that a retry does no harm.
	fmt.Println("retried:", errors.Is(store.Write(ctx, lease, write), fencedstore.ErrStaleToken))
	// Output:
	// first: <nil>
	// retried: true
}

func ExampleGuard() {
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
	lease, err := client.Acquire(ctx, "daily report")
	if err != nil {
		fmt.Println(err)
		return
	}

	tx, err := pool.Begin(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer tx.Rollback(ctx)
	guarded, err := fencedstore.Guard(ctx, tx, lease)
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := tx.Exec(ctx, "CREATE TABLE reports AS SELECT 42 AS total"); err != nil {
		fmt.Println(guarded.Explain(err))
		return
	}
	fmt.Println("committed:", guarded.Explain(tx.Commit(ctx)))
	// Output:
	// committed: <nil>
}

func ExampleGuardSQL() {
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
	admin, err := lockadmin.New(ctx, pool)
	if err != nil {
		fmt.Println(err)
		return
	}
	db, err := sql.Open("pgx", url)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	lease, err := client.Acquire(ctx, "daily report")
	if err != nil {
		fmt.Println(err)
		return
	}

	// An operator ends the lease; its holder does not know yet.
	if _, err := admin.Break(ctx, "daily report", "the host is gone", lockadmin.BreakOptions{}); err != nil {
		fmt.Println(err)
		return
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer tx.Rollback()
	_, err = fencedstore.GuardSQL(ctx, tx, lease)
	var lost *pglock.LostError
	if errors.As(err, &lost) {
		fmt.Println("refused:", lost.Reason)
	}
	// Output:
	// refused: broken
}
