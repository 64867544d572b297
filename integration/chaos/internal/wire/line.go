// Package wire is a proxy between a worker and PostgreSQL that understands where messages begin and end, so that it can
// lose or delay exactly the request or the answer of a COMMIT, or a notification and nothing else.
package wire

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"
)

// Direction is where messages go.
type Direction int

// The two directions.
const (
	Up   Direction = iota // to the server: requests
	Down                  // to the client: answers
)

// Line is a network line on loopback between one worker and the server, as good as a wire until told otherwise. It is
// safe for concurrent use.
type Line struct {
	address string
	ctx     context.Context
	cancel  context.CancelFunc
	tasks   sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener // nil while connections are refused
	refusals int
	upstream string
	links    map[*link]struct{}
	rules    rules
	changed  chan struct{} // closed at the next change of the rules
}

// rules are what a line does to messages.
type rules struct {
	held   [2]int // how many want messages in the direction held back
	hints  int    // how many want notifications held back
	commit *CommitFault
}

// CommitFault is what becomes of the commits of a line: of the request or of its answer.
type CommitFault struct {
	Direction Direction
	Drop      bool          // lost; the connection is reset after By. Otherwise it is delayed by By
	By        time.Duration // a delay holds back what comes behind it too, as a network does
	Chance    func() bool   // whether this commit is concerned; it is called by one goroutine at a time
	hits      int
}

// Listen opens a line to the server at the address. Close ends it.
func Listen(upstream string) (*Line, error) {
	listener, err := listenBelowEphemeral()
	if err != nil {
		return nil, err
	}
	l := &Line{address: listener.Addr().String(), listener: listener, upstream: upstream,
		links: make(map[*link]struct{}), changed: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.tasks.Go(func() { l.accept(listener) })
	return l, nil
}

// listenBelowEphemeral takes a port that the system does not give to outgoing connections: while connections are
// refused, a client that tries one might be given that very port for its own end, and connect to itself. Nor one that
// servers choose from (20000 and up): one that is killed must find its own free when it comes back.
func listenBelowEphemeral() (listener net.Listener, err error) {
	for range 100 {
		if listener, err = net.Listen("tcp",
			net.JoinHostPort("127.0.0.1", strconv.Itoa(10000+rand.IntN(10000)))); err == nil {
			return listener, nil
		}
	}
	return nil, fmt.Errorf("wire: no free port: %w", err)
}

// Address is where the client connects.
func (l *Line) Address() string { return l.address }

// LeadTo changes the server of new connections.
func (l *Line) LeadTo(upstream string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.upstream = upstream
}

func (l *Line) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return // closed
		}
		l.mu.Lock()
		if l.ctx.Err() != nil || l.listener != listener {
			l.mu.Unlock()
			_ = client.Close()
			continue
		}
		k := newLink(l, client.(*net.TCPConn), l.upstream)
		l.links[k] = struct{}{}
		l.tasks.Go(k.run)
		l.mu.Unlock()
	}
}

// Hold keeps messages back in a direction, in their order, until release is called. With hints false, notifications go
// on.
func (l *Line) Hold(d Direction, hints bool) (release func()) {
	count := func(by int) func(*rules) {
		return func(r *rules) {
			if r.held[d] += by; hints && d == Down {
				r.hints += by
			}
		}
	}
	l.change(count(1))
	return sync.OnceFunc(func() { l.change(count(-1)) })
}

// HoldHints keeps notifications back, and nothing else, until release is called.
func (l *Line) HoldHints() (release func()) {
	l.change(func(r *rules) { r.hints++ })
	return sync.OnceFunc(func() { l.change(func(r *rules) { r.hints-- }) })
}

// OnCommit puts a fault on commits, in place of the one before, until stop is called, which tells how many were
// concerned.
func (l *Line) OnCommit(f CommitFault) (stop func() int) {
	l.change(func(r *rules) { r.commit = &f })
	return func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.rules.commit == &f {
			l.rules.commit = nil
		}
		return f.hits
	}
}

func (l *Line) change(how func(*rules)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	how(&l.rules)
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *Line) now() (rules, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rules, l.changed
}

// concerned draws whether the fault of the line meets a commit that is seen in this direction.
func (l *Line) concerned(d Direction) (CommitFault, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.rules.commit
	if f == nil || f.Direction != d || !f.Chance() {
		return CommitFault{}, false
	}
	f.hits++
	return *f, true
}

// Cut ends all connections, with a reset or in the orderly way, and tells how many.
func (l *Line) Cut(reset bool) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k := range l.links {
		k.cut(reset)
	}
	return len(l.links)
}

// Refuse refuses new connections until restore is called, which takes them again at the same address.
func (l *Line) Refuse() (restore func() error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refusals++; l.listener != nil {
		_ = l.listener.Close()
		l.listener = nil
	}
	return sync.OnceValue(l.restore)
}

func (l *Line) restore() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refusals--; l.refusals > 0 || l.ctx.Err() != nil {
		return nil
	}
	var errs error
	for range 200 { // the port is ours alone, but its old listener may take a moment to go
		listener, err := net.Listen("tcp", l.address)
		if err == nil {
			l.listener = listener
			l.tasks.Go(func() { l.accept(listener) })
			return nil
		}
		errs = err
		time.Sleep(5 * time.Millisecond)
	}
	return fmt.Errorf("wire: listen again: %w", errs)
}

// Close ends the line and everything that it has started.
func (l *Line) Close() error {
	l.mu.Lock()
	l.cancel()
	var err error
	if l.listener != nil {
		err = l.listener.Close()
		l.listener = nil
	}
	for k := range l.links {
		k.cut(true)
	}
	l.mu.Unlock()
	l.tasks.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
