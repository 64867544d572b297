package server

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/puddle/v2"
)

// A server that refuses connections, as while it restarts, starts a process for each attempt to connect, and every
// client asks again and again. So after a refusal the calls of a client make one attempt together, after a pause that
// grows with each: whoever comes meanwhile waits for that attempt and shares its refusal. Once a connection comes,
// everybody goes on.
const (
	refusedFirst = 10 * time.Millisecond
	refusedMost  = 500 * time.Millisecond
	// refusedPatience is the longest that a call waits for others' attempts.
	refusedPatience = 2 * time.Second
)

// lends lends a connection, until give.
type lends = func(context.Context) (conn *pgx.Conn, give func(), err error)

// refusals paces attempts to connect. The zero value is that of a server that takes connections.
type refusals struct {
	mu    sync.Mutex
	pause time.Duration // before the next attempt; 0: the server takes connections
	since error         // the last refusal
	due   time.Time     // when the next attempt may begin, also if this one hangs
	next  *attempt      // that calls wait for, until it has ended; nil if pause is 0
}

// attempt is one whose end many wait for.
type attempt struct {
	begun   bool
	over    chan struct{}
	refusal error // before over is closed; nil: ask again
}

// gently is lend, paced after a refusal while none is open that lend could get without an attempt to connect. Whoever
// makes the attempt says that it was refused.
func (s *Server) gently(ctx context.Context, open func() bool, lend func(context.Context) error) error {
	forAll, err := s.refusals.enter(ctx, open)
	if err != nil {
		return err
	}
	if err = lend(ctx); err == nil && forAll != nil {
		s.refusals.came(forAll)
	}
	return err
}

// poolServes reports whether the pool opens no connection for the next call: one is idle, or all that it may have are
// in use. One that is being opened may be refused, and then whoever waits for it opens the next.
func (s *Server) poolServes() bool {
	idle, inUse := s.pooled()
	return idle || inUse
}

// pooled reports whether the pool has an idle connection, and whether all that it may have are in use.
func (s *Server) pooled() (idle, inUse bool) {
	stat := s.pool.Stat()
	return stat.IdleConns() > 0, stat.AcquiredConns() >= stat.MaxConns()
}

// awaited is the attempt that calls wait for, if the server refuses connections.
func (r *refusals) awaited() *attempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next
}

// enter returns when this call may ask for a connection; others wait for what comes of that forAll. The error is that
// of another's attempt, or the last refusal beside the end of ctx. Attempts that hang let everybody go on soon.
func (r *refusals) enter(ctx context.Context, open func() bool) (forAll *attempt, err error) {
	for began := time.Now(); ; {
		next := r.awaited()
		if next == nil || open() || time.Since(began) >= refusedPatience {
			return nil, nil
		}
		r.mu.Lock()
		if r.next != next { // that one has ended meanwhile
			r.mu.Unlock()
			continue
		}
		if time.Since(r.due) > refusedPatience { // the pool was enough since: that was another trouble
			r.pause, r.since = refusedFirst, nil
		}
		wait, since := time.Until(r.due), r.since
		if wait <= 0 {
			next.begun, r.due = true, time.Now().Add(r.pause)
		}
		r.mu.Unlock()
		if wait <= 0 {
			return next, nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-next.over:
			err = next.refusal
		case <-ctx.Done():
			err = errors.Join(since, ctx.Err())
		}
		if timer.Stop(); err != nil {
			return nil, err
		}
	}
}

// came says that a connection was opened: everybody goes on. Where this attempt was refused on the way, the connection
// was open before, as on a full server, and says nothing. nil: it was opened beside the attempts.
func (r *refusals) came(in *attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if over := r.next; over != nil && (in == nil || in == over) {
		r.pause, r.since, r.next = 0, nil, nil
		close(over.over)
	}
}

// failed says how an attempt to connect has failed, whoever made it. A refusal ends the one for all that is under way.
func (r *refusals) failed(ctx context.Context, err error) {
	if ctx.Err() != nil || !refused(err) { // it tells nothing of the server
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch over := r.next; {
	case over == nil:
		r.wait(refusedFirst, err)
	case over.begun:
		r.wait(min(2*r.pause, refusedMost), err)
		over.refusal = err
		close(over.over)
	}
}

// wait makes calls wait for the next attempt. The mutex is held.
func (r *refusals) wait(pause time.Duration, refusal error) {
	r.pause, r.since, r.due = pause, refusal, time.Now().Add(pause/2+rand.N(pause))
	r.next = &attempt{over: make(chan struct{})}
}

// refused reports whether the server, or a hook of the pool's, has refused a connection, as against not answering.
func refused(err error) bool {
	return err != nil && !errors.Is(err, puddle.ErrClosedPool) && !errors.Is(err, context.DeadlineExceeded) &&
		!errors.Is(err, context.Canceled)
}
