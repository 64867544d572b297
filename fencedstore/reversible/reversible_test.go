package reversible_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/fencedstore/reversible"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// stage is a lock with its holder.
type stage struct {
	db     *pgtest.DB
	pool   *pgxpool.Pool
	client *pglock.Client
	lease  *pglock.Lease
}

func newStage(t *testing.T, change func(*pgxpool.Config), opts ...pglock.AcquireOption) *stage {
	t.Helper()
	s := &stage{db: pgtest.Database(t)}
	pool := s.db.Pool(t, change)
	client, err := pglock.New(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(context.WithoutCancel(t.Context())) })
	if s.lease, err = client.TryAcquire(t.Context(), "report", opts...); err != nil {
		t.Fatal(err)
	}
	s.pool, s.client = pool, client
	return s
}

// unchanged is for newStage.
func unchanged(*pgxpool.Config) {}

func (s *stage) breakLease(t *testing.T) {
	t.Helper()
	admin, err := lockadmin.New(context.WithoutCancel(t.Context()), s.pool)
	if err == nil {
		_, err = admin.Break(context.WithoutCancel(t.Context()), s.lease.Name(), "for the test",
			lockadmin.BreakOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// next is the lease of the holder after a break.
func (s *stage) next(t *testing.T) *pglock.Lease {
	t.Helper()
	return must.Get(s.client.TryAcquire(t.Context(), s.lease.Name()))(t)
}

// told is an operation that tells what is called. Nil functions succeed.
func told(calls *[]string, apply, restore func(context.Context) error) reversible.Operation {
	step := func(name string, f func(context.Context) error) func(context.Context) error {
		return func(ctx context.Context) error {
			*calls = append(*calls, name)
			if f == nil {
				return nil
			}
			return f(ctx)
		}
	}
	return reversible.Operation{Capture: step("capture", nil), Apply: step("apply", apply),
		Restore: step("restore", restore)}
}

func wantCalls(t *testing.T, got []string, want string) {
	t.Helper()
	if strings.Join(got, " ") != want {
		t.Errorf("called %q, want %q", got, want)
	}
}

func TestOperationStandsWhenTheLeaseHeldToItsEnd(t *testing.T) {
	t.Parallel()
	s := newStage(t, unchanged)
	var calls []string
	o := &object{version: 1}
	for range 2 { // one grant runs many
		must.Do(t, reversible.Run(t.Context(), s.lease, told(&calls, nil, nil)))
		op := replace(o, "x")
		op.Restore = func(context.Context) error { return errors.New("restored") }
		op.Resource = "object"
		must.Do(t, reversible.Run(t.Context(), s.lease, op))
	}
	wantCalls(t, calls, "capture apply capture apply")
	var fences []string
	rows, err := s.db.Conn(t).Query(t.Context(), "SELECT resource FROM pglock.list_fences('report')")
	if err == nil {
		fences, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if slices.Sort(fences); err != nil || !slices.Equal(fences, []string{"object", "report"}) {
		t.Errorf("fences %q, %v", fences, err)
	}
}

func TestI3_OperationIsNotBegunAfterAGreaterTokenHasPassed(t *testing.T) {
	t.Parallel()
	s := newStage(t, unchanged)
	s.breakLease(t)
	var calls, late []string
	must.Do(t, reversible.Run(t.Context(), s.next(t), told(&calls, nil, nil)))
	err := reversible.Run(t.Context(), s.lease, told(&late, nil, nil))
	var stale *fencedstore.StaleTokenError
	if !errors.As(err, &stale) || stale.Token != s.lease.Token() || errors.Is(err, reversible.ErrUndone) {
		t.Errorf("%v, want a StaleTokenError for token %d", err, s.lease.Token())
	}
	wantCalls(t, late, "")
}

func TestI3_OperationThatWasBegunKeepsLowerTokensOut(t *testing.T) {
	t.Parallel()
	s := newStage(t, unchanged)
	s.breakLease(t)
	var refused error
	next := s.next(t)
	err := reversible.Run(t.Context(), next, reversible.Operation{
		Apply: func(ctx context.Context) error { // the fence stands while it runs
			refused = reversible.Run(ctx, s.lease, told(new([]string), nil, nil))
			return nil
		},
		Restore: func(context.Context) error { return nil },
	})
	if err != nil || !errors.Is(refused, fencedstore.ErrStaleToken) {
		t.Errorf("%v; the lower token: %v", err, refused)
	}
}

func TestI10_OperationWhoseLeaseIsBrokenMeanwhileIsUndone(t *testing.T) {
	t.Parallel()
	s := newStage(t, unchanged)
	var calls []string
	apply := func(context.Context) error {
		s.breakLease(t)
		if !s.lease.Valid() {
			t.Error("the holder knows already: this tests nothing")
		}
		return nil
	}
	restore := func(ctx context.Context) error {
		deadline, bounded := ctx.Deadline()
		if left := time.Until(deadline); ctx.Err() != nil || !bounded || left > reversible.DefaultRestoreTimeout ||
			left < 10*time.Second {
			t.Errorf("Restore's context: %v, %v left", ctx.Err(), left)
		}
		return nil
	}
	err := reversible.Run(s.lease.Context(), s.lease, told(&calls, apply, restore))
	var lost *pglock.LostError
	if !errors.As(err, &lost) || lost.Reason != pglock.ReasonBroken || !errors.Is(err, pglock.ErrLost) ||
		!errors.Is(err, reversible.ErrUndone) {
		t.Errorf("%v, want ErrLost and ErrUndone", err)
	}
	wantCalls(t, calls, "capture apply restore")
}

func TestOperationUnderAReleasedLeaseIsUndone(t *testing.T) {
	t.Parallel()
	s := newStage(t, unchanged)
	var calls []string
	err := reversible.Run(t.Context(), s.lease, told(&calls, func(ctx context.Context) error {
		err := s.lease.Release(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Second):
		}
		if cause := context.Cause(ctx); !errors.Is(cause, pglock.ErrReleased) {
			t.Errorf("the context of Apply ended with %v", cause)
		}
		return err
	}, nil))
	if !errors.Is(err, pglock.ErrReleased) || !errors.Is(err, reversible.ErrUndone) {
		t.Errorf("%v, want ErrReleased and ErrUndone", err)
	}
	wantCalls(t, calls, "capture apply restore")
}

func TestFailedApplyIsUndone(t *testing.T) {
	t.Parallel()
	s := newStage(t, unchanged)
	var calls []string
	half := errors.New("half of it is written")
	err := reversible.Run(t.Context(), s.lease, told(&calls, func(context.Context) error { return half }, nil))
	if !errors.Is(err, half) || !errors.Is(err, reversible.ErrUndone) || errors.Is(err, pglock.ErrLost) {
		t.Errorf("%v, want Apply's error and ErrUndone", err)
	}
	wantCalls(t, calls, "capture apply restore")
}

func TestFailedCaptureLeavesEverything(t *testing.T) {
	t.Parallel()
	s := newStage(t, unchanged)
	var calls []string
	gone := errors.New("no such file")
	op := told(&calls, nil, nil)
	op.Capture = func(context.Context) error { return gone }
	if err := reversible.Run(t.Context(), s.lease, op); !errors.Is(err, gone) || errors.Is(err, reversible.ErrUndone) {
		t.Errorf("%v, want Capture's error alone", err)
	}
	op.Capture = func(ctx context.Context) error { return s.lease.Release(ctx) } // and a lease that ends in it
	if err := reversible.Run(t.Context(), s.lease, op); !errors.Is(err, pglock.ErrReleased) {
		t.Errorf("%v, want ErrReleased", err)
	}
	wantCalls(t, calls, "")
}

func TestEndOfTheContextUndoes(t *testing.T) {
	t.Parallel()
	for name, applied := range map[string]error{"Apply succeeded": nil, "Apply was interrupted": context.Canceled} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, unchanged)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var calls []string
			err := reversible.Run(ctx, s.lease, told(&calls, func(ctx context.Context) error {
				cancel()
				<-ctx.Done()
				return applied
			}, func(ctx context.Context) error { return ctx.Err() }))
			if !errors.Is(err, context.Canceled) || !errors.Is(err, reversible.ErrUndone) ||
				errors.Is(err, pglock.ErrLost) {
				t.Errorf("%v, want context.Canceled and ErrUndone", err)
			}
			wantCalls(t, calls, "capture apply restore")
		})
	}
}

