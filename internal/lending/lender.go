// Package lending lends whatever connection a process can get, to those who keep leases or give them back: one of
// their own, which stays open between them, one that is dialled, or one of the application's pool. It does not know
// what they send. A connection of one's own keeps leases while the application has taken the whole pool; the pool
// keeps them while the server has no free slot for another connection. Between two loans the connection of one's own
// waits for what the server sends by itself.
package lending

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

const (
	// headStart is how long one way to a connection is tried alone, at most: the other way never waits for a way that
	// hangs. It is also the first pause between attempts, which grows to lastPause. With OwnFirst it is dialHeadStart: a
	// dial may be slow, as over TLS from afar, and whoever has time shall not use the pool for that.
	headStart     = 100 * time.Millisecond
	dialHeadStart = time.Second
	lastPause     = time.Second
	// turn is how long one's own connection that is in use is waited for, before another is dialled: most loans are
	// shorter than a dial.
	turn = 10 * time.Millisecond
	// shyFor is how long after a refused dial an idle connection of the pool comes first. So a server without a free
	// slot is not asked for one with every statement.
	shyFor = time.Second
	// dialsMost limits the dials under way. One that hangs leaves room for another.
	dialsMost = 3
	// ownMost is how many of one's own may be in use before callers whose pool is exhausted wait for those, instead of
	// dialling others: callers may be many.
	ownMost = 4
)

// Order says which connections come first. Whatever it says, no way waits for the other for longer than the head
// start.
type Order int

const (
	// Own takes a connection of one's own, and dials one if there is none. It never takes one of the pool.
	Own Order = iota
	// OwnFirst is Own. While there is one that is in use, it is OpenFirst.
	OwnFirst
	// OpenFirst takes one of one's own if it is open, else an idle one of the pool. It dials if there is neither.
	OpenFirst
	// PoolFirst takes one of the pool, which may open it for that. It is for callers, of whom there may be many.
	PoolFirst
)

// Config says what a Lender works with. C is a connection.
type Config[C comparable] struct {
	Life  context.Context // ends every dial
	Limit time.Duration   // of a dial, whatever the time of those who wait for it

	Dial   func(ctx context.Context) (C, error)                       // opens a connection of one's own
	Usable func(C) bool                                               // of one's own, between its users
	Hang   func(C)                                                    // closes it
	Borrow func(ctx context.Context) (conn C, give func(), err error) // takes a connection of the pool
	Serves func() (idle, full bool)                                   // the pool has an idle one, or no room for more

	// Attend begins to wait for what comes over one's own connection while nobody uses it. end ends that, and returns
	// when it has ended: then the connection is Usable, or was lost meanwhile. Optional.
	Attend func(C) (end func())
}

// ErrGone says that a connection that was lent before has been closed.
var ErrGone = errors.New("the connection was closed")

// Loan is a connection that is lent until Give.
type Loan[C any] struct {
	Conn C
	Own  bool   // it is not of the pool
	Give func() // gives it back; to be called once
}

// Lender lends connections. It is safe for concurrent use. Nobody waits long for another's loan: if the connection of
// one's own is in use, the next one gets another connection.
type Lender[C comparable] struct {
	Config[C]
	tasks sync.WaitGroup

	mu      sync.Mutex     // never held across I/O
	spare   *spare[C]      // open, and in nobody's use; nil: there is none
	keeps   bool           // it stays open
	listens C              // so does this one, before others; zero: none
	waiting []waiter[C]    // for the next connection of one's own
	lent    map[C]struct{} // those that are in use
	dials   int            // under way
	dialled time.Time      // when the last one began
	refused time.Time      // when a dial failed, if none has succeeded since
	closed  bool
}

// spare is a connection that nobody uses, and the end of waiting for what comes over it.
type spare[C any] struct {
	conn C
	end  func()
}

// waiter takes the next connection of one's own, or only this one.
type waiter[C any] struct {
	only C      // zero: any
	got  chan C // 1-buffered; closed: this one is gone
}

var errClosed = errors.New("the client is closed")

// New makes a lender without a connection.
func New[C comparable](config Config[C]) *Lender[C] {
	if config.Attend == nil {
		config.Attend = func(C) func() { return func() {} }
	}
	return &Lender[C]{Config: config, lent: make(map[C]struct{})}
}

// Lend lends a connection. It fails when ctx ends, or when none can come, with the reason for which none could be
// dialled.
func (l *Lender[C]) Lend(ctx context.Context, order Order) (Loan[C], error) {
	if order != PoolFirst {
		if conn, open := l.take(); open {
			return l.own(conn), nil
		}
	}
	if order == PoolFirst || order != Own && (order == OpenFirst || l.sparesDials()) && l.idle() {
		brief, cancel := context.WithTimeout(ctx, head(ctx, headStart))
		conn, give, err := l.Borrow(brief)
		cancel()
		if err == nil {
			return Loan[C]{conn, false, give}, nil
		}
		if conn, open := l.take(); open {
			return l.own(conn), nil
		}
	}
	return l.race(ctx, order)
}

