// Package cron makes the jobs of github.com/robfig/cron/v3 run once for each planned time, over all replicas.
//
//	nightly, err := cron.ParseStandard("CRON_TZ=UTC 0 2 * * *")
//	slots, err := schedulers.NewSlots(client, store, nightly)
//	c := cron.New()
//	c.Schedule(slots, pglockcron.Job(ctx, slots, "report", makeReport, logger)) // Slots is the schedule, too
//	c.Start()
//	var first sync.WaitGroup
//	for _, entry := range c.Entries() { // c has planned, so Slots knows its time zone
//		first.Go(entry.WrappedJob.Run)  // the last slot, if a deployment has left it open
//	}
//	…
//	<-c.Stop().Done()
//	first.Wait()
//
// Job commits the work and the note that the slot is done together: prefer it. Once is a cron.JobWrapper for jobs
// that are not a transaction:
//
//	c.Schedule(slots, cron.NewChain(pglockcron.Once(ctx, slots, "mail", logger)).Then(job))
//
// Once has limits, because a cron.Job neither returns an error nor takes a context:
//
//   - A job that fails counts as done. A job that panics does not: the replicas that wait for the lock try it, one
//     after the other.
//   - If the process dies in the middle, the next replica that waits runs the job from its beginning, and repeats what
//     it has done outside a transaction.
//   - If a job loses its lease, because its process was paused or cut off, nobody stops it, and another replica may run
//     the slot again.
//
// Do not delay runs before they reach Job or Once, as cron.DelayIfStillRunning does: if a run is delayed beyond the
// next planned time, it counts as the run of that time. Runs of one job do not overlap anyway: a run that comes while
// another is under way waits in Job or Once, and follows. To leave it out, put cron.SkipIfStillRunning around these:
//
//	cron.NewChain(cron.SkipIfStillRunning(logger)).Then(pglockcron.Job(ctx, slots, "report", makeReport, logger))
package cron

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/robfig/cron/v3"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
	"github.com/pglock-dev/pglock/schedulers"
)

// Job makes a cron.Job that calls Slots.Do with work. Errors go to logger, which defaults to cron.DefaultLogger. When
// ctx ends, the work under way is rolled back, and logged as failed, and no more begins. End ctx before cron.Cron.Stop
// if work may be cut off.
func Job(ctx context.Context, slots *schedulers.Slots, name string, work schedulers.Work, logger cron.Logger) cron.Job {
	return cron.FuncJob(func() {
		begun, noted := false, work
		if work != nil {
			noted = func(ctx context.Context, tx pgx.Tx, slot time.Time) error {
				begun = true
				return work(ctx, tx, slot)
			}
		}
		report(ctx, logger, name, slots.Do(ctx, name, noted), begun)
	})
}

// Once makes a cron.JobWrapper whose job runs between Slots.Begin and Run.End. Errors go to logger, which defaults to
// cron.DefaultLogger. When ctx ends, no more runs begin; a run that is under way goes on.
func Once(ctx context.Context, slots *schedulers.Slots, name string, logger cron.Logger) cron.JobWrapper {
	return func(job cron.Job) cron.Job {
		return cron.FuncJob(func() {
			run, err := slots.Begin(ctx, name)
			if errors.Is(err, fencedstore.ErrDone) {
				return
			}
			if err != nil {
				report(ctx, logger, name, err, false)
				return
			}
			finished := false
			defer func() {
				if !finished { // it panics
					_ = run.Cancel(ctx) // at worst the lease ends with its TTL
				}
			}()
			job.Run()
			finished = true
			report(ctx, logger, name, run.End(ctx), true)
		})
	}
}

// report logs an error. That ctx has ended is none, unless the run had begun its work.
func report(ctx context.Context, logger cron.Logger, name string, err error, begun bool) {
	if err == nil || !begun && ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) &&
		!errors.Is(err, pglock.ErrOutcomeUnknown) {
		return
	}
	if logger == nil {
		logger = cron.DefaultLogger
	}
	logger.Error(err, "job failed", "job", name)
}
