package fencedhttp

import (
	"context"
	"sync"

	"github.com/pglock-dev/pglock/pglock"
)

// gate lets the handlers of only one token at a time run for each resource, in ascending order of tokens.
type gate struct {
	mu    sync.Mutex // guards all turns too; never held across a wait
	turns map[string]*turn
}

// turn is the state of one resource. It lives while a request is between pin and unpin, so that an overtaken request
// finds out.
type turn struct {
	pins    int
	highest pglock.Token  // that has tried to enter; no lower one enters any more
	current pglock.Token  // of the handlers that run
	running int           // how many run; all have the token current
	changed chan struct{} // closed and replaced when running falls to 0 and when highest rises
}

func (t *turn) wake() {
	close(t.changed)
	t.changed = make(chan struct{})
}

func (g *gate) pin(resource string) *turn {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.turns[resource]
	if t == nil {
		t = &turn{changed: make(chan struct{})}
		if g.turns == nil {
			g.turns = map[string]*turn{}
		}
		g.turns[resource] = t
	}
	t.pins++
	return t
}

func (g *gate) unpin(resource string, t *turn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.pins--; t.pins == 0 {
		delete(g.turns, resource)
	}
}

// enter waits until the handlers of lower tokens have returned, and returns the token; leave must follow. If it has
// not entered, it returns a greater token that has come, or the cause of ctx's end.
func (g *gate) enter(ctx context.Context, t *turn, token pglock.Token) (pglock.Token, error) {
	for {
		entered, highest, changed := g.try(t, token)
		if entered || highest > token {
			return highest, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

func (g *gate) try(t *turn, token pglock.Token) (entered bool, highest pglock.Token, changed <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if token > t.highest {
		t.highest = token
		t.wake() // requests that wait with a lower token
	}
	if token == t.highest && (t.running == 0 || t.current == token) {
		t.current = token
		t.running++
		return true, token, nil
	}
	return false, t.highest, t.changed
}

func (g *gate) leave(t *turn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.running--; t.running == 0 {
		t.wake()
	}
}
