package leader_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/leader"
	"github.com/pglock-dev/pglock/pglock"
)

// seen is what a loop over Observe is given.
type seen struct {
	leader.Info
	err error
}

// observing reads Observe in a goroutine of its own; the channel is closed when the loop has ended.
func observing(ctx context.Context, client *pglock.Client) <-chan seen {
	out := make(chan seen)
	go func() {
		defer close(out)
		for info, err := range leader.Observe(ctx, client, "x") {
			select {
			case out <- seen{info, err}:
			case <-ctx.Done():
			}
		}
	}()
	return out
}

func TestObserverSeesTheStateThenEachChangeUntilItsCtxEnds(t *testing.T) {
	t.Parallel()
	e := newElection(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	client := e.client()
	infos := observing(ctx, client)
	next := func(what string) leader.Info {
		t.Helper()
		s := receive(t, infos, what)
		if s.err != nil {
			t.Fatalf("%s: %v", what, s.err)
		}
		return s.Info
	}
	if info := next("nobody"); info.Led || info.Token != 0 || info.Holder != "" || !info.Since.IsZero() {
		t.Errorf("before anybody leads: %+v", info)
	}
	address := json.RawMessage(`{"address": "10.0.0.1:80"}`)
	a := e.join("a", false, leader.WithMetadata(address))
	now := a.leads()
	info := next("a leads")
	if !info.Led || info.Holder != "a" || info.Token != now.lease.Token() || string(info.Metadata) != string(address) ||
		time.Since(info.Since).Abs() > time.Minute {
		t.Errorf("a leads: %+v", info)
	}
	b := e.queue("b")[0]
	must.Do(t, a.HandOver(t.Context(), "b"))
	now = b.leads()
	if info := next("b leads"); info.Holder != "b" || info.Token != now.lease.Token() || info.Metadata != nil {
		t.Errorf("b leads: %+v", info)
	}
	if info, err := leader.Current(t.Context(), client, "x"); err != nil || info.Token != now.lease.Token() {
		t.Errorf("who leads now: %+v, %v", info, err)
	}
	e.eventually("a to queue again", func() bool { return e.waiting() == 1 })
	a.leave()
	_ = a.ends()
	e.eventually("a to leave the queue", func() bool { return e.waiting() == 0 })
	b.leave()
	_ = b.ends()
	if info := next("nobody"); info.Led {
		t.Errorf("after all have left: %+v", info)
	}
	cancel()
	if s, open := <-infos; open {
		t.Errorf("after the end of its ctx the loop was given %+v", s)
	}
}

func TestObserverIsToldOneLastErrorWhenItsClientIsClosed(t *testing.T) {
	t.Parallel()
	e := newElection(t)
	client := e.client()
	infos := observing(t.Context(), client)
	receive(t, infos, "nobody")
	must.Do(t, client.Close(t.Context()))
	if s := receive(t, infos, "the last error"); !errors.Is(s.err, pglock.ErrClosed) {
		t.Errorf("%+v", s)
	}
	if s, open := <-infos; open {
		t.Errorf("after the error the loop was given %+v", s)
	}
	if _, err := leader.Current(t.Context(), client, "x"); !errors.Is(err, pglock.ErrClosed) {
		t.Errorf("Current: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := leader.Current(ctx, e.client(), "x"); !errors.Is(err, context.Canceled) {
		t.Errorf("Current: %v", err)
	}
}

// Current needs one connection, of the pool: it opens none that listens.
func TestCurrentOpensNoConnection(t *testing.T) {
	t.Parallel()
	var opened atomic.Int64 // by the pool, and by the client as the pool does it
	pool := pgtest.Database(t).Pool(t, func(config *pgxpool.Config) {
		config.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { opened.Add(1); return nil }
	})
	client := must.Get(pglock.New(t.Context(), pool))(t)
	for range 10 {
		must.Get(leader.Current(t.Context(), client, "x"))(t)
	}
	if err := client.Close(t.Context()); err != nil { // what it began to open is open now
		t.Fatal(err)
	}
	if of := pool.Stat().NewConnsCount(); opened.Load() != of {
		t.Errorf("%d connections were opened, %d of them by the pool", opened.Load(), of)
	}
}
