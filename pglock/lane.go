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
// once and alone; those that come while as many statements as the lane is wide are under way go together in the next. After
// a statement for several, one more for several is likely: then the first lets others come that are about to. Calls that are
// alone one after the other wait for nothing. Each call keeps its context, its answer and its error; one that gives up before
// the statement was sent is not in it.
type lane[Q, A any] struct {
	store *pgStore
	width int

	alone func(ctx context.Context, q Q) (A, error) // one call in a statement of its own
	// many asks for all in one statement and gives the answers by their numbers. after sends those that it does not answer.
	many  func(ctx context.Context, conn *pgx.Conn, qs []Q) (map[int]A, error)
	after func(ctx context.Context, q Q) (A, error)
	// fits says which calls can be in one statement with the first, given the names that are in it already.
	fits func(first, q Q) bool
	name func(q Q) string

	mu      sync.Mutex
	waiting []*laned[Q, A]
	last    int                // for how many calls the last statement was; above 1, the lane is busy
	boards  context.CancelFunc // of the statement that has no connection yet, if there is one: it takes all that wait by then
	flying  int                // statements under way, but for those that have stalled
	stalls  int                // how often that happened: what flies from before does not count
	timer   *time.Timer
	flights sync.WaitGroup
}

// laned is one call that waits for a statement.
type laned[Q, A any] struct {
	q     Q
	done  chan struct{}
	place *int // it is to go alone, in this place of the lane
	again bool // it was not answered
	a     A
	err   error

	taken  *flight // it is in this statement; the lane's mutex guards it
	leaver bool
}

// flight is one statement for several calls. It ends early when all of them have given up.
type flight struct {
	cancel  context.CancelFunc
	members int
}

// do sends the call, alone or with others.
func (l *lane[Q, A]) do(ctx context.Context, q Q) (A, error) {
	l.mu.Lock()
	if l.flying < l.width && len(l.waiting) == 0 && l.last <= 1 {
		l.flying++
		since := l.stalls
		l.mu.Unlock()
		defer l.landed(since)
		return l.alone(ctx, q)
	}
	c := &laned[Q, A]{q: q, done: make(chan struct{})}
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
	switch {
	case c.place != nil:
		defer l.landed(*c.place)
		return l.alone(ctx, q)
	case c.again:
		return l.after(ctx, q)
	}
	return c.a, c.err
}

// leave takes a call back whose context has ended. What was sent is left to be found out by the caller.
func (l *lane[Q, A]) leave(c *laned[Q, A], cause error) (error, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, w := range l.waiting {
		if w == c {
			l.waiting = append(l.waiting[:i:i], l.waiting[i+1:]...)
			if len(l.waiting) == 0 && l.boards != nil {
				l.boards()
			}
			return &noConnectionError{cause}, true
		}
	}
	if c.taken == nil {
		return nil, false // it has heard by now
	}
	c.leaver = true
	if c.taken.members--; c.taken.members == 0 {
		c.taken.cancel()
	}
	return cause, true
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

// next starts a statement for the calls that wait, if there is a place. The mutex is held.
func (l *lane[Q, A]) next() {
	if len(l.waiting) == 0 || l.flying >= l.width || l.boards != nil {
		return
	}
	l.flying++
	since := l.stalls
	if len(l.waiting) == 1 && l.last <= 1 {
		l.goAlone(l.waiting[0], since)
		l.waiting = nil
		return
	}
	ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // of no call alone; it ends when none waits
	l.boards = cancel
	l.flights.Go(func() { l.fly(ctx, cancel, since) })
}

// goAlone gives the place to one call. The mutex is held.
func (l *lane[Q, A]) goAlone(c *laned[Q, A], since int) {
	c.place, c.taken = &since, nil
	close(c.done)
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

// fly sends what waits once there is a connection, and gives the place back.
func (l *lane[Q, A]) fly(ctx context.Context, cancel context.CancelFunc, since int) {
	defer cancel()
	conn, err := l.store.pool.Acquire(ctx)
	if err != nil {
		defer l.landed(since)
		if ctx.Err() != nil { // nobody waited
			l.unboard()
			return
		}
		l.answer(l.take(&flight{cancel: cancel}), nil, &noConnectionError{err})
		return
	}
	limited, end := context.WithTimeout(context.Background(), patience) //nolint:forbidigo // of no call alone; it ends with the last of them
	defer end()
	l.gather()
	taken := l.take(&flight{cancel: end})
	if len(taken) == 1 && l.turnAlone(taken[0], since) {
		conn.Release()
		return
	}
	defer l.landed(since)
	defer conn.Release()
	l.send(limited, conn.Conn(), taken)
}

func (l *lane[Q, A]) unboard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.boards = nil
}

// gather lets calls come that were woken by the last statement and are about to make the next: not for longer than a part
// of what a statement takes.
func (l *lane[Q, A]) gather() {
	began := time.Now()
	for range 1000 { // also where time stands still
		if time.Since(began) >= gathering {
			return
		}
		l.mu.Lock()
		enough := len(l.waiting) > l.last*3/4
		l.mu.Unlock()
		if enough {
			return
		}
		runtime.Gosched()
	}
}

// turnAlone sends the only call that was there by itself after all.
func (l *lane[Q, A]) turnAlone(c *laned[Q, A], since int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.leaver {
		return false
	}
	l.goAlone(c, since)
	return true
}

// take is what the next statement carries: calls that fit, each name once, in the order in which they came.
func (l *lane[Q, A]) take(f *flight) (taken []*laned[Q, A]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var later []*laned[Q, A]
	names := make(map[string]bool, len(l.waiting))
	for _, c := range l.waiting {
		name := l.name(c.q)
		if len(taken) == batchMost || names[name] || len(taken) > 0 && !l.fits(taken[0].q, c.q) {
			later = append(later, c)
			names[name] = true // the order within a name stays
			continue
		}
		names[name] = true
		c.taken = f
		taken = append(taken, c)
	}
	f.members, l.waiting, l.last, l.boards = len(taken), later, len(taken), nil
	switch {
	case len(later) > 0:
		l.watchStall()
		l.next()
	case l.timer != nil:
		l.timer.Stop()
	}
	return taken
}

// send asks for all that are taken. What the server undoes for a reason that passes is asked again; what it refuses is
// asked for in two halves, so that in the end only the call that it refuses fails.
func (l *lane[Q, A]) send(ctx context.Context, conn *pgx.Conn, taken []*laned[Q, A]) {
	taken = l.stillThere(taken)
	if len(taken) == 0 {
		return
	}
	qs := make([]Q, len(taken))
	for i, c := range taken {
		qs[i] = c.q
	}
	answers, err := l.many(ctx, conn, qs)
	if sqlState(err) == "" || connectionLost(err) {
		l.answer(taken, answers, err)
		return
	}
	if len(taken) == 1 {
		l.answer(taken, nil, nil) // it is told alone why
		return
	}
	l.send(ctx, conn, taken[:len(taken)/2])
	l.send(ctx, conn, taken[len(taken)/2:])
}

func (l *lane[Q, A]) stillThere(taken []*laned[Q, A]) (there []*laned[Q, A]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range taken {
		if !c.leaver {
			there = append(there, c)
		}
	}
	return there
}

func (l *lane[Q, A]) answer(taken []*laned[Q, A], answers map[int]A, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, c := range taken {
		if c.leaver {
			continue
		}
		a, answered := answers[i]
		c.a, c.err, c.again, c.taken = a, err, err == nil && !answered, nil
		close(c.done)
	}
}

// close waits for what is under way, once every caller has gone.
func (l *lane[Q, A]) close() {
	l.flights.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
	}
}
