package server

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A server that refuses connections, as while it restarts, starts a process for each attempt to connect, and every
// client asks again and again. So after a refusal the calls of a client make one attempt together, after a pause that
// grows with each: whoever comes meanwhile waits for that attempt and shares its refusal. Once a connection comes,
// everybody goes on.
const (
	refusedFirst = 10 * time.Millisecond
	refusedMost  = 500 * time.Millisecond
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
	over    chan struct{}
	refusal error // before over is closed; nil: ask again
}

// gently is lend, paced after a refusal while the pool has no idle connection.
func (s *Server) gently(lend lends) lends {
	return func(ctx context.Context) (*pgx.Conn, func(), error) {
		idle := func() bool { return s.pool.Stat().IdleConns() > 0 }
		forAll, err := s.refusals.enter(ctx, idle)
		if err != nil {
			return nil, nil, err
		}
		conn, give, err := lend(ctx)
		s.refusals.ended(forAll, err)
		return conn, give, err
	}
}

// enter returns when this call may ask for a connection; forAll says that others wait for what comes of it. The error
// is the refusal of another's attempt, or the last one beside the end of ctx.
func (r *refusals) enter(ctx context.Context, idle func() bool) (forAll bool, err error) {
	for {
		r.mu.Lock()
		next, wait, since := r.next, time.Until(r.due), r.since
		if next != nil && wait <= 0 {
			r.due = time.Now().Add(r.pause)
		}
		r.mu.Unlock()
		switch {
		case next == nil:
			return false, nil
		case wait <= 0:
			return true, nil
		case idle():
			return false, nil
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
			return false, err
		}
	}
}

// ended says what came of asking for a connection.
func (r *refusals) ended(forAll bool, err error) {
	refused := errors.As(err, new(*pgconn.ConnectError)) && !errors.Is(err, context.DeadlineExceeded) &&
		!errors.Is(err, context.Canceled)
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := forAll || r.next == nil // of many that began before the first refusal, one counts
	switch over := r.next; {
	case err == nil && over != nil:
		r.pause, r.since, r.next = 0, nil, nil
		close(over.over)
	case refused && counts:
		r.pause = max(refusedFirst, min(2*r.pause, refusedMost))
		r.since, r.due = err, time.Now().Add(r.pause/2+rand.N(r.pause))
		r.next = &attempt{over: make(chan struct{})}
		if over != nil {
			over.refusal = err
			close(over.over)
		}
	}
}
