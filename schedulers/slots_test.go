package schedulers_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
	"github.com/pglock-dev/pglock/schedulers"
	"github.com/pglock-dev/pglock/schedulers/internal/scene"
)

func TestMain(m *testing.M) { scene.Main(m, nil) }

var daily = schedulers.Every(24*time.Hour, 2*time.Hour)

// begun is the time for all replicas: so they ask for one slot, also where the tests last until two o'clock.
var begun = time.Now()

func newSlots(t *testing.T, r scene.Replica, opts ...schedulers.Option) *schedulers.Slots {
	t.Helper()
	now := schedulers.WithNow(func() time.Time { return begun })
	slots := must.Get(schedulers.NewSlots(r.Client, r.Store, daily, append([]schedulers.Option{now}, opts...)...))(t)
	return slots
}

func TestWorkThatFailsLeavesItsSlotToTheNextReplica(t *testing.T) {
	db := pgtest.Parallel(t)
	replicas := scene.Replicas(t, db, 2)
	for _, broken := range []error{errors.New("broken"), fencedstore.ErrDone} { // of something else
		err := newSlots(t, replicas[0]).Do(t.Context(), "report",
			func(ctx context.Context, tx pgx.Tx, slot time.Time) error {
				return errors.Join(replicas[0].Insert(ctx, tx, slot), broken)
			})
		if !errors.Is(err, broken) {
			t.Errorf("work that failed with %v: %v", broken, err)
		}
	}
	for _, zone := range []*time.Location{time.UTC, time.FixedZone("east", 7200)} { // one planned time for both
		now := schedulers.WithNow(func() time.Time { return begun.In(zone) })
		must.Note(t, newSlots(t, replicas[1], now).Do(t.Context(), "report", replicas[1].Insert))
	}
	if slots := scene.Slots(t, db); len(slots) != 1 {
		t.Error(slots)
	}
}

func TestARunThatWasEndedIsNotBegunAgainAndOneThatWasCancelledIs(t *testing.T) {
	t.Parallel()
	replicas := scene.Replicas(t, pgtest.Database(t), 2)
	one, two := newSlots(t, replicas[0]), newSlots(t, replicas[1])
	begin := func(s *schedulers.Slots) *schedulers.Run {
		t.Helper()
		run := must.Get(s.Begin(t.Context(), "report"))(t)
		return run
	}
	must.Do(t, begin(one).Cancel(t.Context()))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	run := begin(two)
	if err := run.End(ended); err != nil { // the scheduler is shutting down, and the job has finished
		t.Fatal(err)
	}
	for _, s := range []*schedulers.Slots{one, two} {
		var done *fencedstore.DoneError
		if _, err := s.Begin(t.Context(), "report"); !errors.As(err, &done) || done.Token != run.Lease().Token() {
			t.Error(err)
		}
	}
	again := func(context.Context, pgx.Tx, time.Time) error { panic("done already") }
	must.Note(t, one.Do(t.Context(), "report", again))
	if slot, err := one.Slot(); err != nil || !slot.Equal(run.Slot()) {
		t.Error(slot, err)
	}
}

func TestWorkMayTakeLongerThanTheTTLWithinItsTimeLimit(t *testing.T) {
	db := pgtest.Parallel(t)
	r := scene.Replicas(t, db, 1)[0]
	slots := newSlots(t, r, schedulers.WithTimeLimit(time.Minute))
	must.Do(t, slots.Do(t.Context(), "report", func(ctx context.Context, tx pgx.Tx, slot time.Time) error {
		if _, err := tx.Exec(ctx, "SELECT pg_sleep($1)", (scene.TTL + scene.TTL/2).Seconds()); err != nil {
			return err
		}
		return r.Insert(ctx, tx, slot)
	}))
	scene.Slots(t, db)
}

func TestWorkThatTakesLongerThanItsTimeLimitFailsAndIsNotTriedForEver(t *testing.T) {
	t.Parallel()
	r := scene.Replicas(t, pgtest.Database(t), 1)[0]
	slots, calls := newSlots(t, r, schedulers.WithTimeLimit(3*time.Second)), 0
	err := slots.Do(t.Context(), "report", func(ctx context.Context, tx pgx.Tx, _ time.Time) error {
		calls++
		_, err := tx.Exec(ctx, "SELECT pg_sleep(20)")
		return err
	})
	if _, is := errors.AsType[*fencedstore.TimeLimitError](err); !is || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
}

