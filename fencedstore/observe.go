package fencedstore

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/pglock"
)

// refusals are the errors of a write that the fence, the lease or the server's rights did not let through.
var refusals = []error{pglock.ErrLost, pglock.ErrReleased, ErrTimeLimit, ErrLeftFence, ErrUnfenced, ErrKeyTooOld,
	pglock.ErrWrongDatabase, pglock.ErrPermission, pglock.ErrReadOnly, pglock.ErrSchema}

// observeRefusal tells the observer of the lease's client that a write was refused, or that its outcome is unknown. It
// says nothing of other errors, such as the application's own, and returns err.
func (o opening) observeRefusal(ctx context.Context, err error) error {
	what := hooks.Observed{Err: err}
	at := o.fences[0]
	if stale, is := errors.AsType[*StaleTokenError](err); is {
		isOurs := func(f Fence) bool { return f.Resource == stale.Resource && f.Lease.Token() == stale.Token }
		if i := slices.IndexFunc(o.fences, isOurs); i >= 0 {
			at, what.Kind, what.LastToken = o.fences[i], string(pglock.EventStale), int64(stale.LastToken)
		}
	} else if lost, is := errors.AsType[*pglock.LostError](err); is {
		if i := slices.IndexFunc(o.fences, func(f Fence) bool { return f.Lease.Name() == lost.Lock }); i >= 0 {
			at = o.fences[i]
		}
	}
	if what.Resource = at.Resource; what.Kind == "" {
		what.Kind = kindOf(err)
	}
	if what.Kind != "" {
		hooks.Of(at.Lease).Observe(ctx, what)
	}
	return err
}

// kindOf is the kind of event for an error other than a stale token; "": there is none.
func kindOf(err error) string {
	switch {
	case errors.Is(err, pglock.ErrOutcomeUnknown):
		return string(pglock.EventOutcomeUnknown)
	case failure.IsOneOf(err, refusals...):
		return string(pglock.EventRefused)
	}
	return ""
}

// observeWrite tells the observers of the leases' clients that a write is committed.
func (o opening) observeWrite(ctx context.Context, took time.Duration) {
	for _, f := range o.fences {
		hooks.Of(f.Lease).Observe(ctx, hooks.Observed{Kind: string(pglock.EventWrite),
			Resource: f.Resource, Took: took})
	}
}
