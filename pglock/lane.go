package pglock

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// batchMost is how many calls travel in one statement at most.
	batchMost = 256
	// stalled is how long calls wait for the statement under way: one that hangs holds up nobody for longer.
	stalled = 20 * time.Millisecond
	// gathering is how long a statement waits for calls at most, while calls come together.
	gathering = 100 * time.Microsecond
)

// lane gathers calls of one kind that are made at the same time into one statement and one commit. The first call goes at
// once; those that come while as many statements as the lane is wide are under way go together in the next. After a statement
// for several, one more for several is likely: then the first lets others come that are about to. Calls that are alone one
// after the other wait for nothing.
//
// A statement belongs to the lane and not to its calls: a call whose context ends leaves at once, the connection stays as
// good as it was, and what the server answers for a call that has left goes to orphan, when the statement has given its
// connection back. One that leaves before its statement is sent, or sent again, is not in it.
type lane[Q, A any] struct {
	store *pgStore
	width int

	// send asks for one call or many and gives the answers in their order. An error of the server is about all of them, and
	// then nothing was done.
	send   func(ctx context.Context, conn *pgx.Conn, qs []Q) ([]A, error)
	orphan func(q Q, a A, err error) // nil: nobody needs to know

	mu      sync.Mutex
	waiting []*laned[Q, A]
	last    int                // for how many calls the last statement was; above 1, the lane is busy
	boards  context.CancelFunc // of the statement that has no connection yet, if there is one: it takes all that wait by then
	flying  int                // statements under way, but for those that have stalled
	stalls  int                // how often that happened: what flies from before does not count
	timer   *time.Timer
	closed  bool
	flights sync.WaitGroup
}

// laned is one call that waits for a statement.
type laned[Q, A any] struct {
	q    Q
	done chan struct{}
	a    A
	err  error

	sent   bool // it is in a statement; the lane's mutex guards it and leaver
	leaver bool
}

// do makes the call, alone or with others.
func (l *lane[Q, A]) do(ctx context.Context, q Q) (A, error) {
	c := &laned[Q, A]{q: q, done: make(chan struct{})}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return c.a, &noConnectionError{ErrClosed}
	}
	l.waiting = append(l.waiting, c)
	if l.flying < l.width {
		l.next()
	} else if len(l.waiting) == 1 {
		l.watchStall()
	}
	l.mu.Unlock()
	select {
	case <-c.done:
	case <-ctx.Done():
		if err, gone := l.leave(c, ctx.Err()); gone {
			var none A
			return none, err
		}
		<-c.done
	}
	return c.a, c.err
}

// leave takes a call back. What was sent is the orphan's.
func (l *lane[Q, A]) leave(c *laned[Q, A], cause error) (error, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.sent {
		select {
		case <-c.done:
			return nil, false // it has heard by now
		default:
		}
		c.leaver = true
		return &underWayError{cause}, true
	}
	for i, w := range l.waiting {
		if w == c {
			l.waiting = append(l.waiting[:i:i], l.waiting[i+1:]...)
			if len(l.waiting) == 0 && l.boards != nil {
				l.boards()
			}
			return &noConnectionError{cause}, true
		}
	}
	return nil, false // it has heard by now
}

// next starts a statement for the calls that wait, if there is a place. The mutex is held.
func (l *lane[Q, A]) next() {
	if len(l.waiting) == 0 || l.flying >= l.width || l.boards != nil || l.closed {
		return
	}
	l.flying++
	since := l.stalls
	ctx, cancel := context.WithCancel(l.store.life)
	l.boards = cancel
	l.flights.Go(func() { l.fly(ctx, cancel, since) })
}

// watchStall sees to it that nobody waits for a statement that hangs. The mutex is held.
func (l *lane[Q, A]) watchStall() {
	if l.timer == nil {
		l.timer = time.AfterFunc(stalled, l.stall)
		return
	}
	l.timer.Reset(stalled)
}

func (l *lane[Q, A]) stall() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) > 0 && l.boards == nil {
		l.stalls++
		l.flying = 0
		l.next()
	}
}

