package dashboard

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/internal/pause"
)

// shared has requests that ask for the same share a read. Reads of the same come one after another, with a pause
// between them as long as the last one took, pauseMost at most, and none after a failure. Whoever asks meanwhile shares
// the next one: what it reads is never older than a request for it.
type shared struct {
	mu   sync.Mutex
	next map[string]*turn // one that has not begun, for all who ask
	last map[string]*turn // the newest one
}

const pauseMost = 2 * time.Second

func newShared() *shared { return &shared{next: make(map[string]*turn), last: make(map[string]*turn)} }

// turn is one read.
type turn struct {
	asked  int   // how many wait for it; under shared.mu, as is before
	before *turn // the one before, until this one begins
	end    context.CancelFunc

	done chan struct{}
	free time.Time // when the next one may begin; zero: at once
	v    any
	err  error
	fell any // what it has panicked with
}

// read returns what read finds, or another one's that begins later. A read ends with the last of those who wait for it.
func (s *shared) read(ctx context.Context, what string, read func(context.Context) (any, error)) (any, error) {
	t := s.join(ctx, what, read)
	defer s.leave(what, t)
	select {
	case <-t.done:
		if t.fell != nil {
			panic(t.fell) // in the request, where the server of the application survives it
		}
		return t.v, t.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *shared) join(ctx context.Context, what string, read func(context.Context) (any, error)) *turn {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.last, func(_ string, t *turn) bool { return t.over() })
	t := s.next[what]
	if t == nil {
		own, end := context.WithCancel(context.WithoutCancel(ctx)) // others may need it longer
		t = &turn{before: s.last[what], end: end, done: make(chan struct{})}
		s.next[what], s.last[what] = t, t
		go s.run(own, what, t, t.before, read)
	}
	t.asked++
	return t
}

// leave ends the read with the last of those who wait, and waits for its goroutine.
func (s *shared) leave(what string, t *turn) {
	s.mu.Lock()
	t.asked--
	nobody := t.asked == 0
	if nobody {
		s.begin(what, t, false)
	}
	s.mu.Unlock()
	if nobody {
		t.end()
		<-t.done
		t.v = nil
	}
}

// run belongs to those who wait: the last one ends it and waits for it.
func (s *shared) run(ctx context.Context, what string, t, before *turn,
	read func(context.Context) (any, error)) {
	defer close(t.done)
	defer func() { t.fell = recover() }()
	t.err = before.wait(ctx)
	s.mu.Lock()
	s.begin(what, t, t.err == nil)
	s.mu.Unlock()
	if t.err != nil {
		return
	}
	began := time.Now()
	if t.v, t.err = read(ctx); t.err == nil {
		t.free = time.Now().Add(min(time.Since(began), pauseMost))
	}
}

// begin closes a turn for those who ask later. If it reads nothing, the one before is the newest again.
func (s *shared) begin(what string, t *turn, reads bool) {
	if s.next[what] != t {
		return
	}
	delete(s.next, what)
	switch {
	case reads:
	case t.before == nil:
		delete(s.last, what)
	default:
		s.last[what] = t.before
	}
	t.before = nil
}

// wait returns when the next turn may begin. For the end of this one it waits as long as for a connection.
func (t *turn) wait(ctx context.Context) error {
	if t == nil {
		return nil
	}
	ends, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	select {
	case <-t.done:
		pause.Exactly(ctx, time.Until(t.free))
		return ctx.Err()
	case <-ends.Done():
		return fmt.Errorf("the read before has not ended: %w", ends.Err())
	}
}

func (t *turn) over() bool {
	select {
	case <-t.done:
		return time.Now().After(t.free)
	default:
		return false
	}
}
