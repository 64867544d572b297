package advisory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/pglock"
)

// Held is a lease and the advisory lock beside it. It is safe for concurrent use. It owns one connection and one
// goroutine until Release returns or one of the two locks is lost.
type Held struct {
	lease   *pglock.Lease
	session *session
	ctx     context.Context
	cancel  context.CancelCauseFunc
	ended   chan struct{} // closed when the goroutine has ended the session

	turn chan struct{} // 1-buffered: whoever takes it uses the session
	back chan struct{} // 1-buffered: somebody who wanted the session has had it, or does not want it any more

	mu        sync.Mutex // guards what follows; never held across I/O
	wanted    int        // how many Writes want the session
	interrupt context.CancelFunc
	released  bool
	ending    error // what the goroutine has found at the end: a LostError, or nil
}

func hold(lease *pglock.Lease, s *session) *Held {
	h := &Held{
		lease: lease, session: s,
		ended: make(chan struct{}), turn: make(chan struct{}, 1), back: make(chan struct{}, 1),
	}
	h.ctx, h.cancel = context.WithCancelCause(lease.Context())
	h.turn <- struct{}{}
	go h.keep()
	return h
}

// Lease is the lease, for fencedstore and for its token. It ends when the advisory lock is lost.
func (h *Held) Lease() *pglock.Lease { return h.lease }

// Context is done when one of the two locks ends. context.Cause is then that of the lease's context, a *LostError of
// this package, or pglock.ErrReleased. It carries the lease, as the lease's context does.
func (h *Held) Context() context.Context { return h.ctx }

// Err is nil while both locks may be trusted. After that it is always a *pglock.LostError, a *LostError of this package
// or pglock.ErrReleased. It notices the end of the lease at once, also after a pause (pglock.Lease.Valid). It notices
// the loss of the session when the server's answer has come.
func (h *Held) Err() error {
	if cause := context.Cause(h.ctx); cause != nil {
		return cause
	}
	return h.lease.Err()
}

// Release ends the Context, then the advisory lock, and then the lease. So an old program that waits gets the lock
// before the next in pglock's queue. Release ends the context of a Write that is under way, and waits for it. The first
// call returns nil if both locks were held until now, and otherwise an error that matches pglock.ErrLost. Later calls
// return one that matches pglock.ErrReleased, or that loss again. ctx limits the talk with the server about both locks
// together: if ctx has ended or has no deadline, the limit is five seconds. A tenth of the time is for the lease. If
// the time is up, the session ends and the lease is given back in the background. With the context of a Write's fn,
// Release returns ErrInvalid and does nothing.
func (h *Held) Release(ctx context.Context) error {
	if err := h.refuseWithin(ctx); err != nil {
		return err
	}
	h.mu.Lock()
	first := !h.released
	h.released = true
	h.mu.Unlock()
	before := h.Err()
	h.cancel(pglock.ErrReleased)
	telling, cancel := lastWords(ctx)
	defer cancel()
	deadline, _ := telling.Deadline()
	ending, stop := context.WithDeadline(telling, deadline.Add(-time.Until(deadline)/10))
	defer stop()
	select {
	case <-h.ended:
	case <-ending.Done():
		err := fmt.Errorf("the session of the advisory lock has not ended yet: %w", ending.Err())
		return failure.Told(errors.Join(err, h.releaseLease(telling)), "advisory: release lock %q", h.lease.Name())
	}
	err := h.releaseLease(telling)
	switch {
	case h.ending != nil:
		return h.ending
	case !first || before == nil:
		return err
	}
	return before
}

// releaseLease releases the lease before ctx ends. It must not give the lease a ctx that has ended: that means five
// seconds more. If no time is left, the client gives the lease back in the background.
func (h *Held) releaseLease(ctx context.Context) error {
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), pause.Soon)
		defer cancel()
	}
	return h.lease.Release(ctx)
}

func lastWords(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, bounded := ctx.Deadline(); bounded && ctx.Err() == nil {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(context.WithoutCancel(ctx), goodbye)
}

// keep watches the session. It reads, so it hears at once when the server ends the session, and it asks when it has
// heard nothing for a while. It alone ends the session.
func (h *Held) keep() {
	defer close(h.ended)
	err := h.watch()
	if err != nil {
		h.cancel(err)
		_ = h.lease.Release(context.WithoutCancel(h.ctx)) // from now on fences refuse this holder
	}
	<-h.turn // for good; a Write that is under way ends with the context
	if farewell := h.session.end(context.WithoutCancel(h.ctx)); err == nil {
		err = farewell
	}
	h.ending = err
}

// watch returns when the Held has ended, or the LostError of its session.
func (h *Held) watch() error {
	for quiet := time.Now(); ; {
		if h.isWanted() {
			select {
			case <-h.back:
				quiet = time.Now()
			case <-h.ctx.Done():
				return nil
			}
			continue
		}
		select {
		case <-h.turn:
		case <-h.ctx.Done():
			return nil
		}
		err := h.listen(quiet)
		if err == nil && h.ctx.Err() == nil && h.due(quiet) {
			err = h.ping()
			quiet = time.Now()
		}
		h.turn <- struct{}{}
		if err != nil || h.ctx.Err() != nil {
			return err
		}
	}
}

// due reports whether the session has been quiet for long, or would end before its lease does, which somebody has
// extended.
func (h *Held) due(quiet time.Time) bool {
	return time.Since(quiet) >= every(h.lease.TTL()) || outlives(h.lease) > h.session.idle
}

// listen reads until a ping is due, somebody wants the session, or the Held ends.
func (h *Held) listen(quiet time.Time) error {
	ctx, cancel := context.WithDeadline(h.ctx, quiet.Add(every(h.lease.TTL())))
	defer cancel()
	h.mu.Lock()
	h.interrupt = cancel
	wanted := h.wanted > 0
	h.mu.Unlock()
	for !wanted && ctx.Err() == nil && !h.due(quiet) {
		_, err := h.session.conn.WaitForNotification(ctx)
		if err != nil && (ctx.Err() == nil || h.session.conn.IsClosed()) {
			return h.session.lost(err)
		}
	}
	return nil
}

func (h *Held) ping() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.ctx), answer(h.lease.TTL()))
	defer cancel()
	return h.session.verify(ctx, outlives(h.lease))
}

func (h *Held) isWanted() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.wanted > 0
}

// borrow gives the session to the caller, who calls giveBack.
func (h *Held) borrow(ctx context.Context) (giveBack func(), err error) {
	if err := ctx.Err(); err != nil { // and the session goes on listening
		return nil, err
	}
	h.mu.Lock()
	h.wanted++
	if h.interrupt != nil {
		h.interrupt()
	}
	h.mu.Unlock()
	done := func() {
		h.mu.Lock()
		h.wanted--
		h.mu.Unlock()
		select {
		case h.back <- struct{}{}:
		default:
		}
	}
	select {
	case <-h.turn:
	case <-ctx.Done():
		err = ctx.Err()
	case <-h.ctx.Done():
		err = h.Err()
	}
	if err != nil {
		done()
		return nil, err
	}
	if err := h.Err(); err != nil { // both came at the same time
		h.turn <- struct{}{}
		done()
		return nil, err
	}
	return func() { h.turn <- struct{}{}; done() }, nil
}