// race lends what comes first: a connection of one's own, which is dialled if none is given back before, or one of the
// pool, as soon as the dial has failed or had its head start.
func (l *Lender[C]) race(ctx context.Context, order Order) (Loan[C], error) {
	pause := head(ctx, headStart)
	alone := time.NewTimer(pause) // the dial
	defer alone.Stop()
	if order == OwnFirst {
		alone.Reset(head(ctx, dialHeadStart))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	own, dialled := make(chan C, 1), make(chan error, 1)
	l.want(own)
	defer l.unwant(own)
	var borrowed <-chan loaned[C] // nil: the pool is not asked
	var failure error             // of the last dial
	late := false                 // the dial has had its head start
	ask := func() {
		if order == Own || borrowed != nil || !late && failure == nil {
			return
		}
		if idle, full := l.Serves(); idle || full {
			borrowed = l.borrow(ctx)
		}
	}
	dials, timer := false, time.NewTimer(pause)
	defer timer.Stop()
	if brief := l.comes(order); brief > 0 {
		timer.Reset(head(ctx, brief))
	} else {
		dials = l.dial(order, dialled)
	}
	for {
		select {
		case conn := <-own:
			return l.own(conn), nil
		case b := <-borrowed:
			if b.err == nil {
				return b.Loan, nil
			}
			borrowed = nil
		case failure = <-dialled:
			dials = false
			ask()
		case <-alone.C:
			late = true
			ask()
		case <-timer.C:
			ask()
			dials = dials || l.dial(order, dialled)
			timer.Reset(pause)
			pause = min(2*pause, lastPause)
		case <-ctx.Done():
			return Loan[C]{}, errors.Join(failure, ctx.Err())
		}
		if failure != nil && !dials && borrowed == nil && !l.mayComeBack() {
			return Loan[C]{}, failure
		}
	}
}

// head is the head start that the time of ctx allows, at most so long.
func head(ctx context.Context, most time.Duration) time.Duration {
	if deadline, bounded := ctx.Deadline(); bounded {
		return min(most, max(time.Until(deadline)/4, time.Millisecond))
	}
	return most
}

// own is the loan of a connection that was taken.
func (l *Lender[C]) own(conn C) Loan[C] { return Loan[C]{conn, true, func() { l.put(conn) }} }

// idle reports whether the pool has an idle connection.
func (l *Lender[C]) idle() bool {
	idle, _ := l.Serves()
	return idle
}

// sparesDials reports whether an idle connection of the pool is better than a new one: there is one of one's own, which
// is in use, or a dial has failed lately.
func (l *Lender[C]) sparesDials() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.lent) > 0 || !l.refused.IsZero() && time.Since(l.refused) < shyFor
}

// comes is how long to wait for a connection of one's own that is in use, or being dialled, before dialling another.
func (l *Lender[C]) comes(order Order) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case order == PoolFirst: // it has waited already
		return 0
	case l.dials > 0:
		return dialHeadStart - time.Since(l.dialled)
	case len(l.lent) > 0 && order == Own:
		return headStart
	case len(l.lent) > 0:
		return turn
	}
	return 0
}

// dial opens a connection of one's own in the background, with a time of its own: it may come too late for whoever
// began it, or go to somebody who has waited longer. ended hears when it has ended, and why nothing comes. False: there
// are enough.
func (l *Lender[C]) dial(order Order, ended chan<- error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		ended <- errClosed
		return true
	case l.dials == dialsMost, order == PoolFirst && len(l.lent)+l.dials >= ownMost:
		return false
	}
	l.dials, l.dialled = l.dials+1, time.Now()
	l.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(l.Life, l.Limit)
		defer cancel()
		conn, err := l.Dial(ctx)
		l.mu.Lock()
		l.dials--
		if l.refused = (time.Time{}); err != nil {
			l.refused = time.Now()
		}
		l.mu.Unlock()
		if err == nil {
			l.put(conn)
		}
		ended <- err
	})
	return true
}

type loaned[C any] struct {
	Loan[C]
	err error
}

// borrow takes a connection of the pool in the background. It goes back if nobody receives it before ctx ends.
func (l *Lender[C]) borrow(ctx context.Context) <-chan loaned[C] {
	borrowed := make(chan loaned[C])
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.tasks.Go(func() {
		conn, give, err := l.Borrow(ctx)
		select {
		case borrowed <- loaned[C]{Loan[C]{conn, false, give}, err}:
		case <-ctx.Done():
			if err == nil {
				give()
			}
		}
	})
	return borrowed
}

// mayComeBack reports whether a connection of one's own is in use.
func (l *Lender[C]) mayComeBack() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.lent) > 0
}

// take takes the connection of one's own that nobody uses.
func (l *Lender[C]) take() (conn C, open bool) {
	l.mu.Lock()
	s := l.lend()
	l.mu.Unlock()
	return l.taken(s)
}

