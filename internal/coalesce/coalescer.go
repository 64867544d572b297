// Package coalesce gathers simultaneous calls of one kind into one statement. It does not know what they ask for, and
// only borrows connections.
package coalesce

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/internal/pause"
)

const (
	// most limits the calls in one statement, unless a coalescer says otherwise.
	most = 256
	// stalled is how long calls wait for the statement under way: a hanging statement delays nobody longer.
	stalled = 20 * time.Millisecond
	// gathering limits how long a statement waits for further calls while calls arrive together.
	gathering = 100 * time.Microsecond
	// attempts limits how often a statement is sent that the server undoes for a passing reason.
	attempts = 10
)

// Config says what a Coalescer works with. C is a connection, Q a call's request, A its answer.
type Config[C, Q, A any] struct {
	Width    int             // statements under way before calls wait for each other
	Most     int             // calls in one statement; 0: most
	Life     context.Context // ends every statement
	Limit    time.Duration   // of one statement
	Patience time.Duration   // of each call that waits for a connection; needed if Lend returns a LateError
	ErrShut  error           // refuses calls after Shut

	// Lend lends a connection until give is called. An error concerns all who wait for one, but a LateError only those
	// who have done so for Patience.
	Lend func(ctx context.Context) (conn C, give func(), err error)
	// Send sends one call or many and returns the answers in their order. An error concerns all of them.
	Send func(ctx context.Context, conn C, calls []Q) ([]A, error)
	// Undone reports that an error of Send means that nothing was done; Passes, that a repetition may succeed.
	Undone, Passes func(error) bool
	// Abandoned receives the answer to a call that had left, after the statement has given its connection back.
	// Optional.
	Abandoned func(call Q, a A, err error)
}

// Coalescer gathers simultaneous calls of one kind into one statement and one commit. The first call goes at once.
// Calls that come while as many statements as its width are under way go together in the next. After a statement for
// several calls another such is likely: its first call then lets those join that are about to come. Calls that come
// one after the other wait for nothing.
//
// A statement belongs to the coalescer and not to its calls: a call whose context ends leaves at once, and the
// connection stays usable. A call that leaves before its statement is sent, or sent again, is not in it. One whose
// context has already ended is never in one.
type Coalescer[C, Q, A any] struct {
	Config[C, Q, A]

	mu       sync.Mutex
	waiting  []*call[Q, A]      // in the order of arrival; fewer than half of them have left
	gone     int                // how many of those have left
	last     int                // how many calls the last statement had; above 1, calls arrive together
	lending  context.CancelFunc // of a statement that still waits for a connection
	underWay int                // statements, except the stalled ones
	stalls   int                // how often that happened; statements from before do not count
	timer    *time.Timer
	late     *time.Timer // ends the wait of calls that came later than the one that was too long
	shut     bool
	senders  sync.WaitGroup
	idle     int          // senders that wait for their next statement, at most as many as the width
	begin    chan sending // has room for one for each of them
}

// sending is what a sender needs for a statement.
type sending struct {
	ctx   context.Context // of the wait for a connection
	end   context.CancelFunc
	since int // stalls before it
}

// call is one call that waits for a statement.
type call[Q, A any] struct {
	q    Q
	came time.Time
	done chan struct{}
	a    A
	err  error

	sent bool // it is in a statement; the coalescer's mutex guards it and left
	left bool
}

// New makes a coalescer.
func New[C, Q, A any](config Config[C, Q, A]) *Coalescer[C, Q, A] {
	return &Coalescer[C, Q, A]{Config: config, begin: make(chan sending, config.Width)}
}

// Do makes the call, alone or with others.
func (g *Coalescer[C, Q, A]) Do(ctx context.Context, q Q) (A, error) {
	c := &call[Q, A]{q: q, came: time.Now(), done: make(chan struct{})}
	if err := ctx.Err(); err != nil {
		return c.a, &NotSentError{err}
	}
	g.mu.Lock()
	if g.shut {
		g.mu.Unlock()
		return c.a, &NotSentError{g.ErrShut}
	}
	g.waiting = append(g.waiting, c)
	if g.underWay < g.Width {
		g.next()
	} else if len(g.waiting) == 1 {
		g.watchStall()
	}
	g.mu.Unlock()
	select {
	case <-c.done:
	case <-ctx.Done():
		if err, gone := g.leave(c, ctx.Err()); gone {
			var none A
			return none, err
		}
		<-c.done
	}
	return c.a, c.err
}

