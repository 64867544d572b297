package cron_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/robfig/cron/v3"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/schedulers"
	pglockcron "github.com/pglock-dev/pglock/schedulers/cron"
	"github.com/pglock-dev/pglock/schedulers/internal/scene"
)

func TestMain(m *testing.M) { scene.Main(m, child) }

// period is the time between two planned times.
const period = time.Second

// skewed is a schedule as a cron sees it whose clock is late or early.
type skewed struct {
	cron.Schedule
	by time.Duration
}

func (s skewed) Next(t time.Time) time.Time { return s.Schedule.Next(t.Add(s.by)).Add(-s.by) }

// clocks of four replicas: between the first and the last lies more than a period.
var clocks = []time.Duration{-300 * time.Millisecond, 0, 200 * time.Millisecond, 850 * time.Millisecond}

func newSlots(t *testing.T, r scene.Replica, clock *scene.Clock, skew time.Duration) *schedulers.Slots {
	t.Helper()
	slots := must.Get(schedulers.NewSlots(r.Client, r.Store, schedulers.Every(period, 0),
		schedulers.WithNow(clock.Skewed(skew))))(t)
	return slots
}

// start starts a cron with the job, whose clock is skewed, and gives the function that stops it.
func start(t *testing.T, slots *schedulers.Slots, skew time.Duration, job cron.Job) (stop func()) {
	t.Helper()
	c := cron.New()
	c.Schedule(skewed{slots, skew}, job)
	c.Start()
	stop = func() { <-c.Stop().Done() }
	t.Cleanup(stop)
	return stop
}

// after tells when a job has run.
func after(job cron.Job, tell chan<- string) cron.Job {
	return cron.FuncJob(func() {
		job.Run()
		tell <- "ran"
	})
}

// errorLog is a cron.Logger that keeps errors.
type errorLog struct {
	cron.Logger
	errors chan error
}

func newLog() errorLog { return errorLog{cron.DiscardLogger, make(chan error, 100)} }

func (l errorLog) Error(err error, _ string, _ ...any) { l.errors <- err }

func (l errorLog) wantNone(t *testing.T) {
	t.Helper()
	select {
	case err := <-l.errors:
		t.Error(err)
	default:
	}
}

func TestWorkOfEachSlotIsCommittedOnceInCronsWhoseClocksDiffer(t *testing.T) {
	db := pgtest.Parallel(t)
	ran, log := make(chan string, 1000), newLog()
	var stops []func()
	var clock scene.Clock
	for i, r := range scene.Replicas(t, db, len(clocks)) {
		slots := newSlots(t, r, &clock, clocks[i])
		job := pglockcron.Job(t.Context(), slots, "report", r.Insert, log)
		stops = append(stops, start(t, slots, clocks[i], after(job, ran)))
	}
	scene.Await(t, 4*len(clocks), ran) // each replica asks for each slot
	scene.AwaitDone(t, db, 4)          // a busy replica may ask twice for one
	for _, stop := range stops {
		stop()
	}
	log.wantNone(t)
	clock.WantOneRunPerSlot(t, db, period, 0)
}

func TestOnceLetsEachSlotRunOnceInCronsWhoseClocksDiffer(t *testing.T) {
	db := pgtest.Parallel(t)
	var runs atomic.Int64
	asked, log := make(chan string, 1000), newLog()
	var stops []func()
	for i, r := range scene.Replicas(t, db, len(clocks)) {
		slots := newSlots(t, r, new(scene.Clock), clocks[i])
		job := cron.NewChain(pglockcron.Once(t.Context(), slots, "mail", log)).Then(cron.FuncJob(func() {
			runs.Add(1)
		}))
		stops = append(stops, start(t, slots, clocks[i], after(job, asked)))
	}
	scene.Await(t, 4*len(clocks), asked)
	scene.AwaitDone(t, db, 4)
	for _, stop := range stops {
		stop()
	}
	log.wantNone(t)
	done := pgtest.One[int64](t, db.Conn(t), "SELECT count(*) FROM pglock.done_keys")
	if runs.Load() != done || done < 4 {
		t.Errorf("%d runs of %d slots", runs.Load(), done)
	}
}

