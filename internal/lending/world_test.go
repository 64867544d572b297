package lending

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

// conn is a connection. The world's mutex guards it.
type conn struct {
	own            bool
	broken, closed bool
	attended       bool // somebody waits for what comes over it
}

// world is a server, and the application's pool.
type world struct {
	*Lender[*conn]
	end context.CancelFunc

	mu    sync.Mutex
	dial  func(ctx context.Context) error // nil: a dial takes a moment
	dials []time.Time
	pool  []*conn       // its idle connections
	size  int           // how many it may have
	has   int           // how many it has
	freed chan struct{} // 1-buffered: one was given back
	grow  error         // why it opens none
}

// moment is what a dial takes.
const moment = 5 * time.Millisecond

var errFull = errors.New("sorry, too many clients already")

// newWorld is a world whose pool has so many idle connections and may have so many in all.
func newWorld(t *testing.T, idle, size int) *world {
	w := &world{size: size, has: idle, freed: make(chan struct{}, 1)}
	for range idle {
		w.pool = append(w.pool, &conn{})
	}
	life, end := context.WithCancel(t.Context())
	w.end = end
	w.Lender = New(Config[*conn]{Life: life, Limit: 10 * time.Second, Dial: w.open, Borrow: w.borrows, Serves: w.serves,
		Usable: func(c *conn) bool { return !w.is(&c.broken) }, Hang: func(c *conn) {
			if w.is(&c.attended) {
				t.Error("a connection is closed while somebody waits for what comes over it")
			}
			w.set(func() { c.closed = true })
		},
		Attend: func(c *conn) func() {
			w.set(func() { c.attended = true })
			return func() { w.set(func() { c.attended = false }) }
		}})
	t.Cleanup(w.close)
	return w
}

func (w *world) close() {
	w.end()
	w.Close()
}

func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func (w *world) is(flag *bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return *flag
}

func (w *world) open(ctx context.Context) (*conn, error) {
	w.mu.Lock()
	w.dials = append(w.dials, time.Now())
	dial := w.dial
	w.mu.Unlock()
	if dial != nil {
		if err := dial(ctx); err != nil {
			return nil, err
		}
	} else {
		time.Sleep(moment)
	}
	return &conn{own: true}, nil
}

func (w *world) dialled() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.dials)
}

// hang is a dial that nobody answers.
func hang(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

// refuse is a dial to a server that is full.
func refuse(context.Context) error { return errFull }

func (w *world) serves() (idle, full bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.pool) > 0, w.has == w.size
}

func (w *world) borrows(ctx context.Context) (*conn, func(), error) {
	for {
		w.mu.Lock()
		switch n := len(w.pool); {
		case n > 0:
			c := w.pool[n-1]
			w.pool = w.pool[:n-1]
			w.mu.Unlock()
			return c, func() { w.gives(c) }, nil
		case w.has < w.size && w.grow != nil:
			defer w.mu.Unlock()
			return nil, nil, w.grow
		case w.has < w.size:
			w.has++
			w.pool = append(w.pool, &conn{})
			w.mu.Unlock()
			time.Sleep(moment)
			continue
		}
		w.mu.Unlock()
		select {
		case <-w.freed:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

// gives gives a connection back to the pool.
func (w *world) gives(c *conn) {
	w.set(func() { w.pool = append(w.pool, c) })
	select {
	case w.freed <- struct{}{}:
	default:
	}
}

// takes takes all idle connections of the pool, as an application does.
func (w *world) takes() (taken []*conn) {
	w.set(func() { taken, w.pool = w.pool, nil })
	return taken
}

// lent is a loan, and how long it took.
type lent struct {
	Loan[*conn]
	err  error
	took time.Duration
}

// lends asks for a loan, within a limit.
func (w *world) lends(t *testing.T, order Order, limit time.Duration) lent {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	began := time.Now()
	l, err := w.Lend(ctx, order)
	if err == nil && w.is(&l.Conn.attended) {
		t.Error("a connection is lent while somebody waits for what comes over it")
	}
	return lent{l, err, time.Since(began)}
}

// want fails the test unless a loan came, of that kind and after so long.
func (l lent) want(t *testing.T, own bool, took time.Duration) lent {
	t.Helper()
	if l.err != nil || l.Own != own || l.Conn.own != own || l.took != took {
		t.Fatalf("%+v after %v: %v; want one of my own: %v, after %v", l.Conn, l.took, l.err, own, took)
	}
	return l
}
