package gocron_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
	"github.com/pglock-dev/pglock/schedulers"
	pglockgocron "github.com/pglock-dev/pglock/schedulers/gocron"
)

// databaseURL is the connection string of a database with the schema; an application has its own.
func databaseURL() string { return pgtest.URL() }

// replicas starts two schedulers, as two replicas of the application would, and lets both run their job.
func replicas(job func(slots *schedulers.Slots) (gocron.Task, []gocron.JobOption)) (err error) {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, databaseURL())
	if err != nil {
		return err
	}
	defer pool.Close()
	for range 2 {
		client, err := pglock.New(ctx, pool)
		if err != nil {
			return err
		}
		defer client.Close(ctx)
		slots, err := schedulers.NewSlots(client, fencedstore.New(pool), schedulers.Every(24*time.Hour, 2*time.Hour))
		if err != nil {
			return err
		}
		scheduler, err := gocron.NewScheduler()
		if err != nil {
			return err
		}
		task, opts := job(slots)
		done := make(chan struct{}, 1)
		opts = append(opts, gocron.WithName("report"), gocron.WithStartAt(gocron.WithStartImmediately()),
			gocron.WithEventListeners(gocron.AfterJobRuns(func(uuid.UUID, string) { done <- struct{}{} }),
				gocron.AfterLockError(func(uuid.UUID, string, error) { done <- struct{}{} })))
		if _, err := scheduler.NewJob(gocron.CronJob("CRON_TZ=UTC 0 2 * * *", false), task, opts...); err != nil {
			return err
		}
		scheduler.Start() // and does the last slot, which is open
		defer func() { err = errors.Join(err, scheduler.Shutdown()) }()
		<-done
	}
	return nil
}

// The right way: the task does its work in the transaction that notes the planned time as done. It needs no Locker.
func Example() {
	err := replicas(func(slots *schedulers.Slots) (gocron.Task, []gocron.JobOption) {
		return gocron.NewTask(func(ctx context.Context) error {
			return slots.Do(ctx, "report", func(ctx context.Context, tx pgx.Tx, slot time.Time) error {
				fmt.Println("makes the report of", slot.UTC().Format("15:04"))
				_, err := tx.Exec(ctx, "CREATE TABLE report AS SELECT 42 AS total")
				return err
			})
		}), nil
	})
	fmt.Println(err)
	// Output:
	// makes the report of 02:00
	// <nil>
}

// A job that is not a transaction has a Locker for its schedule.
func ExampleNewLocker() {
	err := replicas(func(slots *schedulers.Slots) (gocron.Task, []gocron.JobOption) {
		return gocron.NewTask(func() { fmt.Println("sends the mails") }),
			[]gocron.JobOption{gocron.WithDistributedJobLocker(pglockgocron.NewLocker(slots))}
	})
	fmt.Println(err)
	// Output:
	// sends the mails
	// <nil>
}
