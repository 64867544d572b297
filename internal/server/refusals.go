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
	next  *attempt      // that calls wait for; nil if pause is 0
	due   time.Time     // when it may begin
}

// attempt is one that calls wait for.
type attempt struct {
	over    chan struct{}
	refusal error // before over is closed
}

// gently is lend, paced after a refusal while the pool has no idle connection.
func (s *Server) gently(lend lends) lends {
	return func(ctx context.Context) (*pgx.Conn, func(), error) {
		idle := func() bool { return s.pool.Stat().IdleConns() > 0 }
		own, err := s.refusals.enter(ctx, idle)
		if err != nil {
			return nil, nil, err
		}
		conn, give, err := lend(ctx)
		s.refusals.ended(own, err)
		return conn, give, err
	}
}

// enter returns when this call may ask for a connection; own is the attempt that it makes for all who wait, if it makes
// one. The error is the refusal of another's attempt, or the last one beside the end of ctx.
func (r *refusals) enter(ctx context.Context, idle func() bool) (own *attempt, err error) {
	for {
		r.mu.Lock()
		if r.pause == 0 {
			r.mu.Unlock()
			return nil, nil
		}
		next, wait, since := r.next, time.Until(r.due), r.since
		if wait <= 0 { // whoever comes from now on waits for another attempt, also if this one hangs
			r.next, r.due = &attempt{over: make(chan struct{})}, time.Now().Add(r.pause)
		}
		r.mu.Unlock()
		if wait <= 0 {
			return next, nil
		} else if idle() {
			return nil, nil
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

// ended says what came of asking for a connection.
func (r *refusals) ended(own *attempt, err error) {
	refused := errors.As(err, new(*pgconn.ConnectError)) && !errors.Is(err, context.DeadlineExceeded) &&
		!errors.Is(err, context.Canceled)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil && r.pause > 0:
		close(r.next.over)
		r.pause, r.since, r.next = 0, nil, nil
	case refused && (own != nil || r.pause == 0): // of many that began together, one counts
		if r.pause = min(2*r.pause, refusedMost); r.next == nil {
			r.pause, r.next = refusedFirst, &attempt{over: make(chan struct{})}
		}
		r.since, r.due = err, time.Now().Add(r.pause/2+rand.N(r.pause))
	}
	if own != nil {
		if refused {
			own.refusal = err
		}
		close(own.over)
	}
}