// An error of the work's own is told, whatever it says: only a loss of the job's own lock is a reason to try again.
func TestWorkThatHasLostSomethingElseIsNotTriedForEver(t *testing.T) {
	t.Parallel()
	r := scene.Replicas(t, pgtest.Database(t), 1)[0]
	for _, of := range []error{pglock.ErrLost, pglock.ErrOutcomeUnknown} {
		ctx, cancel := context.WithCancel(t.Context())
		calls := 0
		err := newSlots(t, r).Do(ctx, "report", func(context.Context, pgx.Tx, time.Time) error {
			if calls++; calls == 3 {
				cancel()
			}
			return fmt.Errorf("another lock: %w", of)
		})
		if cancel(); calls != 1 || !errors.Is(err, of) {
			t.Errorf("%d calls, %v", calls, err)
		}
	}
}

// losing ends the lease of a job before the transaction that asks whether its slot is done is rolled back.
type losing struct {
	breaks func()
	lost   chan struct{} // the client knows
}

func (l losing) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.EqualFold(q.SQL, "rollback") {
		l.breaks()
		<-l.lost
	}
	return ctx
}

func (losing) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (l losing) Observe(_ context.Context, e pglock.Event) {
	if e.Kind == pglock.EventLost {
		close(l.lost)
	}
}

func TestNoRunBeginsWithALeaseThatIsLost(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	l := losing{lost: make(chan struct{}), breaks: func() {
		if _, err := conn.Exec(t.Context(), "SELECT pglock.break_lock('report', 'test', 'test')"); err != nil {
			t.Error(err)
		}
	}}
	client := must.Get(pglock.New(t.Context(), db.Pool(t), pglock.WithDefaultTTL(2*time.Second),
		pglock.WithObserver(l)))(t)
	t.Cleanup(func() { _ = client.Close(context.WithoutCancel(t.Context())) })
	store := fencedstore.New(db.Pool(t, func(config *pgxpool.Config) { config.ConnConfig.Tracer = l }))
	run, err := newSlots(t, scene.Replica{Client: client, Store: store}).Begin(t.Context(), "report")
	if run != nil || !errors.Is(err, pglock.ErrLost) {
		t.Errorf("run %v, %v; want ErrLost", run, err)
	}
}

// closing closes the client once COMMIT has been answered.
type closing struct {
	committed *bool
	close     func()
}

func (closing) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (closing) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (closing) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (c closing) TraceBatchQuery(_ context.Context, _ *pgx.Conn, q pgx.TraceBatchQueryData) {
	*c.committed = *c.committed || q.SQL == "COMMIT" && q.Err == nil
}

func (c closing) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {
	if *c.committed {
		c.close()
	}
}

// The process was told to end while the work was being committed.
func TestWorkThatIsCommittedIsDoneAlsoIfCloseHasTakenTheLease(t *testing.T) {
	db := pgtest.Parallel(t)
	r := scene.Replicas(t, db, 1)[0]
	c := closing{committed: new(bool), close: func() {
		must.Note(t, r.Client.Close(context.WithoutCancel(t.Context())))
	}}
	r.Store = fencedstore.New(db.Pool(t, func(config *pgxpool.Config) { config.ConnConfig.Tracer = c }))
	if err := newSlots(t, r).Do(t.Context(), "report", r.Insert); err != nil || !*c.committed {
		t.Errorf("%v, committed: %v", err, *c.committed)
	}
	if slots := scene.Slots(t, db); len(slots) != 1 {
		t.Error(slots)
	}
}

func TestBadArgumentsAreNamed(t *testing.T) {
	t.Parallel()
	r := scene.Replicas(t, pgtest.Database(t), 1)[0]
	for field, err := range map[string]error{
		"client":     second(schedulers.NewSlots(nil, r.Store, daily)),
		"store":      second(schedulers.NewSlots(r.Client, nil, daily)),
		"schedule":   second(schedulers.NewSlots(r.Client, r.Store, nil)),
		"option":     second(schedulers.NewSlots(r.Client, r.Store, daily, nil)),
		"retention":  second(schedulers.NewSlots(r.Client, r.Store, daily, schedulers.WithRetention(time.Second))),
		"time limit": second(schedulers.NewSlots(r.Client, r.Store, daily, schedulers.WithTimeLimit(0))),
		"now":        second(schedulers.NewSlots(r.Client, r.Store, daily, schedulers.WithNow(nil))),
		"job":        second(newSlots(t, r).Begin(t.Context(), strings.Repeat("x", 401))),
		"work":       newSlots(t, r).Do(t.Context(), "report", nil),
	} {
		if argument, is := errors.AsType[*pglock.ArgumentError](err); !is || argument.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }
