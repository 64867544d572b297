package gocron_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jonboulle/clockwork"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/leader"
	"github.com/pglock-dev/pglock/schedulers"
	pglockgocron "github.com/pglock-dev/pglock/schedulers/gocron"
	"github.com/pglock-dev/pglock/schedulers/internal/scene"
)

func TestMain(m *testing.M) { scene.Main(m, child) }

// period is the time between two planned times.
const period = time.Second

// skewed is a clock that is late or early.
type skewed struct {
	clockwork.Clock
	by time.Duration
}

func (c skewed) Now() time.Time { return c.Clock.Now().Add(c.by) }

// clocks of four replicas: between the first and the last lies more than a period.
var clocks = []time.Duration{-300 * time.Millisecond, 0, 200 * time.Millisecond, 850 * time.Millisecond}

func newScheduler(t *testing.T, skew time.Duration, opts ...gocron.SchedulerOption) gocron.Scheduler {
	t.Helper()
	clock := skewed{clockwork.NewRealClock(), skew}
	s := must.Get(gocron.NewScheduler(append(opts, gocron.WithClock(clock), gocron.WithLocation(time.UTC))...))(t)
	t.Cleanup(func() {
		if err := s.Shutdown(); err != nil && !errors.Is(err, gocron.ErrStopSchedulerTimedOut) {
			t.Error(err)
		}
	})
	return s
}

func newSlots(t *testing.T, r scene.Replica, clock *scene.Clock, skew time.Duration) *schedulers.Slots {
	t.Helper()
	slots := must.Get(schedulers.NewSlots(r.Client, r.Store, schedulers.Every(period, 0),
		schedulers.WithNow(clock.Skewed(skew))))(t)
	return slots
}

func addJob(t *testing.T, s gocron.Scheduler, task gocron.Task, opts ...gocron.JobOption) {
	t.Helper()
	must.Get(s.NewJob(gocron.CronJob("* * * * * *", true), task, append(opts, gocron.WithName("report"))...))(t)
}

func TestWorkOfEachSlotIsCommittedOnceInSchedulersWhoseClocksDiffer(t *testing.T) {
	db := pgtest.Parallel(t)
	ran := make(chan string, 1000)
	var all []gocron.Scheduler
	var clock scene.Clock
	var failed atomic.Int64
	for i, r := range scene.Replicas(t, db, len(clocks)) {
		s, slots := newScheduler(t, clocks[i]), newSlots(t, r, &clock, clocks[i])
		addJob(t, s, gocron.NewTask(func(ctx context.Context) error {
			err := slots.Do(ctx, "report", r.Insert)
			if ran <- r.Name; err != nil { // StopJobs has ended it
				failed.Add(1)
			}
			return err
		}))
		all = append(all, s)
	}
	for _, s := range all {
		s.Start()
	}
	scene.Await(t, 4*len(clocks), ran) // each replica asks for each slot
	scene.AwaitDone(t, db, 4)          // a busy replica may ask twice for one
	for _, s := range all {
		must.Note(t, s.StopJobs())
	}
	clock.WantOneRunPerSlot(t, db, period, int(failed.Load()))
}

func TestLockerLetsEachSlotRunOnceInSchedulersWhoseClocksDiffer(t *testing.T) {
	db := pgtest.Parallel(t)
	var runs, refused, cut atomic.Int64
	asked := make(chan string, 1000)
	var all []gocron.Scheduler
	for i, r := range scene.Replicas(t, db, len(clocks)) {
		s := newScheduler(t, clocks[i])
		locker := pglockgocron.NewLocker(newSlots(t, r, new(scene.Clock), clocks[i]))
		addJob(t, s, gocron.NewTask(func() { runs.Add(1); asked <- r.Name }),
			gocron.WithDistributedJobLocker(counting{locker, &cut}),
			gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) {
				if !errors.Is(err, fencedstore.ErrDone) && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				refused.Add(1)
				asked <- r.Name
			})))
		all = append(all, s)
	}
	for _, s := range all {
		s.Start()
	}
	scene.Await(t, 4*len(clocks), asked)
	scene.AwaitDone(t, db, 4)
	for _, s := range all {
		if err := s.StopJobs(); err != nil { // it waits for jobs, and so for Unlock
			t.Error(err)
		}
	}
	done := pgtest.One[int64](t, db.Conn(t), "SELECT count(*) FROM pglock.done_keys")
	if runs.Load() != done+cut.Load() || done < 4 || refused.Load() == 0 {
		t.Errorf("%d runs of %d slots, %d were cut off, %d refused", runs.Load(), done, cut.Load(), refused.Load())
	}
}

// counting is a Locker that counts the runs that were told to stop before their end.
type counting struct {
	gocron.Locker
	cut *atomic.Int64
}

func (c counting) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	lock, err := c.Locker.Lock(ctx, key)
	return counted{lock, c.cut}, err
}

type counted struct {
	gocron.Lock
	cut *atomic.Int64
}

func (c counted) Unlock(ctx context.Context) error {
	if ctx.Err() != nil {
		c.cut.Add(1)
		return c.Lock.Unlock(ctx)
	}
	return c.Lock.Unlock(context.WithoutCancel(ctx)) // which may end now
}

func TestTheSlotOfARunThatAShutdownCutsOffIsBegunByAnother(t *testing.T) {
	db := pgtest.Parallel(t)
	noon := time.Now().Truncate(24 * time.Hour).Add(12 * time.Hour) // one slot for both
	var lockers []gocron.Locker
	for _, r := range scene.Replicas(t, db, 2) {
		slots := must.Get(schedulers.NewSlots(r.Client, r.Store, schedulers.Every(24*time.Hour, 0),
			schedulers.WithNow(func() time.Time { return noon })))(t)
		lockers = append(lockers, pglockgocron.NewLocker(slots))
	}
	s, begun := newScheduler(t, 0), make(chan string, 1)
	addJob(t, s, gocron.NewTask(func(ctx context.Context) error {
		begun <- "begun"
		<-ctx.Done()
		return ctx.Err()
	}), gocron.WithDistributedJobLocker(lockers[0]), gocron.WithStartAt(gocron.WithStartImmediately()))
	s.Start()
	scene.Await(t, 1, begun)
	must.Do(t, s.Shutdown())
	must.Do(t, must.Get(lockers[1].Lock(t.Context(), "report"))(t).Unlock(t.Context()))
	if _, err := lockers[0].Lock(t.Context(), "report"); !errors.Is(err, fencedstore.ErrDone) {
		t.Errorf("the slot of a run that has finished: %v, want ErrDone", err)
	}
}

// child is a replica whose job hangs in the middle until the process is killed.
func child(ctx context.Context, r scene.Replica) error {
	slots, err := schedulers.NewSlots(r.Client, r.Store, schedulers.Every(period, 0))
	if err != nil {
		return err
	}
	s, err := gocron.NewScheduler()
	if err != nil {
		return err
	}
	_, err = s.NewJob(gocron.CronJob("* * * * * *", true), gocron.NewTask(func(ctx context.Context) error {
		return slots.Do(ctx, "report", func(ctx context.Context, tx pgx.Tx, slot time.Time) error {
			if err := r.Insert(ctx, tx, slot); err != nil {
				return err
			}
			fmt.Println(scene.InTheMiddle)
			<-ctx.Done()
			return ctx.Err()
		})
	}))
	if err != nil {
		return err
	}
	s.Start()
	<-ctx.Done()
	return ctx.Err()
}

