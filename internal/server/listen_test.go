package server

import (
	"errors"
	"testing"
	"time"

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
			p.losses.lost = func() { t.Error("it counts as lost") }
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
		})
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
