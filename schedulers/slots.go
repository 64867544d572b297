package schedulers

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/pglock"
)

const (
	// DefaultRetention is how long a slot is kept as done, unless WithRetention says otherwise.
	DefaultRetention = 30 * 24 * time.Hour
	// maxName leaves room for the slot in the key.
	maxName = 400
	// ending limits the talk of End with the server, and noting its part before the release.
	ending = 10 * time.Second
	noting = 9 * time.Second
	// noteAgain is the pause before End notes again, while the server is away.
	noteAgain = 100 * time.Millisecond
)

// Slots runs jobs once for each planned time of a schedule. It is safe for concurrent use, and has no goroutines.
type Slots struct {
	client    *pglock.Client
	store     *fencedstore.Store
	schedule  Schedule
	retention time.Duration
	limit     time.Duration
	now       func() time.Time
	zone      atomic.Pointer[time.Location] // in which the scheduler has asked first; nil: it has not
}

// Option configures Slots. A bad value makes NewSlots fail.
type Option func(*Slots) error

// WithRetention sets how long the server remembers that a slot is done, from a minute to 100 years. A later run for
// that slot fails with fencedstore.ErrKeyTooOld. Defaults to DefaultRetention. All replicas must give the same value.
func WithRetention(d time.Duration) Option {
	return func(s *Slots) error {
		if d < time.Minute || d > 100*365*24*time.Hour {
			return &pglock.ArgumentError{Field: "retention", Value: d.String(), Rule: "be from 1m to 100 years"}
		}
		s.retention = d
		return nil
	}
}

// WithTimeLimit sets how long the transaction of Do may take, as fencedstore.WithTimeLimit does. The other replicas
// also wait this long if one dies in the middle. Defaults to what the lease has left.
func WithTimeLimit(d time.Duration) Option {
	return func(s *Slots) error {
		if d < pglock.MinTTL || d > pglock.MaxTTL {
			rule := fmt.Sprintf("be from %v to %v", pglock.MinTTL, pglock.MaxTTL)
			return &pglock.ArgumentError{Field: "time limit", Value: d.String(), Rule: rule}
		}
		s.limit = d
		return nil
	}
}

// WithNow sets the clock of the scheduler. Defaults to time.Now.
func WithNow(now func() time.Time) Option {
	return func(s *Slots) error {
		if now == nil {
			return &pglock.ArgumentError{Field: "now", Value: "nil", Rule: "be a function"}
		}
		s.now = now
		return nil
	}
}

// NewSlots makes Slots for a schedule. It sends nothing. Every replica must give the same schedule. The client and the
// store stay the caller's; they must lead to the same database. The error is pglock.ErrInvalid.
func NewSlots(client *pglock.Client, store *fencedstore.Store, schedule Schedule, opts ...Option) (*Slots, error) {
	if client == nil {
		return nil, &pglock.ArgumentError{Field: "client", Value: "nil", Rule: "be a *pglock.Client"}
	}
	if store == nil {
		return nil, &pglock.ArgumentError{Field: "store", Value: "nil", Rule: "be a *fencedstore.Store"}
	}
	s := &Slots{client: client, store: store, schedule: schedule, retention: DefaultRetention, now: time.Now}
	for _, o := range opts {
		if o == nil {
			return nil, &pglock.ArgumentError{Field: "option", Value: "nil", Rule: "be an option of this package"}
		}
		if err := o(s); err != nil {
			return nil, err
		}
	}
	return s, checkSchedule(schedule, s.now())
}

// Next is the schedule's, so that Slots can be given to a scheduler as its schedule. Slots plans in the time zone in
// which Next is asked first, as cron.WithLocation sets it: the scheduler asks when it starts.
func (s *Slots) Next(t time.Time) time.Time {
	s.zone.CompareAndSwap(nil, t.Location())
	return s.schedule.Next(t)
}

// Slot returns the planned time of a run that begins now.
func (s *Slots) Slot() (time.Time, error) {
	now := s.now()
	if zone := s.zone.Load(); zone != nil {
		now = now.In(zone)
	}
	return slotAt(s.schedule, now)
}

// Work is what a job does for a planned time, in a transaction.
type Work = func(ctx context.Context, tx pgx.Tx, slot time.Time) error

