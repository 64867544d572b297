package peer

import (
	"context"
	"sync"
)

// A gatherer does simultaneous calls together. The first goes at once. Those that come while as many groups as
// allowed are under way go together in the next.
type gatherer[T any] struct {
	do       func(ctx context.Context, group []*T) error
	ctx      context.Context // the client's: a group does not end with one of its members
	groups   sync.WaitGroup
	mu       sync.Mutex
	waiting  []*call[T]
	underWay int
	most     int // groups under way
}

type call[T any] struct {
	what *T
	done chan error
}

func newGatherer[T any](ctx context.Context, most int, do func(ctx context.Context, group []*T) error) *gatherer[T] {
	return &gatherer[T]{ctx: ctx, most: most, do: do}
}

// call has one done and returns when it is; what comes of it is written into it.
func (g *gatherer[T]) call(ctx context.Context, what *T) error {
	c := &call[T]{what: what, done: make(chan error, 1)}
	g.mu.Lock()
	g.waiting = append(g.waiting, c)
	if g.underWay < g.most {
		g.underWay++
		g.groups.Go(g.work)
	}
	g.mu.Unlock()
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// work does groups until nobody waits.
func (g *gatherer[T]) work() {
	for {
		g.mu.Lock()
		group := g.waiting
		g.waiting = nil
		if len(group) == 0 {
			g.underWay--
			g.mu.Unlock()
			return
		}
		g.mu.Unlock()
		all := make([]*T, len(group))
		for i, c := range group {
			all[i] = c.what
		}
		err := g.do(g.ctx, all)
		for _, c := range group {
			c.done <- err
		}
	}
}

// close waits for the groups that are under way.
func (g *gatherer[T]) close() { g.groups.Wait() }
