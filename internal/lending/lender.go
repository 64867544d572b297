// Package lending lends whatever connection a process can get, to those who keep leases or give them back: one of
// their own, which stays open between them, one that is dialled, or one of the application's pool. It does not know
// what they send. A connection of one's own keeps leases while the application has taken the whole pool; the pool
// keeps them while the server has no free slot for another connection. Between two loans the connection of one's own
// waits for what the server sends by itself.
package lending

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// headStart is how long one way to a connection is tried alone, at most: the other way never waits for a way that
	// hangs. So long one's own connection that is in use is waited for, too: most loans are shorter than a dial, and
	// whoever dials costs the server a process. It is also the first pause between attempts, which grows to lastPause.
	// With OwnFirst it is dialHeadStart: a dial may be slow, as over TLS from afar, and whoever has time shall not use
	// the pool for that.
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
	// Fresh dials a connection of one's own, or takes one that is given back meanwhile: it works now.
	Fresh Order = iota
	// Own takes a connection of one's own, and dials one if there is none. It never takes one of the pool.
	Own
	// OwnFirst is Own. While there is one that is in use, it is OpenFirst.
	OwnFirst
	// OpenFirst takes one of one's own if it is open, else an idle one of the pool. It dials if there is neither.
	OpenFirst
	// OpenOfMany is OpenFirst for callers, of whom there may be many: it may open one of the pool, and dials few.
	OpenOfMany
	// IdleFirst takes an idle one of the pool, else one of one's own, which it dials if there is none.
	IdleFirst
	// PoolFirst takes one of the pool, which may open it for that. It is for callers, of whom there may be many.
	PoolFirst
)

// many reports whether the order is for callers of whom there may be many.
func (o Order) many() bool { return o == PoolFirst || o == OpenOfMany }

// Config says what a Lender works with. C is a connection.
type Config[C comparable] struct {
	Life  context.Context // ends every dial
	Limit time.Duration   // of a dial, whatever the time of those who wait for it
	Dials int             // at most so many are under way; 0: dialsMost

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
	waiting []waiter[C]    // for the next connection of one's own; those of whom there may be many come last
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
	many bool   // there may be many like it
}

var errClosed = errors.New("the client is closed")

// New makes a lender without a connection.
func New[C comparable](config Config[C]) *Lender[C] {
	config.Dials = cmp.Or(config.Dials, dialsMost)
	if config.Attend == nil {
		config.Attend = func(C) func() { return func() {} }
	}
	return &Lender[C]{Config: config, lent: make(map[C]struct{})}
}

// Lend lends a connection. It fails when ctx ends, or when none can come, with the reason for which none could be
// dialled.
func (l *Lender[C]) Lend(ctx context.Context, order Order) (Loan[C], error) {
	if order == Fresh {
		return l.race(ctx, order)
	}
	if order < IdleFirst {
		if conn, open := l.take(); open {
			return l.own(conn), nil
		}
	}
	if order == PoolFirst || order != Own && (order >= OpenFirst || l.sparesDials()) && l.idle() {
		brief, cancel := context.WithTimeout(ctx, head(ctx, headStart))
		conn, give, err := l.Borrow(brief)
		cancel()
		if err == nil {
			return Loan[C]{conn, false, give}, nil
		}
	}
	if conn, open := l.take(); open {
		return l.own(conn), nil
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
	l.want(own, order)
	defer l.unwant(own)
	var borrowed <-chan loaned[C] // nil: the pool is not asked
	var failure error             // of the last dial
	late := false                 // the dial has had its head start
	ask := func() {
		if order <= Own || borrowed != nil || !late && failure == nil {
			return
		}
		if idle, full := l.Serves(); idle || full || order == OpenOfMany {
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
	case len(l.lent) > 0:
		return headStart
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
	case l.dials >= l.Dials, order.many() && len(l.lent)+l.dials >= ownMost:
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
