package advisory_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/advisory"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// databaseURL is the connection string of a database with the schema; an application has its own.
func databaseURL() string { return pgtest.URL() }

func ExampleBridge_Do() {
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

	bridge, err := advisory.New(client, advisory.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	// The programs of the release before say pg_advisory_lock(hashtext('daily report')).
	key := advisory.Hashtext("daily report")
	err = bridge.Do(ctx, "daily report", key, func(ctx context.Context, held *advisory.Held) error {
		var free bool
		err := pool.QueryRow(ctx, "SELECT pg_try_advisory_lock(hashtext('daily report'))").Scan(&free)
		if err != nil {
			return err
		}
		fmt.Println("an old program can take the lock:", free)
		return held.Write(ctx, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO reports VALUES ('2026-03-01', 42)")
			return err
		})
	})
	fmt.Println("written:", err)
	// Output:
	// an old program can take the lock: false
	// written: <nil>
}