func TestPanicInApplyIsUndoneAndGoesOn(t *testing.T) {
	t.Parallel()
	s := newStage(t, unchanged)
	var calls []string
	run := func(op reversible.Operation) (recovered any) {
		defer func() { recovered = recover() }()
		t.Error(reversible.Run(t.Context(), s.lease, op))
		return nil
	}
	if got := run(told(&calls, func(context.Context) error { panic("on fire") }, nil)); got != "on fire" {
		t.Errorf("recovered %v", got)
	}
	wantCalls(t, calls, "capture apply restore")
	if got := run(told(&calls, func(context.Context) error {
		panic("on fire")
	}, func(context.Context) error { panic("again") })); got != "again" {
		t.Errorf("recovered %v", got)
	}
}

func TestFailedRestoreIsReported(t *testing.T) {
	t.Parallel()
	s := newStage(t, unchanged)
	cause, failure := errors.New("full disk"), errors.New("read-only now")
	var calls []string
	op := told(&calls, func(context.Context) error { return cause }, func(context.Context) error { return failure })
	op.Resource = "the file"
	err := reversible.Run(t.Context(), s.lease, op)
	var not *reversible.RestoreError
	if !errors.As(err, &not) || not.Resource != "the file" || not.Token != s.lease.Token() ||
		!errors.Is(not.Cause, cause) || !errors.Is(not.Err, failure) {
		t.Fatalf("%v is no RestoreError of this operation", err)
	}
	for _, want := range []error{reversible.ErrNotRestored, cause, failure} {
		if !errors.Is(err, want) {
			t.Errorf("%v is not %v", err, want)
		}
	}
	if errors.Is(err, reversible.ErrUndone) || !strings.Contains(err.Error(), "full disk") ||
		!strings.Contains(err.Error(), "read-only") {
		t.Errorf("it says %v", err)
	}
}