// leave takes a call back. If it was sent, Abandoned receives its answer.
func (g *Coalescer[C, Q, A]) leave(c *call[Q, A], cause error) (error, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-c.done:
		return nil, false // its answer is already there
	default:
	}
	if c.left = true; c.sent {
		return &LeftError{cause}, true
	}
	if g.gone++; 2*g.gone >= len(g.waiting) { // thousands may leave together
		if g.compact(); len(g.waiting) == 0 {
			g.rest()
		}
	}
	return &NotSentError{cause}, true
}

// compact removes those that have left from the waiting calls. The mutex is held.
func (g *Coalescer[C, Q, A]) compact() {
	if g.gone > 0 {
		g.waiting = slices.DeleteFunc(g.waiting, func(c *call[Q, A]) bool { return c.left })
		g.gone = 0
	}
}

// next starts a statement for the waiting calls, if the width allows. The mutex is held.
func (g *Coalescer[C, Q, A]) next() {
	if len(g.waiting) == 0 || g.underWay >= g.Width || g.lending != nil || g.shut {
		return
	}
	g.underWay++
	s := sending{since: g.stalls}
	s.ctx, s.end = context.WithCancel(g.Life)
	g.lending = s.end
	if g.idle > 0 {
		g.idle--
		g.begin <- s
		return
	}
	g.senders.Go(func() {
		for more := true; more; s, more = <-g.begin {
			if g.send(s); !g.stay() {
				return
			}
		}
	})
}

// stay says that a sender is to wait for another statement: its stack has grown to what a statement needs.
func (g *Coalescer[C, Q, A]) stay() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut || g.idle == g.Width {
		return false
	}
	g.idle++
	return true
}

// watchStall makes sure that nobody waits for a hanging statement. The mutex is held.
func (g *Coalescer[C, Q, A]) watchStall() {
	if g.timer == nil {
		g.timer = time.AfterFunc(stalled, g.stall)
		return
	}
	g.timer.Reset(stalled)
}

func (g *Coalescer[C, Q, A]) stall() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) > 0 && g.lending == nil {
		g.stalls++
		g.underWay = 0
		g.next()
	}
}

// send sends the waiting calls once there is a connection, and then makes room for those that have come meanwhile.
func (g *Coalescer[C, Q, A]) send(s sending) {
	defer s.end()
	conn, give, err := g.Lend(s.ctx)
	if err != nil {
		switch late, is := errors.AsType[*LateError](err); {
		case s.ctx.Err() != nil && g.Life.Err() == nil:
			g.unlend()
		case is:
			g.unlend()
			g.tire(late)
		default:
			g.refuse(&NotSentError{err})
		}
		g.ended(s.since)
		return
	}
	limited, end := context.WithTimeout(g.Life, g.Limit)
	defer end()
	g.gather()
	abandoned := g.deliver(limited, conn, g.take())
	give()
	g.ended(s.since)
	for _, c := range abandoned {
		if g.Abandoned != nil {
			g.Abandoned(c.q, c.a, c.err)
		}
	}
}

// refuse gives all calls that wait the reason for which there is no connection.
func (g *Coalescer[C, Q, A]) refuse(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.waiting {
		c.err = err
		close(c.done)
	}
	g.waiting, g.gone, g.lending = nil, 0, nil
	g.rest()
}

// unlend ends a lending that has brought nothing. Calls that still wait ask anew.
func (g *Coalescer[C, Q, A]) unlend() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lending = nil
}

// tire gives the error to the calls that have waited for a connection as long as they may, and to the others when they
// have.
func (g *Coalescer[C, Q, A]) tire(late *LateError) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.compact()
	for ; len(g.waiting) > 0; g.waiting = g.waiting[1:] {
		c := g.waiting[0]
		if left := time.Until(c.came.Add(g.Patience)); left > 0 {
			if g.late != nil {
				g.late.Stop()
			}
			g.late = time.AfterFunc(left, func() { g.tire(late) })
			return
		}
		c.err = &NotSentError{late.Err}
		close(c.done)
	}
	g.rest()
}

// ended makes room for waiting calls after a statement has ended.
func (g *Coalescer[C, Q, A]) ended(since int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if since == g.stalls {
		g.underWay--
	}
	g.next()
}