// fly sends what waits once there is a connection, and gives its place to the calls that have come meanwhile.
func (l *lane[Q, A]) fly(ctx context.Context, cancel context.CancelFunc, since int) {
	defer cancel()
	conn, err := l.store.pool.Acquire(ctx)
	if err != nil {
		if ctx.Err() == nil || l.store.life.Err() != nil {
			l.answer(l.take(), nil, &noConnectionError{err})
		} else {
			l.unboard()
		}
		l.landed(since)
		return
	}
	limited, end := context.WithTimeout(l.store.life, patience)
	defer end()
	l.gather()
	orphans := l.sendAll(limited, conn.Conn(), l.take())
	conn.Release()
	l.landed(since)
	for _, c := range orphans {
		if l.orphan != nil {
			l.orphan(c.q, c.a, c.err)
		}
	}
}

// unboard ends a boarding for which nobody waited any more. Those who have come meanwhile board anew.
func (l *lane[Q, A]) unboard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.boards = nil
}

// landed gives the place of a statement that has ended to the calls that wait.
func (l *lane[Q, A]) landed(since int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if since == l.stalls {
		l.flying--
	}
	l.next()
}

// gather lets calls come that were woken by the last statement and are about to make the next: not for longer than a part
// of what a statement takes.
func (l *lane[Q, A]) gather() {
	began := time.Now()
	for range 1000 { // also where time stands still
		l.mu.Lock()
		enough := l.last <= 1 || len(l.waiting) > l.last*3/4
		l.mu.Unlock()
		if enough || time.Since(began) >= gathering {
			return
		}
		runtime.Gosched()
	}
}

// take is what the next statement carries, in the order in which the calls came.
func (l *lane[Q, A]) take() (taken []*laned[Q, A]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(len(l.waiting), batchMost)
	taken, l.waiting = l.waiting[:n:n], l.waiting[n:]
	for _, c := range taken {
		c.sent = true
	}
	l.last, l.boards = n, nil
	switch {
	case len(l.waiting) > 0:
		l.watchStall()
		l.next()
	case l.timer != nil:
		l.timer.Stop()
	}
	return taken
}

// sendAll asks for all that are taken, and tells which have left by the time of their answer. What the server refuses, or
// undoes for a reason that passes, is asked for in two halves, so that in the end only the call that it refuses fails. A call
// that has waited in vain for a lock of the server's is told so at once: its connection is not for waiting.
func (l *lane[Q, A]) sendAll(ctx context.Context, conn *pgx.Conn, taken []*laned[Q, A]) (orphans []*laned[Q, A]) {
	for attempt := 1; len(taken) > 0; attempt++ {
		qs := make([]Q, len(taken))
		for i, c := range taken {
			qs[i] = c.q
		}
		answers, err := l.send(ctx, conn, qs)
		if err == nil || connectionLost(err) || len(taken) == 1 && (!transient(err) || lockedOut(err)) || attempt == transientAttempts {
			return append(orphans, l.answer(taken, answers, err)...)
		}
		stay, gone := l.apart(taken)
		orphans = append(orphans, l.answer(gone, nil, err)...)
		switch taken = stay; {
		case len(taken) > 1:
			orphans = append(orphans, l.sendAll(ctx, conn, taken[:len(taken)/2])...)
			return append(orphans, l.sendAll(ctx, conn, taken[len(taken)/2:])...)
		case len(taken) == 1 && !pause(ctx, time.Duration(attempt)*time.Millisecond):
			return append(orphans, l.answer(taken, nil, err)...)
		}
	}
	return orphans
}

// apart are the calls that still wait, and those that have left.
func (l *lane[Q, A]) apart(taken []*laned[Q, A]) (stay, gone []*laned[Q, A]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range taken {
		if c.leaver {
			gone = append(gone, c)
		} else {
			stay = append(stay, c)
		}
	}
	return stay, gone
}

// answer gives each call its answer, or all the error. It tells which have left.
func (l *lane[Q, A]) answer(taken []*laned[Q, A], answers []A, err error) (orphans []*laned[Q, A]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, c := range taken {
		if c.err = err; err == nil {
			c.a = answers[i]
		}
		if c.leaver {
			orphans = append(orphans, c)
		}
		close(c.done)
	}
	return orphans
}

// shut refuses what comes from now on, and what still waits.
func (l *lane[Q, A]) shut() {
	l.mu.Lock()
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
	}
	if l.boards != nil {
		l.boards()
	}
	waiting := l.waiting
	l.waiting = nil
	for _, c := range waiting {
		c.sent = true
	}
	l.mu.Unlock()
	l.answer(waiting, nil, &noConnectionError{ErrClosed})
}

// wait returns when what is under way has ended. The lane is shut.
func (l *lane[Q, A]) wait() { l.flights.Wait() }
