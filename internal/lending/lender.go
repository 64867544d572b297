// Package lending lends whatever connection a process can get, to those who keep leases or give them back: one of
// their own, which stays open between them, one that is dialled, or one of the application's pool. It does not know
// what they send. A connection of one's own keeps leases while the application has taken the whole pool; the pool
// keeps them while the server has no free slot for another connection.
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
	// OwnFirst takes a connection of one's own, and dials one if there is none. While there is one that is in use, it is
	// OpenFirst.
	OwnFirst Order = iota
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
}

// Loan is a connection that is lent until Give.
type Loan[C any] struct {
	Conn C
	Own  bool   // it is not of the pool
	Give func() // gives it back; to be called once
}

// Lender lends connections. It is safe for concurrent use. Nobody waits for another's loan: if the connection of one's
// own is in use, the next one gets another connection.
type Lender[C comparable] struct {
	Config[C]
	tasks sync.WaitGroup

	mu      sync.Mutex // never held across I/O
	spare   []C        // at most one: open, and in nobody's use
	keeps   bool       // it stays open
	waiting []chan C   // 1-buffered: those who take the next connection of one's own
	lent    int        // connections of one's own that are in use
	dials   int        // under way
	refused time.Time  // when a dial failed, if none has succeeded since
	closed  bool
}

var errClosed = errors.New("the client is closed")

// New makes a lender without a connection.
func New[C comparable](config Config[C]) *Lender[C] { return &Lender[C]{Config: config} }

// Lend lends a connection. It fails when ctx ends, or when none can come, with the reason for which none could be
// dialled.
func (l *Lender[C]) Lend(ctx context.Context, order Order) (Loan[C], error) {
	if order != PoolFirst {
		if conn, open := l.take(); open {
			return l.own(conn), nil
		}
	}
	if order == PoolFirst || (order == OpenFirst || l.sparesDials()) && l.idle() {
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
		if idle, full := l.Serves(); (late || failure != nil) && borrowed == nil && (idle || full) {
			borrowed = l.borrow(ctx)
		}
	}
	dials := l.dial(order, dialled)
	timer := time.NewTimer(pause)
	defer timer.Stop()
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

func (l *Lender[C]) own(conn C) Loan[C] {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lent++
	return Loan[C]{conn, true, func() {
		l.mu.Lock()
		l.lent--
		l.mu.Unlock()
		l.put(conn)
	}}
}

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
	return l.lent > 0 || !l.refused.IsZero() && time.Since(l.refused) < shyFor
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
	case l.dials == dialsMost, order == PoolFirst && l.lent+l.dials >= ownMost:
		return false
	}
	l.dials++
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
	return l.lent > 0
}

// take takes the connection of one's own that nobody uses.
func (l *Lender[C]) take() (conn C, open bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if open = len(l.spare) > 0; open {
		conn, l.spare = l.spare[0], nil
	}
	return conn, open
}

// want hands the next connection of one's own to who waits longest.
func (l *Lender[C]) want(own chan C) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.spare) > 0 {
		own <- l.spare[0]
		l.spare = nil
		return
	}
	l.waiting = append(l.waiting, own)
}

func (l *Lender[C]) unwant(own chan C) {
	l.mu.Lock()
	l.waiting = slices.DeleteFunc(l.waiting, func(w chan C) bool { return w == own })
	l.mu.Unlock()
	select {
	case conn := <-own: // it came at that moment
		l.put(conn)
	default:
	}
}

// put passes a connection of one's own to who waits for one, keeps it, or closes it.
func (l *Lender[C]) put(conn C) {
	if !l.pass(conn) {
		l.Hang(conn)
	}
}

func (l *Lender[C]) pass(conn C) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed || !l.Usable(conn):
		return false
	case len(l.waiting) > 0:
		l.waiting[0] <- conn
		l.waiting = l.waiting[1:]
	case l.keeps && len(l.spare) == 0:
		l.spare = append(l.spare, conn)
	default:
		return false
	}
	return true
}

// Keep makes a connection of one's own stay open from now on when it is given back, until Rest.
func (l *Lender[C]) Keep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keeps = true
}

// Rest closes it, and whatever is given back from now on, until Keep.
func (l *Lender[C]) Rest() {
	l.mu.Lock()
	rests := l.spare
	l.keeps, l.spare = false, nil
	l.mu.Unlock()
	for _, conn := range rests {
		l.Hang(conn)
	}
}

// Close rests, and returns when every dial has ended. Nobody lends any more, and Life has ended.
func (l *Lender[C]) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.tasks.Wait()
	l.Rest()
}