// A run takes longer than the time between two planned times: the next waits and follows, unless cron skips it.
func TestSlotsThatPassDuringARunFollowUnlessCronSkipsThem(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		wrappers []cron.JobWrapper
		want     int // runs
	}{"follow": {nil, 2}, "skipped": {[]cron.JobWrapper{cron.SkipIfStillRunning(cron.DiscardLogger)}, 1}} {
		t.Run(name, func(t *testing.T) {
			db := pgtest.Parallel(t)
			r, log := scene.Replicas(t, db, 1)[0], newLog()
			var hours atomic.Int64 // that have passed
			midnight := time.Now().Truncate(24 * time.Hour)
			slots := must.Get(schedulers.NewSlots(r.Client, r.Store, schedulers.Every(time.Hour, 0),
				schedulers.WithNow(func() time.Time {
					return midnight.Add(time.Duration(hours.Load()) * time.Hour)
				})))(t)
			begun, ends := make(chan time.Time, 10), make(chan struct{})
			job := cron.NewChain(tc.wrappers...).Then(pglockcron.Job(t.Context(), slots, "report",
				func(ctx context.Context, tx pgx.Tx, slot time.Time) error {
					begun <- slot
					<-ends
					return r.Insert(ctx, tx, slot)
				}, log))
			ran := make(chan string, 10)
			go after(job, ran).Run()
			scene.Await(t, 1, begun)
			hours.Add(1)
			go after(job, ran).Run()
			if tc.want == 1 {
				scene.Await(t, 1, ran)
			} else {
				scene.AwaitWaiter(t, db)
			}
			close(ends)
			scene.Await(t, tc.want, ran)
			log.wantNone(t)
			if done := scene.Slots(t, db); len(done) != tc.want || !done[len(done)-1].Equal(
				midnight.Add(time.Duration(tc.want-1)*time.Hour)) {
				t.Errorf("runs of %v, want %d", done, tc.want)
			}
		})
	}
}

// child is a replica whose job hangs in the middle until the process is killed.
func child(ctx context.Context, r scene.Replica) error {
	slots, err := schedulers.NewSlots(r.Client, r.Store, schedulers.Every(period, 0))
	if err != nil {
		return err
	}
	c := cron.New()
	c.Schedule(slots, cron.NewChain(pglockcron.Once(ctx, slots, "mail", nil)).Then(cron.FuncJob(func() {
		fmt.Println(scene.InTheMiddle)
		<-ctx.Done()
	})))
	c.Start()
	<-ctx.Done()
	return ctx.Err()
}

func TestTheSlotOfACronThatWasKilledInTheMiddleIsBegunByAnother(t *testing.T) {
	db := pgtest.Parallel(t)
	kill := scene.Child(t, db)
	late := -period / 2 // so that it asks for the slot that the child is in the middle of
	r := scene.Replicas(t, db, 1)[0]
	slots := newSlots(t, r, new(scene.Clock), late)
	var killed atomic.Bool
	ran, log := make(chan string, 1000), newLog()
	job := cron.NewChain(pglockcron.Once(t.Context(), slots, "mail", log)).Then(cron.FuncJob(func() {
		if !killed.Load() {
			t.Error("a run has begun while another was under way")
		}
	}))
	stop := start(t, slots, late, after(job, ran))
	scene.AwaitWaiter(t, db)
	killed.Store(true)
	kill()
	scene.Await(t, 2, ran)
	stop()
	log.wantNone(t)
	var done int
	err := db.Conn(t).QueryRow(t.Context(), "SELECT count(*) FROM pglock.done_keys").Scan(&done)
	if err != nil || done < 1 {
		t.Errorf("%d slots are done, %v", done, err)
	}
}

