package leader

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/pglock"
)

// ErrResigned and ErrHandOver are causes of the end of fn's context, for context.Cause. The others are refusals, for
// errors.Is. More errors come from package pglock.
var (
	// ErrResigned: Resign was called.
	ErrResigned = errors.New("leader: asked to resign")
	// ErrHandOver: HandOver was called.
	ErrHandOver = errors.New("leader: asked to hand over")
	// ErrNotLeading: this candidate does not lead, or has begun to step down.
	ErrNotLeading = errors.New("leader: this candidate does not lead")
	// ErrRunning: Run of this candidate is already running.
	ErrRunning = errors.New("leader: this candidate runs already")
)

const (
	// firstPause and lastPause are the pauses between failing campaigns, which grow.
	firstPause = 50 * time.Millisecond
	lastPause  = 5 * time.Second
)

// Candidate campaigns for one lock: whoever holds it leads. It is safe for concurrent use. It has no goroutine and no
// connection: Run works in its caller's goroutine, on a client that stays the caller's.
type Candidate struct {
	name    string
	config  config
	acquire func(ctx context.Context) (*pglock.Lease, error)

	mu      sync.Mutex // guards what follows; never held across I/O or a wait
	running bool
	lease   *pglock.Lease           // while fn runs
	stop    context.CancelCauseFunc // ends the work's context, while fn runs
	told    time.Time               // when the work's context ended
	ended   time.Time               // when the lease did: later than told, if fn was asked to stop before
	since   time.Time               // when the state before that began
	wish    *wish
	failure error // of the last campaign, or of fn's last call and what followed it
}

// work is the fn of Run.
type work func(ctx context.Context, lease *pglock.Lease) error

// wish is a request to step down.
type wish struct {
	to   string // "" resigns
	done chan error
}

// New makes a candidate for the lock. It sends nothing. The error is pglock.ErrInvalid.
func New(client *pglock.Client, name string, opts ...Option) (*Candidate, error) {
	if client == nil {
		return nil, refuse.Nil("client", "be a *pglock.Client")
	}
	c := &Candidate{name: name, since: time.Now(), config: config{tolerance: DefaultTolerance}}
	if err := refuse.Options(&c.config, opts); err != nil {
		return nil, err
	}
	if _, err := client.ForSiblings(hooks.Key{}).Want(name, c.config.acquire); err != nil {
		return nil, err
	}
	c.acquire = func(ctx context.Context) (*pglock.Lease, error) {
		return client.Acquire(ctx, name, c.config.acquire...)
	}
	return c, nil
}

// Run campaigns until this candidate leads, and then calls fn, in the same goroutine. fn's context ends when
// leadership is lost, when somebody asks the leader to step down (Resign, HandOver), or when ctx ends. When leadership
// is lost, the context ends by the local deadline of trust (pglock.Lease.Deadline), before the lease can end on the
// server. If an operator breaks the lease or a failover loses it, the context ends at the next renewal, and another may
// lead before that. The heartbeat renews the lease until fn has returned; Run never releases the lock before that. What
// Run does when fn returns:
//
//   - fn returned before its context ended: Run releases the lock and returns fn's result. So fn returns nil to resign
//     for good.
//   - Leadership was lost, or somebody asked the leader to step down: Run campaigns again, at the end of the queue.
//     Status has fn's error. This also holds if a fence notices the loss first, and fn returns its error.
//   - ctx has ended: Run releases the lock and returns ctx's error, joined with fn's if that says something else.
//
// If fn panics, Run releases the lock and lets the panic pass. fn must return soon after its context has ended. Until
// it does, Run waits for it, and keeps the lock if it still has it. When leadership was lost, another candidate may
// lead already, and only a fence keeps fn from doing harm: write with package fencedstore under the lease that fn gets.
//
// An unreachable or read-only server does not end a campaign: Run tries again, at first after 50 ms, later after up to
// 5 s. Status has the error.
//
// Errors: pglock.ErrInvalid, ErrSchema, ErrPermission, ErrClosed, ErrSelfDeadlock, ErrDeadlock, ErrRunning, ctx's
// error, fn's. Run joins an error of the release: pglock.ErrLost says that leadership was lost before fn returned nil.
func (c *Candidate) Run(ctx context.Context, fn func(ctx context.Context, lease *pglock.Lease) error) error {
	switch {
	case c.acquire == nil:
		return refuse.Invalid("candidate", "empty", "be made by New")
	case fn == nil:
		return refuse.Nil("fn", "be a function")
	}
	if !c.begin() {
		return failure.Told(ErrRunning, "leader: run for lock %q", c.name)
	}
	defer c.end()
	for {
		lease, err := c.campaign(ctx)
		if err != nil {
			return err
		}
		if over, err := c.lead(ctx, lease, fn); over {
			return err
		}
	}
}

// begin notes that Run runs. It returns false if Run already runs.
func (c *Candidate) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	already := c.running
	if !already {
		c.running, c.since = true, time.Now()
	}
	return !already
}

func (c *Candidate) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running, c.since = false, time.Now()
}