// Do does the work of the job for the current slot, unless that was done. Call it in every replica when the scheduler
// runs the job. It waits while another replica is at work, and returns nil when the work is committed, by whichever
// replica. The work must write in the given transaction, as with fencedstore.Store.Once. The job is the name of the
// lock and has 1 to 400 bytes.
//
// Errors: work's own, those of fencedstore.Store.Once, and those of pglock.Client.Acquire. If the lease or an answer is
// lost, Do tries again.
func (s *Slots) Do(ctx context.Context, job string, work Work) error {
	slot, err := s.slotOf(job)
	if err != nil {
		return err
	}
	if work == nil {
		return &pglock.ArgumentError{Field: "work", Value: "nil", Rule: "be a function"}
	}
	store := s.store
	if s.limit > 0 {
		store = store.With(fencedstore.WithTimeLimit(s.limit))
	}
	for {
		var own error // work's
		var lost bool // the lease of this try
		var done bool // this try has committed the work; Close may have ended the lease before that is known
		err := s.client.Do(ctx, job, func(ctx context.Context, lease *pglock.Lease) error {
			defer func() { lost = errors.Is(lease.Err(), pglock.ErrLost) }()
			err := s.once(ctx, store, lease, job, slot, func(ctx context.Context, tx pgx.Tx) error {
				own = work(ctx, tx, slot)
				return own
			})
			done = err == nil
			return err
		})
		if done || errors.Is(err, fencedstore.ErrDone) && own == nil {
			return nil
		}
		if ctx.Err() != nil || own != nil && !lost ||
			!errors.Is(err, pglock.ErrLost) && !errors.Is(err, pglock.ErrOutcomeUnknown) {
			return err
		}
	}
}

// Run is a run of a job that has begun and not ended.
type Run struct {
	slots *Slots
	job   string
	slot  time.Time
	lease *pglock.Lease
}

// errOpen rolls back the transaction that asks whether a slot is done.
var errOpen = errors.New("schedulers: the slot is open")

// Begin begins the run of the job for the current slot. It waits while another replica is at work, and fails with
// fencedstore.ErrDone (DoneError) if the slot is done. The run holds the lock until End or Cancel.
//
// Other errors are those of pglock.Client.Acquire and fencedstore.Store.Once.
func (s *Slots) Begin(ctx context.Context, job string) (*Run, error) {
	slot, err := s.slotOf(job)
	if err != nil {
		return nil, err
	}
	lease, err := s.client.Acquire(ctx, job)
	if err != nil {
		return nil, err
	}
	err = s.once(ctx, s.store, lease, job, slot, func(context.Context, pgx.Tx) error { return errOpen })
	if !errors.Is(err, errOpen) {
		_ = lease.Release(ctx) // at worst it ends with its TTL
		return nil, err
	}
	if lost := lease.Err(); lost != nil { // while it asked
		return nil, lost
	}
	return &Run{slots: s, job: job, slot: slot, lease: lease}, nil
}

// Slot is the planned time of the run.
func (r *Run) Slot() time.Time { return r.slot }

// Lease is the run's lease. Its context ends when the lease is lost: then another replica may begin the same slot,
// and the job should stop.
func (r *Run) Lease() *pglock.Lease { return r.lease }

// End notes that the slot is done and releases the lock, even if ctx has ended. It tries for ten seconds, again and
// again while the server is away and the lease lasts; where no server answers, it may need ten more to find out what
// became of its note. After an error somebody may begin the slot again.
func (r *Run) End(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ending)
	defer cancel()
	err := r.note(ctx)
	return failure.At(ctx, errors.Join(err, r.lease.Release(ctx)), "schedulers: end the run of %q", r.job)
}

// refusals are errors of a note that another attempt does not change, besides those that last by themselves.
var refusals = []error{fencedstore.ErrDone, fencedstore.ErrStaleToken, pglock.ErrInvalid, pglock.ErrWrongDatabase,
	pglock.ErrLost}

// note notes that the slot is done. It knows its own note if the answer to an earlier attempt was lost.
func (r *Run) note(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, noting)
	defer cancel()
	nothing := func(context.Context, pgx.Tx) error { return nil }
	for {
		err := r.slots.once(ctx, r.slots.store, r.lease, r.job, r.slot, nothing)
		if done, is := errors.AsType[*fencedstore.DoneError](err); is && done.Token == r.lease.Token() {
			return nil
		}
		if err == nil || !r.lease.Valid() || server.Lasting(err) || failure.IsOneOf(err, refusals...) ||
			!pause.For(ctx, noteAgain) {
			return err
		}
	}
}

// Cancel releases the lock and leaves the slot open, so that the next replica that waits begins it.
func (r *Run) Cancel(ctx context.Context) error { return r.lease.Release(ctx) }

func (s *Slots) slotOf(job string) (time.Time, error) {
	if job == "" || len(job) > maxName {
		rule := fmt.Sprintf("have 1 to %d bytes", maxName)
		return time.Time{}, &pglock.ArgumentError{Field: "job", Value: fmt.Sprint(len(job), " bytes"), Rule: rule}
	}
	return s.Slot()
}

func (s *Slots) once(ctx context.Context, store *fencedstore.Store, lease *pglock.Lease, job string, slot time.Time,
	work func(context.Context, pgx.Tx) error) error {
	key := job + " " + slot.UTC().Format(time.RFC3339Nano)
	return store.With(fencedstore.WithRetention(slot, s.retention)).Once(ctx, lease, key, work)
}
