package lockadmin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/refuse"
)

// DefaultIdle is for how long Prune leaves a free lock.
const DefaultIdle = 24 * time.Hour

const (
	sweptAtOnce  = 10_000 // of each kind: a sweep reads all receipts
	eventsAtOnce = 1000
	namesAtOnce  = 1000
	// A try stops every grant for at most a tenth of a second, and a step for as long as it lasts. The pause after it
	// lets those continue that had to queue behind it.
	pauseAfterTry  = 400 * time.Millisecond
	pauseAfterStep = 10 * time.Millisecond
)

// Pruned is what Prune has removed.
type Pruned struct {
	Locks     int64
	Events    int64
	Leftovers int64
	Waits     int           // how often it found the table of locks, or the record of the installation, in use
	EventAge  time.Duration // the age of events from which on they were removed
}

// PruneOptions say what Prune removes. All may be left out.
type PruneOptions struct {
	Idle     *time.Duration // remove locks that have been free for longer; nil: DefaultIdle, a day
	EventAge *time.Duration // remove events of the history that are older; nil: HistorySettings.Keep
	OnInUse  func()         // called once, when Prune finds either of these in use and waits for its writers
}

// Prune removes locks that have long been free and that nobody waits for, old events, and leftovers: tickets and
// sessions of dead clients, notes of requests that were given up, receipts older than a week, and expired keys of
// work done once. It never removes held locks or fences, and never lowers a token.
//
// It removes a thousand locks at a time, and locks their whole table for that moment. It removes a thousand events at a
// time, and notes in the record of the installation how far it went. While others keep that table or that record in use
// it tries again until ctx ends. What it has removed by then stays removed and is returned with the error; the next
// call continues. The database user needs the role pglock_admin.
//
// Errors: ErrInUse, pglock.ErrInvalid, ErrPermission, ErrReadOnly, ctx's error, or the connection's failure.
func (a *Admin) Prune(ctx context.Context, o PruneOptions) (Pruned, error) {
	o.Idle = cmp.Or(o.Idle, new(DefaultIdle))
	p := pruner{admin: a, PruneOptions: o}
	if *o.Idle < 0 {
		return Pruned{}, refuse.Invalid("idle", o.Idle.String(), "not be negative")
	}
	if o.EventAge != nil && *o.EventAge < 0 {
		return Pruned{}, refuse.Invalid("event age", o.EventAge.String(), "not be negative")
	}
	if err := p.run(ctx); err != nil {
		if protocol.LockedOut(err) || p.inUse && pause.OutOfTime(ctx) {
			err = fmt.Errorf("%w: %w", ErrInUse, err)
		}
		return p.done, failed(ctx, err, "prune")
	}
	return p.done, nil
}

type pruner struct {
	PruneOptions
	admin *Admin
	done  Pruned
	inUse bool // the last try found the table of locks, or the record of the installation, in use
}

// run begins with the history, which needs the role: who lacks it removes nothing. It sweeps before the locks, because
// one with waiters is not pruned; it prunes the locks late, because it may have to wait for their table. Where somebody
// has locked the record it comes back to the history at the end.
func (p *pruner) run(ctx context.Context) error {
	over, err := p.events(ctx, false)
	if err != nil {
		return err
	}
	p.inUse = false
	for more := true; more; {
		n, _, err := p.call(ctx, protocol.SweepAll(p.admin.schema), sweptAtOnce)
		if err != nil {
			return err
		}
		p.done.Leftovers += n
		more = n >= sweptAtOnce // otherwise there were fewer of each kind
	}
	if err := p.locks(ctx); err != nil || over {
		return err
	}
	_, err = p.events(ctx, true)
	return err
}

// events goes through the history from its old end, step by step, or until it would have to wait. over: to the end.
func (p *pruner) events(ctx context.Context, wait bool) (over bool, err error) {
	if p.EventAge == nil {
		s, err := p.admin.historySettings(ctx)
		if err != nil {
			return false, err
		}
		p.EventAge = &s.Keep
	}
	p.done.EventAge = *p.EventAge
	after := "0"
	for {
		n, next, err := p.call(ctx, protocol.PruneHistory(p.admin.schema), p.EventAge.Seconds(), eventsAtOnce, after)
		if err != nil {
			return false, err
		}
		if next != nil && *next == after { // somebody else has locked the record
			p.found()
			if !wait {
				return false, nil
			}
			if !pause.Exactly(ctx, pauseAfterTry) {
				return false, ctx.Err()
			}
			continue
		}
		p.inUse = false
		p.done.Events += n
		if next == nil {
			return true, nil
		}
		after = *next
	}
}

// found notes that a try has found in use what it needs.
func (p *pruner) found() {
	p.inUse = true
	p.done.Waits++
	if p.done.Waits == 1 && p.OnInUse != nil {
		p.OnInUse()
	}
}

func (p *pruner) locks(ctx context.Context) error {
	after := ""
	for {
		began, wait := time.Now(), pauseAfterTry
		n, next, err := p.call(ctx, protocol.PruneLocks(p.admin.schema), p.Idle.Seconds(), namesAtOnce, after)
		switch {
		case protocol.LockedOut(err):
			p.found()
		case err != nil:
			return err
		default:
			p.inUse = false
			p.done.Locks += n
			if next == nil {
				return nil
			}
			after, wait = *next, max(pauseAfterStep, time.Since(began))
		}
		if !pause.Exactly(ctx, wait) {
			return errors.Join(err, ctx.Err())
		}
	}
}

// call runs one statement in its own transaction.
func (p *pruner) call(ctx context.Context, statement string, args ...any) (n int64, next *string, err error) {
	err = p.admin.inTime(ctx, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, statement, args...).Scan(&n, &next)
	})
	return n, next, err
}

// inTime runs a transaction whose statements the server ends when the time of ctx is up; otherwise they would continue,
// with their locks, after the caller has gone. It ends the transaction if the caller stands still.
func (a *Admin) inTime(ctx context.Context, f func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, a.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		limits := protocol.EndIdle
		if deadline, bounded := ctx.Deadline(); bounded {
			limits += "; " + protocol.Lower("statement_timeout", time.Until(deadline))
		}
		if _, err := tx.Exec(ctx, limits); err != nil {
			return err
		}
		return f(tx)
	})
}
