package server

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/lending"
	"github.com/pglock-dev/pglock/internal/pause"
)

// silentFor is how long a statement on the own connection is waited for before the client asks whether the leader is
// another server by now. A leader that has gone in silence would hold the statement for its whole time.
const silentFor = time.Second

// whileSilent looks for a leader elsewhere while the own connection is silent, and closes that if it finds one. A
// server that is only slow is left alone: a new connection leads to it again. moved ends it, and says whether the
// connection was closed.
func (s *Server) whileSilent(ctx context.Context, silent *pgx.Conn) (moved func() bool) {
	if !followsLeader(s.pool.Config().ConnConfig) {
		return func() bool { return false } // a balancer ends its connections itself
	}
	ctx, cancel := context.WithCancel(ctx)
	found := make(chan bool, 1)
	go func() { found <- pause.Exactly(ctx, silentFor) && s.leadsElsewhere(ctx, silent) }()
	return func() bool {
		cancel()
		return <-found
	}
}

func (s *Server) leadsElsewhere(ctx context.Context, silent *pgx.Conn) bool {
	other, err := s.lender.Lend(ctx, lending.Own)
	if err != nil {
		return false
	}
	defer other.Give()
	at, was := other.Conn.Config(), silent.Config()
	if address(at.Host, at.Port) == address(was.Host, was.Port) {
		return false
	}
	_ = silent.PgConn().Conn().Close()
	return true
}
