package main

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// Nightly makes one report for each night, over any number of replicas.
type Nightly struct {
	Name   string // of the report and its lock; never rename it
	Client *pglock.Client
	Store  *fencedstore.Store
	Every  time.Duration    // 24 * time.Hour
	At     time.Duration    // after midnight UTC: 2 * time.Hour
	Now    func() time.Time // time.Now

	// Compute works out the report, for as long as it needs, outside a transaction. It stops when ctx ends.
	Compute func(ctx context.Context, night time.Time) (total int64, err error)
}

// Nights makes the report of the last night, and then of each night as it comes, until ctx ends. Range over it in every
// replica. The error is nil if this replica made the report; fencedstore.ErrDone if another made it, or this one when
// the answer to its COMMIT was lost; or else what went wrong: to try that night again, break and range again, later.
func (n *Nightly) Nights(ctx context.Context) iter.Seq2[time.Time, error] {
	return func(yield func(time.Time, error) bool) {
		// The planned times follow from the schedule, so all replicas use the same ones, whatever their clocks say.
		for night := n.Now().Add(-n.At).Truncate(n.Every).Add(n.At); ; night = night.Add(n.Every) {
			select {
			case <-time.After(night.Sub(n.Now())):
			case <-ctx.Done():
				return
			}
			if err := n.report(ctx, night); ctx.Err() != nil || !yield(night, err) {
				return
			}
		}
	}
}

var errOpen = errors.New("the night is open") // rolls back the question whether it is done

func (n *Nightly) report(ctx context.Context, night time.Time) error {
	key := n.Name + "/" + night.UTC().Format(time.RFC3339) // the lock will be free again, the key stays done
	store := n.Store.With(fencedstore.WithRetention(night, 30*24*time.Hour))
	for {
		made := false // by this round; the lease may end before that is known
		err := n.Client.Do(ctx, n.Name, func(ctx context.Context, lease *pglock.Lease) error {
			// Before hours of work, not only after them. To find the report is too little: the standby may lack it.
			err := store.Once(ctx, lease, key, func(context.Context, pgx.Tx) error { return errOpen })
			if !errors.Is(err, errOpen) {
				return err
			}
			total, err := n.Compute(ctx, night)
			if err != nil {
				return err
			}
			err = store.Once(ctx, lease, key, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "INSERT INTO reports (night, total) VALUES ($1, $2)", night, total)
				return err
			})
			made = err == nil
			return err
		})
		if made {
			return nil
		}
		lost := errors.Is(err, pglock.ErrLost) || errors.Is(err, pglock.ErrOutcomeUnknown)
		if !lost || errors.Is(err, fencedstore.ErrDone) || ctx.Err() != nil {
			return err
		}
		// The lease or the answer to COMMIT was lost. The next round finds the report made, or makes it.
	}
}
