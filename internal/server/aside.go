package server

import (
	"context"
	"time"

	"github.com/pglock-dev/pglock/internal/protocol"
)

// briefly limits a step aside, and the wait for its connection. Over a slow network each may take longer.
const briefly = time.Second

// Aside runs one short step beside what goes on, on a connection of the pool or, if none is free soon, on another that
// can be had. The end of ctx ends the wait for a connection, and leaves a step that has one alone, because pgx would
// close the connection.
func (s *Server) Aside(ctx context.Context, step protocol.Step) error {
	limit := s.pace.allow(briefly)
	waiting, cancel := context.WithTimeout(ctx, limit)
	conn, give, err := s.lend(Valueless{waiting})
	cancel()
	if err != nil {
		return err
	}
	defer give()
	running, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	return s.executor.Run(running, conn, step)
}