// gather waits briefly for callers that were just answered: they often ask again. It waits no longer than a part of
// what a statement takes.
func (g *Coalescer[C, Q, A]) gather() {
	began := time.Now()
	for range 1000 { // ends even if the clock stands still
		g.mu.Lock()
		enough := g.last <= 1 || len(g.waiting) > g.last*3/4
		g.mu.Unlock()
		if enough || time.Since(began) >= gathering {
			return
		}
		runtime.Gosched()
	}
}

// take returns the calls of the next statement, in the order of arrival.
func (g *Coalescer[C, Q, A]) take() (taken []*call[Q, A]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.compact()
	n := min(len(g.waiting), cmp.Or(g.Most, most))
	taken, g.waiting = g.waiting[:n:n], g.waiting[n:]
	for _, c := range taken {
		c.sent = true
	}
	g.last, g.lending = n, nil
	if len(g.waiting) == 0 {
		g.rest()
	} else {
		g.watchStall()
		g.next()
	}
	return taken
}

// rest stops what goes on for calls that wait, once none does: late would tell later ones of an earlier failure. The
// mutex is held.
func (g *Coalescer[C, Q, A]) rest() {
	for _, timer := range []*time.Timer{g.timer, g.late} {
		if timer != nil {
			timer.Stop()
		}
	}
	if g.lending != nil {
		g.lending()
	}
}

// deliver sends all taken calls, and returns those that have left by the time of their answer. If the server refuses
// the statement, or undoes it for a passing reason, deliver sends it in two halves, so that in the end only the
// refused call fails. A call that has waited in vain for a lock of the server gets that answer at once: its
// connection is not for waiting.
func (g *Coalescer[C, Q, A]) deliver(ctx context.Context, conn C, taken []*call[Q, A]) (abandoned []*call[Q, A]) {
	for attempt := 1; len(taken) > 0; attempt++ {
		qs := make([]Q, len(taken))
		for i, c := range taken {
			qs[i] = c.q
		}
		answers, err := g.Send(ctx, conn, qs)
		if err == nil || !g.Undone(err) || len(taken) == 1 && !g.Passes(err) || attempt == attempts {
			return append(abandoned, g.answer(taken, answers, err)...)
		}
		if taken, abandoned = g.apart(taken, abandoned, err); len(taken) > 1 {
			half := len(taken) / 2
			abandoned = append(abandoned, g.deliver(ctx, conn, taken[:half])...)
			taken, abandoned = g.apart(taken[half:], abandoned, err)
			return append(abandoned, g.deliver(ctx, conn, taken)...)
		}
		if len(taken) == 1 && !pause.For(ctx, time.Duration(attempt)*time.Millisecond) {
			return append(abandoned, g.answer(taken, nil, err)...)
		}
		taken, abandoned = g.apart(taken, abandoned, err)
	}
	return abandoned
}

// apart gives the error to the calls that have left, adds them to the abandoned, and returns those that still wait.
func (g *Coalescer[C, Q, A]) apart(taken, abandoned []*call[Q, A], err error) (stay, all []*call[Q, A]) {
	var gone []*call[Q, A]
	g.mu.Lock()
	for _, c := range taken {
		if c.left {
			gone = append(gone, c)
		} else {
			stay = append(stay, c)
		}
	}
	g.mu.Unlock()
	return stay, append(abandoned, g.answer(gone, nil, err)...)
}

// answer gives each call its answer, or all of them the error, and returns those that have left.
func (g *Coalescer[C, Q, A]) answer(taken []*call[Q, A], answers []A, err error) (abandoned []*call[Q, A]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, c := range taken {
		if c.err = err; err == nil {
			c.a = answers[i]
		}
		if c.left {
			abandoned = append(abandoned, c)
		}
		close(c.done)
	}
	return abandoned
}

// Shut refuses new calls, and those that still wait.
func (g *Coalescer[C, Q, A]) Shut() {
	g.mu.Lock()
	if !g.shut {
		close(g.begin)
	}
	g.shut = true
	g.rest()
	waiting := g.waiting
	g.waiting = nil
	for _, c := range waiting {
		c.sent = true
	}
	g.mu.Unlock()
	g.answer(waiting, nil, &NotSentError{g.ErrShut})
}

// Wait returns when the statements under way have ended. Call it after Shut.
func (g *Coalescer[C, Q, A]) Wait() { g.senders.Wait() }
