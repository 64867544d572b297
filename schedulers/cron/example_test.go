package cron_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/robfig/cron/v3"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
	"github.com/pglock-dev/pglock/schedulers"
	pglockcron "github.com/pglock-dev/pglock/schedulers/cron"
)

// databaseURL is the connection string of a database with the schema; an application has its own.
func databaseURL() string { return pgtest.URL() }

// Two replicas run the same jobs. Each planned time is done once.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, databaseURL())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	makeReport := func(ctx context.Context, tx pgx.Tx, slot time.Time) error {
		fmt.Println("makes the report of", slot.UTC().Format("15:04"))
		_, err := tx.Exec(ctx, "CREATE TABLE report AS SELECT 42 AS total")
		return err
	}
	sendMails := cron.FuncJob(func() { fmt.Println("sends the mails") })

	for range 2 { // replicas
		client, err := pglock.New(ctx, pool)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer client.Close(ctx)
		nightly, err := cron.ParseStandard("CRON_TZ=UTC 0 2 * * *")
		if err != nil {
			fmt.Println(err)
			return
		}
		slots, err := schedulers.NewSlots(client, fencedstore.New(pool), nightly)
		if err != nil {
			fmt.Println(err)
			return
		}
		c := cron.New()
		c.Schedule(slots, pglockcron.Job(ctx, slots, "report", makeReport, nil))
		c.Schedule(slots, cron.NewChain(pglockcron.Once(ctx, slots, "mail", nil)).Then(sendMails))
		c.Start()
		var first sync.WaitGroup
		for _, entry := range c.Entries() {
			first.Go(entry.WrappedJob.Run) // the last slot, which is open
		}
		first.Wait()
		<-c.Stop().Done()
	}
	// Unordered output:
	// makes the report of 02:00
	// sends the mails
}