func TestAJobThatFailsOrPanicsIsTriedByTheNextReplica(t *testing.T) {
	db := pgtest.Parallel(t)
	replicas := scene.Replicas(t, db, 2)
	broken, log := errors.New("broken"), newLog()
	midnight := time.Now().Truncate(24 * time.Hour)
	noon := schedulers.WithNow(func() time.Time { return midnight.Add(12 * time.Hour) }) // one slot for all
	var slots []*schedulers.Slots
	for _, r := range replicas {
		s := must.Get(schedulers.NewSlots(r.Client, r.Store, schedulers.Every(24*time.Hour, 0), noon))(t)
		slots = append(slots, s)
	}
	pglockcron.Job(t.Context(), slots[0], "report", func(ctx context.Context, tx pgx.Tx, slot time.Time) error {
		return errors.Join(replicas[0].Insert(ctx, tx, slot), broken)
	}, log).Run()
	if err := scene.Await(t, 1, log.errors); !errors.Is(err, broken) {
		t.Error(err)
	}
	for i := range slots {
		pglockcron.Job(t.Context(), slots[i], "report", replicas[i].Insert, log).Run()
	}
	if all := scene.Slots(t, db); len(all) != 1 {
		t.Error(all)
	}

	var runs int
	jobs := cron.NewChain(cron.Recover(log), pglockcron.Once(t.Context(), slots[0], "mail", log))
	jobs.Then(cron.FuncJob(func() { panic(broken) })).Run()
	if err := scene.Await(t, 1, log.errors); !errors.Is(err, broken) {
		t.Error(err)
	}
	for i := range slots {
		pglockcron.Once(t.Context(), slots[i], "mail", log)(cron.FuncJob(func() { runs++ })).Run()
	}
	if runs != 1 {
		t.Errorf("%d runs after the panic", runs)
	}
	log.wantNone(t)
}

// A deployment ends the replica that works and the one that waits. That work was cut off is news, whatever the cause,
// and so is that nobody knows what became of it; the end of a wait is not. What starts then does the slot.
func TestASlotThatADeploymentCutsOffIsLoggedAndDoneByWhoeverStarts(t *testing.T) {
	db := pgtest.Parallel(t)
	replicas := scene.Replicas(t, db, 3)
	noon := time.Now().Truncate(24 * time.Hour).Add(12 * time.Hour) // one slot for all
	var slots []*schedulers.Slots
	for _, r := range replicas {
		slots = append(slots, must.Get(schedulers.NewSlots(r.Client, r.Store, schedulers.Every(24*time.Hour, 0),
			schedulers.WithNow(func() time.Time { return noon })))(t))
	}
	for _, cause := range []error{nil, errors.New("shutdown")} {
		for _, want := range []error{context.Canceled, &fencedstore.OutcomeUnknownError{Err: context.Canceled}} {
			ctx, deploy := context.WithCancelCause(t.Context())
			works, waits, begun, ended := newLog(), newLog(), make(chan string, 2), make(chan string, 2)
			work := func(ctx context.Context, _ pgx.Tx, _ time.Time) error {
				begun <- "begun"
				<-ctx.Done()
				return want
			}
			go after(pglockcron.Job(ctx, slots[0], "report", work, works), ended).Run()
			scene.Await(t, 1, begun)
			go after(pglockcron.Job(ctx, slots[1], "report", work, waits), ended).Run()
			scene.AwaitWaiter(t, db)
			deploy(cause)
			scene.Await(t, 2, ended)
			waits.wantNone(t)
			if err := scene.Await(t, 1, works.errors); !errors.Is(err, want) {
				t.Errorf("logged: %v, want %v", err, want)
			}
			works.wantNone(t)
		}
	}
	c := cron.New()
	c.Schedule(slots[2], pglockcron.Job(t.Context(), slots[2], "report", replicas[2].Insert, newLog()))
	c.Start()
	for _, entry := range c.Entries() {
		entry.WrappedJob.Run()
	}
	<-c.Stop().Done()
	if done := scene.Slots(t, db); len(done) != 1 {
		t.Errorf("runs of %v, want one", done)
	}
}