// campaign waits until this candidate leads. Only ctx ends it, or a failure that would come again and again.
func (c *Candidate) campaign(ctx context.Context) (*pglock.Lease, error) {
	for wait := firstPause; ; wait = min(2*wait, lastPause) {
		lease, err := c.acquire(ctx)
		switch {
		case err == nil:
			c.fail(nil)
			return lease, nil
		case ctx.Err() != nil:
			return nil, failure.At(ctx, ctx.Err(), "leader: run for lock %q", c.name)
		case lasting(err):
			return nil, failure.At(ctx, err, "leader: run for lock %q", c.name)
		}
		c.fail(err)
		pause.Exactly(ctx, wait/2+rand.N(wait/2))
	}
}

// lasting reports whether a campaign with this failure would fail again.
func lasting(err error) bool {
	return failure.IsOneOf(err, pglock.ErrInvalid, pglock.ErrSchema, pglock.ErrPermission, pglock.ErrClosed,
		pglock.ErrSelfDeadlock, pglock.ErrDeadlock)
}

// fail notes a failure for Status; nil clears it.
func (c *Candidate) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failure = err
}

// lead is one term: it calls fn, and gives up the lock after fn has returned. over: Run ends, with err.
func (c *Candidate) lead(ctx context.Context, lease *pglock.Lease, fn work) (over bool, err error) {
	given := false // we have given the lock up
	release := func() error {
		given = true
		return lease.Release(ctx)
	}
	defer func() {
		if !given { // fn has panicked, or called Goexit
			end := release()
			if w := c.takeWish(); w != nil {
				if w.to != "" && end == nil { // whoever was first in the queue has the lock
					end = failure.Told(ErrNotLeading, "leader: hand over lock %q to %q: fn did not return, "+
						"and the lock was released, not handed over", c.name, w.to)
				}
				w.done <- end
			}
		}
	}()
	for ctx.Err() == nil {
		told, err := c.call(ctx, lease, fn)
		var end error
		w := c.takeWish()
		if w == nil || w.to == "" {
			end = release()
			// The server may not answer, and then fn alone knows of the loss.
			lost := err != nil && errors.Is(end, pglock.ErrLost) || end != nil && tellsOfLoss(err, lease)
			if !told && !lost {
				return true, joined(err, end)
			}
		} else if end = lease.HandOver(context.WithoutCancel(ctx), w.to); end == nil {
			given = true
		} else if errors.Is(end, pglock.ErrNoWaiter) && ctx.Err() == nil && lease.Valid() {
			c.fail(err)
			w.done <- end
			continue // nothing has changed: fn continues to lead
		} else {
			_ = release() // the error of the hand-over says more
		}
		if w != nil {
			w.done <- end
		}
		if ctx.Err() != nil {
			return true, failure.At(ctx, joined(ctx.Err(), err, end), "leader: run for lock %q", c.name)
		}
		c.fail(joined(end, err))
		return false, nil
	}
	return true, failure.At(ctx, joined(ctx.Err(), release()), "leader: run for lock %q", c.name)
}

// tellsOfLoss reports whether a fence that returned err has noticed the loss of the lease: it refused the lease's token
// as lost, or because a later one has passed it. The loss of another lock says nothing of this one.
func tellsOfLoss(err error, lease *pglock.Lease) bool {
	switch e := err.(type) {
	case *fencedstore.StaleTokenError:
		return e.Token == lease.Token() && e.LastToken > e.Token
	case *pglock.LostError:
		return e.Token == lease.Token() && e.Lock == lease.Name()
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), func(err error) bool { return tellsOfLoss(err, lease) })
	case interface{ Unwrap() error }:
		return tellsOfLoss(e.Unwrap(), lease)
	}
	return err == pglock.ErrLost // the driver does not say which of several fences refused it
}

// joined is errors.Join, but returns a single error as it is.
func joined(all ...error) error {
	all = slices.DeleteFunc(all, func(err error) bool { return err == nil })
	if len(all) == 1 {
		return all[0]
	}
	return errors.Join(all...)
}

// call calls fn. told means that fn's context had ended before fn returned; err is then what fn returned besides that.
func (c *Candidate) call(ctx context.Context, lease *pglock.Lease, fn work) (told bool, err error) {
	working, stop := context.WithCancelCause(lease.Context())
	defer stop(nil)
	c.mu.Lock()
	c.lease, c.stop, c.since = lease, stop, time.Now()
	c.told, c.ended = time.Time{}, time.Time{} // before anything can note them: the lease may be lost already
	c.mu.Unlock()
	defer pause.After(ctx, func() { stop(context.Cause(ctx)) })()
	defer pause.After(working, func() { c.note(&c.told) })()
	defer pause.After(lease.Context(), func() { c.note(&c.ended) })()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.lease, c.stop, c.since = nil, nil, time.Now()
		if told = working.Err() != nil; told && !errors.Is(err, pglock.ErrOutcomeUnknown) &&
			(errors.Is(err, working.Err()) || errors.Is(err, context.Cause(working))) {
			err = nil
		}
	}()
	return false, fn(working, lease)
}

// takeWish returns the request to step down, once.
func (c *Candidate) takeWish() *wish {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.wish
	c.wish = nil
	return w
}

// note notes that it is now the moment at.
func (c *Candidate) note(at *time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*at = time.Now()
}