func TestTheSlotOfASchedulerThatWasKilledInTheMiddleIsRunByAnother(t *testing.T) {
	db := pgtest.Parallel(t)
	kill := scene.Child(t, db)
	var killed atomic.Bool
	begun := make(chan time.Time, 1000)
	late := -period / 2 // so that it asks for the slot that the child is in the middle of
	r := scene.Replicas(t, db, 1)[0]
	s, slots := newScheduler(t, late), newSlots(t, r, new(scene.Clock), late)
	addJob(t, s, gocron.NewTask(func(ctx context.Context) error {
		return slots.Do(ctx, "report", func(ctx context.Context, tx pgx.Tx, slot time.Time) error {
			if !killed.Load() {
				t.Error("a run has begun while another was under way")
			}
			begun <- slot
			return r.Insert(ctx, tx, slot)
		})
	}))
	s.Start()
	scene.AwaitWaiter(t, db)
	killed.Store(true)
	kill()
	scene.Await(t, 2, begun)
	must.Note(t, s.StopJobs())
	var children int
	err := db.Conn(t).QueryRow(t.Context(), "SELECT count(*) FROM runs WHERE by = 'child'").Scan(&children)
	if err != nil || children != 0 {
		t.Errorf("%d runs of the child are left, %v", children, err)
	}
	var twice int
	err = db.Conn(t).QueryRow(t.Context(), "SELECT count(*) - count(DISTINCT slot) FROM runs").Scan(&twice)
	if err != nil || twice != 0 {
		t.Errorf("%d slots were run twice, %v", twice, err)
	}
}

func TestAJobThatFailsIsTriedByTheNextReplica(t *testing.T) {
	db := pgtest.Parallel(t)
	broken := errors.New("broken")
	var first sync.Map // slots whose first run has failed
	heard, committed := make(chan error, 1000), make(chan string, 1000)
	var all []gocron.Scheduler
	var clock scene.Clock
	var failed atomic.Int64
	for i, r := range scene.Replicas(t, db, 2) {
		s, slots := newScheduler(t, clocks[i]), newSlots(t, r, &clock, clocks[i])
		addJob(t, s, gocron.NewTask(func(ctx context.Context) error {
			err := slots.Do(ctx, "report", func(ctx context.Context, tx pgx.Tx, slot time.Time) error {
				if _, again := first.LoadOrStore(slot.Unix(), true); !again {
					return errors.Join(r.Insert(ctx, tx, slot), broken)
				}
				return r.Insert(ctx, tx, slot)
			})
			if err == nil {
				committed <- r.Name
			} else {
				failed.Add(1)
			}
			return err
		}), gocron.WithEventListeners(gocron.AfterJobRunsWithError(func(_ uuid.UUID, _ string, err error) {
			heard <- err
		})))
		all = append(all, s)
	}
	for _, s := range all {
		s.Start()
	}
	scene.Await(t, 3, committed)
	for _, s := range all {
		must.Note(t, s.StopJobs())
	}
	clock.WantOneRunPerSlot(t, db, period, int(failed.Load()))
	if err := scene.Await(t, 1, heard); !errors.Is(err, broken) {
		t.Error(err)
	}
}

func TestElectorLetsOneSchedulerRunJobsAndAnotherWhenThatEnds(t *testing.T) {
	db := pgtest.Parallel(t)
	replicas := scene.Replicas(t, db, 3)
	ran := make(chan int, 1000)
	cancels, ended := make([]context.CancelFunc, len(replicas)), make(chan error, len(replicas))
	for i, r := range replicas {
		elector := must.Get(pglockgocron.NewElector(r.Client, "leader/scheduler"))(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancels[i] = cancel
		go func() { ended <- elector.Run(ctx) }() // ended below
		s := newScheduler(t, 0, gocron.WithDistributedElector(elector))
		addJob(t, s, gocron.NewTask(func() {
			if err := elector.IsLeader(t.Context()); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			ran <- i
		}))
		s.Start()
		if err := elector.IsLeader(t.Context()); err != nil && !errors.Is(err, leader.ErrNotLeading) {
			t.Error(err)
		}
	}
	next := func() int {
		select {
		case i := <-ran:
			return i
		case <-time.After(20 * time.Second):
			t.Fatal("nobody runs jobs")
			return 0
		}
	}
	one := next()
	if again := next(); again != one {
		t.Errorf("%d and %d run jobs", one, again)
	}
	cancels[one]()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for len(ran) > 0 { // runs that had begun
		<-ran
	}
	two := next()
	if two == one { // one more of them may tell of itself only now
		two = next()
	}
	if two == one {
		t.Errorf("%d runs jobs and does not lead", two)
	}
	for i, cancel := range cancels {
		if cancel(); i != one {
			<-ended
		}
	}
}
