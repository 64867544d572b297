package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/build"
	"github.com/pglock-dev/pglock/internal/listener"
	"github.com/pglock-dev/pglock/internal/protocol"
)

// ownConn is the heartbeat's connection, outside the pool. Only one goroutine at a time uses it.
type ownConn struct {
	server *Server
	conn   *pgx.Conn // nil until it is used
	marked *pgx.Conn // the one that the server knows as the heartbeat's

	reconnected func(after time.Duration, err error) // nil: nobody hears of it
	lost        time.Time                            // when the last connection was lost; zero if it was not
	cause       error                                // of that
}

// run runs a step. If anything is wrong with the connection, the next attempt gets a new one.
func (o *ownConn) run(ctx context.Context, step protocol.Step) error {
	if o.conn == nil || o.conn.IsClosed() {
		if o.conn != nil {
			o.hasLost(errClosed)
		}
		conn, err := o.server.Connect(ctx)
		if err != nil {
			return err
		}
		o.conn = conn
	}
	err := o.server.executor.Run(ctx, o.conn, step)
	switch {
	case protocol.ConnectionLost(err):
		o.hasLost(err)
		o.server.CloseOwn()
	case !o.lost.IsZero():
		if o.reconnected != nil {
			o.reconnected(time.Since(o.lost), o.cause)
		}
		o.lost, o.cause = time.Time{}, nil
	}
	return err
}

var errClosed = errors.New("the connection was closed")

// hasLost notes the loss of a connection, until another one works.
func (o *ownConn) hasLost(err error) {
	if o.lost.IsZero() {
		o.lost, o.cause = time.Now(), err
	}
}

// CloseOwn closes the own connection until it is used again.
func (s *Server) CloseOwn() { s.closeOwn(context.Background()) } //nolint:forbidigo // says goodbye after everything else ended

func (s *Server) closeOwn(ctx context.Context) {
	if s.own.conn != nil {
		ctx, cancel := context.WithTimeout(ctx, listener.Goodbye)
		defer cancel()
		_ = s.own.conn.Close(ctx)
		s.own.conn = nil
	}
}

// Connect opens a connection outside the pool, made as the pool would make it. It is the caller's.
func (s *Server) Connect(ctx context.Context) (*pgx.Conn, error) {
	pool := s.pool.Config()
	config := pool.ConnConfig.Copy()
	if pool.BeforeConnect != nil {
		if err := pool.BeforeConnect(ctx, config); err != nil {
			return nil, fmt.Errorf("BeforeConnect: %w", err)
		}
	}
	protocol.ObserveCommits(config)
	argument.NameApplication(config.RuntimeParams)
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	if pool.AfterConnect != nil {
		if err := pool.AfterConnect(ctx, conn); err != nil {
			_ = conn.Close(ctx)
			return nil, fmt.Errorf("AfterConnect: %w", err)
		}
	}
	if pool.PrepareConn != nil {
		if ok, err := pool.PrepareConn(ctx, conn); err != nil || !ok {
			_ = conn.Close(ctx)
			return nil, fmt.Errorf("PrepareConn refused a connection of the client: %w", errors.Join(err, ctx.Err()))
		}
	}
	return conn, nil
}

// Beat does everything in one statement: the verdicts of the leases, and every ticket of the session that is still
// queued.
func (s *Server) Beat(ctx context.Context, who protocol.Session, b protocol.Beat) (map[protocol.Claim]protocol.Verdict, map[int64]protocol.Sighting, error) {
	verdicts, sightings := make(map[protocol.Claim]protocol.Verdict, len(b.Claims)), make(map[int64]protocol.Sighting)
	err := s.own.run(ctx, s.Queries.Beat(who, b, verdicts, sightings))
	if err == nil {
		s.own.mark(ctx, who)
	}
	return verdicts, sightings, err
}

// mark tells the server whose connection this is, once for each, so that people find a holder. Nothing depends on it.
func (o *ownConn) mark(ctx context.Context, who protocol.Session) {
	if o.marked == o.conn {
		return
	}
	o.marked = o.conn
	_ = o.run(ctx, o.server.Queries.Mark(who, o.conn.PgConn().PID(), build.Version()))
}

// RenewWaiting renews a lease, and waits at most so long for its row.
func (s *Server) RenewWaiting(ctx context.Context, c protocol.Claim, wait time.Duration) (v protocol.Verdict, err error) {
	err = s.own.run(ctx, s.Queries.Renew(c, wait, &v))
	return v, err
}

// OwnTickets returns the requests behind tickets of the session.
func (s *Server) OwnTickets(ctx context.Context, who protocol.Session, tickets []int64) (all []protocol.RequestID, err error) {
	err = s.own.run(ctx, s.Queries.OwnTickets(who, tickets, &all))
	return all, err
}

// TakeBack takes requests back, all of them or none.
func (s *Server) TakeBack(ctx context.Context, who protocol.Session, spend bool, requests []protocol.RequestID) ([]protocol.TakenBack, error) {
	backs := make([]protocol.TakenBack, len(requests))
	return backs, s.own.run(ctx, s.Queries.TakeBack(who, spend, requests, backs))
}

// ReleaseAll releases leases.
func (s *Server) ReleaseAll(ctx context.Context, claims []protocol.Claim) ([]protocol.Ending, error) {
	endings := make([]protocol.Ending, len(claims))
	return endings, s.own.run(ctx, s.Queries.ReleaseAll(claims, endings))
}

// AnnounceOwn is Announce on the own connection.
func (s *Server) AnnounceOwn(ctx context.Context, names []string, slots []*int) error {
	return s.own.run(ctx, s.Queries.Announce(names, slots, new(int64)))
}

// EndSession ends the session, with all its tickets.
func (s *Server) EndSession(ctx context.Context, who protocol.Session) error {
	return s.own.run(ctx, s.Queries.EndSession(who))
}

// Sweep removes what nobody needs any more.
func (s *Server) Sweep(ctx context.Context) error { return s.own.run(ctx, s.Queries.Sweep()) }