// lend makes the spare connection a lent one. The mutex is held.
func (l *Lender[C]) lend() (s *spare[C]) {
	if s, l.spare = l.spare, nil; s != nil {
		l.lent[s.conn] = struct{}{}
	}
	return s
}

// taken ends what goes on over a spare connection. False: there is none, or it was lost.
func (l *Lender[C]) taken(s *spare[C]) (conn C, open bool) {
	if s == nil {
		return conn, false
	}
	if s.end(); !l.Usable(s.conn) {
		l.put(s.conn)
		return conn, false
	}
	return s.conn, true
}

// Claim lends this connection, which was lent before, as soon as nobody uses it. It fails with ErrGone if that was
// closed.
func (l *Lender[C]) Claim(ctx context.Context, conn C) (Loan[C], error) {
	l.mu.Lock()
	if l.spare != nil && l.spare.conn == conn {
		s := l.lend()
		l.mu.Unlock()
		if _, open := l.taken(s); !open {
			return Loan[C]{}, ErrGone
		}
		return l.own(conn), nil
	}
	if _, lent := l.lent[conn]; !lent {
		l.mu.Unlock()
		return Loan[C]{}, ErrGone
	}
	got := make(chan C, 1)
	l.waiting = append(l.waiting, waiter[C]{conn, got})
	l.mu.Unlock()
	defer l.unwant(got)
	select {
	case conn, open := <-got:
		if !open {
			return Loan[C]{}, ErrGone
		}
		return l.own(conn), nil
	case <-ctx.Done():
		return Loan[C]{}, ctx.Err()
	}
}

// want hands the next connection of one's own to who waits longest.
func (l *Lender[C]) want(own chan C) {
	for {
		l.mu.Lock()
		s := l.lend()
		if s == nil {
			l.waiting = append(l.waiting, waiter[C]{got: own})
		}
		l.mu.Unlock()
		if s == nil {
			return
		}
		if conn, open := l.taken(s); open {
			own <- conn
			return
		}
	}
}

func (l *Lender[C]) unwant(got chan C) {
	l.mu.Lock()
	l.waiting = slices.DeleteFunc(l.waiting, func(w waiter[C]) bool { return w.got == got })
	l.mu.Unlock()
	select {
	case conn, open := <-got: // it came at that moment
		if open {
			l.put(conn)
		}
	default:
	}
}

// put passes a connection of one's own to who waits for one, keeps it, or closes it.
func (l *Lender[C]) put(conn C) {
	l.mu.Lock()
	surplus := l.pass(conn)
	l.mu.Unlock()
	l.hang(surplus)
}

// pass passes on or keeps a connection, and returns the one that there is no use for. The mutex is held.
func (l *Lender[C]) pass(conn C) (surplus *spare[C]) {
	delete(l.lent, conn)
	usable := !l.closed && l.Usable(conn)
	next := slices.IndexFunc(l.waiting, func(w waiter[C]) bool { return w.only == conn || w.only == *new(C) })
	switch {
	case usable && next >= 0:
		l.waiting[next].got <- conn
		l.waiting = slices.Delete(l.waiting, next, next+1)
		l.lent[conn] = struct{}{}
		return nil
	case usable && (l.spare == nil && l.keeps || conn == l.listens):
		surplus, l.spare = l.spare, &spare[C]{conn, l.Attend(conn)}
		return surplus
	}
	l.waiting = slices.DeleteFunc(l.waiting, func(w waiter[C]) bool {
		gone := w.only == conn
		if gone {
			close(w.got)
		}
		return gone
	})
	return &spare[C]{conn, func() {}}
}

// hang closes a connection that there is no use for.
func (l *Lender[C]) hang(s *spare[C]) {
	if s != nil {
		s.end()
		l.Hang(s.conn)
	}
}

// Keep makes a connection of one's own stay open from now on when it is given back, until Rest.
func (l *Lender[C]) Keep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keeps = true
}

// Rest ends Keep.
func (l *Lender[C]) Rest() { l.end(func() { l.keeps = false }) }

// Listen makes this connection stay open, rather than another, until Deafen.
func (l *Lender[C]) Listen(conn C) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listens = conn
}

// Deafen ends Listen.
func (l *Lender[C]) Deafen() { l.end(func() { l.listens = *new(C) }) }

// end ends a reason to keep the spare connection, and closes that if there is no other.
func (l *Lender[C]) end(change func()) {
	l.mu.Lock()
	change()
	var surplus *spare[C]
	if s := l.spare; s != nil && (l.closed || !l.keeps && s.conn != l.listens) {
		surplus, l.spare = s, nil
	}
	l.mu.Unlock()
	l.hang(surplus)
}

// Close rests, and returns when every dial has ended. Nobody lends any more, and Life has ended.
func (l *Lender[C]) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.tasks.Wait()
	l.Rest()
}
