// Command first pays an amount into account 16, under a lock and its fence.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err) // exit code 1
	}
}

func run(ctx context.Context) (err error) {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := pglock.New(ctx, pool) // one for each process
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close(ctx)) }() // releases every lock, also after SIGTERM
	store := fencedstore.New(pool)

	var balance int64
	err = client.Do(ctx, "accounts/16", func(ctx context.Context, lease *pglock.Lease) error {
		amount, err := work(ctx)
		if err != nil {
			return err
		}
		return store.Write(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
			const pay = "UPDATE accounts SET balance = balance + $1 WHERE id = 16 RETURNING balance"
			return tx.QueryRow(ctx, pay, amount).Scan(&balance)
		})
	}, pglock.WithMaxWait(time.Minute))
	if err == nil {
		fmt.Println("balance:", balance)
	}
	return err
}

// work stands for what takes too long for a transaction: a report, a call of another service.
func work(ctx context.Context) (amount int64, err error) {
	return 60, ctx.Err()
}
