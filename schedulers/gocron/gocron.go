// Package gocron makes the jobs of github.com/go-co-op/gocron/v2 run once for each planned time, over all replicas.
//
// # The right way: in the task
//
//	slots, err := schedulers.NewSlots(client, store, schedulers.Every(24*time.Hour, 2*time.Hour))
//	task := gocron.NewTask(func(ctx context.Context) error {
//		return slots.Do(ctx, "report", makeReport) // func(ctx context.Context, tx pgx.Tx, slot time.Time) error
//	})
//	job, err := scheduler.NewJob(gocron.CronJob("CRON_TZ=UTC 0 2 * * *", false), task,
//		gocron.WithStartAt(gocron.WithStartImmediately())) // also the last slot, if a deployment has left it open
//
// Slots.Do commits the work and the note that the slot is done together. It needs neither a Locker nor an Elector. An
// error goes to gocron.AfterJobRunsWithError. A run that comes while another is under way waits, and follows.
// gocron.WithSingletonMode(gocron.LimitModeReschedule) leaves it out. gocron.WithStopAt ends the context of the last
// run as that begins, so it fails: let the work leave out later slots instead.
//
// # Locker: for jobs that are not a transaction
//
//	gocron.WithDistributedJobLocker(pglockgocron.NewLocker(slots)), gocron.WithName("report")
//
// At the beginning of each run gocron calls a Locker with the name of the job, and releases the lock after the run. It
// does not tell the Locker the planned time, so with a plain lock a replica whose clock is late runs the job once more.
// This Locker works out the planned time from the schedule of its Slots. So make one Locker for each job, or for each
// group of jobs with the same schedule. If a slot is done, Lock fails with fencedstore.ErrDone, which gocron gives to
// AfterLockError.
//
// gocron's interface sets these limits:
//
//   - A job that fails or panics counts as done, because gocron releases the lock in the same way. So does a run that
//     gocron.BeforeJobRunsSkipIfBeforeFuncErrors leaves out: no replica runs the job for that slot.
//   - A run whose context has ended, because its scheduler stops or its job is removed, counts as not done, also if the
//     job then finishes: the next replica that waits or starts runs the job from its beginning. gocron itself removes a
//     job as its last run before gocron.WithStopAt begins, and at the end of that of gocron.WithLimitedRuns, perhaps
//     before it releases the lock: then every replica does the last run. Use neither with this Locker.
//   - If the process dies in the middle, the next replica that waits runs the job from its beginning, and repeats what
//     it has done outside a transaction.
//   - If a job loses its lease, because its process was paused or cut off, nobody stops it, and another replica may run
//     the slot again. Use Slots.Do: the server then refuses its transaction.
//   - If the note that the slot is done fails, the same may happen, and nobody hears of it: gocron drops the error.
//
// Replicas wait in Lock while one runs the job. gocron plans their next run when Lock has returned, so at most one run
// of a job waits in each. The slots that pass while it waits are left out, and nobody reports them.
//
// Give each job a name (gocron.WithName): the default is the name of a Go function, which the next build may change.
//
// # Elector: one scheduler works, the others stand by
//
// An Elector lets the jobs of one replica run, and none of the others. It knows nothing of slots. When the leader
// changes, the new leader may repeat a slot that the old one ran by its faster clock, or leave out a slot that the old
// one did not run. With Slots.Do it repeats nothing. With an Elector gocron asks no Locker.
//
// gocron asks an Elector only at the beginning of a run. A run that has begun goes on when leadership is lost or given
// up, while the next leader may begin the same job: use Slots.Do for what must not overlap. To hand on in order, end
// the runs first:
//
//	go func() { // NewElector(client, "leader/scheduler"); gocron.WithDistributedElector(elector)
//		if err := elector.Run(ctx); ctx.Err() == nil {
//			log.Fatal(err)         // as when a right is missing: this replica would never lead again
//		}
//	}()
//	…
//	err = scheduler.Shutdown()     // ends the contexts of the tasks; an error: some still run
//	cancel()                       // ctx: another replica leads
package gocron

import (
	"context"
	"sync/atomic"

	"github.com/go-co-op/gocron/v2"

	"github.com/pglock-dev/pglock/leader"
	"github.com/pglock-dev/pglock/pglock"
	"github.com/pglock-dev/pglock/schedulers"
)

// NewLocker makes a gocron.Locker for the jobs of the schedule of slots.
func NewLocker(slots *schedulers.Slots) gocron.Locker { return locker{slots} }

type locker struct{ slots *schedulers.Slots }

// Lock waits while another replica runs the job, and fails when the slot is done.
func (l locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	run, err := l.slots.Begin(ctx, key)
	if err != nil {
		return nil, err
	}
	return lock{run}, nil
}

type lock struct{ run *schedulers.Run }

// Unlock notes that the slot is done, unless the job was told to stop: gocron does not say whether it has finished.
func (l lock) Unlock(ctx context.Context) error {
	if ctx.Err() != nil {
		return l.run.Cancel(ctx)
	}
	return l.run.End(ctx)
}

// Elector is a gocron.Elector: the scheduler of the leader runs jobs, and the others do not.
type Elector struct {
	candidate *leader.Candidate
	lease     atomic.Pointer[pglock.Lease] // while this replica leads
}

var _ gocron.Elector = (*Elector)(nil)

// NewElector makes an Elector for the lock. It sends nothing. The error is pglock.ErrInvalid.
func NewElector(client *pglock.Client, name string, opts ...leader.Option) (*Elector, error) {
	candidate, err := leader.New(client, name, opts...)
	if err != nil {
		return nil, err
	}
	return &Elector{candidate: candidate}, nil
}

// Run campaigns and leads until ctx ends, in the caller's goroutine, and then lets another replica lead, even if runs
// of this one's jobs go on: shut the scheduler down first. It returns the error of leader.Candidate.Run, and never nil.
func (e *Elector) Run(ctx context.Context) error {
	return e.candidate.Run(ctx, func(ctx context.Context, lease *pglock.Lease) error {
		e.lease.Store(lease)
		defer e.lease.Store(nil)
		<-ctx.Done()
		return context.Cause(ctx)
	})
}

// IsLeader returns nil if this replica leads by the local clock, and otherwise leader.ErrNotLeading. It asks no server.
func (e *Elector) IsLeader(context.Context) error {
	if lease := e.lease.Load(); lease != nil && lease.Valid() {
		return nil
	}
	return leader.ErrNotLeading
}