func TestRestoreLeavesWhatTheNextHolderHasWritten(t *testing.T) {
	t.Parallel()
	s := newStage(t, unchanged)
	o := &object{body: "before", version: 1}
	op := replace(o, "late")
	apply := op.Apply
	op.Apply = func(ctx context.Context) error {
		if err := apply(ctx); err != nil {
			return err
		}
		s.breakLease(t)
		return reversible.Run(t.Context(), s.next(t), replace(o, "next"))
	}
	err := reversible.Run(t.Context(), s.lease, op)
	if !errors.Is(err, reversible.ErrOvertaken) || !errors.Is(err, pglock.ErrLost) ||
		errors.Is(err, reversible.ErrNotRestored) || errors.Is(err, reversible.ErrUndone) {
		t.Errorf("%v, want ErrLost and ErrOvertaken alone", err)
	}
	if body, _ := o.get(); body != "next" {
		t.Errorf("the object has %q, the next holder wrote %q", body, "next")
	}
}

func TestRunRefusesBadArgumentsBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	s := newStage(t, unchanged)
	f := func(context.Context) error { t.Error("called"); return nil }
	good := reversible.Operation{Capture: f, Apply: f, Restore: f}
	slow, long := good, good
	slow.RestoreTimeout, long.Resource = -1, strings.Repeat("x", pglock.MaxNameBytes+1)
	for _, tc := range []struct {
		field string
		lease *pglock.Lease
		op    reversible.Operation
	}{
		{"lease", nil, good},
		{"lease", new(pglock.Lease), good},
		{"Apply", s.lease, reversible.Operation{Restore: f}},
		{"Restore", s.lease, reversible.Operation{Apply: f}},
		{"RestoreTimeout", s.lease, slow},
		{"resource", s.lease, long},
	} {
		var argument *pglock.ArgumentError
		if err := reversible.Run(t.Context(), tc.lease, tc.op); !errors.As(err, &argument) ||
			argument.Field != tc.field {
			t.Errorf("%s: %v", tc.field, err)
		}
	}
	var fences int
	if err := s.db.Conn(t).QueryRow(t.Context(), "SELECT count(*) FROM pglock.fences").Scan(&fences); err != nil ||
		fences != 0 {
		t.Errorf("%d fences, %v", fences, err)
	}
}

func TestRestoreIsBounded(t *testing.T) {
	t.Parallel()
	s := newStage(t, unchanged)
	op := told(new([]string), func(context.Context) error {
		return errors.New("failed")
	}, func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
	op.RestoreTimeout = time.Millisecond
	if err := reversible.Run(t.Context(), s.lease, op); !errors.Is(err, reversible.ErrNotRestored) ||
		!errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want ErrNotRestored and the end of its time", err)
	}
}
