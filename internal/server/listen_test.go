package server

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/lending"
	"github.com/pglock-dev/pglock/internal/protocol"
)

// A connection that listens no more goes on for others, also if one of them uses it at that moment, and over a slow
// network.
func TestAConnectionThatListensNoMoreGoesOn(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(*testing.T, *pair, *hearing){
		"in use": func(t *testing.T, p *pair, h *hearing) {
			loan := must.Get(p.lender.Claim(t.Context(), h.conn))(t)
			time.AfterFunc(3*goodbye, loan.Give)
		},
		"over a slow network": func(_ *testing.T, p *pair, _ *hearing) { p.late.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startPair(t, firstHost)
			h := must.Get(p.Listen(t.Context()))(t).(*hearing)
			must.Do(t, h.Subscribe(t.Context(), "a"))
			begin(t, p, h)
			h.Close(true)
			p.late.Store(false)
			loan := must.Get(p.lender.Lend(t.Context(), lending.Own))(t)
			defer loan.Give()
			answers, err := simply(t.Context(), loan.Conn, "SELECT pg_catalog.pg_listening_channels()")
			if loan.Conn != h.conn || err != nil || len(answers[0].Rows) > 0 {
				t.Errorf("the next loan is the same: %v; it listens: %v, %v", loan.Conn == h.conn, answers, err)
			}
			p.losses.mu.Lock()
			defer p.losses.mu.Unlock()
			if !p.losses.since.IsZero() {
				t.Error("it counts as lost:", p.losses.cause)
			}
		})
	}
}

// The application may let its connections listen: what comes over an own one is kept for nobody but a listener.
func TestAnOwnConnectionKeepsNothingThatNobodyReads(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	sender := db.Conn(t)
	s := New(db.Pool(t, func(c *pgxpool.Config) {
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "LISTEN app")
			return err
		}
	}), "pglock", nil, errors.New("closed"))
	t.Cleanup(s.Close)
	s.lender.Keep()
	comes := func(to *pgx.Conn) (kept int) {
		t.Helper()
		must.Get(sender.Exec(t.Context(), "NOTIFY app"))(t)
		loan := must.Get(s.lender.Claim(t.Context(), to))(t) // its statement brings what was sent before
		defer loan.Give()
		must.Get(simply(t.Context(), to, "SELECT"))(t)
		e := earsOf(to)
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.heard)
	}
	loan := must.Get(s.lender.Lend(t.Context(), lending.OwnFirst))(t)
	loan.Give()
	if n := comes(loan.Conn); n > 0 {
		t.Errorf("%d are kept before anybody listens", n)
	}
	h := must.Get(s.Listen(t.Context()))(t)
	if n := comes(loan.Conn); n != 1 {
		t.Errorf("%d are kept while a listener has not read any, want 1", n)
	}
	h.Close(true)
	if n := comes(loan.Conn); n > 0 {
		t.Errorf("%d are kept after that", n)
	}
}

// The client ends while somebody uses the connection that listens: nobody waits for that.
func TestTheEndOfTheClientWaitsForNoConnectionThatListens(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Database(t).Pool(t), "pglock", nil, errors.New("closed"))
	t.Cleanup(s.Close)
	h := must.Get(s.Listen(t.Context()))(t).(*hearing)
	hangs := must.Get(s.lender.Claim(t.Context(), h.conn))(t)
	defer hangs.Give()
	closed := make(chan struct{})
	go func() { h.Close(true); close(closed) }()
	time.AfterFunc(goodbye/2, s.end) // it waits by then
	select {
	case <-closed:
	case <-time.After(protocol.Patience / 2):
		t.Error("it is waited for")
		<-closed
	}
}
